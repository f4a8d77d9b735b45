//! A server for the client's tests: speaks WebSocket over memory, so that paused time is exact.

use std::future::Future;
use std::io;

use futures_util::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::client::{Dial, Target};
use super::replay::Progress;
use super::report::Report;

/// Dials into a fake server.
#[derive(Clone)]
pub(super) struct FakeServer {
    doors: mpsc::Sender<DuplexStream>,
}

impl FakeServer {
    /// Serves each connection, numbered from 0, with `serve`.
    pub(super) fn start<F>(serve: impl Fn(usize, FakeSession) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_for(usize::MAX, serve)
    }

    /// Serves one connection and is gone.
    pub(super) fn start_once<F>(serve: impl Fn(usize, FakeSession) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_for(1, serve)
    }

    fn start_for<F>(connections: usize, serve: impl Fn(usize, FakeSession) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (doors, mut entered) = mpsc::channel::<DuplexStream>(16);
        tokio::spawn(async move {
            for number in 0..connections {
                let Some(stream) = entered.recv().await else { return };
                let session = FakeSession::accept(stream).await;
                tokio::spawn(serve(number, session));
            }
        });
        Self { doors }
    }
}

impl Dial for FakeServer {
    type Stream = DuplexStream;

    async fn dial(&self, _: &Target) -> io::Result<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(4096);
        self.doors.send(theirs).await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(ours)
    }
}

/// A `send` frame as it came.
#[derive(Debug, Deserialize)]
pub(super) struct Sent {
    pub(super) nonce: String,
    pub(super) text: String,
    pub(super) ack: String,
}

/// Memory or a real socket.
trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// The server's side of one connection. Dropping it breaks the connection without a word.
pub(super) struct FakeSession {
    /// Path and query of the request.
    pub(super) path: String,
    socket: WebSocketStream<Box<dyn Bytes>>,
}

impl FakeSession {
    pub(super) async fn accept(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let stream: Box<dyn Bytes> = Box::new(stream);
        let mut path = String::new();
        #[expect(clippy::result_large_err, reason = "the signature is tungstenite's")]
        let note = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
            path = request.uri().to_string();
            Ok(response)
        };
        let socket = accept_hdr_async(stream, note).await.unwrap();
        Self { path, socket }
    }

    /// The next `send`; none once the client is gone.
    pub(super) async fn next_send(&mut self) -> Option<Sent> {
        while let Some(Ok(message)) = self.socket.next().await {
            if let Message::Text(text) = message {
                return Some(serde_json::from_str(&text).unwrap());
            }
        }
        None
    }

    pub(super) async fn say(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    pub(super) async fn ack(&mut self, send: &Sent, level: &str) {
        self.say(&format!(r#"{{"type":"ack","nonce":"{}","id":"1","level":"{level}"}}"#, send.nonce)).await;
    }

    pub(super) async fn refuse(&mut self, send: &Sent, code: &str, retry_after_ms: u64) {
        let nonce = &send.nonce;
        let frame = format!(
            r#"{{"type":"error","nonce":"{nonce}","code":"{code}","message":"no","retryAfterMs":{retry_after_ms}}}"#
        );
        self.say(&frame).await;
    }
}

/// Shows nothing.
pub(super) fn no_progress() -> impl Progress {
    struct Silent;
    impl Progress for Silent {
        fn show(&mut self, _: &Report) {}
    }
    Silent
}
