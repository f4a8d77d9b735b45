//! Comments on their way between nodes: compact, versioned, pure.
//!
//! All numbers are big-endian; a *length* is LEB128, low 7 bits first.
//!
//! ```text
//! message = version u8, node 8 bytes, seq u64, count length, count × comment
//! comment = id 12 bytes, ts i64, expireAt i64, mode u8, size u8, colour u24, role u8, uid text, name text, text text
//! text    = length, that many bytes of UTF-8
//! ```
//!
//! That is version 2. Version 1 has no `role`: all senders are viewers. A message is sent as version 1 when that is so, which
//! nodes from before version 2 can read: during an update they miss only messages with a host or a moderator in them, as
//! they would any that is lost. A role is 0 viewer, 1 moderator, 2 host; one that is not known here counts as a viewer.
//!
//! The room is not in it: the channel names it. `node` tells a node its own messages, `seq` rises with each message
//! of a node and tells one that was published again.

use thiserror::Error;

use crate::model::{
    Color, Comment, CommentId, FontSize, Mode, Name, Relayed, Role, RoomId, Style, Text, Timestamp, UserId,
};

/// Without roles, and with them.
const VIEWERS: u8 = 1;
const ROLES: u8 = 2;

const SEQ_AT: std::ops::Range<usize> = 9..17;

/// The least that a comment takes, its three texts empty and without a role: 12 + 8 + 8 + 1 + 1 + 3 + 3 × 1.
const MIN_COMMENT_BYTES: usize = 36;

/// Names a node for as long as it runs; made at random.
pub(super) type NodeId = [u8; 8];

/// What one message carries.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    pub(super) node: NodeId,
    pub(super) seq: u64,
    pub(super) comments: Vec<Relayed>,
}

/// Bytes that are no message of a version known here; they are dropped and counted.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum CodecError {
    #[error("version {0} is not known here; this node reads versions {VIEWERS} and {ROLES}")]
    Version(u8),
    #[error("the message ends too early")]
    Short,
    #[error("{0} bytes follow the last comment")]
    Trailing(usize),
    #[error("a length is out of range")]
    Length,
    #[error("a text is not UTF-8")]
    Utf8,
    #[error("a style is out of range")]
    Style,
}

/// Encodes comments of one room with their senders' roles, oldest first, with sequence number 0.
pub(super) fn encode<'a>(
    node: NodeId,
    comments: impl ExactSizeIterator<Item = (&'a Comment, Role)> + Clone,
) -> Vec<u8> {
    let has_roles = comments.clone().any(|(_, sender)| sender != Role::Viewer);
    let mut out = Vec::with_capacity(32 + comments.len() * 128);
    out.push(if has_roles { ROLES } else { VIEWERS });
    out.extend(node);
    out.extend(0u64.to_be_bytes());
    put_length(&mut out, comments.len());
    for (comment, sender) in comments {
        let Style { mode, color, size } = comment.style;
        out.extend(comment.id.bytes());
        out.extend(comment.ts.millis().to_be_bytes());
        out.extend(comment.expire_at.millis().to_be_bytes());
        // The ranges of the three (5, 64, 0xFFFFFF) fit the bytes kept.
        let [.., mode] = mode.number().to_be_bytes();
        let [.., size] = size.number().to_be_bytes();
        let [_, red, green, blue] = color.number().to_be_bytes();
        out.extend([mode, size, red, green, blue]);
        if has_roles {
            out.push(role_number(sender));
        }
        for text in [comment.uid.as_str(), comment.name.as_str(), comment.text.as_str()] {
            put_length(&mut out, text.len());
            out.extend(text.as_bytes());
        }
    }
    out
}

/// Writes the sequence number into an encoded message, once its place in the queue is known.
pub(super) fn set_seq(message: &mut [u8], seq: u64) {
    if let Some(place) = message.get_mut(SEQ_AT) {
        place.copy_from_slice(&seq.to_be_bytes());
    }
}

