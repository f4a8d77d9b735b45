//! One real `mongod` process, seen to not outlive the test process.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;

use super::disk::Disk;
use super::{Access, until};

pub struct Mongod {
    /// A shell that kills the server and removes its data once its standard input is closed, which the kernel does
    /// when this process ends, be it by a panic, an abort or `kill -9`.
    watchdogs: Vec<Child>,
    port: u16,
    /// Its data, log and process id. Named here as well, so that it is gone when a dropped set has been dropped.
    dir: TempDir,
    pub disk: Option<Arc<Disk>>,
}

const WATCHDOG: &str = r#"
    dir=$1; shift
    {
        "$@" >"$dir/log" 2>&1 </dev/null &
        echo $! >"$dir/pid"
        wait $!
        echo "mongod has ended" >>"$dir/log"
    } 2>/dev/null &
    read -r _
    kill -9 "$(cat "$dir/pid" 2>/dev/null)" 2>/dev/null
    wait
    rm -rf "$dir"
"#;

impl Mongod {
    /// `mongod` cannot be told port 0. The port that was free a moment ago may be taken when it binds; then another is
    /// tried.
    pub async fn start(access: Access, disk: Option<Arc<Disk>>) -> Self {
        for _attempt in 0..5 {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
            let mut node = Self { watchdogs: Vec::new(), port, dir, disk: disk.clone() };
            node.spawn(access);
            if node.listens().await {
                return node;
            }
        }
        panic!("mongod found its port taken five times");
    }

    /// Waits until it listens; gives false when it finds its port taken.
    async fn listens(&self) -> bool {
        let log = self.dir.path().join("log");
        until("mongod listens", async || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let is_taken = log.contains("Address already in use");
            assert!(is_taken || !log.contains("mongod has ended"), "mongod does not start; it says: {log}");
            (is_taken || log.contains("Waiting for connections")).then_some(!is_taken)
        })
        .await
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.dir.path().join("pid")).expect("it runs").trim().to_owned()
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.pid()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "mongod has ended before its time");
    }

    pub fn is_running(&self) -> bool {
        Path::new("/proc").join(self.pid()).exists()
    }

    pub async fn restart(&mut self, access: Access) {
        until("the killed mongod is gone", async || (!self.is_running()).then_some(())).await;
        self.spawn(access);
        assert!(self.listens().await, "its port is taken");
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn spawn(&mut self, access: Access) {
        let dir = self.dir.path();
        // What an earlier start has said is no sign of this one.
        let _not_there_at_first = fs::remove_file(dir.join("log"));
        let mut command = Command::new("sh");
        command.args(["-c", WATCHDOG, "watchdog"]).arg(dir);
        let data = self.disk.as_ref().map_or_else(|| dir.join("data"), |disk| disk.dir.path().to_owned());
        if let Some(disk) = &self.disk {
            command.args(disk.inside());
        }
        fs::create_dir_all(&data).expect("the folder is ours");
        command.arg(binary()).arg("--dbpath").arg(data);
        command.args(["--port", &self.port.to_string(), "--bind_ip", "127.0.0.1", "--nounixsocket"]);
        command.args(["--replSet", "rs0", "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64"]);
        // Without the diagnostics the server writes nothing of its own each second.
        for parameter in ["ttlMonitorSleepSecs=1", "diagnosticDataCollectionEnabled=false"] {
            command.args(["--setParameter", parameter]);
        }
        if access == Access::Password {
            let key = dir.join("key");
            fs::write(&key, "MembersOfTheSetKnowEachOtherByThis").expect("the folder is ours");
            fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the file is ours");
            command.arg("--keyFile").arg(key);
        }
        self.watchdogs.push(command.stdin(Stdio::piped()).spawn().expect("there is a shell"));
    }
}

impl Drop for Mongod {
    fn drop(&mut self) {
        for watchdog in self.watchdogs.iter_mut().rev() {
            drop(watchdog.stdin.take());
            let _killed = watchdog.wait();
        }
    }
}

/// The server's executable: `MONGOD`, else from `PATH`, else where `tests/services.sh` puts one.
fn binary() -> PathBuf {
    let named = std::env::var_os("MONGOD").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("mongod"));
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join(".services/mongod");
    named
        .into_iter()
        .chain(on_path)
        .chain([fetched])
        .find(|candidate| candidate.is_file())
        .expect("there is no mongod to test with: run tests/run.sh, which finds or fetches one")
}
