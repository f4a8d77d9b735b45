//! Starts the real binary, and talks HTTP with it.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::mongod::disk::Disk;

/// Longer than anything takes, so that a failure is told instead of hanging.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What makes a server slow to refuse, for tests that send a lot.
pub const NO_LIMITS: &str = "[limits]\nmin_interval = \"0s\"\n[server]\nmax_frames_per_sec = 100000\n";

/// A running server; killed when it is dropped.
pub struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub address: SocketAddr,
    _config: TempDir,
}

/// How a server ended.
#[derive(Debug)]
pub struct End {
    pub code: Option<i32>,
    /// What it printed since it listened.
    pub stdout: String,
    pub stderr: String,
}

/// The account in the last line of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastLine {
    pub accepted: u64,
    pub recovered: u64,
    pub stored: u64,
    pub set_aside: u64,
    pub in_outbox: u64,
    pub not_stored: u64,
}

impl End {
    /// Reads the account; fails when the last line is not one.
    pub fn ledger(&self) -> LastLine {
        let line = self.stdout.lines().last().unwrap_or_default();
        let field = |name: &str| {
            let found = line.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
            found.unwrap_or_else(|| panic!("no {name} in the last line {line:?} of {self:?}"))
        };
        assert!(line.starts_with("ledger: "), "{self:?}");
        LastLine {
            accepted: field("accepted"),
            recovered: field("recovered"),
            stored: field("stored"),
            set_aside: field("set_aside"),
            in_outbox: field("in_outbox"),
            not_stored: field("not_stored"),
        }
    }
}

/// How a server is started.
pub struct Start {
    data_dir: PathBuf,
    config: String,
    args: Vec<String>,
    /// What goes before the command.
    prefix: Vec<String>,
}

impl Start {
    /// With its data in this folder and everything else at its default.
    pub fn in_folder(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned(), config: String::new(), args: Vec::new(), prefix: Vec::new() }
    }

    /// With its data on this disk.
    pub fn on_disk(disk: &Disk) -> Self {
        Self { prefix: disk.inside(), ..Self::in_folder(disk.dir.path()) }
    }

    /// With this configuration as well.
    pub fn config(mut self, toml: &str) -> Self {
        writeln!(self.config, "{toml}").expect("writing to a text");
        self
    }

    /// With these flags as well.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Under these limits of open files, soft and hard.
    pub fn open_files(mut self, soft: u32, hard: u32) -> Self {
        let limited = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
        self.prefix.extend(["sh", "-c", &limited].map(str::to_owned));
        self
    }

    fn command(&self) -> (Command, TempDir) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("danmakud.toml");
        std::fs::write(&file, &self.config).expect("the folder is ours");
        let binary = env!("CARGO_BIN_EXE_danmakud");
        let mut words = self.prefix.iter().map(String::as_str).chain([binary]);
        let mut command = Command::new(words.next().expect("the binary at least"));
        command.args(words);
        command.arg("--config").arg(&file).arg("--data-dir").arg(&self.data_dir);
        if !self.args.iter().any(|arg| arg == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        (command, folder)
    }

    /// Starts it, expecting that it ends by itself, and waits for that.
    pub async fn fail(self) -> End {
        let (mut command, _config) = self.command();
        end_of(command.spawn().expect("the binary is built with the tests")).await
    }

    /// Starts it, tells it to stop once this has come about, and waits until it has ended.
    pub async fn stop_when(self, has_come: impl Future) -> End {
        let (mut command, _config) = self.command();
        let child = command.spawn().expect("the binary is built with the tests");
        let id = child.id().to_string();
        timeout(PATIENCE, has_come).await.expect("it comes about");
        let sent = Command::new("kill").args(["-TERM", &id]).status().expect("there is a kill");
        assert!(sent.success(), "the server has ended before its time");
        end_of(child).await
    }

    /// Starts it, and waits until it listens.
    pub fn run(self) -> Server {
        self.try_run().unwrap_or_else(|end| panic!("the server did not start: {end:?}"))
    }

    /// As [`Start::run`], when it may end instead.
    pub fn try_run(self) -> Result<Server, End> {
        let (mut command, folder) = self.command();
        let mut child = command.spawn().expect("the binary is built with the tests");
        let mut stdout = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("its output can be read");
        let Some(address) = line.trim().strip_prefix("listening on http://") else {
            let mut stderr = String::new();
            child.stderr.take().expect("it was asked for").read_to_string(&mut stderr).expect("it is text");
            let code = child.wait().expect("it is our child").code();
            return Err(End { code, stdout: line, stderr });
        };
        let address = address.parse().expect("it is an address");
        Ok(Server { child, stdout, address, _config: folder })
    }
}