/// Decodes a message that came on the channel of `room`. Allocates in proportion to the message's true size,
/// whatever lengths it claims.
pub(super) fn decode(room: &RoomId, message: &[u8]) -> Result<Batch, CodecError> {
    let mut rest = message;
    let [version] = take(&mut rest)?;
    if version != VIEWERS && version != ROLES {
        return Err(CodecError::Version(version));
    }
    let node = take(&mut rest)?;
    let seq = u64::from_be_bytes(take(&mut rest)?);
    let count = take_length(&mut rest)?;
    if count > rest.len() / MIN_COMMENT_BYTES {
        return Err(CodecError::Short);
    }
    let take_one = |_| take_comment(room, &mut rest, version == ROLES);
    let comments = (0..count).map(take_one).collect::<Result<_, _>>()?;
    if !rest.is_empty() {
        return Err(CodecError::Trailing(rest.len()));
    }
    Ok(Batch { node, seq, comments })
}

fn take_comment(room: &RoomId, rest: &mut &[u8], has_role: bool) -> Result<Relayed, CodecError> {
    let id = CommentId::from_bytes(take(rest)?);
    let ts = Timestamp::from_millis(i64::from_be_bytes(take(rest)?));
    let expire_at = Timestamp::from_millis(i64::from_be_bytes(take(rest)?));
    let [mode, size, red, green, blue] = take(rest)?;
    let style = Style {
        mode: Mode::parse(mode.into()).map_err(|_| CodecError::Style)?,
        size: FontSize::parse(size.into()).map_err(|_| CodecError::Style)?,
        color: Color::parse(u32::from_be_bytes([0, red, green, blue]).into()).map_err(|_| CodecError::Style)?,
    };
    let sender = if has_role { role(take::<1>(rest)?) } else { Role::Viewer };
    let uid = UserId::new(take_text(rest)?);
    // Checked by the node that accepted the comment.
    let name = Name::from_store(take_text(rest)?);
    let text = Text::from_store(take_text(rest)?);
    Ok(Relayed { comment: Comment { id, room: room.clone(), ts, uid, name, text, style, expire_at }, sender })
}

fn role_number(role: Role) -> u8 {
    match role {
        Role::Viewer => 0,
        Role::Moderator => 1,
        Role::Host => 2,
    }
}

