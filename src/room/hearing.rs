//! What other nodes accept in a room is heard only while the relay brings it. Here a room remembers since when it may
//! have missed something, and takes from the store what it missed, so that it never passes for whole while it is not.
//!
//! A node that is alone has nothing to miss: its rooms never have a [`Hole`].

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::{Room, State};
use crate::model::{Comment, CommentId, Position, Posted, Timestamp};

/// After this long every node is taken to have stored what it accepted: a flush is due every 100 ms, and the clocks of
/// nodes differ by less than the rest.
pub const SETTLING: Duration = Duration::from_secs(5);

/// So long before deafness was noticed something may have been missed, and so much later than its time a comment may
/// come into the store. A relay that went dead without a word is noticed within 6 s.
const UNNOTICED: Duration = Duration::from_secs(10);

/// A mended hole is left alone for this long, so that a crowd that joins costs one read a second and not one each.
const MEND_EVERY: Duration = Duration::from_secs(1);

/// How long a read of the store may take, as far as the ring is concerned.
const READ_WITHIN: Duration = Duration::from_secs(2);

/// Comments of other nodes that the ring may lack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    /// The ring was last known to have, or to have had, all that the store has.
    since: Timestamp,
    /// Since when other nodes are heard again.
    heard_from: Option<Timestamp>,
    /// Others were heard before, and no look into the store has come after that.
    has_lapsed: bool,
}

impl Hole {
    /// Nothing is heard from this moment on.
    pub(super) fn deaf_from(since: Timestamp) -> Self {
        Self { since, heard_from: None, has_lapsed: false }
    }
}

/// What the store has of the stretch that a hole may lie in.
#[derive(Debug)]
pub struct Fetched {
    /// When the read began.
    pub at: Timestamp,
    /// The newest comments from [`Room::hole`] on, oldest first.
    pub comments: Vec<Comment>,
    /// How many older ones of the stretch there are beside them.
    pub left_out: u64,
}

impl Room {
    /// Notes that comments of other nodes are not heard any more.
    pub fn go_deaf(&self, now: Timestamp) {
        self.lock().open_hole(now, None);
    }

    /// Notes that comments of other nodes are heard from now on, and that some from before may be missing.
    pub fn begin_hearing(&self, now: Timestamp) {
        self.lock().open_hole(now, Some(now));
    }

    /// From when on the store should be asked for what other nodes accepted unheard. `None` when nothing is missing, or
    /// this was just done.
    #[must_use]
    pub fn hole(&self, now: Timestamp) -> Option<Timestamp> {
        let state = self.lock();
        let hole = state.hole?;
        let is_due = hole.since.plus(MEND_EVERY) <= now || hole.heard_from.is_some_and(|from| hole.since <= from);
        // What has left the ring in order was given, and would count as missed; so would what leaves it meanwhile.
        let oldest = state.ring.whole_from().plus(READ_WITHIN).min(hole.since);
        let not_before = if hole.has_lapsed { Timestamp::MIN } else { oldest };
        is_due.then(|| hole.since.minus(UNNOTICED).max(not_before))
    }

    /// Whether comments of other nodes are not heard.
    #[must_use]
    pub fn is_deaf(&self) -> bool {
        self.lock().hears_since() == Timestamp::MAX
    }

    /// Whether comments of other nodes may be missing that the store has or will have.
    #[must_use]
    pub fn has_hole(&self) -> bool {
        self.lock().hole.is_some()
    }

    /// Lets out what the ring lacks of these, as comments that came late: whoever goes on from a place in the ring gets
    /// them, or is told how many there were. The hole is closed once the read came [`SETTLING`] after hearing began;
    /// until then another node may have comments that are not stored yet.
    pub fn mend(&self, fetched: Fetched) {
        let mut state = self.lock();
        let Some(hole) = state.hole else { return };
        let Fetched { at, mut comments, left_out } = fetched;
        let (whole_from, process) = (state.ring.whole_from(), self.ids.process());
        // What was heard, or accepted here, and has left the ring again must not come twice.
        let is_lost = |comment: &Comment| comment.ts >= hole.since && comment.id.process() != process;
        comments.retain(|comment| comment.ts >= whole_from || is_lost(comment));
        state.leave_out_known(&mut comments, |comment| comment.id);
        state.ring.skip(left_out);
        let came = Instant::now();
        for comment in comments {
            // The store does not know who sent it: it counts as a viewer's.
            let posted = Posted::foreign(comment, state.ring.next());
            state.ring.push(posted.into(), came);
        }
        // Whoever joins next gets them among the recent ones.
        state.ring.cut();
        let is_closed = hole.heard_from.is_some_and(|from| from.plus(SETTLING) <= at);
        state.hole = (!is_closed).then_some(Hole { since: at.max(hole.since), has_lapsed: false, ..hole });
        drop(state);
        self.dirty.notify_one();
    }

    /// How many comments between these places are in the ring.
    #[must_use]
    pub fn count_between(&self, after: Position, before: Position) -> u64 {
        let is_between = |position: Position| after < position && position < before;
        self.lock().ring.iter().filter(|posted| is_between(posted.comment.position())).count() as u64
    }
}

impl State {
    /// Since when comments of other nodes are heard; see [`Snapshot::hears_since`](super::Snapshot::hears_since).
    pub(super) fn hears_since(&self) -> Timestamp {
        self.hole.map_or(Timestamp::MIN, |hole| hole.heard_from.unwrap_or(Timestamp::MAX))
    }

    /// Notes that something may be missing from now on, or from before if it was already.
    fn open_hole(&mut self, now: Timestamp, heard_from: Option<Timestamp>) {
        let since = self.hole.map_or(now, |hole| hole.since);
        let has_lapsed = self.hole.is_none_or(|hole| hole.has_lapsed || hole.heard_from.is_some());
        self.hole = Some(Hole { since, heard_from, has_lapsed });
    }

    /// Removes those that the ring has.
    pub(super) fn leave_out_known<T>(&self, comments: &mut Vec<T>, id: impl Fn(&T) -> CommentId) {
        let mut unknown: HashSet<CommentId> = comments.iter().map(&id).collect();
        for posted in self.ring.iter() {
            unknown.remove(&posted.comment.id);
        }
        comments.retain(|comment| unknown.remove(&id(comment)));
    }
}
