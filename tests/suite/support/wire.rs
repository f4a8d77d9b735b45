//! A client that writes bytes as it pleases: frames that no library would send, and requests that are none.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::server::PATIENCE;

/// A whole text, the beginning of a fragmented one, and what follows it.
pub const TEXT: u8 = 0x81;
pub const FIRST_TEXT: u8 = 0x01;
pub const MORE: u8 = 0x00;
pub const LAST: u8 = 0x80;
pub const BINARY: u8 = 0x82;
pub const CLOSE: u8 = 0x88;
pub const PING: u8 = 0x89;
pub const PONG: u8 = 0x8A;

/// A connection, and what was read from it too early.
pub struct Wire {
    pub stream: TcpStream,
    read: Vec<u8>,
}

/// A frame as it came: its first byte and its payload.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub first: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The code of a close frame.
    pub fn code(&self) -> Option<u16> {
        let code = self.payload.first_chunk::<2>().filter(|_| self.first == CLOSE);
        code.map(|code| u16::from_be_bytes(*code))
    }
}

/// The request that opens a WebSocket.
pub fn handshake(room: &str) -> String {
    format!(
        "GET /ws/{room} HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// A frame as a client sends it: masked.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [1, 2, 3, 4];
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..=125 => bytes.push(0x80 | u8::try_from(short).expect("it is short")),
        middle @ 126..=0xFFFF => {
            bytes.push(0x80 | 126);
            bytes.extend(u16::try_from(middle).expect("it is not long").to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

impl Wire {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        Self { stream, read: Vec::new() }
    }

    /// Joins with the smallest of receive buffers, so that it is soon full.
    pub async fn join_narrow(address: SocketAddr, room: &str) -> Self {
        Self::join_with_buffer(address, room, 2048).await
    }

    /// Joins with a receive buffer of so many bytes.
    pub async fn join_with_buffer(address: SocketAddr, room: &str, bytes: u32) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(bytes).expect("it is not connected yet");
        let mut wire = Self { stream: socket.connect(address).await.expect("the server listens"), read: Vec::new() };
        wire.write(handshake(room).as_bytes()).await;
        wire.head().await;
        wire.frame().await.expect("the server says hello");
        wire
    }

    /// Opens a WebSocket and waits for the answer; the hello is still to come.
    pub async fn upgrade(address: SocketAddr, room: &str) -> Self {
        let mut wire = Self::connect(address).await;
        wire.write(handshake(room).as_bytes()).await;
        let head = wire.head().await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        wire
    }

    /// Opens a WebSocket and reads the hello.
    pub async fn join(address: SocketAddr, room: &str) -> Self {
        let mut wire = Self::upgrade(address, room).await;
        let hello = wire.frame().await.expect("the server says hello");
        assert!(hello.first == TEXT && hello.payload.starts_with(b"{\"type\":\"hello\""), "{hello:?}");
        wire
    }

    /// Writes; a server that has closed meanwhile is no failure.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _may_be_closed = timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the server reads");
    }

    /// Reads the head of an answer.
    pub async fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.read.split_off(end + 4);
                let head = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(head).expect("a head is text");
            }
            assert!(self.more().await, "the server closed within {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    /// Takes `length` bytes, such as the body of an answer.
    pub async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.read.len() < length {
            assert!(self.more().await, "the server closed within {:?}", String::from_utf8_lossy(&self.read));
        }
        let rest = self.read.split_off(length);
        std::mem::replace(&mut self.read, rest)
    }

    /// The next frame; `None` once the connection is over.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, length)) = parse(&self.read) {
                self.read.drain(..length);
                return Some(frame);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// All frames from now until the connection is over.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }

    /// Whether the server ends the connection within this time, whatever it says before.
    pub async fn ends_within(&mut self, time: Duration) -> bool {
        timeout(time, async { while self.more().await {} }).await.is_ok()
    }

    /// What was read and not yet taken.
    pub fn unread(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }

    async fn more(&mut self) -> bool {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.read)).await.expect("the server sends something");
        // A reset is an end as well.
        matches!(read, Ok(1..))
    }
}

fn parse(bytes: &[u8]) -> Option<(Frame, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    assert_eq!(second & 0x80, 0, "a server masks nothing");
    let (begin, length) = match second {
        126 => (4, usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?)).expect("it fits")),
        short => (2, usize::from(short)),
    };
    let payload = bytes.get(begin..begin + length)?.to_vec();
    Some((Frame { first, payload }, begin + length))
}
