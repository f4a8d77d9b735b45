//! A comment on its way: what a client asked for, what the server accepted, and what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::cursor::Position;
use super::identity::Role;
use super::ids::{CommentId, Nonce, RoomId, Seq, Timestamp, UserId};
use super::style::Style;
use super::text::{Name, Text};

/// When the sender wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AckLevel {
    /// Once the comment is queued for the store and on its way to the viewers.
    #[default]
    Accepted,
    /// Once the store has acknowledged it under the configured write concern.
    Stored,
}

impl AckLevel {
    /// Reads the word; none means the default, and `None` is given for a word that is neither.
    #[must_use]
    pub fn parse(raw: Option<&str>) -> Option<Self> {
        match raw {
            None | Some("accepted") => Some(Self::Accepted),
            Some("stored") => Some(Self::Stored),
            Some(_) => None,
        }
    }

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Stored => "stored",
        }
    }
}

/// What a client asks to have said: decoded, not yet judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The text as it came.
    pub text: String,
    /// Mode number, if given.
    pub mode: Option<i64>,
    /// Colour number, if given.
    pub color: Option<i64>,
    /// Size number, if given.
    pub size: Option<i64>,
    /// The client's mark, by which a resent draft is known to be the same.
    pub nonce: Option<Nonce>,
    /// When the sender wants its acknowledgement.
    pub ack: AckLevel,
}

/// A comment as it was accepted; it never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Comment {
    /// Its id, fixed before the first attempt to store it.
    pub id: CommentId,
    /// Its room.
    pub room: RoomId,
    /// Server time of acceptance; per room it never goes back on a node.
    pub ts: Timestamp,
    /// Who sent it.
    pub uid: UserId,
    /// The sender's name at that time.
    pub name: Name,
    /// What it says.
    pub text: Text,
    /// How it looks.
    pub style: Style,
    /// When it leaves the store: `ts` plus the room's retention.
    pub expire_at: Timestamp,
}

impl Comment {
    /// Its place in the order of the room.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { ts: self.ts, id: self.id }
    }
}

/// A comment as one node passes it to another: with what its sender may do in the room, which is not part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Relayed {
    /// The comment.
    pub comment: Comment,
    /// The sender's role when it was sent.
    pub sender: Role,
}

impl From<Comment> for Relayed {
    /// As sent by a viewer.
    fn from(comment: Comment) -> Self {
        Self { comment, sender: Role::Viewer }
    }
}

/// What became of an accepted comment on its way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The store has acknowledged it.
    Stored,
    /// The store refused this one document for good; it was set aside with its reason.
    SetAside,
}

const PENDING: u8 = 0;
/// Dropped from the ring while still pending: only the write path holds it.
const OVERHANGING: u8 = 1;
/// In the outbox, on the local disk.
const PARKED: u8 = 2;
const STORED: u8 = 3;
const SET_ASIDE: u8 = 4;

/// An accepted comment with its place in its room, shared by the ring, the write path and whoever waits for its fate.
#[derive(Debug)]
pub struct Posted {
    /// The comment.
    pub comment: Comment,
    /// Its place in the room on this node.
    pub seq: Seq,
    is_local: bool,
    sender: Role,
    state: AtomicU8,
    /// Whether its sender may be told that it is accepted.
    is_kept: AtomicBool,
    /// Wakes who waits for it to be kept, or for its fate.
    settled: Notify,
    overhang: Arc<AtomicUsize>,
}

impl Posted {
    /// An accepted comment whose fate is open. `overhang` counts the room's comments that have left its ring before
    /// their fate was known.
    #[must_use]
    pub fn pending(comment: Comment, seq: Seq, overhang: Arc<AtomicUsize>) -> Self {
        Self {
            comment,
            seq,
            is_local: true,
            sender: Role::Viewer,
            state: AtomicU8::new(PENDING),
            is_kept: AtomicBool::new(true),
            settled: Notify::new(),
            overhang,
        }
    }

    /// The same, as sent by somebody with this role; without it, by a viewer.
    #[must_use]
    pub fn sent_by(self, sender: Role) -> Self {
        Self { sender, ..self }
    }

    /// A comment that is stored already: it came out of the store, which does not keep the sender's role, so it counts as
    /// a viewer's.
    #[must_use]
    pub fn stored(comment: Comment, seq: Seq) -> Self {
        Self { state: AtomicU8::new(STORED), ..Self::pending(comment, seq, Arc::default()) }
    }

    /// A comment that another node accepted and keeps.
    #[must_use]
    pub fn foreign(comment: Comment, seq: Seq) -> Self {
        Self { is_local: false, ..Self::stored(comment, seq) }
    }

    /// Whether this node accepted it, in this life or an earlier one.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// What its sender might do in the room when it was sent, as far as it is known here.
    #[must_use]
    pub fn sender(&self) -> Role {
        self.sender
    }

