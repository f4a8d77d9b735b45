//! Where a reader stands in a room.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thiserror::Error;

use super::given::{Doubt, Given, MOST};
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

/// A reader's place: the last comment it has had, named twice, and on a node among others what it has had besides.
///
/// `epoch` and `seq` are exact on the node and in the life of the room that gave them: the reader gets what follows
/// `seq`, and what it missed can be counted. When the epoch differs (the server restarted, the room was evicted, the
/// reader came from another node) what was `given` takes over, or without it the position by time and id. Without the
/// epoch a restarted server would read an old sequence number as its own, and comments would be skipped or doubled in
/// silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The life of the room that `seq` counts in; 0 when the cursor was made from the store alone.
    pub epoch: Epoch,
    /// The last comment's sequence number.
    pub seq: Seq,
    /// The last comment's position.
    pub position: Position,
    /// What the reader has had, where the order of comments differs from node to node; `None` where all keep one order.
    pub given: Option<Given>,
}

/// A text that no server of ours gave out as a cursor.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a cursor that this server gave out")]
pub struct CursorError;

/// The version without [`Cursor::given`], the one with it, and the one in which some of that is in doubt.
const ALONE: u8 = 1;
const AMONG_OTHERS: u8 = 2;
const IN_DOUBT: u8 = 3;

/// Bytes of a time and id, and of a cursor without and with all that was given.
const POSITION: usize = 8 + 12;
const LEN: usize = 1 + 8 + 8 + POSITION;
const DOUBT: usize = 8 + 8 + 5;
const MOST_LEN: usize = LEN + 8 + DOUBT + MOST * POSITION;

impl Cursor {
    /// A cursor that knows only a position, as a page from the store gives it.
    #[must_use]
    pub fn at(position: Position) -> Self {
        Self { epoch: Epoch(0), seq: Seq(0), position, given: None }
    }

    /// The latest comment that the reader has had, by the time of comments and not by the order in which they came.
    #[must_use]
    pub fn newest(&self) -> Position {
        let marks = self.given.iter().flat_map(Given::marks).copied();
        marks.fold(self.position, Ord::max)
    }

    /// The opaque text for clients: base64url of version, epoch, seq, time (big-endian) and id, 50 characters; what was
    /// given follows as the horizon, the doubt (its two times and the process) if there is one, and each mark's time and id.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut raw = Vec::with_capacity(LEN);
        raw.push(match &self.given {
            None => ALONE,
            Some(given) => given.doubt().map_or(AMONG_OTHERS, |_| IN_DOUBT),
        });
        raw.extend(self.epoch.0.to_be_bytes());
        raw.extend(self.seq.0.to_be_bytes());
        write_position(&mut raw, self.position);
        if let Some(given) = &self.given {
            raw.extend(given.horizon().millis().to_be_bytes());
            if let Some(Doubt { from, until, except }) = given.doubt() {
                raw.extend(from.millis().to_be_bytes());
                raw.extend(until.millis().to_be_bytes());
                raw.extend(except);
            }
            given.marks().iter().for_each(|mark| write_position(&mut raw, *mark));
        }
        URL_SAFE_NO_PAD.encode(raw)
    }

    /// Reads a cursor back from untrusted text.
    ///
    /// # Errors
    /// [`CursorError`] for any text that [`Cursor::to_text`] does not give.
    pub fn parse(text: &str) -> Result<Self, CursorError> {
        // The length is checked first so that a huge text costs nothing.
        if text.len() > MOST_LEN.div_ceil(3) * 4 {
            return Err(CursorError);
        }
        let raw = URL_SAFE_NO_PAD.decode(text).map_err(|_| CursorError)?;
        Self::read(&raw).ok_or(CursorError)
    }

    fn read(raw: &[u8]) -> Option<Self> {
        let (version, rest) = raw.split_first()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (seq, rest) = rest.split_first_chunk()?;
        let (position, rest) = rest.split_first_chunk()?;
        let given = match *version {
            ALONE => rest.is_empty().then_some(None)?,
            AMONG_OTHERS => Some(read_given(rest, false)?),
            IN_DOUBT => Some(read_given(rest, true)?),
            _ => return None,
        };
        let (epoch, seq) = (Epoch(u64::from_be_bytes(*epoch)), Seq(u64::from_be_bytes(*seq)));
        Some(Self { epoch, seq, position: read_position(position), given })
    }
}

fn read_given(raw: &[u8], is_in_doubt: bool) -> Option<Given> {
    let (horizon, mut rest) = raw.split_first_chunk()?;
    let mut doubt = None;
    if is_in_doubt {
        let (from, after) = rest.split_first_chunk()?;
        let (until, after) = after.split_first_chunk()?;
        let (except, after) = after.split_first_chunk()?;
        doubt = Some(Doubt { from: read_time(from), until: read_time(until), except: *except });
        rest = after;
    }
    let (marks, rest) = rest.as_chunks();
    let is_whole = rest.is_empty() && marks.len() <= MOST;
    is_whole.then(|| Given::new(read_time(horizon), marks.iter().map(read_position)).with_doubt(doubt))
}

fn read_time(raw: &[u8; 8]) -> Timestamp {
    Timestamp::from_millis(i64::from_be_bytes(*raw))
}

fn write_position(raw: &mut Vec<u8>, Position { ts, id }: Position) {
    raw.extend(ts.millis().to_be_bytes());
    raw.extend(id.bytes());
}

fn read_position(raw: &[u8; POSITION]) -> Position {
    let [a, b, c, d, e, f, g, h, id @ ..] = *raw;
    let ts = Timestamp::from_millis(i64::from_be_bytes([a, b, c, d, e, f, g, h]));
    Position { ts, id: CommentId::from_bytes(id) }
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
                given: None,
            };
            let text = cursor.to_text();
            prop_assert_eq!(text.len(), 50);
            prop_assert_eq!(Cursor::parse(&text), Ok(cursor));
        }

        #[test]
        fn so_does_what_was_given(
            horizon: i64,
            marks in prop::collection::vec((any::<i64>(), any::<[u8; 12]>()), 0..12),
            doubt: Option<(i64, i64, [u8; 5])>,
        ) {
            let mark = |(ts, id)| Position { ts: Timestamp::from_millis(ts), id: CommentId::from_bytes(id) };
            let doubt = doubt.map(|(from, until, except)| {
                Doubt { from: Timestamp::from_millis(from), until: Timestamp::from_millis(until), except }
            });
            let given = Given::new(Timestamp::from_millis(horizon), marks.into_iter().map(mark)).with_doubt(doubt);
            let cursor = Cursor { given: Some(given), ..Cursor::at(Position::START) };
            prop_assert_eq!(Cursor::parse(&cursor.to_text()), Ok(cursor));
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
