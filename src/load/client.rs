//! One WebSocket connection to a server, seen from outside: the address, the handshake, the frames.

use std::future::Future;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use url::Url;

use super::trace::Line;
use crate::model::{AckLevel, RoomId};

/// The largest frame that is read: a batch for a busy room is large, and a viewer must take it.
const MAX_FRAME_BYTES: usize = 16 << 20;

/// How long a connection may take to come about, name resolution and handshake included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The address is not one of a server.
    #[error("{target:?} is not an address of a server: {problem}")]
    Target {
        /// The address as given.
        target: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// Nobody answers there.
    #[error("{target} cannot be reached")]
    Unreachable {
        /// Where.
        target: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Somebody answers, but not with a WebSocket.
    #[error("{target} answered {status} instead of opening a WebSocket; is it a danmakud?")]
    Refused {
        /// Where.
        target: String,
        /// The HTTP status.
        status: u16,
    },
    /// The handshake broke.
    #[error("{target} does not speak WebSocket: {seen}")]
    Handshake {
        /// Where.
        target: String,
        /// What was seen. Not the error itself as the source: it tells its own source in its text, and whoever prints
        /// the chain would say it twice.
        seen: String,
    },
}

impl ClientError {
    /// The message with what caused it, in one line.
    #[must_use]
    pub fn with_cause(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

/// Where a server is.
#[derive(Clone, Debug)]
pub struct Target {
    base: Url,
    shown: String,
}

impl Target {
    /// Reads an address such as `http://127.0.0.1:8080`; a path is kept in front of the server's own.
    ///
    /// # Errors
    /// [`ClientError::Target`] for anything but `http://` and `ws://` with a host.
    pub fn parse(raw: &str) -> Result<Self, ClientError> {
        let refused = |problem: &str| ClientError::Target { target: raw.to_owned(), problem: problem.to_owned() };
        let mut base =
            Url::parse(raw).map_err(|error| refused(&format!("{error}; one looks like http://HOST:PORT")))?;
        match base.scheme() {
            "http" | "ws" => {}
            "https" | "wss" => return Err(refused("TLS is not spoken here; name the server's plain http:// address")),
            _ => return Err(refused("one looks like http://HOST:PORT")),
        }
        if base.host_str().is_none_or(str::is_empty) {
            return Err(refused("it has no host; one looks like http://HOST:PORT"));
        }
        if base.set_scheme("ws").is_err() {
            return Err(refused("one looks like http://HOST:PORT"));
        }
        base.set_query(None);
        base.set_fragment(None);
        Ok(Self { base, shown: raw.to_owned() })
    }

    /// The address as it was given.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// A path of the server's own, behind that of the address.
    #[must_use]
    pub fn path(&self, own: &str) -> String {
        format!("{}{own}", self.base.path().trim_end_matches('/'))
    }

    /// Host and port, as in the head of a request.
    #[must_use]
    pub fn socket(&self) -> String {
        // An IPv6 host stands in brackets here, as the resolver wants it before a port.
        format!("{}:{}", self.base.host_str().unwrap_or_default(), self.base.port().unwrap_or(80))
    }

    /// The address of a room's WebSocket for a guest; `since` resumes after a cursor.
    #[must_use]
    pub fn room_url(&self, room: &RoomId, guest: &Guest, since: Option<&str>) -> Url {
        let mut url = self.base.clone();
        url.set_path(&self.path(&format!("/ws/{room}")));
        let mut query = url.query_pairs_mut();
        query.append_pair("guest", &guest.key).append_pair("name", &guest.name);
        if let Some(cursor) = since {
            query.append_pair("since", cursor);
        }
        drop(query);
        url
    }
}

/// Who a connection speaks as.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The secret from which the server makes the guest's stable id.
    pub key: String,
    /// The name that is shown.
    pub name: String,
}

/// Opens the byte stream to a server. Tests put one in that needs no network.
pub trait Dial: Clone + Send + Sync + 'static {
    /// The byte stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens it.
    fn dial(&self, target: &Target) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Dials over TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dial for Tcp {
    type Stream = TcpStream;

    async fn dial(&self, target: &Target) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(target.socket()).await?;
        // Without this a comment would wait for the acknowledgement of the one before.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Connects to a room within 10 s.
///
/// # Errors
/// [`ClientError`] when there is no server, or none of ours, at the target.
pub async fn connect<D: Dial>(dial: &D, target: &Target, url: &Url) -> Result<WebSocketStream<D::Stream>, ClientError> {
    let shown = || target.shown.clone();
    let config = WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        .write_buffer_size(0)
        .max_message_size(Some(MAX_FRAME_BYTES))
        .max_frame_size(Some(MAX_FRAME_BYTES));
    let opened = timeout(CONNECT_WITHIN, async {
        let stream = dial.dial(target).await.map_err(|source| ClientError::Unreachable { target: shown(), source })?;
        match client_async_with_config(url.as_str(), stream, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => {
                Err(ClientError::Refused { target: shown(), status: response.status().as_u16() })
            }
            Err(error) => Err(ClientError::Handshake { target: shown(), seen: error.to_string() }),
        }
    });
    opened.await.unwrap_or_else(|_| {
        let source = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {CONNECT_WITHIN:?}"));
        Err(ClientError::Unreachable { target: shown(), source })
    })
}

/// The frame that sends a comment, as JSON.
#[derive(Serialize)]
pub(super) struct SendFrame<'a> {
    pub(super) r#type: &'static str,
    pub(super) nonce: &'a str,
    pub(super) text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) color: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<i64>,
    pub(super) ack: &'static str,
}

/// The frame that sends a comment.
#[must_use]
pub fn send_frame(line: &Line, nonce: &str, ack: AckLevel) -> Message {
    let &Line { ref text, mode, color, size, .. } = line;
    let send = SendFrame { r#type: "send", nonce, text, mode, color, size, ack: ack.as_str() };
    // Strings and numbers always have a JSON form.
    Message::text(serde_json::to_string(&send).unwrap_or_default())
}

/// What a server said, as far as a sender cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Where the connection stands in the room: from `hello` and `comments`.
    Stands {
        /// Resumes from here.
        cursor: String,
    },
    /// A comment was taken.
    Ack {
        /// Which.
        nonce: String,
        /// Whether the store has acknowledged it.
        is_stored: bool,
    },
    /// A comment was refused, or, without a nonce, something else went wrong.
    Error {
        /// Which.
        nonce: Option<String>,
        /// The stable code.
        code: String,
        /// When to try again, where that helps.
        retry_after: Option<Duration>,
    },
    /// Comments that cannot be delivered any more.
    Gap {
        /// How many.
        missed: u64,
    },
    /// The server ends the connection.
    Bye {
        /// When to come back.
        reconnect_after: Option<Duration>,
    },
    /// Anything else.
    Other,
}

/// All fields of all frames that matter here. Comments are skipped without being kept, as reading must keep up.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawFrame {
    r#type: String,
    nonce: Option<String>,
    level: Option<String>,
    code: Option<String>,
    cursor: Option<String>,
    missed: Option<u64>,
    retry_after_ms: Option<u64>,
    reconnect_after_ms: Option<u64>,
}

