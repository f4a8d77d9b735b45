//! The file of comments that the store refused for good, so that setting one aside does not lose it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tracing::{error, info};

use super::contract::{Record, SetAside, WriteReport};
use super::trouble::Trouble;

/// How much is kept: 16 files of 64 MiB, some three million comments.
const BOUNDS: Bounds = Bounds { bytes: 64 * 1024 * 1024, files: 16 };

/// No line is longer: a record of 1 MiB in Base64.
const LINE_BYTES: u64 = 2 * 1024 * 1024;

#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// A file that would grow beyond this is followed by another; it is longer by at most one write.
    bytes: u64,
    /// Most files. The oldest makes way.
    files: u32,
}

/// Appends what is set aside as JSON lines: id, room, time, sender, text, reason and the store's words. A full file gets the
/// ending `.1`, the one before it `.2`, and so on. Clones share it.
#[derive(Clone, Debug)]
pub struct AsideFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    bounds: Bounds,
    /// Held while the file is written.
    trouble: Mutex<Trouble>,
}

impl AsideFile {
    /// The file at `path`; it is made when the first comment is set aside.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self::bounded(path, BOUNDS)
    }

    fn bounded(path: PathBuf, bounds: Bounds) -> Self {
        Self { inner: Arc::new(Inner { path, bounds, trouble: Mutex::default() }) }
    }

    /// Writes the records that `report` names. Gives how many comments are in no file because of it; that is logged, and
    /// their ids are in the log in any case.
    pub(super) async fn append(&self, records: &[Record], report: &WriteReport) -> u64 {
        self.write(report.set_aside.iter().filter_map(|aside| line(records, aside)).collect()).await
    }

    /// Writes records that are no comments of this release, as they are, in Base64. Gives what [`AsideFile::append`] does.
    pub(super) async fn append_foreign(&self, foreign: &[(&'static str, Bytes)]) -> u64 {
        self.write(foreign.iter().map(|(field, bytes)| foreign_line(field, bytes)).collect()).await
    }

    async fn write(&self, lines: Vec<String>) -> u64 {
        let (count, inner) = (lines.len() as u64, Arc::clone(&self.inner));
        if lines.is_empty() {
            return 0;
        }
        // Broken off as the process ends: it may be there, and nobody can say.
        tokio::task::spawn_blocking(move || inner.write(&lines)).await.unwrap_or(count)
    }
}

impl Inner {
    fn write(&self, lines: &[String]) -> u64 {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path.display();
        let mut lost = 0;
        match self.make_room(lines).and_then(|dropped| {
            lost += dropped;
            append(&self.path, lines)
        }) {
            Ok(()) => {
                if let Some(comments) = trouble.end() {
                    info!(%path, comments, "what is set aside is written down again; so many were not");
                }
            }
            Err(error) => {
                lost += lines.len() as u64;
                if let Some(comments) = trouble.meet(lines.len() as u64) {
                    error!(%error, %path, comments, "cannot write down what was set aside");
                }
            }
        }
        lost
    }

    /// Begins a new file if the lines have no room in this one. Gives how many lines were dropped with the oldest.
    fn make_room(&self, lines: &[String]) -> io::Result<u64> {
        let length = self.path.metadata().map_or(0, |meta| meta.len());
        let bytes: usize = lines.iter().map(String::len).sum();
        if length == 0 || length + bytes as u64 <= self.bounds.bytes {
            return Ok(0);
        }
        let oldest = self.older(self.bounds.files - 1);
        let dropped = count_lines(&oldest)?;
        for number in (0..self.bounds.files - 1).rev() {
            match fs::rename(self.older(number), self.older(number + 1)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        if dropped > 0 {
            error!(path = %oldest.display(), comments = dropped, "the oldest of what was set aside has made way");
        }
        Ok(dropped)
    }

    /// The file that was full so many files ago.
    fn older(&self, number: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        if number > 0 {
            path.push(format!(".{number}"));
        }
        path.into()
    }
}

/// Appends lines and syncs, or leaves the file as it was.
fn append(path: &Path, lines: &[String]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    let end = end_of_lines(&mut file)?;
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    let written = file.write_all(lines.concat().as_bytes()).and_then(|()| file.sync_data());
    // If this fails too, the next write takes away what is no whole line.
    written.inspect_err(|_| drop(file.set_len(end)))
}

/// Where the last whole line ends: a write that a crash cut off may have left a part of one.
fn end_of_lines(file: &mut File) -> io::Result<u64> {
    let begin = file.metadata()?.len().saturating_sub(LINE_BYTES);
    let mut bytes = [0];
    if file.seek(SeekFrom::End(-1)).is_ok() && file.read(&mut bytes)? == 1 && bytes == *b"\n" {
        return file.stream_position();
    }
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(begin))?;
    file.read_to_end(&mut end)?;
    Ok(begin + end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1))
}

fn count_lines(path: &Path) -> io::Result<u64> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        file => file?,
    };
    let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(count),
            read => count += buffer.iter().take(read).filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}

