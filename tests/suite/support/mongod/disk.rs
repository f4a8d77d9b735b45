//! A disk that can be filled: a file system in memory, in a namespace of its own, so that no privilege is needed and it is
//! gone with the last process that uses it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A mounted disk.
pub struct Disk {
    /// Where it is mounted, to processes [inside](Disk::inside).
    pub dir: TempDir,
    /// Keeps the namespace until its standard input is closed.
    holder: Child,
}

/// What is written to fill a disk: small enough to leave nothing.
const PIECE: [u8; 4096] = [0; 4096];

impl Disk {
    /// A new disk of so many MiB.
    pub fn mount(mib: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mount = "mount -t tmpfs -o size=\"$1\"m none \"$2\" && echo mounted && read -r _";
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", mount, "holder", &mib.to_string()]).arg(dir.path());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut holder = spawned.expect("there is an unshare");
        let mut said = String::new();
        let out = holder.stdout.take().expect("it was asked for");
        BufReader::new(out).read_line(&mut said).expect("its output can be read");
        assert_eq!(said, "mounted\n", "a process here must be allowed its own user and mount namespaces");
        Self { dir, holder }
    }

    /// What goes before a command that is to see the disk.
    pub fn inside(&self) -> Vec<String> {
        let holder = self.holder.id().to_string();
        ["nsenter", "--target", &holder, "--user", "--mount", "--preserve-credentials", "--"].map(str::to_owned).into()
    }

    /// The file that takes the room, as seen from outside.
    fn ballast(&self) -> PathBuf {
        let inside = self.dir.path().join("ballast");
        PathBuf::from(format!("/proc/{}/root{}", self.holder.id(), inside.display()))
    }

    /// Takes all the room there is.
    pub fn fill(&self) {
        let mut ballast = fs::File::create(self.ballast()).expect("the disk is there");
        while ballast.write_all(&PIECE).is_ok() {}
    }

    /// Gives the room back.
    pub fn free(&self) {
        fs::remove_file(self.ballast()).expect("it was filled");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ended = self.holder.wait();
    }
}
