//! Reading what was said: the last seconds of a room, and older comments page by page.
//!
//! Both answer from memory where the ring reaches far enough back, else from the store, joined without doubles, and say
//! whether the answer is whole.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::Hub;
use super::source::Source;
use crate::model::{Comment, Cursor, Epoch, Position, Posted, RoomId, Seq, Timestamp};
use crate::room::Snapshot;
use crate::store::Page;

/// The store did not answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("older comments cannot be read at the moment: {0}")]
pub struct HistoryError(pub String);

/// The comments of a room's last seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowAnswer {
    /// The moment the window begins.
    pub from: Timestamp,
    /// The moment it was read.
    pub to: Timestamp,
    /// The comments, oldest first; the newest ones if there are more than were asked for.
    pub comments: Vec<Comment>,
    /// Whether these are all comments of the window.
    pub is_complete: bool,
    /// Whether memory alone gave them.
    pub is_from_memory: bool,
}

/// Comments that lie before a cursor.
#[derive(Clone, Debug, PartialEq)]
pub struct PageAnswer {
    /// The comments, newest first.
    pub comments: Vec<Comment>,
    /// Where the next page begins; none when this is the last one.
    pub next: Option<Cursor>,
    /// Whether no comment of this stretch is missing.
    pub is_complete: bool,
}

/// What makes two window queries equal.
pub(super) type WindowKey = (RoomId, Duration, usize);

/// What one read of a window gave, for all who shared it.
#[derive(Clone, Debug)]
pub(super) struct Base {
    at: Timestamp,
    /// Where the ring ended when the read began, and in which life of the room.
    end: Option<(Epoch, Seq)>,
    comments: Arc<Vec<Comment>>,
    is_whole: bool,
    source: Source,
}

/// What one read of a page gave, for all who shared it.
#[derive(Debug)]
pub(super) struct PageBase {
    at: Timestamp,
    /// What the ring had before the read began: what was settled afterwards is in it, what was before is in the store.
    snapshot: Arc<Option<(Epoch, Snapshot)>>,
    /// Whether all that was not in the ring then was in the store.
    is_settled: bool,
    page: Page,
}

impl Hub {
    /// Gives a room's comments of the `last` so long, at most `limit` of them, the newest.
    ///
    /// A store that does not answer in time makes the answer incomplete, not wrong.
    pub async fn recent(&self, room: &RoomId, last: Duration, limit: usize) -> WindowAnswer {
        let now = self.inner.parts.clock.now();
        let from = now.minus(last);
        let snapshot = self.snapshot(room, from);
        if let Some((_, snapshot)) = &snapshot
            && snapshot.whole_from <= from
        {
            self.count_read(Source::Memory);
            return self.window(from, now, comments_of(snapshot), true, true, limit);
        }
        let (hub, key) = (self.clone(), (room.clone(), last, limit));
        let base = self.inner.windows.join(key.clone(), || async move { hub.load_window(&key.0, from, limit).await });
        let base = base.await;
        self.count_read(base.source);
        // What has come since that read began is in the ring, unless the ring has lapped it.
        let now = self.inner.parts.clock.now();
        let fresh = self.snapshot(room, from);
        let is_joined = joins(base.end, base.at, fresh.as_ref());
        let is_joined = is_joined && self.knows_others(fresh.as_ref().map(|(_, fresh)| fresh), base.at, now);
        let mut comments = Vec::clone(&base.comments);
        if let Some((_, fresh)) = &fresh {
            comments = join_by_position(comments, comments_of(fresh));
        }
        self.window(from, now, comments, base.is_whole && is_joined, false, limit)
    }

    async fn load_window(&self, room: &RoomId, from: Timestamp, limit: usize) -> Base {
        let at = self.inner.parts.clock.now();
        // The snapshot comes first: what is settled afterwards is then in it, what was settled before is in the store.
        let snapshot = self.snapshot(room, from);
        let is_settled = self.is_settled(overhang_of(snapshot.as_ref()));
        let loaded = self.read(self.inner.parts.store.load_recent(room, from, limit)).await;
        let end = snapshot.as_ref().map(|(epoch, snapshot)| (*epoch, snapshot.end));
        let here = snapshot.map(|(_, snapshot)| comments_of(&snapshot)).unwrap_or_default();
        match loaded {
            Ok(mut page) => {
                page.comments.reverse();
                let comments = Arc::new(join_by_position(page.comments, here));
                Base { at, end, comments, is_whole: is_settled && !page.has_more, source: Source::Store }
            }
            Err(_) => Base { at, end, comments: Arc::new(here), is_whole: false, source: Source::Neither },
        }
    }

    fn snapshot(&self, room: &RoomId, from: Timestamp) -> Option<(Epoch, Snapshot)> {
        self.inner.rooms.get(room).map(|room| (room.epoch(), room.snapshot(from)))
    }

    /// Whether a room's ring, as it was when it had so much overhang, and the store together have every comment, the
    /// store being asked from now on.
    pub(super) fn is_settled(&self, overhang: usize) -> bool {
        // In this order: a comment that goes into the outbox is counted there before it ceases to be overhang.
        overhang == 0 && !self.inner.parts.metrics.account.has_parked()
    }

    fn window(
        &self,
        from: Timestamp,
        to: Timestamp,
        mut comments: Vec<Comment>,
        is_whole: bool,
        is_from_memory: bool,
        limit: usize,
    ) -> WindowAnswer {
        comments.retain(|comment| comment.ts >= from && comment.expire_at > to);
        let surplus = comments.len().saturating_sub(limit);
        comments.drain(..surplus);
        WindowAnswer { from, to, comments, is_complete: is_whole && surplus == 0, is_from_memory }
    }