fn foreign_line(field: &str, bytes: &[u8]) -> String {
    let line = serde_json::json!({ "reason": "damaged", "detail": field, "bytes": STANDARD.encode(bytes) });
    format!("{line}\n")
}

fn line(records: &[Record], aside: &SetAside) -> Option<String> {
    let comment = &records.iter().find(|record| record.posted.comment.id == aside.id)?.posted.comment;
    let line = serde_json::json!({
        "id": comment.id.to_string(), "room": comment.room.as_str(), "ts": comment.ts, "uid": comment.uid.as_str(),
        "name": comment.name.as_str(), "text": comment.text.as_str(), "mode": comment.style.mode.number(),
        "color": comment.style.color.number(), "size": comment.style.size.number(), "reason": aside.reason,
        "detail": aside.detail,
    });
    Some(format!("{line}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn write(file: &AsideFile, numbers: std::ops::Range<u32>) -> u64 {
        let mut lost = 0;
        for number in numbers {
            lost += file.write(vec![format!("{{\"n\":{}}}\n", number + 10)]).await;
        }
        lost
    }

    fn numbers(dir: &Path, name: &str) -> Vec<u64> {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        let number = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["n"].as_u64().unwrap();
        text.lines().map(number).collect()
    }

    #[tokio::test]
    async fn a_full_file_is_followed_by_another_and_the_oldest_makes_way_and_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        // Two lines of nine bytes.
        let file = AsideFile::bounded(dir.path().join("aside"), Bounds { bytes: 20, files: 3 });
        assert_eq!(write(&file, 0..6).await, 0);
        assert_eq!(
            ["aside.2", "aside.1", "aside"].map(|name| numbers(dir.path(), name)),
            [[10, 11], [12, 13], [14, 15]]
        );
        assert_eq!(write(&file, 6..7).await, 2);
        assert_eq!(numbers(dir.path(), "aside.2"), [12, 13]);
        assert_eq!((numbers(dir.path(), "aside"), fs::read_dir(dir.path()).unwrap().count()), (vec![16], 3));
    }

    #[tokio::test]
    async fn a_part_of_a_line_that_a_crash_left_spoils_none_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        for begin in ["{\"n\":1}\n{\"n\"", "{\"n\""] {
            fs::write(dir.path().join("aside"), begin).unwrap();
            let file = AsideFile::new(dir.path().join("aside"));
            assert_eq!(write(&file, 0..1).await, 0);
            assert_eq!(numbers(dir.path(), "aside").last(), Some(&10));
        }
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("aside")).unwrap();
        let file = AsideFile::new(dir.path().join("aside"));
        assert_eq!(write(&file, 0..3).await, 3);
        fs::remove_dir(dir.path().join("aside")).unwrap();
        assert_eq!(write(&file, 3..4).await, 0);
        assert_eq!(numbers(dir.path(), "aside"), [13]);
    }
}
