//! What other nodes accept in a room is heard only while the relay brings it. Here a room remembers since when it may
//! have missed something, and takes from the store what it missed, so that it never passes for whole while it is not.
//!
//! A node that is alone has nothing to miss: its rooms are never deaf and never have a [`Hole`].

use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::{Room, State};
use crate::model::{Comment, Doubt, Position, Posted, Timestamp};

/// After this long every node is taken to have stored what it accepted: a flush is due every 100 ms, and the clocks of
/// nodes differ by less than the rest.
pub const SETTLING: Duration = Duration::from_secs(5);

/// So long before deafness was noticed something may have been missed, and so much later than its time a comment may
/// come into the store. A relay that went dead without a word is noticed within 6 s.
const UNNOTICED: Duration = Duration::from_secs(10);

/// So long another node keeps what it cannot pass on; what is older does not come from it any more.
const HELD_BACK: Duration = Duration::from_secs(15);

/// A mended hole is left alone for this long, so that a crowd that joins costs one read a second and not one each.
const MEND_EVERY: Duration = Duration::from_secs(1);

/// How a room hears the other nodes. One that is alone hears all there is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hearing {
    /// Nothing is heard, and was not from this moment on.
    deaf_since: Option<Timestamp>,
    /// What is missing from before hearing began.
    hole: Option<Hole>,
    /// Others were heard before something went missing, and no look into the store has come after that.
    has_lapsed: bool,
    /// Whether the relay was told of the room and has answered: it can go on where hearing ended.
    is_followed: bool,
    /// When the store was last asked, or nothing was heard from that moment on.
    looked: Timestamp,
    /// What the last look left for later, as others may bring it: from its oldest comment until that look.
    left: Option<(Timestamp, Timestamp)>,
}

/// Comments of other nodes that the ring may lack though they are heard now.
#[derive(Clone, Copy, Debug)]
struct Hole {
    /// The ring was last known to have, or to have had, all that the store has.
    since: Timestamp,
    /// Nothing was heard from this moment until the next one.
    deaf_from: Timestamp,
    /// Since when other nodes are heard.
    heard_from: Timestamp,
    /// What was accepted elsewhere between this moment and the last one may be missing though later comments are there.
    doubted_from: Timestamp,
}

impl Hearing {
    /// Of a room that is not heard yet.
    pub(super) fn not_yet(now: Timestamp) -> Self {
        Self { deaf_since: Some(now), looked: now, ..Self::default() }
    }

    /// Since when the ring may lack something.
    fn lacks_since(&self) -> Option<Timestamp> {
        self.deaf_since.into_iter().chain(self.hole.map(|hole| hole.since)).min()
    }

    /// Since when comments of other nodes are heard; see [`Snapshot::hears_since`](super::Snapshot::hears_since).
    pub(super) fn hears_since(&self) -> Timestamp {
        match self.deaf_since {
            Some(_) => Timestamp::MAX,
            None => self.hole.map_or(Timestamp::MIN, |hole| hole.heard_from),
        }
    }

    /// The time in which nothing was heard. What another node has given up since was heard of the others.
    fn unheard(&self) -> Range<Timestamp> {
        let from = self.deaf_since.into_iter().chain(self.hole.map(|hole| hole.deaf_from)).min();
        from.unwrap_or(Timestamp::MAX)..self.hears_since()
    }

    fn go_deaf(&mut self, now: Timestamp) {
        if self.deaf_since.is_none() {
            (self.deaf_since, self.has_lapsed, self.looked) = (Some(now), true, now);
        }
    }

    fn begin(&mut self, now: Timestamp, since: Option<Timestamp>) {
        let given_up = since.unwrap_or(now);
        let deaf_from = self.unheard().start.min(now);
        let since = self.lacks_since().into_iter().fold(given_up, Timestamp::min);
        let has_lapsed = self.has_lapsed || self.deaf_since.is_none();
        // Who comes to a room that was not followed is given all that its stream has, and live what is not there yet.
        let doubted_from = if has_lapsed && self.is_followed { since.minus(UNNOTICED) } else { given_up };
        let hole = Some(Hole { since, deaf_from, heard_from: now, doubted_from });
        *self = Self { deaf_since: None, hole, has_lapsed, is_followed: true, ..*self };
    }

    /// Takes note of a look into the store `at` some moment, after which nothing is lacking that was stored by then but what
    /// is from `open_from` on.
    fn looked(&mut self, at: Timestamp, open_from: Option<Timestamp>) {
        let since = open_from.unwrap_or(at).min(at);
        (self.has_lapsed, self.looked, self.left) = (false, at, open_from.map(|from| (from, at)));
        self.deaf_since = self.deaf_since.map(|before| since.max(before));
        let is_open = |hole: &Hole| open_from.is_some() || hole.heard_from.plus(SETTLING) > at;
        self.hole = self.hole.filter(is_open).map(|hole| Hole {
            since: since.max(hole.since),
            deaf_from: since.max(hole.deaf_from),
            doubted_from: since.min(at.minus(SETTLING)).max(hole.doubted_from),
            ..hole
        });
    }

