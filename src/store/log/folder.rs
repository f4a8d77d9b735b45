//! The folder of a log: its lock, the names in it, and what is done to whole files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tracing::warn;

use super::error::LogError;

const LOCK: &str = "lock";
/// What the log is for, written by its owner.
pub(crate) const MARK: &str = "mark";
const SEGMENT: &str = ".log";
const DAMAGED: &str = ".damaged";
const RELEASED: &str = "released";
/// What is to take the place of another file, until it does.
const NEW: &str = "new";

/// What is read at a time, and lost of a file where the disk cannot read: a page, of which sectors are parts.
const BLOCK: u64 = 4096;

/// A folder that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    /// The folder itself, for its fsync.
    handle: File,
    _lock: File,
}

/// Bytes of a file.
#[derive(Debug)]
pub(super) struct Bytes {
    /// The bytes, with zeros where the disk gave none.
    pub(super) bytes: Vec<u8>,
    /// Whether there is such a place.
    pub(super) has_holes: bool,
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
        make_folder(dir)?;
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

    /// Lists the segments. What no log writes is left alone.
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

    /// The length of a segment.
    pub(super) fn length(&self, number: u64) -> Result<u64, LogError> {
        let meta = self.path(number).metadata();
        Ok(meta.map_err(LogError::io("look at", self.path(number)))?.len())
    }

    /// Syncs a segment.
    pub(super) fn sync_segment(&self, number: u64) -> Result<(), LogError> {
        let synced = self.open_segment(number).and_then(|file| file.sync_all());
        synced.map_err(LogError::io("sync", self.path(number)))
    }

    /// Reads a part of a segment, as far as it reaches, and around what the disk cannot read.
    pub(super) fn read(&self, number: u64, part: Range<u64>) -> Result<Bytes, LogError> {
        let file = self.open_segment(number);
        let read = file.and_then(|file| read_around(part, |buffer, offset| file.read_at(buffer, offset)));
        read.map_err(LogError::io("read", self.path(number)))
    }

    /// Writes bytes that stand at `offset` of a segment to a file of their own, and gives it, unless it has them already.
    pub(super) fn keep(&self, number: u64, offset: u64, bytes: &[u8]) -> Result<Option<PathBuf>, LogError> {
        let path = self.damaged(number, offset);
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(None);
        }
        // A file of that name holds the first of these bytes, or is left by an attempt that did not get this far.
        let written = File::create(&path).and_then(|mut copy| {
            copy.write_all(bytes)?;
            copy.sync_all()?;
            self.sync()
        });
        written.map_err(LogError::io("write", &path))?;
        Ok(Some(path))
    }

    /// Where bytes are kept that stood at `offset` of a segment.
    pub(super) fn damaged(&self, number: u64, offset: u64) -> PathBuf {
        self.dir.join(format!("{number:016x}-{offset:x}{DAMAGED}"))
    }

    /// Takes a whole segment out of the log, and gives where it is now.
    pub(super) fn set_aside(&self, number: u64) -> Result<PathBuf, LogError> {
        let kept = self.damaged(number, 0);
        let renamed = fs::rename(self.path(number), &kept).and_then(|()| self.sync());
        renamed.map_err(LogError::io("rename", self.path(number)))?;
        Ok(kept)
    }

    /// Where the note of what is released is.
    pub(super) fn released(&self) -> PathBuf {
        self.dir.join(RELEASED)
    }

    /// Gives a file of ours this content, or leaves it as it is.
    pub(super) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), LogError> {
        let replaced = replace_file(path, &self.dir.join(NEW), bytes).and_then(|()| self.sync());
        replaced.map_err(LogError::io("write", path))
    }
}

/// Gives a file this content by way of `new`, or leaves it as it is. It stays so after a power cut once the folder is
/// synced.
pub(crate) fn replace_file(path: &Path, new: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)
}

