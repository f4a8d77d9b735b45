//! Comments on their way between nodes: compact, versioned, pure.
//!
//! All numbers are big-endian; a *length* is LEB128, low 7 bits first.
//!
//! ```text
//! message = version u8, node 8 bytes, seq u64, body
//! body    = count length, count × comment                   in versions 1 and 2
//!         | count length, since i64                         in version 3
//! comment = id 12 bytes, ts i64, expireAt i64, mode u8, size u8, colour u24, role u8, uid text, name text, text text
//! text    = length, that many bytes of UTF-8
//! stamped = 4 u8, epoch u64, seq u64, message
//! ```
//!
//! Version 1 has no `role`: all senders are viewers. A message is sent as version 1 when that is so. A role is 0 viewer,
//! 1 moderator, 2 host; one that is not known here counts as a viewer. Version 3 has no comments: it tells how many a node
//! gave up passing on, and since when.
//!
//! A message stands in its room's stream as it is, and is published stamped with its [`EntryId`] there; it is published
//! bare where it could not be written into the stream. Nodes from before the streams publish bare messages, which are
//! read, and refuse stamped ones, which they count as unreadable: during an update they get those comments from the
//! store alone.
//!
//! The room is not in it: the channel names it. `node` tells a node its own messages, `seq` rises with each message
//! of a node and tells one that was published again.

use thiserror::Error;

use crate::model::{
    Color, Comment, CommentId, FontSize, Mode, Name, Relayed, Role, RoomId, Style, Text, Timestamp, UserId,
};

/// Comments without roles, and with them; comments that were given up; one of these with its place in the stream.
const VIEWERS: u8 = 1;
const ROLES: u8 = 2;
const LOST: u8 = 3;
const STAMPED: u8 = 4;

const SEQ_AT: std::ops::Range<usize> = 9..17;

/// The least that a comment takes, its three texts empty and without a role: 12 + 8 + 8 + 1 + 1 + 3 + 3 × 1.
const MIN_COMMENT_BYTES: usize = 36;

/// Four times seven bits: 256 MiB, half of the most that Redis carries in one message.
const MAX_LENGTH: usize = (1 << 28) - 1;

/// The last moment of the year 9999, in milliseconds: no clock shows a later one.
const MAX_MILLIS: i64 = 253_402_300_799_999;

/// Names a node for as long as it runs; made at random.
pub(super) type NodeId = [u8; 8];

/// The place of a message in its room's stream.
///
/// The epoch is the moment (of Redis, in milliseconds) at which the stream was made: one that has expired, or was lost with
/// its server, and is made anew has another, so that places in the two are never compared. `seq` is the number of the
/// message's last comment among all of the room in that epoch, so that two places tell how many comments lie between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryId {
    pub(super) epoch: u64,
    pub(super) seq: u64,
}

/// One message of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub(super) node: NodeId,
    pub(super) seq: u64,
    pub(super) body: Body,
}

/// What a message carries.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Body {
    Comments(Vec<Relayed>),
    /// So many comments will never be passed on, the first of them accepted at `since`.
    Lost {
        count: u64,
        since: Timestamp,
    },
}

impl Message {
    /// How many comments of the room it stands for.
    pub(super) fn count(&self) -> u64 {
        match &self.body {
            Body::Comments(comments) => comments.len() as u64,
            Body::Lost { count, .. } => *count,
        }
    }
}

/// Bytes that are no message of a version known here; they are dropped and counted.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum CodecError {
    #[error("version {0} is not known here; this node reads versions {VIEWERS} to {STAMPED}")]
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
    #[error("a time is out of range")]
    Time,
}

/// Encodes comments of one room with their senders' roles, oldest first, with sequence number 0.
pub(super) fn encode<'a>(
    node: NodeId,
    comments: impl ExactSizeIterator<Item = (&'a Comment, Role)> + Clone,
) -> Vec<u8> {
    let has_roles = comments.clone().any(|(_, sender)| sender != Role::Viewer);
    let mut out = head(if has_roles { ROLES } else { VIEWERS }, node, comments.len() * 128);
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

/// Encodes that comments were given up, with sequence number 0. More than fit a length are told as so many.
pub(super) fn encode_lost(node: NodeId, count: u64, since: Timestamp) -> Vec<u8> {
    let mut out = head(LOST, node, 12);
    put_length(&mut out, usize::try_from(count).unwrap_or(MAX_LENGTH).min(MAX_LENGTH));
    out.extend(since.millis().to_be_bytes());
    out
}

fn head(version: u8, node: NodeId, body_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + body_bytes);
    out.push(version);
    out.extend(node);
    out.extend(0u64.to_be_bytes());
    out
}

/// Writes the sequence number into an encoded message, once its place in the queue is known.
pub(super) fn set_seq(message: &mut [u8], seq: u64) {
    if let Some(place) = message.get_mut(SEQ_AT) {
        place.copy_from_slice(&seq.to_be_bytes());
    }
}

/// Splits what was published into its place in the stream, if it has one, and the message.
pub(super) fn unstamp(published: &[u8]) -> Result<(Option<EntryId>, &[u8]), CodecError> {
    let Some(mut rest) = published.strip_prefix(&[STAMPED]) else { return Ok((None, published)) };
    let epoch = u64::from_be_bytes(take(&mut rest)?);
    let seq = u64::from_be_bytes(take(&mut rest)?);
    Ok((Some(EntryId { epoch, seq }), rest))
}

/// Decodes a message of `room`, without its stamp. Allocates in proportion to the message's true size, whatever lengths
/// it claims.
pub(super) fn decode(room: &RoomId, message: &[u8]) -> Result<Message, CodecError> {
    let mut rest = message;
    let [version] = take(&mut rest)?;
    if !(VIEWERS..=LOST).contains(&version) {
        return Err(CodecError::Version(version));
    }
    let node = take(&mut rest)?;
    let seq = u64::from_be_bytes(take(&mut rest)?);
    let count = take_length(&mut rest)?;
    let body = if version == LOST {
        let since = Timestamp::from_millis(i64::from_be_bytes(take(&mut rest)?));
        Body::Lost { count: count as u64, since }
    } else {
        if count > rest.len() / MIN_COMMENT_BYTES {
            return Err(CodecError::Short);
        }
        let take_one = |_| take_comment(room, &mut rest, version == ROLES);
        Body::Comments((0..count).map(take_one).collect::<Result<_, _>>()?)
    };
    if !rest.is_empty() {
        return Err(CodecError::Trailing(rest.len()));
    }
    Ok(Message { node, seq, body })
}

fn take_comment(room: &RoomId, rest: &mut &[u8], has_role: bool) -> Result<Relayed, CodecError> {
    let id = CommentId::from_bytes(take(rest)?);
    let (ts, expire_at) = (take_time(rest)?, take_time(rest)?);
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

/// A time that a clock can show.
fn take_time(rest: &mut &[u8]) -> Result<Timestamp, CodecError> {
    let millis = i64::from_be_bytes(take(rest)?);
    if (0..=MAX_MILLIS).contains(&millis) { Ok(Timestamp::from_millis(millis)) } else { Err(CodecError::Time) }
}

fn role_number(role: Role) -> u8 {
    match role {
        Role::Viewer => 0,
        Role::Moderator => 1,
        Role::Host => 2,
        Role::Admin => 3,
    }
}

fn role([number]: [u8; 1]) -> Role {
    Role::ALL.into_iter().find(|role| role_number(*role) == number).unwrap_or(Role::Viewer)
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
#[path = "codec_tests.rs"]
mod tests;
