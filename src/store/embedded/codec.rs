//! Values in the embedded store, format 1. Pure.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version of this format: 1 |
//! | 8 | `expire_at`, milliseconds since 1970, signed, big-endian |
//! | 1 | mode: 1, 4 or 5 |
//! | 3 | colour, big-endian |
//! | 1 | font size |
//! | … | user id, name and text, each its length in bytes as unsigned LEB128, then UTF-8 |
//!
//! Room, time and id stand in the key. A change of anything here is a new version, and the old one stays readable:
//! `tests/data/embedded-v1/values.txt` holds values as format 1 wrote them.

use bytes::{BufMut as _, Bytes, BytesMut};
use thiserror::Error;

use crate::model::{Comment, Name, Position, RoomId, Style, Text, Timestamp, UserId};

const VERSION: u8 = 1;

/// Says why bytes are no comment of ours.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum DecodeError {
    #[error("the comment is written in format {0}, and this server reads up to {VERSION}")]
    Version(u8),
    #[error("the comment ends too early")]
    Short,
    #[error("the comment has {0} bytes too many")]
    Long(usize),
    #[error("the comment has a text that is not UTF-8")]
    Utf8,
    #[error("the comment has a style that cannot be")]
    Style,
}

/// Encodes what the key does not hold.
pub(super) fn encode(comment: &Comment) -> Bytes {
    let texts = [comment.uid.as_str(), comment.name.as_str(), comment.text.as_str()];
    let mut bytes = BytesMut::with_capacity(32 + texts.iter().map(|text| text.len()).sum::<usize>());
    bytes.put_u8(VERSION);
    bytes.put_i64(comment.expire_at.millis());
    // Mode and size fit a byte and the colour three: their types hold them to 1–5, 12–64 and 0–0xFFFFFF.
    bytes.put_int(comment.style.mode.number().into(), 1);
    bytes.put_int(comment.style.color.number().into(), 3);
    bytes.put_int(comment.style.size.number().into(), 1);
    for text in texts {
        put_length(&mut bytes, text.len());
        bytes.put_slice(text.as_bytes());
    }
    bytes.freeze()
}

/// Reads when the comment expires, without the rest.
pub(super) fn decode_expiry(bytes: &[u8]) -> Result<Timestamp, DecodeError> {
    let mut rest = Rest(bytes);
    match rest.byte()? {
        VERSION => Ok(Timestamp::from_millis(i64::from_be_bytes(rest.take()?))),
        other => Err(DecodeError::Version(other)),
    }
}

/// Reads a comment whose room and position its key gave.
pub(super) fn decode(room: &RoomId, position: Position, bytes: &[u8]) -> Result<Comment, DecodeError> {
    let expire_at = decode_expiry(bytes)?;
    let mut rest = Rest(bytes);
    let _version_and_expiry: [u8; 9] = rest.take()?;
    let mode = rest.byte()?;
    let [red, green, blue] = rest.take()?;
    let size = rest.byte()?;
    let color = i64::from(u32::from_be_bytes([0, red, green, blue]));
    let style = Style::parse(Some(mode.into()), Some(color), Some(size.into())).map_err(|_| DecodeError::Style)?;
    let comment = Comment {
        id: position.id,
        room: room.clone(),
        ts: position.ts,
        uid: UserId::new(rest.text()?),
        name: Name::from_store(rest.text()?),
        text: Text::from_store(rest.text()?),
        style,
        expire_at,
    };
    match rest.0.len() {
        0 => Ok(comment),
        left => Err(DecodeError::Long(left)),
    }
}

/// Unsigned LEB128 (DWARF 4, section 7.6): seven bits a byte, the lowest first, the top bit set on all but the last.
fn put_length(bytes: &mut BytesMut, mut length: usize) {
    while length >= 0x80 {
        bytes.put_u8(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    bytes.put_u8(length.to_le_bytes()[0]);
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.take().map(|[byte]| byte)
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        let mut length = 0usize;
        // Four groups of seven bits: 256 MiB, far above any text, and no shift can overflow.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(length);
            }
        }
        Err(DecodeError::Short)
    }

    fn text(&mut self) -> Result<&'a str, DecodeError> {
        let length = self.length()?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| DecodeError::Utf8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::test_comment as comment;
    use proptest::prelude::*;

    fn any_comment() -> impl Strategy<Value = Comment> {
        let texts = (".{0,20}", ".{0,200}", "\\PC{0,400}");
        let style = (prop::sample::select(vec![1i64, 4, 5]), 0..0x100_0000i64, 12..65i64);
        (any::<(i64, u32, i64)>(), texts, style).prop_map(|((ts, n, expire_at), (uid, name, text), style)| Comment {
            uid: UserId::new(&uid),
            name: Name::from_store(&name),
            text: Text::from_store(&text),
            style: Style::parse(Some(style.0), Some(style.1), Some(style.2)).unwrap(),
            expire_at: Timestamp::from_millis(expire_at),
            ..comment("r", ts / 2, n, "x")
        })
    }

    proptest! {
        #[test]
        fn a_comment_survives_its_bytes(comment in any_comment()) {
            let bytes = encode(&comment);
            prop_assert_eq!(decode_expiry(&bytes), Ok(comment.expire_at));
            prop_assert_eq!(decode(&comment.room, comment.position(), &bytes), Ok(comment));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), version in 0..3u8) {
            let bytes = [&[version], bytes.as_slice()].concat();
            let _outcome = decode(&RoomId::parse("r").unwrap(), Position::START, &bytes);
        }

        #[test]
        fn a_cut_or_lengthened_comment_is_refused(comment in any_comment(), cut: prop::sample::Index) {
            let bytes = encode(&comment);
            let short = decode(&comment.room, comment.position(), &bytes[..cut.index(bytes.len())]);
            prop_assert_eq!(short, Err(DecodeError::Short));
            let long = [&bytes, b"x".as_slice()].concat();
            prop_assert_eq!(decode(&comment.room, comment.position(), &long), Err(DecodeError::Long(1)));
        }
    }

    #[test]
    fn a_newer_format_is_named_and_not_guessed_at() {
        let refused = decode(&RoomId::parse("r").unwrap(), Position::START, &[2, 0, 0]);
        assert_eq!(refused, Err(DecodeError::Version(2)));
    }

    /// Lines of hexadecimal value and what it must read as, written by the release that brought format 1.
    #[test]
    fn values_written_by_format_1_still_read_the_same() {
        let file = include_str!("../../../tests/data/embedded-v1/values.txt");
        let lines: Vec<_> = file.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 3);
        for line in lines {
            let fields: Vec<&str> = line.split('\t').collect();
            let [hex, expire_at, mode, color, size, uid, name, text] = fields[..] else { panic!("{line}") };
            let bytes: Vec<u8> = hex
                .as_bytes()
                .chunks(2)
                .map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap())
                .collect();
            let number = |field: &str| Some(field.parse::<i64>().unwrap());
            let wanted = Comment {
                expire_at: Timestamp::from_millis(expire_at.parse().unwrap()),
                style: Style::parse(number(mode), number(color), number(size)).unwrap(),
                uid: UserId::new(uid),
                name: Name::from_store(name),
                text: Text::from_store(text),
                ..comment("r", 1, 1, "x")
            };
            assert_eq!(decode(&wanted.room, wanted.position(), &bytes), Ok(wanted.clone()), "{line}");
            assert_eq!(encode(&wanted), bytes, "{line}");
        }
    }
}
