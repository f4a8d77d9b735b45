//! Where a reader stands in a room.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thiserror::Error;

use super::ids::{CommentId, Epoch, Seq, Timestamp};

/// A comment's place in the order that every store and every node agrees on: by time, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Server time of acceptance.
    pub ts: Timestamp,
    /// Breaks ties within a millisecond.
    pub id: CommentId,
}

impl Position {
    /// Before every comment.
    pub const START: Self = Self { ts: Timestamp::MIN, id: CommentId::MIN };

    /// After every comment.
    pub const END: Self = Self { ts: Timestamp::MAX, id: CommentId::MAX };

    /// The last place before this one.
    #[must_use]
    pub fn just_before(self) -> Self {
        match self.id.before() {
            Some(id) => Self { id, ..self },
            None => Self { ts: self.ts.minus(Duration::from_millis(1)), id: CommentId::MAX },
        }
    }
}

/// A reader's place: the last comment it has had, named twice.
///
/// `epoch` and `seq` are exact on the node and in the life of the room that gave them: the reader gets what follows
/// `seq`, and what it missed can be counted. When the epoch differs (the server restarted, the room was evicted, the
/// reader came from another node) the position by time and id takes over. Without the epoch a restarted server would
/// read an old sequence number as its own, and comments would be skipped or doubled in silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The life of the room that `seq` counts in; 0 when the cursor was made from the store alone.
    pub epoch: Epoch,
    /// The last comment's sequence number.
    pub seq: Seq,
    /// The last comment's position.
    pub position: Position,
}

/// A text that no server of ours gave out as a cursor.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a cursor that this server gave out")]
pub struct CursorError;

const VERSION: u8 = 1;
const LEN: usize = 1 + 8 + 8 + 8 + 12;

impl Cursor {
    /// A cursor that knows only a position, as a page from the store gives it.
    #[must_use]
    pub fn at(position: Position) -> Self {
        Self { epoch: Epoch(0), seq: Seq(0), position }
    }

    /// The opaque text for clients: base64url of version, epoch, seq, time (big-endian) and id; 50 characters.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut raw = [0u8; LEN];
        raw[0] = VERSION;
        raw[1..9].copy_from_slice(&self.epoch.0.to_be_bytes());
        raw[9..17].copy_from_slice(&self.seq.0.to_be_bytes());
        raw[17..25].copy_from_slice(&self.position.ts.millis().to_be_bytes());
        raw[25..37].copy_from_slice(&self.position.id.bytes());
        URL_SAFE_NO_PAD.encode(raw)
    }

    /// Reads a cursor back from untrusted text.
    ///
    /// # Errors
    /// [`CursorError`] for any text that [`Cursor::to_text`] does not give.
    pub fn parse(text: &str) -> Result<Self, CursorError> {
        // The length is checked first so that a huge text costs nothing.
        if text.len() != LEN.div_ceil(3) * 4 - (3 - LEN % 3) % 3 {
            return Err(CursorError);
        }
        let raw = URL_SAFE_NO_PAD.decode(text).map_err(|_| CursorError)?;
        let (version, rest) = raw.split_first().ok_or(CursorError)?;
        let (epoch, rest) = rest.split_first_chunk::<8>().ok_or(CursorError)?;
        let (seq, rest) = rest.split_first_chunk::<8>().ok_or(CursorError)?;
        let (ts, rest) = rest.split_first_chunk::<8>().ok_or(CursorError)?;
        let id: [u8; 12] = rest.try_into().map_err(|_| CursorError)?;
        if *version != VERSION {
            return Err(CursorError);
        }
        Ok(Self {
            epoch: Epoch(u64::from_be_bytes(*epoch)),
            seq: Seq(u64::from_be_bytes(*seq)),
            position: Position { ts: Timestamp::from_millis(i64::from_be_bytes(*ts)), id: CommentId::from_bytes(id) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cursor_survives_its_text(epoch: u64, seq: u64, ts: i64, id: [u8; 12]) {
            let cursor = Cursor {
                epoch: Epoch(epoch),
                seq: Seq(seq),
                position: Position { ts: Timestamp::from_millis(ts), id: CommentId::from_bytes(id) },
            };
            let text = cursor.to_text();
            prop_assert_eq!(text.len(), 50);
            prop_assert_eq!(Cursor::parse(&text), Ok(cursor));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,80}") {
            let _outcome = Cursor::parse(&text);
        }
    }

    #[test]
    fn tampered_and_foreign_texts_are_refused() {
        let good = Cursor::at(Position::START).to_text();
        let wrong_version = format!("Ag{}", &good[2..]);
        for bad in ["", "abc", &good[1..], &format!("{good}A"), &good.replace('A', "!"), &wrong_version] {
            assert_eq!(Cursor::parse(bad), Err(CursorError), "{bad}");
        }
    }
}