fn role([number]: [u8; 1]) -> Role {
    [Role::Moderator, Role::Host].into_iter().find(|role| role_number(*role) == number).unwrap_or(Role::Viewer)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], CodecError> {
    let (taken, after) = rest.split_first_chunk().ok_or(CodecError::Short)?;
    *rest = after;
    Ok(*taken)
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, CodecError> {
    let length = take_length(rest)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(CodecError::Short)?;
    *rest = after;
    std::str::from_utf8(taken).map_err(|_| CodecError::Utf8)
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    let mut left = length;
    while left >= 0x80 {
        let [low, ..] = left.to_le_bytes();
        out.push(low | 0x80);
        left >>= 7;
    }
    let [low, ..] = left.to_le_bytes();
    out.push(low);
}

fn take_length(rest: &mut &[u8]) -> Result<usize, CodecError> {
    let mut length = 0;
    // Four bytes reach 256 MiB, half of the most that Redis carries in one message.
    for shift in [0, 7, 14, 21] {
        let [byte] = take(rest)?;
        length |= usize::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok(length);
        }
    }
    Err(CodecError::Length)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn room() -> RoomId {
        RoomId::parse("r1").unwrap()
    }

    prop_compose! {
        fn any_comment()(
            id: [u8; 12], ts: i64, expire_at: i64, uid in ".{0,40}", name in ".{0,20}", text in ".{0,200}",
            mode in prop::sample::select(vec![1, 4, 5]), color in 0i64..=0xFF_FFFF, size in 12i64..=64,
        ) -> Comment {
            Comment {
                id: CommentId::from_bytes(id),
                room: room(),
                ts: Timestamp::from_millis(ts),
                uid: UserId::new(&uid),
                name: Name::from_store(&name),
                text: Text::from_store(&text),
                style: Style::parse(Some(mode), Some(color), Some(size)).unwrap(),
                expire_at: Timestamp::from_millis(expire_at),
            }
        }
    }

    fn any_relayed() -> impl Strategy<Value = Relayed> {
        // Mostly viewers, so that there are messages of both versions.
        let role = prop_oneof![8 => Just(Role::Viewer), 1 => Just(Role::Moderator), 1 => Just(Role::Host)];
        (any_comment(), role).prop_map(|(comment, sender)| Relayed { comment, sender })
    }

    fn encode_all(node: NodeId, comments: &[Relayed]) -> Vec<u8> {
        encode(node, comments.iter().map(|relayed| (&relayed.comment, relayed.sender)))
    }

    proptest! {
        #[test]
        fn comments_survive_the_way(node: NodeId, seq: u64, comments in vec(any_relayed(), 0..20)) {
            let mut message = encode_all(node, &comments);
            set_seq(&mut message, seq);
            prop_assert_eq!(decode(&room(), &message), Ok(Batch { node, seq, comments }));
        }

        #[test]
        fn damaged_messages_are_refused_or_read_but_never_panic(
            comments in vec(any_relayed(), 1..4), cut: prop::sample::Index, hit: prop::sample::Index, to: u8
        ) {
            let message = encode_all([1; 8], &comments);
            prop_assert!(decode(&room(), &message[..cut.index(message.len())]).is_err());
            let mut damaged = message.clone();
            damaged[hit.index(message.len())] = to;
            let _outcome = decode(&room(), &damaged);
            let longer = [message.as_slice(), &[0]].concat();
            prop_assert_eq!(decode(&room(), &longer), Err(CodecError::Trailing(1)));
        }

        #[test]
        fn noise_never_panics(noise in vec(any::<u8>(), 0..300)) {
            for version in [VIEWERS, ROLES] {
                let _outcome = decode(&room(), &noise);
                let _outcome = decode(&room(), &[&[version], noise.as_slice()].concat());
            }
        }
    }

    #[test]
    fn claimed_lengths_reserve_nothing() {
        let head = |length: &[u8]| [&[ROLES], [0u8; 16].as_slice(), length].concat();
        assert_eq!(decode(&room(), &head(&[0xFF, 0xFF, 0xFF, 0x7F])), Err(CodecError::Short));
        assert_eq!(decode(&room(), &head(&[0xFF; 9])), Err(CodecError::Length));
        assert_eq!(decode(&room(), &[9, 1]), Err(CodecError::Version(9)));
    }

    fn fixture() -> Comment {
        Comment {
            id: CommentId::from_bytes(*b"comment-id-1"),
            room: room(),
            ts: Timestamp::from_millis(0x0102),
            uid: UserId::new("u"),
            name: Name::from_store("明"),
            text: Text::from_store("hi"),
            style: Style::parse(Some(5), Some(0x0A_0B0C), Some(25)).unwrap(),
            expire_at: Timestamp::from_millis(0x0304),
        }
    }

    fn fixture_bytes(version: u8, role: &[u8]) -> Vec<u8> {
        let expected: &[&[u8]] = &[
            &[version],
            b"node-id!",
            &[0; 8],
            &[1],
            b"comment-id-1",
            &[0, 0, 0, 0, 0, 0, 1, 2],
            &[0, 0, 0, 0, 0, 0, 3, 4],
            &[5, 25, 0x0A, 0x0B, 0x0C],
            role,
            b"\x01u\x03\xE6\x98\x8E\x02hi",
        ];
        expected.concat()
    }

    /// Nodes of different builds run side by side during an update, so a version's bytes never change.
    #[test]
    fn both_versions_stay_as_they_are() {
        for (sender, version, role) in
            [(Role::Viewer, 1, &[][..]), (Role::Moderator, 2, &[1][..]), (Role::Host, 2, &[2][..])]
        {
            let (comments, bytes) = (vec![Relayed { comment: fixture(), sender }], fixture_bytes(version, role));
            assert_eq!(encode_all(*b"node-id!", &comments), bytes);
            assert_eq!(decode(&room(), &bytes).unwrap().comments, comments);
        }
    }

    #[test]
    fn a_role_that_is_not_known_here_is_a_viewers() {
        let comments = decode(&room(), &fixture_bytes(2, &[99])).unwrap().comments;
        assert_eq!(comments, [Relayed { comment: fixture(), sender: Role::Viewer }]);
    }
}
