//! What comes in over a connection: the protocol library, set up only while something does.
//!
//! An idle viewer has neither a read buffer nor the library's state; both are made when bytes come and let go when they
//! end with a whole message.

use std::io::{self, Read, Write};

use bytes::{Buf as _, Bytes};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::error::Error as ProtocolError;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig, WebSocketContext};

use crate::room::Seat;
use crate::wire::FragmentMeter;

/// Enough for most messages in one read. The library fills it with zeroes before each read.
const READ_BUFFER: usize = 2048;

/// What a client sends, message by message.
pub(super) struct Inbound {
    limits: WebSocketConfig,
    /// What came along with the handshake.
    early: Bytes,
    meter: FragmentMeter,
    library: Option<Box<WebSocketContext>>,
}

impl Inbound {
    /// Messages of at most `max_message` bytes in at most `max_fragments` frames; `early` came with the handshake.
    pub(super) fn new(early: Bytes, max_message: usize, max_fragments: u32) -> Self {
        let limits = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            .max_message_size(Some(max_message))
            .max_frame_size(Some(max_message));
        Self { limits, early, meter: FragmentMeter::new(max_fragments), library: None }
    }

    /// The next message, if one is here whole. What the library answers by itself (pongs, closes) is queued as the
    /// viewer's own, to be flushed.
    ///
    /// # Errors
    /// What is wrong with the client's bytes, or that the connection is gone.
    pub(super) fn next(&mut self, stream: &TcpStream, seat: &Seat) -> Result<Option<Message>, ProtocolError> {
        let limits = self.limits;
        let library = self.library.get_or_insert_with(|| Box::new(WebSocketContext::new(Role::Server, Some(limits))));
        let mut duplex = Duplex { stream, early: &mut self.early, meter: &mut self.meter, seat };
        match library.read(&mut duplex) {
            Ok(message) => Ok(Some(message)),
            Err(ProtocolError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                if self.meter.is_between_messages() {
                    self.library = None;
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether bytes that came with the handshake still wait.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }
}

/// What the library reads from and writes to: the socket on one side, the viewer on the other.
struct Duplex<'a> {
    stream: &'a TcpStream,
    early: &'a mut Bytes,
    meter: &'a mut FragmentMeter,
    seat: &'a Seat,
}

impl Read for Duplex<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = if self.early.is_empty() {
            self.stream.try_read(buffer)?
        } else {
            let take = self.early.len().min(buffer.len());
            self.early.copy_to_slice(buffer.get_mut(..take).unwrap_or_default());
            take
        };
        self.meter.feed(buffer.get(..read).unwrap_or_default()).map_err(io::Error::other)?;
        Ok(read)
    }
}

impl Write for Duplex<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The library hands over whole frames, for nothing of what it wrote was ever left with it.
        if self.seat.queue(Bytes::copy_from_slice(bytes)) {
            Ok(bytes.len())
        } else {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
