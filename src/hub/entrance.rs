//! Coming into a room: with the newest comments, or after the cursor of an earlier visit.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::Hub;
use super::source::Source;
use crate::model::{Cursor, Position, Refusal, RoomId, Socket, Timestamp};
use crate::room::{Begin, Joined, Reach, Room, RoomConfig, Taste};
use crate::store::StoreError;

/// After a failed read of the store, joins do without it for this long, so that they do not all wait for it.
pub(super) const COLD: Duration = Duration::from_secs(5);

/// Most missed comments that are counted in the store for a viewer that comes back late.
pub(super) const MOST_COUNTED: u64 = 100_000;

/// A viewer in its room, and what it cannot be given any more.
#[derive(Debug)]
pub struct Entrance {
    /// Its place, and what it is told first.
    pub joined: Joined,
    /// What lies between its cursor and the ring.
    pub missed: Missed,
}

/// Comments that a viewer which resumes cannot be given any more, beside those the ring counts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// So many.
    Exactly(u64),
    /// So many or more: the store could not be asked, some have expired, or they are too many to count.
    AtLeast(u64),
}

impl Hub {
    /// Puts a viewer into a room, after `since` if it has been there before.
    ///
    /// A room that is new in memory is given its latest comments from the store first, if the store answers in time.
    ///
    /// # Errors
    /// A [`Refusal`] when the room cannot be opened.
    pub async fn join(
        &self,
        id: &RoomId,
        socket: Arc<dyn Socket>,
        taste: Taste,
        since: Option<Cursor>,
    ) -> Result<Entrance, Refusal> {
        loop {
            let room = self.inner.rooms.get_or_make(id).map_err(|full| self.no_room(full))?;
            // Heard first and read then, so that no comment of another node falls in between.
            tokio::join!(self.await_hearing(&room), self.await_count(&room));
            let warmed = self.warm(&room).await;
            let mended = self.mend(&room).await;
            let (begin, mut missed, reached) = match since {
                None => (Begin::Newest, Missed::Exactly(0), Source::Memory),
                Some(cursor) => {
                    self.greet_from_elsewhere(&room, &cursor);
                    self.begin_after(&room, cursor).await
                }
            };
            // A room that was dropped during these waits is made anew, and then has to be warmed anew.
            let Ok(mut joined) = room.join(Arc::clone(&socket), taste.clone(), begin) else { continue };
            let now = self.inner.parts.clock.now();
            joined.recent.retain(|posted| posted.comment.expire_at > now);
            self.tell_occupied(&room);
            if self.inner.parts.relay.is_joined() {
                // What was fetched came late.
                joined.recent.sort_by_key(|posted| posted.comment.position());
            }
            if since.is_some() && mended == Source::Neither {
                missed = Missed::AtLeast(0);
            }
            self.count_read(warmed.max(mended).max(reached));
            return Ok(Entrance { joined, missed });
        }
    }

    /// Where a viewer with this cursor begins, and what it has missed that the ring does not know of.
    async fn begin_after(&self, room: &Room, cursor: Cursor) -> (Begin, Missed, Source) {
        // What was said right after the cursor may have left the store since, and then nobody knows of it.
        let has_expired = cursor.epoch != room.epoch()
            && cursor.position.ts > Timestamp::MIN
            && cursor.position.ts < self.inner.parts.clock.now().minus(self.inner.config.retention);
        let Reach::Before { start, oldest } = room.reach(&cursor) else {
            let is_exact = !has_expired && !room.leaves_in_doubt(&cursor);
            let missed = if is_exact { Missed::Exactly(0) } else { Missed::AtLeast(0) };
            return (Begin::After(cursor), missed, Source::Memory);
        };
        if self.is_cold() {
            return (Begin::From(start, cursor.given), Missed::AtLeast(0), Source::Neither);
        }
        let before = oldest.unwrap_or(Position::END);
        // Asked before the store is: what is on its way there is not counted.
        let is_known = self.is_settled(room.overhang()) && !has_expired && !room.leaves_in_doubt(&cursor);
        let counted = self.read(self.inner.parts.store.count_between(room.id(), cursor.newest(), before, MOST_COUNTED));
        let (missed, source) = match counted.await {
            Ok(count) if count >= MOST_COUNTED || !is_known => (Missed::AtLeast(count), Source::Store),
            Ok(count) => (Missed::Exactly(count), Source::Store),
            Err(error) => {
                self.turn_cold(&error);
                (Missed::AtLeast(0), Source::Neither)
            }
        };
        (Begin::From(start, cursor.given), missed, source)
    }

    /// Puts what the store has of the room in front of its ring, once, and tells whether it had to be asked. A store that does not answer is done without.
    ///
    /// While comments wait in the outbox, some of this room's from before may be among them, and what the store has can
    /// have holes. Then it is only shown to who joins, and the first join after the replay warms the room. Until then
    /// queries read the store and ask for themselves whether that is whole.
    async fn warm(&self, room: &Room) -> Source {
        if room.warmed.initialized() {
            return Source::Memory;
        }
        if self.is_cold() {
            return Source::Neither;
        }
        let load = || async {
            // Who waited here for another's attempt that failed does not make one of its own.
            if self.is_cold() {
                return Err(None);
            }
            // Asked before the store is: what the room's earlier lives accepted and is not parked now, the store has.
            let is_settled = !self.inner.parts.metrics.account.has_parked();
            if !is_settled && room.has_glimpse() {
                return Err(None);
            }
            let RoomConfig { ring, recent, .. } = self.inner.config.room;
            let limit = if is_settled { ring } else { recent };
            let load = self.inner.parts.store.load_recent(room.id(), Timestamp::MIN, limit);
            let mut page = self.read(load).await?;
            page.comments.reverse();
            if !is_settled {
                room.glimpse(page.comments);
                return Err(None);
            }
            room.prepend(page.comments, !page.has_more);
            Ok::<_, Option<StoreError>>(())
        };
        match room.warmed.get_or_try_init(load).await {
            Ok(()) => Source::Store,
            Err(Some(error)) => {
                self.turn_cold(&error);
                Source::Neither
            }
            Err(None) => Source::Neither,
        }
    }

    /// Whether joins do without the store for now.
    pub(super) fn is_cold(&self) -> bool {
        let until = *self.inner.cold_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn turn_cold(&self, error: &StoreError) {
        // Not by the wall clock: one that is set back an hour would keep rooms cold for that hour.
        *self.inner.cold_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + COLD);
        warn!(%error, "cannot read a room's comments from the store; viewers start without");
    }
}
