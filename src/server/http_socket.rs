//! The TCP stream of a connection while it speaks HTTP: it tells when an answer is written, and ends a connection whose
//! client takes nothing of it.
//!
//! The bounds of the listener need both: without the first a connection would hold the place of a request for as long as it
//! is open, without the second a client that never reads would be open for ever. A session takes the bare stream back.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::gate::Place;

/// A TCP stream that speaks HTTP.
pub(super) struct HttpSocket {
    stream: TcpStream,
    place: Arc<Place>,
    /// How long the client may take nothing.
    patience: Duration,
    /// Set while the client does not take all there is to write: when it has taken nothing for too long.
    deadline: Option<Pin<Box<Sleep>>>,
    /// There was room that the kernel had not told of, and may be more.
    has_hidden_room: bool,
}

impl HttpSocket {
    pub(super) fn new(stream: TcpStream, place: Arc<Place>, patience: Duration) -> Self {
        Self { stream, place, patience, deadline: None, has_hidden_room: false }
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Writes, with a deadline for the client to take something: through the runtime, or past it, straight to the socket.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        through: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
        straight: impl Fn(SockRef<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let is_full =
            |written: &io::Result<usize>| written.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        if self.has_hidden_room {
            let written = straight(SockRef::from(&self.stream));
            if !is_full(&written) {
                return Poll::Ready(written);
            }
            self.has_hidden_room = false;
        }
        let written = through(Pin::new(&mut self.stream), cx);
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        // The client may take its time, but others need the place.
        self.place.settle();
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(deadline.as_mut().poll(cx));
        self.deadline = None;
        // The kernel tells of room when a third of its buffer, which may be megabytes, is free. Somebody who reads slowly
        // would seem to take nothing, but there is a little room.
        let written = straight(SockRef::from(&self.stream));
        if is_full(&written) {
            // Else the kernel would keep what is written and try for minutes to get rid of it.
            let _best_effort = self.stream.set_zero_linger();
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
        }
        self.has_hidden_room = true;
        Poll::Ready(written)
    }
}

impl AsyncRead for HttpSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for HttpSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes), |socket| socket.send(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, parts), |socket| socket.send_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Comes when everything is written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.place.written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
