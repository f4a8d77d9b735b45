//! The ring: a room's recent comments in order, cut into batches. Pure: no lock, no clock, no socket.
//!
//! Comments enter at the open end. A *cut* closes what has come since the last one into a [`Batch`]. Everything that reads
//! the ring (live delivery, catch-up, the 60-second query) reads the same batches from different places, and every cursor
//! a client gets stands on a cut.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{Batch, MAX_BATCH};
use super::departed::Departed;
use super::thin::{Shares, Thinner};
use crate::model::{Comment, Cursor, Doubt, Epoch, Given, Position, Posted, Seq, Timestamp};

/// Where the numbering of a room begins: room below for what a later load from the store puts in front.
const FIRST: Seq = Seq(1 << 32);

/// A room's recent comments.
#[derive(Debug)]
pub struct Ring {
    epoch: Epoch,
    capacity: usize,
    batches: VecDeque<Arc<Batch>>,
    open: Vec<Arc<Posted>>,
    /// Comments in batches and open ones.
    len: usize,
    /// The lowest place that a comment ever had, or will have until the store's are put in front.
    lowest: Seq,
    /// The place of the next comment.
    next: Seq,
    /// The ring has every comment of the room from this moment on.
    whole_from: Timestamp,
    /// Whether comments from the store may still be put in front.
    may_prepend: bool,
    /// What is shown of the time before, until the store's are put in front; see [`Ring::glimpse`].
    glimpse: Option<Vec<Arc<Posted>>>,
    /// Settles what viewers get who ask for fewer; none while there are none.
    thinner: Option<Box<Thinner>>,
    /// What was given to who has had all that stood before the oldest comment here, and all there is; none on a node that
    /// is alone, where the order of comments is that of their times.
    given: Option<Box<(Given, Given)>>,
    /// What has left of late; none on a node that is alone, to which nothing comes once more.
    departed: Option<Box<Departed>>,
}

impl Ring {
    /// An empty ring for about `capacity` comments (up to [`MAX_BATCH`] more); it is whole from `now` on.
    #[must_use]
    pub fn new(epoch: Epoch, capacity: usize, now: Timestamp) -> Self {
        Self {
            epoch,
            // With none at all a batch would be gone before a viewer could have it.
            capacity: capacity.max(1),
            batches: VecDeque::new(),
            open: Vec::new(),
            len: 0,
            lowest: FIRST,
            next: FIRST,
            whole_from: now,
            may_prepend: true,
            glimpse: None,
            thinner: None,
            given: None,
            departed: None,
        }
    }

    /// The same on a node among others, whose comments come out of the order of their times.
    #[must_use]
    pub fn among_others(self) -> Self {
        // What comes later and is older than the ring is what the store has, and who is here was given or told of that.
        let before = Given::until(self.whole_from);
        let departed = Some(Box::new(Departed::since(self.whole_from)));
        Self { given: Some(Box::new((before, before))), departed, ..self }
    }

