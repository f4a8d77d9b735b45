//! The two traits through which a room reaches the outside without knowing it.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;

use super::comment::Posted;
use super::cursor::Cursor;

/// How many wire formats a batch can keep its encoded bytes in.
pub const FORMATS: usize = 1;

/// Names a wire format, below [`FORMATS`]; a batch is encoded at most once for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JSON in text frames.
    Json = 0,
}

/// Turns what a room has for its viewers into bytes ready to send, framing included.
pub trait BatchEncoder: Send + Sync + 'static {
    /// The format that the bytes are in.
    fn format(&self) -> Format;

    /// Encodes comments that follow each other; `cursor` stands on the last of them.
    fn comments(&self, cursor: &Cursor, comments: &[Arc<Posted>]) -> Bytes;

    /// Encodes the notice that `missed` comments can no longer be delivered.
    fn gap(&self, missed: u64) -> Bytes;
}

/// The sending side of a viewer's connection.
pub trait Socket: Send + Sync + 'static {
    /// Writes what the connection takes at once, never waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when it takes nothing now; any other error means it is gone.
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Socket for tokio::net::TcpStream {
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::try_write_vectored(self, parts)
    }
}
