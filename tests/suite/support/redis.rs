//! A real Redis for a test: its own process, port and directory, gone when dropped.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub struct RedisServer {
    port: u16,
    password: Option<&'static str>,
    /// More of the command line.
    args: Vec<String>,
    dir: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts `redis-server` from the PATH, or the one that REDIS_SERVER names, and waits until it listens.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    pub async fn start_with(password: Option<&'static str>) -> Self {
        Self::start_as(password, &[]).await
    }

    pub(super) async fn start_as_sentinel() -> Self {
        Self::start_as(None, &["--sentinel"]).await
    }

    pub(super) async fn start_as(password: Option<&'static str>, args: &[&str]) -> Self {
        // Between finding a free port and Redis taking it another process may be faster.
        for _ in 0..5 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let (dir, args) = (tempfile::tempdir().unwrap(), args.iter().map(|&arg| arg.to_owned()).collect());
            let mut server = Self { port, password, args, dir, child: None };
            if server.resume().await {
                return server;
            }
        }
        panic!("redis-server does not start: no free port was found for it");
    }

    /// Starts the process again on the same port, empty; false when it ended at once.
    pub async fn resume(&mut self) -> bool {
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(&program);
        if self.args.iter().any(|arg| arg == "--sentinel") {
            // It keeps there what it is told.
            let file = self.dir.path().join("sentinel.conf");
            std::fs::write(&file, "").unwrap();
            command.arg(file);
        } else {
            command.args(["--save", "", "--appendonly", "no"]);
        }
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]).args(&self.args);
        command.arg("--dir").arg(self.dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command.args(self.password.iter().flat_map(|password| ["--requirepass", password]));
        let child = command.spawn().unwrap_or_else(|error| {
            panic!(
                "these tests need Redis: put redis-server into the PATH or name it in REDIS_SERVER ({program}: {error})"
            )
        });
        let child = self.child.insert(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "redis-server does not listen within 10 s");
            sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// Ends the process without a word.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops the process without closing anything: its connections stand and nothing is answered on them.
    pub fn freeze(&self) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-STOP", &id]).status().unwrap().success());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    fn url_at(&self, port: u16) -> String {
        match self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{port}"),
            None => format!("redis://127.0.0.1:{port}"),
        }
    }

    /// A way to this server that can go dead without closing, as a lost cable does.
    pub async fn behind_cable(&self) -> (String, Cable) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = self.url_at(listener.local_addr().unwrap().port());
        let state = watch::Sender::new(State::default());
        let (server, states) = (self.port, state.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = tokio::net::TcpStream::connect(("127.0.0.1", server)).await else { continue };
                tokio::spawn(carry(near, far, states.subscribe()));
            }
        });
        (url, Cable { state })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a cable does with the connections over it.
#[derive(Clone, Copy, Default)]
struct State {
    /// Connections from before the last cut carry nothing.
    cuts: u32,
    /// Nothing goes from the server to the client: it waits, or, where it is lost, for good.
    is_stopped: bool,
    is_losing: bool,
}

pub struct Cable {
    state: watch::Sender<State>,
}

impl Cable {
    /// From now on the connections that stand carry nothing and stay open; new ones work, and everything does again.
    pub fn cut(&self) {
        self.state.send_modify(|state| *state = State { cuts: state.cuts + 1, ..State::default() });
    }

    /// What the server sends is not taken from it for now, or is again.
    pub fn stop(&self, is_stopped: bool) {
        self.state.send_modify(|state| state.is_stopped = is_stopped);
    }

    /// What the server sends from now on is lost, until the cable is cut.
    pub fn lose_answers(&self) {
        self.state.send_modify(|state| state.is_losing = true);
    }
}

async fn carry(mut near: tokio::net::TcpStream, mut far: tokio::net::TcpStream, mut states: watch::Receiver<State>) {
    for end in [&near, &far] {
        end.set_nodelay(true).unwrap();
    }
    let (mut up, mut down) = ([0; 4096], [0; 4096]);
    let begun = states.borrow().cuts;
    loop {
        let state = *states.borrow_and_update();
        if state.cuts > begun {
            break;
        }
        tokio::select! {
            read = near.read(&mut up) => match read {
                Ok(1..) => if far.write_all(&up[..read.unwrap()]).await.is_err() { return },
                _ => return,
            },
            read = far.read(&mut down), if !state.is_stopped => match read {
                Ok(_) if state.is_losing => {}
                Ok(1..) => if near.write_all(&down[..read.unwrap()]).await.is_err() { return },
                _ => return,
            },
            _ = states.changed() => {}
        }
    }
    // Holds both ends open until the test is over.
    std::future::pending().await
}
