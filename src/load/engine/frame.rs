//! WebSocket frames from a client's side, as cheaply as they can be had: those of the server by their headers, where they lie
//! (RFC 6455, 5.2).

use std::ops::Range;

/// A frame that is larger than this is no frame of ours.
pub(super) const MAX_FRAME: usize = 16 << 20;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Kind {
    fn of(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    fn code(self) -> u8 {
        match self {
            Self::Continuation => 0,
            Self::Text => 1,
            Self::Binary => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }
}

/// A frame that begins at some place in the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// Whether the message ends with it.
    pub(super) is_final: bool,
    /// Where its payload is.
    pub(super) payload: Range<usize>,
}

/// What the bytes from a place on are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A whole frame.
    Frame(Frame),
    /// The beginning of one.
    Partial,
    /// None that a server may send.
    Broken,
}

/// Reads the frame that begins at `from`.
pub(super) fn next(bytes: &[u8], from: usize) -> Next {
    let Some(&[first, second]) = bytes.get(from..from + 2) else { return Next::Partial };
    // Reserved bits are set by extensions, which nobody agreed on, and a server does not mask.
    let (true, true, Some(kind)) = (first & 0x70 == 0, second & 0x80 == 0, Kind::of(first & 0x0f)) else {
        return Next::Broken;
    };
    let length = |width: usize| {
        let bytes = bytes.get(from + 2..from + 2 + width)?;
        Some((2 + width, bytes.iter().fold(0_u64, |length, byte| length << 8 | u64::from(*byte))))
    };
    let found = match second {
        126 => length(2),
        127 => length(8),
        short => Some((2, short.into())),
    };
    let Some((header, length)) = found else { return Next::Partial };
    let Some(length) = usize::try_from(length).ok().filter(|length| *length <= MAX_FRAME) else { return Next::Broken };
    let payload = from + header..from + header + length;
    if payload.end > bytes.len() {
        return Next::Partial;
    }
    Next::Frame(Frame { kind, is_final: first & 0x80 != 0, payload })
}

/// Appends a client's whole message. Its mask is of zeros, which leaves the payload as it is: masks are for proxies that take
/// chosen bytes for something else, and there is no such thing between a load test and its server.
pub(super) fn push(out: &mut Vec<u8>, kind: Kind, payload: &[u8]) {
    let first = 0x80 | kind.code();
    match (payload.len(), u16::try_from(payload.len())) {
        (short @ 0..=125, _) => out.extend([first, 0x80 | short.to_le_bytes()[0]]),
        (_, Ok(long)) => {
            out.extend([first, 0x80 | 126]);
            out.extend(long.to_be_bytes());
        }
        (longest, Err(_)) => {
            out.extend([first, 0x80 | 127]);
            out.extend((longest as u64).to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
    use tokio_tungstenite::tungstenite::protocol::frame::{Frame as Reference, FrameHeader};

    use super::*;

    /// A frame as tungstenite makes it.
    fn reference(is_final: bool, data: Data, payload: Vec<u8>) -> Vec<u8> {
        let mut bytes = Vec::new();
        Reference::message(payload, OpCode::Data(data), is_final).format(&mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn frames_are_found_where_tungstenite_puts_them(
            sizes in proptest::collection::vec((0..70_000usize, any::<bool>(), any::<bool>()), 1..6), cut: prop::sample::Index
        ) {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for (size, is_text, is_final) in sizes {
                let (data, kind) = if is_text { (Data::Text, Kind::Text) } else { (Data::Binary, Kind::Binary) };
                bytes.extend(reference(is_final, data, vec![b'x'; size]));
                expected.push(Frame { kind, is_final, payload: bytes.len() - size..bytes.len() });
            }
            let (mut at, mut found) = (0, Vec::new());
            while let Next::Frame(frame) = next(&bytes, at) {
                at = frame.payload.end;
                found.push(frame);
            }
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(next(&bytes, at), Next::Partial);
            // Cut anywhere, it is the same frames up to there and then the beginning of one.
            let cut = cut.index(bytes.len());
            let (mut at, mut count) = (0, 0);
            while let Next::Frame(frame) = next(&bytes[..cut], at) {
                prop_assert_eq!(&frame, &expected[count]);
                (at, count) = (frame.payload.end, count + 1);
            }
            prop_assert_eq!(next(&bytes[..cut], at), Next::Partial);
        }

        #[test]
        fn what_is_pushed_is_read_by_tungstenite(size in prop_oneof![0..200usize, 65_000..66_000usize]) {
            let payload = vec![b'y'; size];
            let mut bytes = Vec::new();
            push(&mut bytes, Kind::Text, &payload);
            let mut cursor = std::io::Cursor::new(bytes.as_slice());
            let (header, length) = FrameHeader::parse(&mut cursor).unwrap().unwrap();
            prop_assert_eq!((header.opcode, header.is_final, length), (OpCode::Data(Data::Text), true, size as u64));
            prop_assert_eq!(header.mask, Some([0; 4]));
            prop_assert_eq!(&bytes[bytes.len() - size..], payload.as_slice());
        }

        #[test]
        fn any_bytes_are_something(bytes: Vec<u8>) {
            let mut at = 0;
            while let Next::Frame(frame) = next(&bytes, at) {
                prop_assert!(frame.payload.end > at && frame.payload.end <= bytes.len());
                at = frame.payload.end;
            }
        }
    }

    #[test]
    fn what_no_server_may_send_is_broken() {
        for bad in [&[0x81, 0x80][..], &[0xc1, 0], &[0x83, 0], &[0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0]] {
            assert_eq!(next(bad, 0), Next::Broken, "{bad:?}");
        }
    }
}
