//! Where keys come from, and how they are kept up to date.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use hyper::Uri;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;
use tracing::warn;

use super::fetch::MOST_BYTES;
use super::keys::{KeyError, KeySet, Origin};

/// The file of the secret in a data folder.
const SECRET_FILE: &str = "auth-secret";

/// Bytes of randomness in a secret that the server makes: as many as the hash has (RFC 7518, 3.2).
const RANDOM_BYTES: usize = 32;

/// Where keys come from.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// There are none: tokens are refused.
    Nowhere,
    /// A secret of the configuration.
    Secret(String),
    /// A file: secrets, PEM, or a JWKS.
    File(PathBuf),
    /// An address that gives a JWKS.
    Address(Uri),
    /// A secret in the data folder, made when there is none.
    DataFolder(PathBuf),
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySource({self})")
    }
}

impl fmt::Display for KeySource {
    /// For people, without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("none, tokens are refused"),
            Self::Secret(_) => f.write_str("a secret of the configuration"),
            Self::File(path) => write!(f, "in {}", path.display()),
            Self::Address(address) => write!(f, "from {address}"),
            Self::DataFolder(dir) => write!(f, "a secret of the server's own, {}", secret_file(dir).display()),
        }
    }
}

/// Why there are no keys.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The file cannot be read or made.
    #[error("{path} cannot be {verb}")]
    Io {
        /// Which file.
        path: String,
        /// What was tried.
        verb: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// What is there are no keys.
    #[error("{place}: {problem}")]
    Keys {
        /// The file or address.
        place: String,
        /// What is wrong with it.
        #[source]
        problem: KeyError,
    },
    /// The address does not give them.
    #[error("{address}: {problem}")]
    Fetch {
        /// Which address.
        address: String,
        /// What happened.
        problem: String,
    },
    /// The system has no randomness to give.
    #[error("the system gives no random bytes for a secret")]
    Random,
}

impl SourceError {
    pub(super) fn io(path: &Path, verb: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::Io { path, verb, source }
    }
}

/// Reads the keys in a file.
pub(super) fn read(path: &Path) -> Result<(String, KeySet), SourceError> {
    let size = fs::metadata(path).map_err(SourceError::io(path, "read"))?.len();
    let place = path.display().to_string();
    if size > MOST_BYTES as u64 {
        return Err(SourceError::Keys { place, problem: KeyError::TooMany });
    }
    let text = fs::read_to_string(path).map_err(SourceError::io(path, "read"))?;
    let keys = KeySet::parse(&text, Origin::Local).map_err(|problem| SourceError::Keys { place, problem })?;
    Ok((text, keys))
}

/// The file that a data folder has its secret in.
pub(super) fn secret_file(data_dir: &Path) -> PathBuf {
    data_dir.join(SECRET_FILE)
}

/// Makes the secret of a data folder, if it has none. True when it was made.
pub(super) fn make_secret(data_dir: &Path) -> Result<bool, SourceError> {
    let path = secret_file(data_dir);
    if path.exists() {
        tell_if_readable_by_others(&path);
        return Ok(false);
    }
    let mut bytes = [0; RANDOM_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| SourceError::Random)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // Beside it and then in its place, so that a crash leaves none rather than half of one.
    let draft = data_dir.join(format!("{SECRET_FILE}.new"));
    let write = || {
        let _left_by_a_crash = fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        writeln!(file, "{hex}")?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(data_dir)?.sync_all()
    };
    write().map_err(SourceError::io(&path, "made"))?;
    Ok(true)
}

/// Warns of a file with secrets that others than its owner may read.
pub(super) fn tell_if_readable_by_others(path: &Path) {
    let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode());
    if mode & 0o077 != 0 {
        warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777), "others may read this secret; chmod 600 it");
    }
}
