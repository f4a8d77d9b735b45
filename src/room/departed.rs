//! Which comments have left the ring of late. In a busy room they do so within a second or two, and what then comes once more,
//! from the store or from a relay that was held up, must be known for what was had.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::{Position, Timestamp};

/// How far back what has left is told apart. What another node accepted comes 15 s late at most: that long it keeps what it
/// cannot pass on. The store is asked for it every five seconds, and one look may fail.
const KEEP: Duration = Duration::from_secs(30);

/// Most that are kept (2.4 MB): those of 30 s in a room with 3,300 comments a second.
const MOST: usize = 100_000;

/// The comments that have left a ring, in the order in which they did.
#[derive(Debug)]
pub(super) struct Departed {
    positions: VecDeque<Position>,
    /// Of every comment from this moment on it is known whether it has left.
    known_from: Timestamp,
}

impl Departed {
    /// None yet; nothing has left from `now` on.
    pub(super) fn since(now: Timestamp) -> Self {
        Self { positions: VecDeque::new(), known_from: now }
    }

    /// Of every comment from this moment on it is known whether it has left.
    pub(super) fn known_from(&self) -> Timestamp {
        self.known_from
    }

    /// Notes that a comment has left.
    pub(super) fn note(&mut self, position: Position) {
        self.positions.push_back(position);
        self.forget_before(position.ts.minus(KEEP));
    }

    /// Lets go of what is too old to come again.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        self.forget_before(now.minus(KEEP));
        if self.positions.is_empty() {
            // What a rush has taken.
            self.positions = VecDeque::new();
        }
    }

    fn forget_before(&mut self, from: Timestamp) {
        while let Some(oldest) = self.positions.front()
            && (oldest.ts < from || self.positions.len() > MOST)
        {
            self.known_from = self.known_from.max(oldest.ts.plus(Duration::from_millis(1)));
            self.positions.pop_front();
        }
    }

    /// Those that are remembered.
    pub(super) fn iter(&self) -> impl Iterator<Item = Position> {
        self.positions.iter().copied()
    }
}
