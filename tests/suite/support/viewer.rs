//! A viewer, as another program sees the protocol.

use std::collections::VecDeque;
use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::server::PATIENCE;

/// A connection to a room.
pub struct Viewer {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The first frame.
    pub hello: Value,
    /// The newest cursor.
    pub cursor: String,
    /// Frames that came before an answer that was waited for; they are seen next.
    put_by: VecDeque<Value>,
}

/// What a viewer sees.
#[derive(Debug)]
pub enum Seen {
    Frame(Value),
    Close(Option<CloseFrame>),
    /// The connection is gone without a close.
    Gone,
}

impl Viewer {
    /// Joins a room; `query` is what stands behind the question mark.
    pub async fn join(address: SocketAddr, room: &str, query: &str) -> Self {
        Self::try_join(address, room, query).await.expect("the server takes the connection")
    }

    /// As [`Viewer::join`], when it may fail.
    pub async fn try_join(address: SocketAddr, room: &str, query: &str) -> Result<Self, Error> {
        // Without Nagle, as browsers do.
        let url = format!("ws://{address}/ws/{room}?{query}");
        let connect = connect_async_with_config(url, None, true);
        let (socket, _) = timeout(PATIENCE, connect).await.expect("the server answers in time")?;
        let mut viewer = Self { socket, hello: Value::Null, cursor: String::new(), put_by: VecDeque::new() };
        viewer.hello = viewer.frame().await;
        assert_eq!(viewer.hello["type"], "hello", "{}", viewer.hello);
        Ok(viewer)
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: &Value) {
        self.send_raw(Message::text(frame.to_string())).await;
    }

    /// Sends whatever.
    pub async fn send_raw(&mut self, message: Message) {
        timeout(PATIENCE, self.socket.send(message)).await.expect("the server reads").expect("the socket is open");
    }

    /// Says something, and waits for the answer under its nonce. What comes before the answer is seen afterwards.
    pub async fn say(&mut self, nonce: &str, text: &str, ack: &str) -> Value {
        self.send(&json!({"type": "send", "nonce": nonce, "text": text, "ack": ack})).await;
        loop {
            match self.receive().await {
                Seen::Frame(frame) if frame["nonce"] == nonce => return frame,
                Seen::Frame(frame) => self.put_by.push_back(frame),
                end => panic!("the connection has ended: {end:?}"),
            }
        }
    }

    /// The next thing the server sends, pings and pongs aside.
    pub async fn see(&mut self) -> Seen {
        match self.put_by.pop_front() {
            Some(frame) => Seen::Frame(frame),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Seen {
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await.expect("the server sends something");
            match message {
                Some(Ok(Message::Text(text))) => {
                    let frame: Value = serde_json::from_str(&text).expect("the server sends JSON");
                    if let Some(cursor) = frame["cursor"].as_str() {
                        cursor.clone_into(&mut self.cursor);
                    }
                    return Seen::Frame(frame);
                }
                Some(Ok(Message::Close(close))) => return Seen::Close(close),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(other)) => panic!("the server sends no such thing: {other:?}"),
                Some(Err(_)) | None => return Seen::Gone,
            }
        }
    }

    /// The next frame; fails when the connection ends.
    pub async fn frame(&mut self) -> Value {
        match self.see().await {
            Seen::Frame(frame) => frame,
            end => panic!("the connection has ended: {end:?}"),
        }
    }

    /// The first frame that is wanted.
    pub async fn until(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        // Other frames must not keep it waiting for ever.
        let wanted = async {
            loop {
                let frame = self.frame().await;
                if is_wanted(&frame) {
                    return frame;
                }
            }
        };
        timeout(PATIENCE, wanted).await.expect("the wanted frame comes in time")
    }

    /// The texts of the next `count` comments, in their order.
    pub async fn texts(&mut self, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        while texts.len() < count {
            let frame = self.until(|frame| frame["type"] == "comments").await;
            texts.extend(texts_of(&frame["comments"]));
        }
        assert_eq!(texts.len(), count, "{texts:?}");
        texts
    }

    /// Takes comments until this text, which it gives as the last; what `hello` brought comes first. Fails when the server
    /// tells of a gap.
    pub async fn texts_until(&mut self, last: &str) -> Vec<String> {
        let mut texts = texts_of(&self.hello["recent"]);
        while texts.last().is_none_or(|text| text != last) {
            let frame = self.frame().await;
            assert_ne!(frame["type"], "gap", "{frame}");
            if frame["type"] == "comments" {
                texts.extend(texts_of(&frame["comments"]));
            }
        }
        texts
    }

    /// Waits until the server closes; gives the code and the frames before.
    pub async fn closed(&mut self) -> (Option<u16>, Vec<Value>) {
        let mut frames = Vec::new();
        loop {
            match self.see().await {
                Seen::Frame(frame) => frames.push(frame),
                Seen::Close(close) => return (close.map(|close| close.code.into()), frames),
                Seen::Gone => return (None, frames),
            }
        }
    }
}

/// The texts of a list of comments.
pub fn texts_of(comments: &Value) -> Vec<String> {
    let comments = comments.as_array().expect("a list of comments");
    comments.iter().map(|comment| comment["text"].as_str().expect("a text").to_owned()).collect()
}
