//! `report.json`: an [`Outcome`] on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
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
    /// It is JSON, but of something else.
    #[error("{} is not the report.json of a load test: {problem}", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// What it lacks.
        problem: &'static str,
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
    let no_report = |source| FileError::Format { path: path.to_owned(), source };
    let foreign = |problem| FileError::Foreign { path: path.to_owned(), problem };
    let value: Value = serde_json::from_slice(&bytes).map_err(no_report)?;
    let fields = value.as_object().ok_or_else(|| foreign("it is no object"))?;
    // Every field of a report has a default, so that anything would be one.
    let lacks = |field: &&str| !fields.get(*field).is_some_and(Value::is_object);
    let is_lacking = ["summary", "counts"].iter().any(lacks);
    let outcome: Outcome = serde_json::from_value(value).map_err(no_report)?;
    match outcome.version {
        0 => Err(foreign("it names no version")),
        1..=VERSION if is_lacking => Err(foreign("it has no summary and counts")),
        1..=VERSION => Ok(outcome),
        version => Err(FileError::Version { path: path.to_owned(), version }),
    }
}

/// Writes a report, indented for people, in place of what is there.
///
/// # Errors
/// [`FileError::Write`].
pub fn write(path: &Path, outcome: &Outcome) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let mut text = serde_json::to_string_pretty(outcome).map_err(|error| failed(error.into()))?;
    text.push('\n');
    replace(path, &text)
}

/// Puts a whole text in place of a file: at no time is there half of one.
///
/// # Errors
/// [`FileError::Write`]; then what was there is still there.
pub(in crate::load) fn replace(path: &Path, text: &str) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let new = beside(path);
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).map_err(|error| {
        // What is left of it is of no use, if there is anything.
        let _nothing_left = fs::remove_file(&new);
        failed(error)
    })
}

/// Makes a folder, unless it is there, and sees whether files can be written to it.
///
/// # Errors
/// What the system says.
pub(in crate::load) fn prepare(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let new = beside(&folder.join("report.json"));
    fs::write(&new, "")?;
    fs::remove_file(&new)
}

/// Where a file is written before it takes the place of another.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    path.with_file_name(name)
}