    /// The life of the room that the places count in.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The place that the next comment will have.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.next
    }

    /// The moment from which on the ring has every comment of the room.
    #[must_use]
    pub fn whole_from(&self) -> Timestamp {
        self.whole_from
    }

    /// Of every comment from this moment on the ring knows whether it was here.
    #[must_use]
    pub fn known_from(&self) -> Timestamp {
        self.departed.as_ref().map_or(self.whole_from, |departed| departed.known_from()).min(self.whole_from)
    }

    /// Removes those that are or, since [`Ring::known_from`], were here.
    pub fn leave_out_known<T>(&self, comments: &mut Vec<T>, position: impl Fn(&T) -> Position) {
        let mut unknown: HashSet<_> = comments.iter().map(&position).collect();
        for posted in self.iter() {
            unknown.remove(&posted.comment.position());
        }
        // Mostly they are newer than all that has left.
        if let Some(departed) = &self.departed
            && unknown.iter().any(|position| position.ts < self.whole_from)
        {
            for position in departed.iter() {
                unknown.remove(&position);
            }
        }
        comments.retain(|comment| unknown.remove(&position(comment)));
    }

    /// Appends a comment whose place is [`Ring::next`], and which came in at `at`.
    pub fn push(&mut self, posted: Arc<Posted>, at: Instant) {
        debug_assert_eq!(posted.seq, self.next);
        if let Some(thinner) = &mut self.thinner {
            thinner.take(&posted, Some(at));
        }
        if let Some(given) = &mut self.given {
            given.1.add(posted.comment.position());
        }
        self.next = self.next.plus(1);
        self.len += 1;
        self.open.push(posted);
        if self.open.len() >= MAX_BATCH {
            self.cut();
        }
        while let Some(oldest) = self.batches.front()
            && self.len - oldest.comments().len() >= self.capacity
        {
            self.drop_oldest();
        }
    }

    /// Drops batches whose comments have all expired.
    pub fn drop_expired(&mut self, now: Timestamp) {
        let is_over = |batch: &Arc<Batch>| batch.comments().iter().all(|posted| posted.comment.expire_at <= now);
        while self.batches.front().is_some_and(is_over) {
            self.drop_oldest();
        }
        if let Some(departed) = &mut self.departed {
            departed.forget_old(now);
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.batches.pop_front() else { return };
        self.len -= oldest.comments().len();
        if let (Some(given), Some(by_its_end)) = (&mut self.given, oldest.given()) {
            given.0 = by_its_end;
        }
        self.may_prepend = false;
        // What it shows would stand before a hole.
        self.glimpse.iter_mut().for_each(Vec::clear);
        for posted in oldest.comments() {
            posted.leave_ring();
            if let Some(departed) = &mut self.departed {
                departed.note(posted.comment.position());
            }
            // A comment of the same millisecond may have been dropped with it: whole only from the next one on.
            self.whole_from = self.whole_from.max(posted.comment.ts.plus(Duration::from_millis(1)));
        }
    }

    /// Leaves a place to each of these comments, which there is no room for: whoever goes on from before them is told that it
    /// missed so many.
    pub fn skip(&mut self, missed: &[Position]) {
        let Some(newest) = missed.iter().map(|position| position.ts).max() else { return };
        self.cut();
        if let Some(departed) = &mut self.departed {
            missed.iter().for_each(|position| departed.note(*position));
        }
        self.whole_from = self.whole_from.max(newest.plus(Duration::from_millis(1)));
        self.may_prepend = false;
        self.glimpse.iter_mut().for_each(Vec::clear);
        self.next = self.next.plus(missed.len());
    }

    /// Closes what has come since the last cut into a batch.
    pub fn cut(&mut self) {
        if !self.open.is_empty() {
            let comments = std::mem::take(&mut self.open);
            let shares = self.thinner.as_mut().map(|thinner| thinner.cut());
            let given = self.given.as_ref().map(|given| given.1);
            self.batches.push_back(Arc::new(Batch::new(self.epoch, comments, shares, given)));
        }
    }

    /// Settles what viewers get who ask for fewer comments: from now on, and of what is here already, by its own times.
    pub fn thin(&mut self) {
        if self.thinner.is_some() {
            return;
        }
        let mut thinner = Box::new(Thinner::new());
        for batch in &self.batches {
            batch.settle(shares_of(&mut thinner, batch.comments()));
        }
        for posted in &self.open {
            thinner.take(posted, None);
        }
        self.thinner = Some(thinner);
    }

    /// The place of the oldest comment still here; [`Ring::next`] when there is none. Between it and the newest there are
    /// as many places as comments, unless some were [skipped](Ring::skip).
    #[must_use]
    pub fn start(&self) -> Seq {
        self.iter().next().map_or(self.next, |posted| posted.seq)
    }

    /// The place after the last cut comment: where a viewer that joins now begins.
    #[must_use]
    pub fn cut_end(&self) -> Seq {
        Seq(self.next.0 - self.open.len() as u64)
    }

    /// The cursor on the last cut comment. While nothing is cut it stands before everything that will be.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        let newest = self.batches.back().and_then(|batch| batch.cursor());
        let cursor = newest.unwrap_or_else(|| self.cursor_before(self.cut_end()));
        // A batch tells what was in doubt when it was cut.
        let doubt = self.given.as_ref().and_then(|given| given.1.doubt());
        Cursor { given: cursor.given.map(|given| given.with_doubt(doubt)), ..cursor }
    }

    /// From now on, cursors tell that this was perhaps not given to who has had everything.
    pub fn doubt(&mut self, doubt: Option<Doubt>) {
        if let Some(given) = &mut self.given {
            given.1 = given.1.with_doubt(doubt);
        }
    }

    /// Whether everything that is in doubt for a reader is known not to have been said.
    #[must_use]
    pub fn dispels(&self, given: &Given) -> bool {
        given.doubt().is_none_or(|doubt| {
            doubt.from >= self.whole_from && !self.iter().any(|posted| given.is_in_doubt(posted.comment.position()))
        })
    }

    /// The cursor of a reader that has had, or was told of, everything before `place`.
    #[must_use]
    pub fn cursor_before(&self, place: Seq) -> Cursor {
        let before = || self.iter().take_while(|posted| posted.seq < place);
        let position = match self.iter().find(|posted| posted.seq >= place) {
            Some(posted) => posted.comment.position().just_before(),
            None => self.iter().last().map_or_else(|| self.position_of_nothing(), |posted| posted.comment.position()),
        };
        let given = self.given.as_ref().map(|given| {
            let mut given = given.0;
            before().for_each(|posted| given.add(posted.comment.position()));
            given
        });
        Cursor { epoch: self.epoch, seq: Seq(place.0.saturating_sub(1)), position, given }
    }

    /// Before everything that an empty ring will have.
    fn position_of_nothing(&self) -> Position {
        Position { ts: self.whole_from.minus(Duration::from_millis(1)), ..Position::START }
    }

    /// Puts at most `limit` batches into `into`, beginning with the one that has the comment at `from`.
    pub fn batches_from(&self, from: Seq, limit: usize, into: &mut Vec<Arc<Batch>>) {
        let begin = self.batches.partition_point(|batch| batch.end() <= from);
        into.extend(self.batches.range(begin..).take(limit).cloned());
    }

    /// The newest `limit` comments up to the last cut, oldest first; before those in the ring the ones of a glimpse.
    #[must_use]
    pub fn latest(&self, limit: usize) -> Vec<Arc<Posted>> {
        let cut = self.batches.iter().rev().flat_map(|batch| batch.comments().iter().rev());
        let mut latest: Vec<_> = cut.take(limit).cloned().collect();
        if let Some(glimpse) = &self.glimpse
            && latest.len() < limit
        {
            // The relay may have brought one later than the store did.
            let here: HashSet<_> = self.iter().map(|posted| posted.comment.id).collect();
            let earlier = glimpse.iter().rev().filter(|posted| !here.contains(&posted.comment.id));
            latest.extend(earlier.take(limit - latest.len()).cloned());
        }
        latest.reverse();
        latest
    }

    /// Every comment in the ring, oldest first, the uncut ones too.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Posted>> {
        self.batches.iter().flat_map(|batch| batch.comments().iter()).chain(&self.open)
    }

    /// Whether the cursor's place counts here. One of another life of the room does not; nor does one that lies below all
    /// places there ever were, which only a forger has: what lies between would be told as missed and was never there.
    #[must_use]
    pub fn knows(&self, cursor: &Cursor) -> bool {
        cursor.epoch == self.epoch && cursor.seq.0.saturating_add(1) >= self.lowest.0
    }

    /// Where a reader with `cursor` goes on. `None` when the ring cannot tell: it does not [know](Ring::knows) the cursor,
    /// which stands before what is here, so that only the store knows what lies between.
    #[must_use]
    pub fn resume(&self, cursor: &Cursor) -> Option<Seq> {
        if self.knows(cursor) {
            // A forged place ahead of ours must not wait for comments to come.
            return Some(Seq(cursor.seq.0.saturating_add(1)).min(self.cut_end()));
        }
        let newest = cursor.newest();
        if newest.ts < self.whole_from && self.iter().all(|posted| posted.comment.position() != newest) {
            return None;
        }
        let has_seen = |posted: &&Arc<Posted>| {
            let position = posted.comment.position();
            cursor.given.map_or(position <= cursor.position, |given| given.has(position))
        };
        let next = self.iter().find(|posted| !has_seen(posted)).map_or(self.next, |posted| posted.seq);
        Some(next.min(self.cut_end()))
    }

    /// Puts comments from the store (oldest first) in front of what is here, as far as there is room. They must be all
    /// that the store has of the room from the first of them on; `is_all` tells that it has nothing older either.
    ///
    /// Gives false, and changes nothing, when this was done before or the ring has dropped comments since: there could
    /// then be a hole between the store's and its own.
    pub fn prepend(&mut self, mut older: Vec<Comment>, is_all: bool) -> bool {
        self.glimpse = None;
        if !std::mem::replace(&mut self.may_prepend, false) {
            return false;
        }
        self.leave_out_later(&mut older);
        let surplus = older.len().saturating_sub(self.capacity.saturating_sub(self.len));
        let kept = older.split_off(surplus);
        if is_all && surplus == 0 {
            self.whole_from = Timestamp::MIN;
        } else if let Some(oldest) = kept.first() {
            // Others of the same millisecond may have been left out: whole only from the next one on.
            self.whole_from = self.whole_from.min(oldest.ts.plus(Duration::from_millis(1)));
        }
        self.lowest = Seq(FIRST.0 - kept.len() as u64);
        let place = |(i, comment)| Arc::new(Posted::stored(comment, self.lowest.plus(i)));
        let posted: Vec<_> = kept.into_iter().enumerate().map(place).collect();
        let mut thinner = self.thinner.as_ref().map(|_| {
            let first = self.iter().next().map_or(Timestamp::MAX, |posted| posted.comment.ts);
            Thinner::before(first)
        });
        let oldest = posted.first().map_or(self.whole_from, |posted| posted.comment.ts);
        let before = Given::until(oldest.minus(Duration::from_millis(1)));
        let mut given = self.given.as_ref().map(|_| before);
        let batch = |chunk: &[Arc<Posted>]| {
            let shares = thinner.as_mut().map(|thinner| shares_of(thinner, chunk));
            if let Some(given) = &mut given {
                chunk.iter().for_each(|posted| given.add(posted.comment.position()));
            }
            Arc::new(Batch::new(self.epoch, chunk.to_vec(), shares, given))
        };
        // Oldest first, as they are thinned.
        let batches: Vec<_> = posted.rchunks(MAX_BATCH).rev().map(batch).collect();
        self.len += posted.len();
        if let Some(given) = self.given.as_mut().filter(|_| !posted.is_empty()) {
            given.0 = before;
        }
        batches.into_iter().rev().for_each(|batch| self.batches.push_front(batch));
        true
    }

    /// Has these from the store (oldest first) shown by [`Ring::latest`] before what is here, when the store lacks some of
    /// the room that it will have later. They get no place, nobody resumes from them, and they make nothing whole: in
    /// places that were given out nothing could be put between them any more.
    pub fn glimpse(&mut self, mut older: Vec<Comment>) {
        self.leave_out_later(&mut older);
        let stored = |comment| Arc::new(Posted::stored(comment, Seq(0)));
        self.glimpse = Some(if self.may_prepend { older.into_iter().map(stored).collect() } else { Vec::new() });
    }

    /// Whether there was a glimpse, and nothing was put in front since.
    #[must_use]
    pub fn has_glimpse(&self) -> bool {
        self.glimpse.is_some()
    }

    /// Leaves out of the store's comments what does not belong before those here.
    fn leave_out_later(&self, older: &mut Vec<Comment>) {
        if let Some(first) = self.iter().next().map(|posted| posted.comment.position()) {
            // One from another node may have come late: it stands behind `first` here, and before it by its time.
            let here: HashSet<_> = self.iter().map(|posted| posted.comment.id).collect();
            older.retain(|comment| comment.position() < first && !here.contains(&comment.id));
        }
    }
}

/// What the tiers get of a batch that is cut already.
fn shares_of(thinner: &mut Thinner, comments: &[Arc<Posted>]) -> Box<Shares> {
    comments.iter().for_each(|posted| thinner.take(posted, None));
    thinner.cut()
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
