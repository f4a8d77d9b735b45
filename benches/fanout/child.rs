//! A server in a process of its own, on the servers' core.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use super::bare::Shape;
use super::sys;

/// The core of whatever serves.
pub const SERVERS: usize = 0;
/// The core of the load.
pub const LOAD: usize = 1;

/// Limits that are about clients' manners, out of the way of a single client that plays a thousand.
pub const NO_LIMITS: &str = "max_frames_per_sec = 100000\nmax_connections = 100000";

/// A server; it is killed when this is dropped.
pub struct Server {
    child: Child,
    _out: BufReader<ChildStdout>,
    _data: Option<TempDir>,
    pub address: SocketAddr,
}

impl Server {
    /// This server, with an embedded store; `server` is the section of that name.
    pub fn danmakud(server: &str) -> Self {
        let data = TempDir::new().expect("a temporary folder");
        let file = data.path().join("danmakud.toml");
        let dir = data.path().join("data");
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = {dir:?}\n[log]\nfilter = \"warn\"\n[limits]\nmin_interval = \"0s\"\n\
             [server]\n{server}\n"
        );
        fs::write(&file, config).expect("the folder takes a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_danmakud"));
        command.arg("--config").arg(file);
        Self::start(command, Some(data))
    }

    /// The obvious design.
    pub fn obvious() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.arg("obvious");
        Self::start(command, None)
    }

    /// The bare loop of writes.
    pub fn bare(shape: Shape) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(shape.to_args());
        Self::start(command, None)
    }

    fn start(mut command: Command, data: Option<TempDir>) -> Self {
        // A process inherits the core of the thread that starts it.
        sys::pin(SERVERS);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        sys::pin(LOAD);
        let mut child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert_ne!(out.read_line(&mut line).expect("its output is text"), 0, "{command:?} has ended");
            if let Some(address) = line.trim().strip_prefix("listening on http://") {
                break address.parse().expect("an address");
            }
        };
        Self { child, _out: out, _data: data, address }
    }

    /// Lets the bare loop begin.
    pub fn go(&mut self) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        input.write_all(b"\n").and_then(|()| input.flush()).expect("the child reads");
    }

    /// CPU seconds used so far.
    pub fn cpu(&self) -> f64 {
        sys::cpu_seconds(self.child.id())
    }

    /// KiB resident now.
    pub fn resident(&self) -> f64 {
        sys::resident_kib(self.child.id())
    }

    /// A metric of this server without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        let request = "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("the server reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the answer is text");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no metric {name} in\n{text}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}