impl Frame {
    /// Reads a text frame; none when it is no frame of the protocol.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let raw: RawFrame = serde_json::from_str(text).ok()?;
        Some(match raw.r#type.as_str() {
            "hello" | "comments" => raw.cursor.map_or(Self::Other, |cursor| Self::Stands { cursor }),
            "ack" => Self::Ack { nonce: raw.nonce?, is_stored: raw.level.as_deref() == Some("stored") },
            "error" => Self::Error {
                nonce: raw.nonce,
                code: raw.code?,
                retry_after: raw.retry_after_ms.map(Duration::from_millis),
            },
            "gap" => Self::Gap { missed: raw.missed? },
            "bye" => Self::Bye { reconnect_after: raw.reconnect_after_ms.map(Duration::from_millis) },
            _ => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_becomes_the_rooms_url() {
        let guest = Guest { key: "replay-1&2".into(), name: "r 1".into() };
        let room = RoomId::parse("r1").unwrap();
        let url = |target: &str, since| Target::parse(target).unwrap().room_url(&room, &guest, since).to_string();
        assert_eq!(url("http://h:81", None), "ws://h:81/ws/r1?guest=replay-1%262&name=r+1");
        assert_eq!(
            url("http://[::1]:81/live/", Some("c")),
            "ws://[::1]:81/live/ws/r1?guest=replay-1%262&name=r+1&since=c"
        );
        assert_eq!(Target::parse("http://[::1]").unwrap().socket(), "[::1]:80");
    }

    #[test]
    fn a_wrong_address_is_told_what_would_be_right() {
        for (bad, says) in [
            ("127.0.0.1:8080", "http://HOST:PORT"),
            ("localhost:8080", "http://HOST:PORT"),
            ("https://h", "plain http://"),
            ("ftp://h", "http://HOST:PORT"),
            ("http://", "http://HOST:PORT"),
            ("", "http://HOST:PORT"),
        ] {
            let error = Target::parse(bad).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn frames_are_read_for_what_a_sender_cares_about() {
        let ack = r#"{"type":"ack","nonce":"n1","id":"x","level":"stored","new":[1]}"#;
        assert_eq!(Frame::parse(ack), Some(Frame::Ack { nonce: "n1".into(), is_stored: true }));
        let error = r#"{"type":"error","nonce":"n1","code":"busy","message":"…","retryAfterMs":80}"#;
        let retry_after = Some(Duration::from_millis(80));
        assert_eq!(
            Frame::parse(error),
            Some(Frame::Error { nonce: Some("n1".into()), code: "busy".into(), retry_after })
        );
        let comments = r#"{"type":"comments","cursor":"c","comments":[{"id":"1","text":"x"}]}"#;
        assert_eq!(Frame::parse(comments), Some(Frame::Stands { cursor: "c".into() }));
        let bye = r#"{"type":"bye","code":"going_away","reconnectAfterMs":5}"#;
        assert_eq!(Frame::parse(bye), Some(Frame::Bye { reconnect_after: Some(Duration::from_millis(5)) }));
        assert_eq!(Frame::parse(r#"{"type":"later"}"#), Some(Frame::Other));
        for bad in ["", "[]", "{}", r#"{"type":"ack"}"#, r#"{"type":7}"#] {
            assert_eq!(Frame::parse(bad), None, "{bad}");
        }
    }
}