    /// What viewers may not have been given of the others' comments though they were given later ones.
    fn doubt(&self, here: [u8; 5]) -> Option<Doubt> {
        let hole = self.hole.map(|hole| (hole.doubted_from, hole.heard_from));
        let stretches = || hole.into_iter().chain(self.left).filter(|(from, until)| from < until);
        let (from, until) = (stretches().map(|(from, _)| from).min()?, stretches().map(|(_, until)| until).max()?);
        Some(Doubt { from, until, except: here })
    }
}

/// What the store has of the stretch that a hole may lie in.
#[derive(Debug)]
pub struct Fetched {
    /// When the read began.
    pub at: Timestamp,
    /// The newest lost comments from [`Room::hole`] on, oldest first.
    pub comments: Vec<Comment>,
    /// Where the older ones stand that are lost beside them.
    pub left_out: Vec<Position>,
}

impl Room {
    /// Notes that comments of other nodes are not heard any more.
    pub fn go_deaf(&self, now: Timestamp) {
        self.lock().hearing.go_deaf(now);
    }

    /// Notes that nobody asks for comments of other nodes any more: hearing will begin anew and not go on.
    pub fn stop_hearing(&self, now: Timestamp) {
        self.go_deaf(now);
        self.lock().hearing.is_followed = false;
    }

    /// Notes that comments of other nodes are heard from now on, and that some from before may be missing, of those
    /// accepted from `since` on or while nothing was heard.
    pub fn begin_hearing(&self, now: Timestamp, since: Option<Timestamp>) {
        let mut state = self.lock();
        state.hearing.begin(now, since);
        state.tell_doubt(self.ids.process());
    }

    /// Notes that comments of other nodes are heard again, and that what came in between has been delivered.
    pub fn resume_hearing(&self, now: Timestamp) {
        let mut state = self.lock();
        if state.hearing.is_followed {
            state.hearing.deaf_since = None;
        } else {
            // The relay goes on from where another life of the room ended.
            state.hearing.begin(now, None);
            state.tell_doubt(self.ids.process());
        }
    }

    /// From when on the store should be asked for what other nodes accepted unheard. `None` when nothing is missing, or
    /// this was just done.
    #[must_use]
    pub fn hole(&self, now: Timestamp) -> Option<Timestamp> {
        let state = self.lock();
        let hearing = &state.hearing;
        let since = hearing.lacks_since()?;
        let is_first =
            hearing.deaf_since.is_none() && hearing.hole.is_some_and(|hole| hearing.looked <= hole.heard_from);
        // What left the ring before that was given, as far as anything was.
        let not_before = if hearing.has_lapsed { Timestamp::MIN } else { state.ring.known_from().min(since) };
        (is_first || hearing.looked.plus(MEND_EVERY) <= now).then(|| since.minus(UNNOTICED).max(not_before))
    }

    /// Whether comments of other nodes are not heard.
    #[must_use]
    pub fn is_deaf(&self) -> bool {
        self.lock().hearing.deaf_since.is_some()
    }

    /// Whether comments of other nodes may be missing that the store has or will have.
    #[must_use]
    pub fn has_hole(&self) -> bool {
        self.lock().hearing.lacks_since().is_some()
    }

    /// Lets out what the ring lacks of these, as comments that came late: whoever goes on from a place in the ring gets
    /// them. What was left out is told once no other node brings it any more, and not given then if one does after all.
    /// The hole is closed once the read came [`SETTLING`] after hearing began; until then another node may have comments
    /// that are not stored yet.
    pub fn mend(&self, fetched: Fetched) {
        let mut state = self.lock();
        if state.hearing.lacks_since().is_none() {
            return;
        }
        let Fetched { at, mut comments, mut left_out } = fetched;
        state.retain_lost(self.ids.process(), &mut comments);
        state.ring.leave_out_known(&mut left_out, |position| *position);
        let (missed, may_come): (Vec<_>, Vec<_>) =
            left_out.into_iter().partition(|position| position.ts < at.minus(HELD_BACK));
        state.ring.skip(&missed);
        let came = Instant::now();
        for comment in comments {
            // The store does not know who sent it: it counts as a viewer's.
            let posted = Posted::foreign(comment, state.ring.next());
            state.ring.push(posted.into(), came);
        }
        state.hearing.looked(at, may_come.iter().map(|position| position.ts).min());
        state.tell_doubt(self.ids.process());
        // Whoever joins next gets them among the recent ones.
        state.ring.cut();
        drop(state);
        self.dirty.notify_one();
    }

    /// Leaves those of the store's comments that other nodes accepted and that were never heard.
    pub fn retain_lost(&self, comments: &mut Vec<Comment>) {
        self.lock().retain_lost(self.ids.process(), comments);
    }
}

impl State {
    /// Has cursors tell from now on what is in doubt.
    fn tell_doubt(&mut self, here: [u8; 5]) {
        self.ring.doubt(self.hearing.doubt(here));
    }

    fn retain_lost(&self, here: [u8; 5], comments: &mut Vec<Comment>) {
        let (known_from, unheard) = (self.ring.known_from(), self.hearing.unheard());
        // What is older than the ring knows cannot have been heard while nothing was.
        let may_be_lost = |comment: &Comment| comment.ts >= known_from || unheard.contains(&comment.ts);
        comments.retain(|comment| may_be_lost(comment) && comment.id.process() != here);
        self.ring.leave_out_known(comments, Comment::position);
    }
}
