//! `report.json`: an [`Outcome`] on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Outcome, VERSION};

/// Why a report could not be read or written. Each is one line for people, the path in it.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {path:?}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The file is not a report.
    #[error("{path:?} is not the report.json of a load test")]
    Format {
        /// Which.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// It is JSON, but either no report, or one of a later version.
    #[error("{path:?} has report version {version}; this danmakud reads 1 to {VERSION}")]
    Version {
        /// Which.
        path: PathBuf,
        /// The version it names, 0 if none.
        version: u32,
    },
    /// The file cannot be written.
    #[error("cannot write {path:?}")]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// Reads a report.
///
/// # Errors
/// [`FileError`], if there is no file, or it is not a report of a version up to [`VERSION`].
pub fn read(path: &Path) -> Result<Outcome, FileError> {
    let bytes = fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let outcome: Outcome =
        serde_json::from_slice(&bytes).map_err(|source| FileError::Format { path: path.to_owned(), source })?;
    match outcome.version {
        1..=VERSION => Ok(outcome),
        version => Err(FileError::Version { path: path.to_owned(), version }),
    }
}

/// Writes a report, indented for people, over what is there.
///
/// # Errors
/// [`FileError::Write`].
pub fn write(path: &Path, outcome: &Outcome) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let mut text = serde_json::to_string_pretty(outcome).map_err(|error| failed(error.into()))?;
    text.push('\n');
    fs::write(path, text).map_err(failed)
}
