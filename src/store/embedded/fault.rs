//! What the engine's errors mean to the caller.

use std::io::ErrorKind;
use std::path::Path;

use fjall::{Error, LsmError};

use crate::store::StoreError;

/// A failure that somebody must see to.
pub(super) fn blocked(detail: impl Into<String>) -> StoreError {
    StoreError::Blocked { detail: detail.into(), source: None }
}

/// Classifies a failure while `doing` something.
///
/// A full disk is transient: retention frees space every few minutes, and operators do; once there is room, a later
/// attempt succeeds without a restart. So are a lack of file handles and interrupted calls. `Poisoned` is transient too:
/// it says that an earlier write failed, and the store opens its folder anew before the next attempt. Everything else
/// (a disk that fails, a folder that is read-only, bytes that contradict their checksum) stays until somebody acts.
pub(super) fn classify(doing: &str, error: Error) -> StoreError {
    let detail = format!("{doing} in the embedded store failed: {error}");
    let is_transient = match &error {
        Error::Poisoned => true,
        error => io_error(error).is_some_and(is_passing),
    };
    let source = Some(error.into());
    if is_transient { StoreError::Transient { detail, source } } else { StoreError::Blocked { detail, source } }
}

/// Explains why a folder could not be opened.
pub(super) fn classify_open(dir: &Path, error: Error) -> StoreError {
    let dir = dir.display();
    let detail = match &error {
        Error::Locked => format!("the data folder {dir} is in use by another server"),
        Error::InvalidVersion(_) => {
            format!(
                "the data folder {dir} was written by another version of the storage engine, which this server cannot read"
            )
        }
        _ => return classify(&format!("opening the data folder {dir}"), error),
    };
    StoreError::Blocked { detail, source: Some(error.into()) }
}

/// Whether the disk may have lost what it was given, so that even reading it back proves nothing: after a failed fsync
/// the system marks the pages clean (<https://www.usenix.org/system/files/atc20-rebello.pdf>). A full disk is not such
/// a case: what did not fit was refused.
pub(super) fn is_untrustworthy(error: &Error) -> bool {
    io_error(error).is_some_and(|error| !is_passing(error))
}

fn io_error(error: &Error) -> Option<&std::io::Error> {
    match error {
        Error::Io(error) | Error::Storage(LsmError::Io(error)) => Some(error),
        _ => None,
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    // EMFILE and ENFILE (errno(3)) have no ErrorKind of their own.
    let lacks_handles = matches!(error.raw_os_error(), Some(23 | 24));
    let kind = error.kind();
    lacks_handles
        || matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::Interrupted)
        || matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_room_on_the_disk_mends_is_transient_and_the_rest_needs_somebody() {
        let io = |code| Error::Io(std::io::Error::from_raw_os_error(code));
        // ENOSPC, EDQUOT, EMFILE, EINTR; EIO, EROFS, EACCES.
        for (code, is_transient) in
            [(28, true), (122, true), (24, true), (4, true), (5, false), (30, false), (13, false)]
        {
            assert_eq!(classify("writing", io(code)).is_transient(), is_transient, "{code}");
            assert_eq!(is_untrustworthy(&io(code)), !is_transient, "{code}");
        }
        assert!(classify("writing", Error::Poisoned).is_transient());
        assert!(!classify("reading", Error::Storage(LsmError::InvalidTrailer)).is_transient());
        assert!(!classify("reading", Error::Unrecoverable).is_transient());
    }
}
