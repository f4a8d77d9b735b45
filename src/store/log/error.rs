//! What can go wrong with a log.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::format::{MAX_RECORD_BYTES, VERSION};

/// Why a log could not be opened, read or freed.
#[derive(Debug, Error)]
pub enum LogError {
    /// Another process, or another handle of this one, has it open. Nothing was touched.
    #[error("the log in {dir} is in use by another server: stop that one, or name another folder")]
    Locked {
        /// The log's folder.
        dir: PathBuf,
    },
    /// The folder holds something that no log writes. Nothing was touched.
    #[error("{path} is no part of a log: move it away, or name another folder")]
    Foreign {
        /// The file at fault.
        path: PathBuf,
    },
    /// A segment bears another number than its name says. Nothing was touched.
    #[error("{path} is segment {number} by its own words: give it back the name {name}, or move it away")]
    Misnamed {
        /// The file at fault.
        path: PathBuf,
        /// The number in its header.
        number: u64,
        /// The name that goes with that number.
        name: String,
    },
    /// A segment is in a format that this server does not know. Nothing was touched.
    #[error(
        "{path} is in format {version}, and this server reads formats up to {VERSION}: let the server that wrote it empty the log, or move the file away"
    )]
    Version {
        /// The file at fault.
        path: PathBuf,
        /// The format in its header.
        version: u32,
    },
    /// Records that were appended can no longer be read: the disk gives back other bytes than it was given. Their bytes
    /// are in `kept`, and the log's count fell by that many. Those behind them are read next. Told once.
    #[error("{records} records of a log are damaged and lost to it; their bytes are kept in {kept}")]
    Damaged {
        /// How many records the log lost, those aside that were settled already.
        records: u64,
        /// The file that holds their bytes.
        kept: PathBuf,
    },
    /// The system refused an operation on a file or folder. The operation may be tried again.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl LogError {
    /// Makes an [`LogError::Io`] of what the system said.
    pub(super) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}

/// Why records were not appended. None of them is in the log.
#[derive(Debug, Error)]
pub enum AppendError {
    /// With them the log would hold more than it may. Releasing what it holds makes room; records that take more than
    /// `max_bytes` by themselves never fit.
    #[error("the log may hold {max_bytes} bytes and has no room for {bytes} more")]
    Full {
        /// Bytes that the records take on disk.
        bytes: u64,
        /// The log's bound.
        max_bytes: u64,
    },
    /// One of them is too long ever to be appended.
    #[error("a record of {bytes} bytes is longer than the {MAX_RECORD_BYTES} that a log takes")]
    TooLong {
        /// Bytes of the first that is.
        bytes: usize,
    },
    /// The disk did not take them, or did not say that they are safe. The caller keeps them and may try again: what was
    /// written in vain is taken back, and the next attempt begins a new segment. If taking back fails too, the records
    /// may be read after the next opening though this error was returned, which is harmless to a consumer that bears
    /// records coming twice.
    #[error("cannot append to {path}: {source}")]
    Io {
        /// The segment's file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}