    /// Gives at most `limit` of a room's comments that lie before a place, newest first; the newest ones without a place.
    ///
    /// # Errors
    /// [`HistoryError`] when they are not in memory and the store does not answer in time.
    pub async fn page(
        &self,
        room: &RoomId,
        before: Option<Position>,
        limit: usize,
    ) -> Result<PageAnswer, HistoryError> {
        let before = before.unwrap_or(Position::END);
        let now = self.inner.parts.clock.now();
        let is_wanted = |comment: &Comment| comment.position() < before && comment.expire_at > now;
        let snapshot = Arc::new(self.snapshot(room, Timestamp::MIN));
        let ring = snapshot.as_ref().as_ref().map(|(_, snapshot)| snapshot);
        let mut here = ring.map(comments_of).unwrap_or_default();
        here.retain(is_wanted);
        let whole_from = ring.map_or(Timestamp::MAX, |ring| ring.whole_from);
        // One more than asked for tells whether there is a next page.
        let is_enough = here.iter().filter(|comment| comment.ts >= whole_from).count() > limit;
        if is_enough || whole_from == Timestamp::MIN {
            self.count_read(Source::Memory);
            return Ok(answer(here, limit, false, true));
        }
        // The page is as of the snapshot: of comments accepted since, the store may have a later one and not an earlier.
        // Where other nodes may have later ones than the ring, the page cannot be whole, and shows what the store has.
        let newest = here.iter().map(Comment::position).max().filter(|_| self.knows_others(ring, now, now));
        let until = newest.unwrap_or(before);
        let base = self.load_page((room.clone(), until, limit), now, &snapshot).await;
        self.count_read(if base.is_ok() { Source::Store } else { Source::Neither });
        let base = base?;
        if let Some((_, earlier)) = base.snapshot.as_ref() {
            let mut earlier = comments_of(earlier);
            earlier.retain(is_wanted);
            here = join_by_position(earlier, here);
        }
        let stored: Vec<_> = base.page.comments.iter().rev().cloned().collect();
        if base.page.has_more
            && let Some(oldest) = stored.first().map(Comment::position)
        {
            // Below the page's last comment the store has more that we do not know: it would be skipped.
            here.retain(|comment| comment.position() >= oldest);
        }
        let end = base.snapshot.as_ref().as_ref().map(|(epoch, earlier)| (*epoch, earlier.end));
        let is_joined =
            joins(end, base.at, snapshot.as_ref().as_ref()) && self.knows_others(ring, base.at, before.ts.min(now));
        Ok(answer(join_by_position(stored, here), limit, base.page.has_more, base.is_settled && is_joined))
    }

    /// Joins the store's read of a page that is under way, or begins it; `snapshot` is what the ring had at `at`.
    async fn load_page(
        &self,
        key: (RoomId, Position, usize),
        at: Timestamp,
        snapshot: &Arc<Option<(Epoch, Snapshot)>>,
    ) -> Result<Arc<PageBase>, HistoryError> {
        let (hub, snapshot, (room, before, limit)) = (self.clone(), Arc::clone(snapshot), key.clone());
        let load = || async move {
            let is_settled = hub.is_settled(overhang_of(snapshot.as_ref().as_ref()));
            let page = hub.read(hub.inner.parts.store.load_before(&room, before, limit)).await;
            let page = page.map_err(|error| HistoryError(error.to_string()))?;
            Ok(Arc::new(PageBase { at, snapshot, is_settled, page }))
        };
        self.inner.pages.join(key, load).await
    }
}

/// Whether a ring goes on, without a hole, from where a read that began at `at` saw it end.
fn joins(end: Option<(Epoch, Seq)>, at: Timestamp, fresh: Option<&(Epoch, Snapshot)>) -> bool {
    match (end, fresh) {
        (_, None) => true,
        (Some((epoch, end)), Some((now_epoch, fresh))) => epoch == *now_epoch && fresh.start <= end,
        (None, Some((_, fresh))) => fresh.whole_from <= at,
    }
}

fn overhang_of(snapshot: Option<&(Epoch, Snapshot)>) -> usize {
    snapshot.map_or(0, |(_, snapshot)| snapshot.overhang)
}

fn comments_of(snapshot: &Snapshot) -> Vec<Comment> {
    let mut comments: Vec<_> = snapshot.comments.iter().map(|posted: &Arc<Posted>| posted.comment.clone()).collect();
    // One from another node may have come late; the ring has it where it came.
    comments.sort_by_key(Comment::position);
    comments
}

/// Turns comments in order into a page, newest first.
fn answer(mut comments: Vec<Comment>, limit: usize, has_more: bool, is_complete: bool) -> PageAnswer {
    comments.reverse();
    let has_more = has_more || comments.len() > limit;
    comments.truncate(limit);
    let next = comments.last().filter(|_| has_more).map(|comment| Cursor::at(comment.position()));
    PageAnswer { comments, next, is_complete }
}

/// Joins two runs in the order of (time, id), each comment once.
fn join_by_position(mut a: Vec<Comment>, b: Vec<Comment>) -> Vec<Comment> {
    let known: HashSet<_> = a.iter().map(|comment| comment.id).collect();
    a.extend(b.into_iter().filter(|comment| !known.contains(&comment.id)));
    a.sort_by_key(Comment::position);
    a
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