    /// Whether viewers who asked for fewer comments get it all the same, for the sake of who sent it.
    #[must_use]
    pub fn is_spared(&self) -> bool {
        self.sender.is_spared()
    }

    /// Records the fate and wakes who waits for it. The first call counts; later ones change nothing.
    pub fn settle(&self, fate: Fate) {
        let to = match fate {
            Fate::Stored => STORED,
            Fate::SetAside => SET_ASIDE,
        };
        let is_open = |state| (state < STORED).then_some(to);
        let Ok(before) = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_open) else { return };
        if before == OVERHANGING {
            self.overhang.fetch_sub(1, Ordering::AcqRel);
        }
        self.settled.notify_waiters();
    }

    /// Notes that the ring has dropped the comment; while its fate is open, it then counts as overhang.
    pub fn leave_ring(&self) {
        // Counted first: were it counted after, `settle` in between could take the count below zero.
        self.overhang.fetch_add(1, Ordering::AcqRel);
        if self.state.compare_exchange(PENDING, OVERHANGING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.overhang.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Notes that the comment waits in the outbox. It is overhang no more, for the outbox says itself that it holds some.
    pub fn park(&self) {
        let is_in_memory = |state| (state < PARKED).then_some(PARKED);
        let Ok(before) = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_in_memory) else { return };
        if before == OVERHANGING {
            self.overhang.fetch_sub(1, Ordering::AcqRel);
        }
        self.settled.notify_waiters();
    }

    /// Whether it can do without this process: its fate is known, or it waits in the outbox.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.state.load(Ordering::Acquire) >= PARKED
    }

    /// Says that its sender must not be told before [`Posted::keep`]. For who has made it and not shared it yet.
    pub fn hold(&self) {
        self.is_kept.store(false, Ordering::Release);
    }

    /// Notes that it is on the local disk, and wakes who waits for that.
    pub fn keep(&self) {
        self.is_kept.store(true, Ordering::Release);
        self.settled.notify_waiters();
    }

    /// Whether its sender may be told that it is accepted.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire) || self.is_safe()
    }

    /// Waits until its sender may be told that it is accepted. Cancellation-safe.
    pub async fn kept(&self) {
        loop {
            let notified = self.settled.notified();
            if self.is_kept() {
                return;
            }
            notified.await;
        }
    }

    /// The fate, if it is known.
    #[must_use]
    pub fn fate(&self) -> Option<Fate> {
        match self.state.load(Ordering::Acquire) {
            STORED => Some(Fate::Stored),
            SET_ASIDE => Some(Fate::SetAside),
            _ => None,
        }
    }

    /// Waits for the fate. Cancellation-safe.
    pub async fn settled(&self) -> Fate {
        loop {
            let notified = self.settled.notified();
            if let Some(fate) = self.fate() {
                return fate;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A comment for tests: text `text`, time `ts` milliseconds, id counter `n`.
    pub(crate) fn comment(room: &str, ts: i64, n: u32, text: &str) -> Comment {
        let ts = Timestamp::from_millis(ts);
        Comment {
            id: CommentId::from_parts(ts, [7; 5], n),
            room: RoomId::parse(room).unwrap(),
            ts,
            uid: UserId::new("u1"),
            name: Name::parse("阿明").unwrap(),
            text: Text::from_store(text),
            style: Style::default(),
            expire_at: Timestamp::from_millis(ts.millis() + 3_600_000),
        }
    }

    #[tokio::test]
    async fn who_waits_is_told_the_fate_once_it_is_known() {
        let posted = Arc::new(Posted::pending(comment("r", 1, 1, "x"), Seq(1), Arc::default()));
        let waiter = tokio::spawn({
            let posted = Arc::clone(&posted);
            async move { posted.settled().await }
        });
        assert_eq!(posted.fate(), None);
        posted.settle(Fate::SetAside);
        assert_eq!(waiter.await.unwrap(), Fate::SetAside);
    }

    #[test]
    fn overhang_counts_what_left_the_ring_with_its_fate_open() {
        let overhang = Arc::new(AtomicUsize::new(0));
        let make = |n| Posted::pending(comment("r", 1, n, "x"), Seq(1), Arc::clone(&overhang));
        let (first, second) = (make(1), make(2));
        first.settle(Fate::Stored);
        first.leave_ring();
        assert_eq!(overhang.load(Ordering::Acquire), 0);
        second.leave_ring();
        assert_eq!((second.fate(), overhang.load(Ordering::Acquire)), (None, 1));
        second.settle(Fate::Stored);
        second.settle(Fate::SetAside);
        assert_eq!((second.fate(), overhang.load(Ordering::Acquire)), (Some(Fate::Stored), 0));
    }
}
