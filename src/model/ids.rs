//! Identifiers, one type each, so that no bare string or number crosses a module's border.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Says why an identifier from outside was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum IdError {
    /// A room id is 1–64 of `[A-Za-z0-9_-]`.
    #[error("a room id is 1 to 64 of A-Z, a-z, 0-9, _ and -")]
    Room,
    /// A nonce is 1–64 printable ASCII characters.
    #[error("a nonce is 1 to 64 printable ASCII characters")]
    Nonce,
    /// A comment id is 24 hexadecimal digits.
    #[error("a comment id is 24 hexadecimal digits")]
    Comment,
}

/// Names a room: 1–64 characters of `[A-Za-z0-9_-]`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoomId(Arc<str>);

impl RoomId {
    /// The longest room id, in bytes (all are ASCII).
    pub const MAX_BYTES: usize = 64;

    /// Reads a room id from untrusted text.
    ///
    /// # Errors
    /// [`IdError::Room`] when the length or a character is not allowed; ask for another id.
    pub fn parse(raw: &str) -> Result<Self, IdError> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if raw.is_empty() || raw.len() > Self::MAX_BYTES || !raw.bytes().all(is_allowed) {
            return Err(IdError::Room);
        }
        Ok(Self(raw.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RoomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names a sender, as identity gave it; never what a client merely claims. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(Arc<str>);

impl UserId {
    /// Wraps an id that identity has established.
    #[must_use]
    pub fn new(uid: &str) -> Self {
        Self(uid.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A client's own mark on a send, by which a resent comment is recognised as the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nonce(Arc<str>);

impl Nonce {
    /// Reads a nonce from untrusted text: 1–64 printable ASCII characters.
    ///
    /// # Errors
    /// [`IdError::Nonce`] when the length or a character is not allowed.
    pub fn parse(raw: &str) -> Result<Self, IdError> {
        if raw.is_empty() || raw.len() > 64 || !raw.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return Err(IdError::Nonce);
        }
        Ok(Self(raw.into()))
    }

    /// The nonce as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A comment's id, fixed at acceptance and before the first attempt to store: a MongoDB ObjectId.
///
/// Within one room and one millisecond of one node, ids rise in the order of acceptance; beyond that they order nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommentId(ObjectId);

impl CommentId {
    /// Builds an id from its three ObjectId parts: seconds of `ts`, 5 bytes that name the process, and a counter of
    /// which the low 24 bits are kept (format: <https://www.mongodb.com/docs/manual/reference/bson-types/#objectid>).
    #[must_use]
    pub fn from_parts(ts: Timestamp, process: [u8; 5], counter: u32) -> Self {
        let seconds = u32::try_from(ts.millis().div_euclid(1000)).unwrap_or(0);
        let [_, c1, c2, c3] = counter.to_be_bytes();
        Self(ObjectId::from_parts(seconds, process, [c1, c2, c3]))
    }

    /// The process that made it.
    #[must_use]
    pub fn process(self) -> [u8; 5] {
        let [_, _, _, _, process @ .., _, _, _] = self.0.bytes();
        process
    }

    /// The smallest id there is.
    pub const MIN: Self = Self(ObjectId::from_bytes([0; 12]));

    /// The largest id there is.
    pub const MAX: Self = Self(ObjectId::from_bytes([0xFF; 12]));

    /// Wraps the 12 bytes of an ObjectId.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 12]) -> Self {
        Self(ObjectId::from_bytes(bytes))
    }

    /// Reads 24 hexadecimal digits.
    ///
    /// # Errors
    /// [`IdError::Comment`] for anything else.
    pub fn parse(raw: &str) -> Result<Self, IdError> {
        ObjectId::parse_str(raw).map(Self).map_err(|_| IdError::Comment)
    }

    /// The 12 bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 12] {
        self.0.bytes()
    }

    /// The largest id that is smaller; none before [`CommentId::MIN`].
    pub(super) fn before(self) -> Option<Self> {
        let mut bytes = self.bytes();
        let borrow = bytes.iter().rposition(|byte| *byte > 0)?;
        for (i, byte) in bytes.iter_mut().enumerate().skip(borrow) {
            *byte = if i == borrow { *byte - 1 } else { 0xFF };
        }
        Some(Self::from_bytes(bytes))
    }

    /// The id as the driver's type.
    #[must_use]
    pub fn object_id(&self) -> ObjectId {
        self.0
    }
}

impl From<ObjectId> for CommentId {
    fn from(id: ObjectId) -> Self {
        Self(id)
    }
}

impl fmt::Display for CommentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A comment's place in its room on this node: one more than the one before, without holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(pub u64);

impl Seq {
    /// The place `n` further on.
    #[must_use]
    pub fn plus(self, n: usize) -> Self {
        Self(self.0 + n as u64)
    }

    /// How many places lie from `earlier` up to here; 0 when `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Tells one life of a room's numbering from another: a new number for each time a room is made.
///
/// Without it a cursor from before a restart would be read as a place in the new numbering, and comments would be
/// skipped or doubled in silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u64);

/// A moment: milliseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Before every moment.
    pub const MIN: Self = Self(i64::MIN);

    /// After every moment.
    pub const MAX: Self = Self(i64::MAX);

    /// Wraps milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The moment `by` later, at most the largest there is.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The moment `by` earlier, at least the smallest there is.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_ids_hold_to_their_alphabet_and_length() {
        for good in ["r", "Room_1-x", &"a".repeat(64)] {
            assert_eq!(RoomId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "房间", "a/b", "..", "a\0", &"a".repeat(65)] {
            assert_eq!(RoomId::parse(bad), Err(IdError::Room), "{bad:?}");
        }
    }

    #[test]
    fn ids_of_one_second_rise_with_the_counter() {
        let ts = Timestamp::from_millis(1_700_000_000_123);
        let a = CommentId::from_parts(ts, [1; 5], 7);
        let b = CommentId::from_parts(ts, [1; 5], 8);
        assert!(a < b);
        assert_eq!(CommentId::parse(&a.to_string()), Ok(a));
        assert_eq!(CommentId::parse("xyz"), Err(IdError::Comment));
    }

    #[test]
    fn the_id_before_one_is_one_less() {
        let id = |tail: [u8; 3]| CommentId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 1, tail[0], tail[1], tail[2]]);
        assert_eq!(id([0, 1, 0]).before(), Some(id([0, 0, 0xFF])));
        assert_eq!(id([0, 0, 7]).before(), Some(id([0, 0, 6])));
        assert_eq!(CommentId::MIN.before(), None);
    }
}
