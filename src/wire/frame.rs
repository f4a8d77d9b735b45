//! Frames as a server sends them: whole, unmasked (RFC 6455, 5.2).

use bytes::Bytes;

use super::close::CloseReason;

/// A ping without payload.
pub const PING: Bytes = Bytes::from_static(&[0x89, 0]);

/// Room for the longest header of an unmasked frame.
pub(super) const HEADER: usize = 10;

/// Frames a text.
#[must_use]
pub fn text_frame(payload: &[u8]) -> Bytes {
    let mut frame = vec![0; HEADER];
    frame.extend_from_slice(payload);
    finish_text(frame)
}

/// Frames bytes.
#[must_use]
pub(super) fn binary_frame(payload: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.resize(HEADER, 0);
    frame.extend_from_slice(payload);
    finish(BINARY, frame)
}

/// Frames a text that was written behind [`HEADER`] free bytes.
pub(super) fn finish_text(frame: Vec<u8>) -> Bytes {
    finish(TEXT, frame)
}

/// The first byte of a whole text frame.
const TEXT: u8 = 0x81;

/// The first byte of a whole binary frame.
const BINARY: u8 = 0x82;

/// Puts the header in front of a payload that was written behind [`HEADER`] free bytes.
fn finish(kind: u8, mut frame: Vec<u8>) -> Bytes {
    let (header, length) = header(kind, frame.len() - HEADER);
    let start = HEADER - length;
    if let (Some(to), Some(from)) = (frame.get_mut(start..HEADER), header.get(..length)) {
        to.copy_from_slice(from);
    }
    Bytes::from(frame).slice(start..)
}

/// A close frame with the reason's code and word.
#[must_use]
pub fn close_frame(reason: CloseReason) -> Bytes {
    let (code, word, _) = reason.row();
    let (header, length) = header(0x88, 2 + word.len());
    [header.get(..length).unwrap_or_default(), &code.to_be_bytes(), word.as_bytes()].concat().into()
}

/// The header, and how many of its bytes count.
fn header(first: u8, payload: usize) -> ([u8; HEADER], usize) {
    let mut header = [0; HEADER];
    header[0] = first;
    let [.., b6, b7] = (payload as u64).to_be_bytes();
    let length = match payload {
        0..=125 => {
            header[1] = b7;
            2
        }
        126..=0xFFFF => {
            header[1] = 126;
            header[2..4].copy_from_slice(&[b6, b7]);
            4
        }
        _ => {
            header[1] = 127;
            header[2..].copy_from_slice(&(payload as u64).to_be_bytes());
            10
        }
    };
    (header, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket};

    /// Reads frames as a client does, with another implementation.
    fn read(bytes: &[u8]) -> tokio_tungstenite::tungstenite::Message {
        struct Input<'a>(&'a [u8]);
        impl std::io::Read for Input<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(buffer)
            }
        }
        impl std::io::Write for Input<'_> {
            fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
                Ok(buffer.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        WebSocket::from_raw_socket(Input(bytes), Role::Client, None).read().unwrap()
    }

    #[test]
    fn a_client_reads_texts_of_every_length_class() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, 200_000] {
            let text = "a".repeat(length);
            assert_eq!(read(&text_frame(text.as_bytes())).into_text().unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_client_reads_every_close_reason() {
        for reason in CloseReason::ALL {
            let tokio_tungstenite::tungstenite::Message::Close(Some(close)) = read(&close_frame(reason)) else {
                panic!("{reason:?} is not a close frame");
            };
            assert_eq!((u16::from(close.code), close.reason.as_str()), (reason.code(), reason.word()));
        }
    }
}
