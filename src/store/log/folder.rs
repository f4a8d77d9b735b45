//! The folder of a log: its lock, the names in it, and what is done to whole files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::LogError;

const LOCK: &str = "lock";
/// What the log is for, written by its owner.
pub(crate) const MARK: &str = "mark";
const SEGMENT: &str = ".log";
const DAMAGED: &str = ".damaged";

/// A folder that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    /// The folder itself, for its fsync.
    handle: File,
    _lock: File,
}

/// What was kept of a segment.
#[derive(Debug)]
pub(super) struct Copy {
    /// The file that holds it.
    pub(super) path: PathBuf,
    /// Whether it was not there before with just these bytes.
    pub(super) is_new: bool,
}

/// What was found in a folder.
#[derive(Debug)]
pub(super) struct Listing {
    /// The segments, oldest first.
    pub(super) segments: Vec<u64>,
    /// The least number that was never given to a file which is still there.
    pub(super) next: u64,
}

impl Folder {
    /// Makes the folder if it is missing, and locks it.
    pub(super) fn open(dir: &Path) -> Result<Self, LogError> {
        fs::create_dir_all(dir).map_err(LogError::io("create", dir))?;
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A folder is only there after a power cut if the one above it is synced.
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(LogError::io("sync", parent))?;
        // Before anything of ours is put into a folder that is another's.
        list(dir)?;
        let path = dir.join(LOCK);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(LogError::io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LogError::Locked { dir: dir.into() }),
            Err(TryLockError::Error(source)) => return Err(LogError::io("lock", path)(source)),
        }
        let handle = File::open(dir).map_err(LogError::io("open", dir))?;
        Ok(Self { dir: dir.into(), handle, _lock: lock })
    }

    /// Lists the segments and refuses what no log writes.
    pub(super) fn list(&self) -> Result<Listing, LogError> {
        list(&self.dir)
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where segment `number` is.
    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(segment_name(number))
    }

    /// Makes the file of a new segment. It is there after a power cut once it and the folder are synced.
    pub(super) fn create_segment(&self, number: u64) -> io::Result<File> {
        OpenOptions::new().append(true).create_new(true).open(self.path(number))
    }

    /// Opens a segment for reading.
    pub(super) fn open_segment(&self, number: u64) -> io::Result<File> {
        File::open(self.path(number))
    }

    /// Makes the names in the folder survive a power cut.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Deletes a segment. Not synced: after a power cut it may be there again, and its records are read once more.
    pub(super) fn delete(&self, number: u64) -> Result<(), LogError> {
        match fs::remove_file(self.path(number)) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(LogError::io("delete", self.path(number))(source))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Ends a segment at `offset`. Opens the file anew, as the handle that wrote it may be what failed.
    pub(super) fn cut(&self, number: u64, offset: u64) -> Result<(), LogError> {
        let path = self.path(number);
        let cut = OpenOptions::new().write(true).open(&path).and_then(|file| {
            file.set_len(offset)?;
            file.sync_all()
        });
        cut.map_err(LogError::io("shorten", path))
    }

    /// Copies a part of a segment, which stays as it is, to a file of its own.
    pub(super) fn copy_aside(&self, number: u64, part: &Range<u64>) -> Result<Copy, LogError> {
        let mut bytes = Vec::new();
        let read = self.open_segment(number).and_then(|mut segment| {
            segment.seek(SeekFrom::Start(part.start))?;
            segment.take(part.end - part.start).read_to_end(&mut bytes)
        });
        read.map_err(LogError::io("read", self.path(number)))?;
        let path = self.damaged(number, part.start);
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(Copy { path, is_new: false });
        }
        let written = File::create(&path).and_then(|mut copy| {
            copy.write_all(&bytes)?;
            copy.sync_all()?;
            self.sync()
        });
        written.map_err(LogError::io("write", &path))?;
        Ok(Copy { path, is_new: true })
    }

    fn damaged(&self, number: u64, offset: u64) -> PathBuf {
        self.dir.join(format!("{number:016x}-{offset:x}{DAMAGED}"))
    }

    /// Ends a segment at `offset` and keeps what stood behind in a file of its own, whose path it gives.
    pub(super) fn set_aside(&self, number: u64, offset: u64) -> Result<PathBuf, LogError> {
        let kept = self.damaged(number, offset);
        if offset == 0 {
            let renamed = fs::rename(self.path(number), &kept).and_then(|()| self.sync());
            renamed.map_err(LogError::io("rename", self.path(number)))?;
            return Ok(kept);
        }
        let copied = self.open_segment(number).and_then(|mut segment| {
            segment.seek(SeekFrom::Start(offset))?;
            // A file of that name holds the first of these bytes, or is left by an attempt that did not get this far.
            let mut copy = File::create(&kept)?;
            io::copy(&mut segment, &mut copy)?;
            copy.sync_all()?;
            self.sync()
        });
        copied.map_err(LogError::io("write", &kept))?;
        self.cut(number, offset)?;
        Ok(kept)
    }
}

fn list(dir: &Path) -> Result<Listing, LogError> {
    let (mut segments, mut last) = (Vec::new(), 0);
    for entry in fs::read_dir(dir).map_err(LogError::io("list", dir))? {
        let path = entry.map_err(LogError::io("list", dir))?.path();
        match path.file_name().and_then(|name| name.to_str()).map(Name::parse) {
            Some(Name::Other) => {}
            Some(Name::Segment(number)) => {
                segments.push(number);
                last = last.max(number);
            }
            // Its number is not given again: a segment of that name might have to be set aside in turn.
            Some(Name::Damaged(number)) => last = last.max(number),
            Some(Name::Foreign) | None => return Err(LogError::Foreign { path }),
        }
    }
    segments.sort_unstable();
    Ok(Listing { segments, next: last.saturating_add(1) })
}

/// The name of a segment's file.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:016x}{SEGMENT}")
}

/// What a name in the folder stands for.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    /// One of the files that are there once.
    Other,
    Segment(u64),
    Damaged(u64),
    Foreign,
}

impl Name {
    fn parse(name: &str) -> Self {
        // A mark that was being made when the power went is as good as none.
        if [LOCK, MARK, "mark.new"].contains(&name) {
            return Self::Other;
        }
        // Only what we write ourselves: a plus sign or capitals, which would parse, do not come back the same.
        let segment = name.strip_suffix(SEGMENT).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if let Some(number) = segment.filter(|number| segment_name(*number) == name) {
            return Self::Segment(number);
        }
        let damaged = name.strip_suffix(DAMAGED).and_then(|stem| stem.split_once('-'));
        damaged.and_then(|(digits, _)| u64::from_str_radix(digits, 16).ok()).map_or(Self::Foreign, Self::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_log_writes_are_its_own() {
        for other in ["lock", "mark", "mark.new"] {
            assert_eq!(Name::parse(other), Name::Other);
        }
        assert_eq!(Name::parse("00000000000000ff.log"), Name::Segment(255));
        assert_eq!(Name::parse("00000000000000ff-18.damaged"), Name::Damaged(255));
        for foreign in ["", ".log", "ff.log", "00000000000000FF.log", "+0000000000000ff.log", "notes.txt", "x.damaged"]
        {
            assert_eq!(Name::parse(foreign), Name::Foreign, "{foreign}");
        }
    }
}
