//! The mark of a folder of comments: which database and collection they are for, so that a configuration that names
//! others does not send them there.
//!
//! Neither hosts nor users are in it, for these change while the database stays the same. A folder of an earlier release
//! has none, and gets the one of the first start.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::log::{MARK, replace_file};

/// What the mark begins with: its version.
const HEAD: &str = "danmakud 1: ";

/// Why a folder cannot be used. What is in it stays there.
#[derive(Debug, Error)]
pub enum MarkError {
    /// Its comments are for another place.
    #[error(
        "{} holds {comments} comments for {theirs}, and the configuration names {ours}: start with {theirs} until they \
         are sent, or move that folder away",
        dir.display()
    )]
    Other {
        /// The folder.
        dir: PathBuf,
        /// How many.
        comments: u64,
        /// What they are for.
        theirs: String,
        /// What the configuration names.
        ours: String,
    },
    /// It is none that this release knows.
    #[error("{} does not say in a way known to this release what its folder is for", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// The disk does not give or take it.
    #[error("cannot read or write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Marks the folder, which must be locked, as being for `ours`, unless it holds comments for another place. Blocks.
pub(super) fn claim(dir: &Path, ours: &str, comments: u64) -> Result<(), MarkError> {
    match read(dir)? {
        Some(theirs) if theirs == ours => Ok(()),
        Some(theirs) if comments > 0 => {
            Err(MarkError::Other { dir: dir.into(), comments, theirs, ours: ours.to_owned() })
        }
        Some(_) | None => write(dir, ours),
    }
}

/// What the folder is for, if it is marked.
pub(super) fn read(dir: &Path) -> Result<Option<String>, MarkError> {
    let path = dir.join(MARK);
    match fs::read_to_string(&path) {
        Ok(mark) => match mark.strip_prefix(HEAD) {
            Some(place) => Ok(Some(place.trim_end().to_owned())),
            None => Err(MarkError::Unknown { path }),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(MarkError::Io { path, source }),
    }
}

/// It is whole or not there at all, also after a power cut.
fn write(dir: &Path, ours: &str) -> Result<(), MarkError> {
    let (path, new) = (dir.join(MARK), dir.join(MARK).with_extension("new"));
    let written = replace_file(&path, &new, format!("{HEAD}{ours}\n").as_bytes());
    let written = written.and_then(|()| File::open(dir)?.sync_all());
    written.map_err(|source| MarkError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_comments_keeps_its_mark_and_an_empty_one_takes_another() {
        let dir = tempfile::tempdir().unwrap();
        claim(dir.path(), "a", 3).expect("a folder of an earlier release is taken over");
        claim(dir.path(), "a", 3).unwrap();
        let told = claim(dir.path(), "b", 3).unwrap_err().to_string();
        assert!(told.contains("holds 3 comments for a, and the configuration names b"), "{told}");
        assert_eq!(read(dir.path()).unwrap().as_deref(), Some("a"));
        claim(dir.path(), "b", 0).unwrap();
        assert_eq!(read(dir.path()).unwrap().as_deref(), Some("b"));
        fs::write(dir.path().join(MARK), "danmakud 2: c").unwrap();
        assert!(matches!(claim(dir.path(), "c", 0), Err(MarkError::Unknown { .. })));
    }
}