/// Makes a folder and those above it that are missing, so that they are there after a power cut: each is only if the one
/// above it is synced. The one above the last is synced in any case, as an earlier attempt may not have got to it.
///
/// # Errors
/// [`LogError::Io`]; some of them may have been made.
pub fn make_folder(dir: &Path) -> Result<(), LogError> {
    let above = |dir: &Path| {
        let parent = dir.parent()?;
        Some(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_owned() })
    };
    let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).count();
    fs::create_dir_all(dir).map_err(LogError::io("create", dir))?;
    for parent in dir.ancestors().take(missing.max(1)).filter_map(above) {
        match File::open(&parent).and_then(|parent| parent.sync_all()) {
            // One that may be entered and not listed is somebody else's to keep.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            synced => synced.map_err(LogError::io("sync", &parent))?,
        }
    }
    Ok(())
}

/// Whether the disk itself cannot read: `EIO`, which is 5 on every Unix.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(5)
}

/// Reads a part of a file, as far as it reaches. What the disk cannot read is left out by the block.
fn read_around(part: Range<u64>, read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>) -> io::Result<Bytes> {
    let (mut bytes, mut has_holes, mut at) = (Vec::new(), false, part.start);
    let mut buffer = vec![0; BLOCK as usize];
    while at < part.end {
        // Up to a border between blocks, so that a bad block costs nothing of its neighbours.
        let most = (BLOCK - at % BLOCK).min(part.end - at) as usize;
        let block = buffer.get_mut(..most).unwrap_or_default();
        let count = match read_at(block, at) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if is_unreadable(&error) => {
                has_holes = true;
                block.fill(0);
                most
            }
            Err(error) => return Err(error),
        };
        if count == 0 {
            break;
        }
        bytes.extend(block.iter().take(count));
        at += count as u64;
    }
    Ok(Bytes { bytes, has_holes })
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
            // As file systems put there themselves: `lost+found`, `.nfs…`.
            Some(Name::Foreign) | None => warn!(path = %path.display(), "it is no part of the log, and is left alone"),
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
        if [LOCK, RELEASED, NEW, MARK, "mark.new"].contains(&name) {
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
        for other in ["lock", "released", "new", "mark", "mark.new"] {
            assert_eq!(Name::parse(other), Name::Other);
        }
        assert_eq!(Name::parse("00000000000000ff.log"), Name::Segment(255));
        assert_eq!(Name::parse("00000000000000ff-18.damaged"), Name::Damaged(255));
        for foreign in ["", ".log", "ff.log", "00000000000000FF.log", "+0000000000000ff.log", "notes.txt", "x.damaged"]
        {
            assert_eq!(Name::parse(foreign), Name::Foreign, "{foreign}");
        }
    }

    #[test]
    fn a_sector_that_cannot_be_read_costs_its_block_alone() {
        let file: Vec<u8> = (0..20_000u32).map(|n| n as u8 | 1).collect();
        let read_at = |buffer: &mut [u8], at: u64| {
            let at = at as usize;
            let part = &file[at..(at + buffer.len()).min(file.len())];
            if (at..at + part.len()).contains(&9000) {
                return Err(io::Error::from_raw_os_error(5));
            }
            buffer[..part.len()].copy_from_slice(part);
            Ok(part.len())
        };
        let Bytes { bytes, has_holes } = read_around(100..30_000, read_at).unwrap();
        assert!(has_holes && bytes.len() == 20_000 - 100);
        let zeros: Vec<usize> = (100..20_000).filter(|at| bytes[at - 100] == 0).collect();
        assert_eq!((zeros.len(), zeros[0], zeros[4095]), (4096, 8192, 12_287));
        assert!((100..20_000).all(|at| bytes[at - 100] == if zeros.contains(&at) { 0 } else { file[at] }));
        let refused = read_around(0..10, |_, _| Err(ErrorKind::PermissionDenied.into())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn folders_are_made_as_deep_as_need_be() {
        let dir = tempfile::tempdir().unwrap();
        make_folder(&dir.path().join("data/journal/mongodb")).unwrap();
        make_folder(&dir.path().join("data/journal/mongodb")).unwrap();
        assert!(dir.path().join("data/journal/mongodb").is_dir());
    }
}
