//! What a follower of a stream is fed, and what it gives.

use std::sync::Arc;

use tokio::time::Instant;

use crate::model::{Relayed, Timestamp};
use crate::relay::codec::{EntryId, Message, NodeId};

/// A message, and its place in the room's stream if it could be written there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) id: Option<EntryId>,
    /// When it came, or was read.
    pub(super) at: Instant,
    pub(super) message: Message,
}

/// The server that has the streams, in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// Another one after each start, and on each server.
    pub(super) run: String,
    /// How many scripts it has refused, for whatever reason: where that has risen, messages may stand in no stream.
    pub(super) refused: u64,
    /// How many keys it has evicted: where that has risen, streams may have come and gone.
    pub(super) evicted: u64,
}

/// What was read of a stream.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) entries: Vec<Entry>,
    /// Where; `None` when the server does not tell.
    pub(super) life: Option<Arc<Life>>,
    /// When.
    pub(super) at: Instant,
}

/// What to do with a live message.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// It holds nothing new, or is held back.
    Nothing,
    Give(Vec<Relayed>),
    /// Its node has given up comments that were accepted from this moment on.
    Lost(Timestamp),
    /// Some are missing before it: the stream is to be read.
    Read,
}

/// How what the stream had joins what was had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bridge {
    /// Nothing was had before.
    New,
    /// Without a gap.
    Whole,
    /// So many comments had left the stream.
    Short(u64),
    /// Nobody can tell: the stream is another one.
    Unknown,
}

/// What came of reading the stream.
#[derive(Debug, PartialEq)]
pub(super) struct Filled {
    pub(super) comments: Vec<Relayed>,
    pub(super) bridge: Bridge,
    /// Some node has given up comments that were accepted from this moment on.
    pub(super) lost_since: Option<Timestamp>,
    /// Whether it is to be read again, as more has come than could be held back.
    pub(super) is_due: bool,
}

/// The newest message had, and whose it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) id: EntryId,
    /// When it came, or was read.
    pub(super) at: Instant,
    node: NodeId,
    seq: u64,
}

impl Mark {
    pub(super) fn of(id: EntryId, Entry { at, message, .. }: &Entry) -> Self {
        Self { id, at: *at, node: message.node, seq: message.seq }
    }

    pub(super) fn is_of(&self, id: EntryId, message: &Message) -> bool {
        (self.id, self.node, self.seq) == (id, message.node, message.seq)
    }
}

impl Entry {
    /// The number of the last comment of the room before this message.
    pub(super) fn start(&self, id: EntryId) -> u64 {
        id.seq.saturating_sub(self.message.count())
    }

    /// Whether it is the first of its stream, or follows the message at `last`.
    pub(super) fn follows(&self, id: EntryId, last: Option<Mark>) -> bool {
        let before = last.filter(|last| last.id.epoch == id.epoch).map_or(0, |last| last.id.seq);
        self.start(id) == before
    }
}

impl Filled {
    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Give(mut comments) => self.comments.append(&mut comments),
            Step::Lost(since) => self.lost_since = Some(self.lost_since.map_or(since, |earlier| earlier.min(since))),
            Step::Nothing | Step::Read => {}
        }
    }
}

impl Bridge {
    /// The same with a gap from the message at `last`, if that is known, to the comment after `start`.
    pub(super) fn and_gap(self, last: Option<Mark>, start: u64) -> Self {
        let gap = last.and_then(|last| start.checked_sub(last.id.seq));
        match (self, gap) {
            (Self::Whole, Some(gap)) => Self::Short(gap),
            (Self::Short(before), Some(gap)) => Self::Short(before + gap),
            (Self::New, _) => Self::New,
            _ => Self::Unknown,
        }
    }
}
