//! A TCP connection whose reading side belongs to the protocol library and whose writing side belongs to the viewer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::room::Seat;
use crate::wire::FragmentMeter;

/// What the protocol library reads from and writes to. Its writes (pongs, closes) are queued as the viewer's own frames.
pub(super) struct Duplex {
    stream: Arc<TcpStream>,
    /// What came along with the handshake.
    early: Bytes,
    meter: FragmentMeter,
    seat: Arc<Seat>,
}

impl Duplex {
    pub(super) fn new(stream: Arc<TcpStream>, early: Bytes, meter: FragmentMeter, seat: Arc<Seat>) -> Self {
        Self { stream, early, meter, seat }
    }
}

impl AsyncRead for Duplex {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.early.is_empty() {
            loop {
                ready!(self.stream.poll_read_ready(cx))?;
                match self.stream.try_read(buffer.initialize_unfilled()) {
                    Ok(read) => {
                        buffer.advance(read);
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        } else {
            let take = self.early.len().min(buffer.remaining());
            buffer.put_slice(self.early.get(..take).unwrap_or_default());
            self.early.advance(take);
        }
        let read = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(self.meter.feed(read).map_err(io::Error::other))
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // The library hands over whole frames, for nothing of what it wrote was ever left with it.
        if self.seat.send(Bytes::copy_from_slice(bytes)) {
            Poll::Ready(Ok(bytes.len()))
        } else {
            Poll::Ready(Err(io::Error::from(io::ErrorKind::StorageFull)))
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
