//! Sockets and the opening handshake, without waiting for either.

use std::io;
use std::net::{IpAddr, SocketAddr};

use mio::net::TcpStream;
use socket2::{Domain, Protocol, Socket, Type};
use url::Url;

/// Bytes that the system keeps for a slow viewer, so that it is the server that feels its slowness.
const SLOW_BUFFER: usize = 4096;

/// What a server has to answer to [`request`]'s key (RFC 6455, 1.3, whose example it is).
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The most that the head of an answer may have.
const MAX_HEAD: usize = 16 * 1024;

/// Begins to connect.
pub(super) fn dial(to: SocketAddr, from: Option<IpAddr>, is_slow: bool) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if is_slow {
        socket.set_recv_buffer_size(SLOW_BUFFER)?;
    }
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    match socket.connect(&to.into()) {
        Ok(()) => {}
        // EINPROGRESS: it goes on, and the socket becomes writable when it has ended.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from_std(socket.into()))
}

/// The request that opens a WebSocket.
pub(super) fn request(url: &Url, host: &str) -> Vec<u8> {
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!(
        "GET {}{query} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        url.path()
    )
    .into_bytes()
}

/// What the server has answered so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It goes on.
    Partial,
    /// A WebSocket is open; its frames begin at this byte.
    Open(usize),
    /// It is none, with this HTTP status, or 0 if the answer is none either.
    Refused(u16),
}

/// Reads the answer's head.
pub(super) fn answer(bytes: &[u8]) -> Answer {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > MAX_HEAD { Answer::Refused(0) } else { Answer::Partial };
    };
    let head = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0);
    let is_accepted = head.lines().any(|line| {
        let field = line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim()));
        field.is_some_and(|(name, value)| name == "sec-websocket-accept" && value == ACCEPT)
    });
    if status == 101 && is_accepted { Answer::Open(end + 4) } else { Answer::Refused(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_however_it_comes() {
        let whole = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nsec-websocket-accept: \
                      s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81";
        assert_eq!(answer(whole), Answer::Open(whole.len() - 1));
        for end in 0..whole.len() - 1 {
            assert_eq!(answer(&whole[..end]), Answer::Partial);
        }
        assert_eq!(answer(b"HTTP/1.1 503 Busy\r\n\r\n"), Answer::Refused(503));
        assert_eq!(answer(b"HTTP/1.1 101 x\r\nsec-websocket-accept: other\r\n\r\n"), Answer::Refused(101));
        assert_eq!(answer(b"SSH-2.0\r\n\r\n"), Answer::Refused(0));
        assert_eq!(answer(&vec![b'x'; MAX_HEAD + 1]), Answer::Refused(0));
    }
}