impl Server {
    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().expect("there is a kill");
        assert!(sent.success(), "the server has ended before its time");
    }

    /// Waits until it has ended.
    pub async fn end(mut self) -> End {
        let wait = tokio::task::spawn_blocking(move || {
            let (mut stdout, mut stderr) = (String::new(), String::new());
            self.stdout.read_to_string(&mut stdout).expect("it is text");
            let mut errors = self.child.stderr.take().expect("it was asked for");
            errors.read_to_string(&mut stderr).expect("it is text");
            let code = self.child.wait().expect("it is our child").code();
            End { code, stdout, stderr }
        });
        timeout(PATIENCE, wait).await.expect("the server ends in time").expect("waiting does not fail")
    }

    /// Stops it as an operator would, and waits until it has ended.
    pub async fn stop(self) -> End {
        self.signal("TERM");
        self.end().await
    }

    /// Sends a request; gives the status, the head and the body.
    pub async fn request(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let answer = raw(self.address, head.as_bytes()).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no status in {head:?}")), head.to_lowercase(), body.to_owned())
    }

    /// Asks for JSON and gets it with its status.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.request("GET", path, "").await;
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body:?}")))
    }

    /// Says something over HTTP.
    pub async fn post(&self, room: &str, query: &str, body: &Value) -> (u16, Value) {
        let path = format!("/api/rooms/{room}/comments?{query}");
        let (status, _, body) = self.request("POST", &path, &body.to_string()).await;
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body:?}")))
    }

    /// Reads a metric, with its labels as they are printed.
    pub async fn metric(&self, name: &str) -> i64 {
        let (_, _, text) = self.request("GET", "/metrics", "").await;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no metric {name} in\n{text}"))
    }

    /// Adds up a metric over its labels; 0 when none of them was counted yet.
    pub async fn sum(&self, name: &str) -> i64 {
        let (_, _, text) = self.request("GET", "/metrics", "").await;
        let of_label = |line: &str| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' ')?.1.parse::<i64>().ok();
        text.lines().filter_map(of_label).sum()
    }

    /// How many files it may have open now: its soft limit.
    pub fn open_files(&self) -> u32 {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.child.id())).expect("it runs");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("Linux tells it");
        line.split_whitespace().next().and_then(|soft| soft.parse().ok()).expect("a number")
    }

    /// The memory it has in use, in KiB.
    pub fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells it");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Fails unless the server is well: it says so, and a viewer gets what it says in a room of its own.
    pub async fn is_well(&self) {
        let (status, _, body) = self.request("GET", "/healthz", "").await;
        assert_eq!((status, body.as_str()), (200, "ok\n"));
        let mut viewer = super::viewer::Viewer::join(self.address, "well", "").await;
        let ack = viewer.say("well", "all is well", "stored").await;
        assert_eq!(ack["type"], "ack", "{ack}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _may_have_ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs the binary with these arguments to its end.
pub async fn run(args: &[&str]) -> End {
    let mut command = Command::new(env!("CARGO_BIN_EXE_danmakud"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_of(command.spawn().expect("the binary is built")).await
}

async fn end_of(child: Child) -> End {
    let id = child.id().to_string();
    let wait = tokio::task::spawn_blocking(move || child.wait_with_output().expect("it is our child"));
    let Ok(output) = timeout(PATIENCE, wait).await else {
        let _ends_the_wait = Command::new("kill").args(["-9", &id]).status();
        panic!("the program does not end");
    };
    let output = output.expect("waiting does not fail");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    End { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Asks again until it is so, and fails when it is not within [`PATIENCE`].
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(PATIENCE, asking).await.is_ok(), "gave up waiting until {what}");
}

/// Sends bytes and gives all that comes back until the server closes.
pub async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(address).await.expect("the server listens");
        stream.write_all(bytes).await.expect("the server reads");
        let mut answer = Vec::new();
        // A reset after the answer is an end as well.
        let _end = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    timeout(PATIENCE, talk).await.expect("the server answers in time")
}
