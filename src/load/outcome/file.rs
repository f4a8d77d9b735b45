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
    #[error("{} cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The file is not a report.
    #[error("{} is not the report.json of a load test", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// It is JSON, but names no version.
    #[error("{} is not the report.json of a load test: it names no version", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// It is a report of a later version.
    #[error("{}: report version {version}, and this danmakud reads 1 to {VERSION}", path.display())]
    Version {
        /// Which.
        path: PathBuf,
        /// The version it names.
        version: u32,
    },
    /// The file cannot be written.
    #[error("{} cannot be written", path.display())]
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
        0 => Err(FileError::Foreign { path: path.to_owned() }),
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
