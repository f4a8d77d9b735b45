//! The two traits through which a room reaches the outside without knowing it.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;

use super::comment::Posted;
use super::cursor::Cursor;

/// Names a wire format; a batch is encoded at most once for each, whoever asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// JSON in text frames.
    #[default]
    Json,
    /// JSON compressed with zstd, in binary frames.
    Zstd,
    /// JSON compressed with Brotli, in binary frames.
    Brotli,
    /// JSON compressed with DEFLATE in a zlib wrapper, in binary frames.
    Deflate,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Json, Self::Zstd, Self::Brotli, Self::Deflate];
}

/// The most comments a second that a viewer wants, from a few that viewers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tier(u8);

impl Tier {
    /// The rates, in comments a second.
    pub const RATES: [u32; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

    /// The tier for a viewer that asks for at most `rate` comments a second: the largest that is not more. `None` for 0.
    #[must_use]
    pub fn at_most(rate: u32) -> Option<Self> {
        let tier = Self::RATES.iter().rposition(|own| *own <= rate)?;
        u8::try_from(tier).ok().map(Self)
    }

    /// Its place in [`Tier::RATES`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// What a frame of comments has besides them.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    /// Stands on the last comment of the stretch.
    pub cursor: Cursor,
    /// How many comments of the stretch were left out because the viewer asked for fewer; `None` when it takes all.
    pub left_out: Option<u64>,
}

/// Turns what a room has for its viewers into bytes ready to send, framing included.
pub trait BatchEncoder: Send + Sync + 'static {
    /// The format that the bytes are in.
    fn format(&self) -> Format;

    /// Encodes comments in the order of the room.
    fn comments(&self, head: &FrameHead, comments: &[&Arc<Posted>]) -> Bytes;

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

    /// The same, past whatever is remembered of its last refusal: the system tells of room only once there is a good deal of
    /// it, and a connection that takes a little now and then would seem to take nothing.
    ///
    /// # Errors
    /// As [`Socket::try_write_vectored`].
    fn try_write_straight(&self, part: &[u8]) -> io::Result<usize> {
        self.try_write(part)
    }

    /// The same for a single part, which costs the kernel less.
    ///
    /// # Errors
    /// As [`Socket::try_write_vectored`].
    fn try_write(&self, part: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(part)])
    }
}

impl Socket for tokio::net::TcpStream {
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::try_write_vectored(self, parts)
    }

    fn try_write_straight(&self, part: &[u8]) -> io::Result<usize> {
        socket2::SockRef::from(self).send(part)
    }

    fn try_write(&self, part: &[u8]) -> io::Result<usize> {
        Self::try_write(self, part)
    }
}
