//! Hearing the other nodes: whose comments the relay is asked for, since when it brings them, and what is fetched from
//! the store for the time it did not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Hub;
use super::entrance::MOST_COUNTED;
use super::source::Source;
use crate::model::{Comment, Position, RoomId, Timestamp};
use crate::relay::{Envelope, Heard};
use crate::room::{Fetched, Room, SETTLING, Snapshot};
use crate::store::StoreError;

/// How long a join waits for the relay; a subscription takes a round trip.
pub(super) const HEARING_WITHIN: Duration = Duration::from_secs(1);

/// Rooms that are mended at once, so that an outage's end is no flood for the store.
const MENDED_AT_ONCE: usize = 16;

/// Rooms whose comments the relay was told to bring, and whether it does.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    rooms: Mutex<HashMap<RoomId, watch::Sender<bool>>>,
    /// The relay did not answer; joins do not wait for it until it does.
    is_away: AtomicBool,
}

impl Hearing {
    /// Whether the relay did not answer when it was last waited for.
    pub(super) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<RoomId, watch::Sender<bool>>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    /// Takes what comes from the other nodes.
    pub fn hear(&self, heard: Heard) {
        match heard {
            Heard::Comments(envelope) => self.deliver(envelope),
            Heard::Begun { room, since } => self.begin_hearing(&room, |room, now| room.begin_hearing(now, since)),
            Heard::Resumed(room) => self.begin_hearing(&room, Room::resume_hearing),
            Heard::Lost => self.go_deaf(),
        }
    }

    fn deliver(&self, envelope: Envelope) {
        if let Some(room) = self.inner.rooms.get(&envelope.room) {
            // A room that was dropped meanwhile has nobody to deliver to.
            let _delivered = room.deliver(envelope.comments);
        }
    }

    fn begin_hearing(&self, id: &RoomId, note: impl FnOnce(&Room, Timestamp)) {
        self.inner.hearing.is_away.store(false, Ordering::Relaxed);
        let rooms = self.inner.hearing.rooms();
        // A room that was vacated meanwhile is not heard for long.
        let Some(is_heard) = rooms.get(id) else { return };
        if let Some(room) = self.inner.rooms.get(id) {
            note(&room, self.inner.parts.clock.now());
        }
        is_heard.send_replace(true);
    }

    fn go_deaf(&self) {
        self.inner.hearing.is_away.store(true, Ordering::Relaxed);
        for (id, is_heard) in &*self.inner.hearing.rooms() {
            is_heard.send_replace(false);
            if let Some(room) = self.inner.rooms.get(id) {
                room.go_deaf(self.inner.parts.clock.now());
            }
        }
    }

    /// Tells the relay of a room that has viewers from now on.
    pub(super) fn tell_occupied(&self, room: &Room) {
        if !self.inner.parts.relay.is_joined() {
            return;
        }
        let mut rooms = self.inner.hearing.rooms();
        match rooms.get(room.id()) {
            // It was made anew while a viewer was on its way in.
            Some(is_heard) if *is_heard.borrow() && room.is_deaf() => {
                room.begin_hearing(self.inner.parts.clock.now(), None);
            }
            Some(_) => {}
            None => {
                rooms.insert(room.id().clone(), watch::Sender::new(false));
                self.inner.parts.relay.occupied(room.id());
            }
        }
    }

    /// Tells the relay of rooms that have no viewers any more.
    pub(super) fn tell_vacated(&self) {
        // A join counts its viewer before it takes this lock, so a room that is filling again is not given up.
        self.inner.hearing.rooms().retain(|id, is_heard| {
            let room = self.inner.rooms.get(id);
            // Somebody who waits to be heard is about to join.
            let is_occupied = room.as_ref().is_some_and(|room| room.online() > 0) || is_heard.receiver_count() > 0;
            if !is_occupied {
                self.inner.parts.relay.vacated(id);
                if let Some(room) = room {
                    room.stop_hearing(self.inner.parts.clock.now());
                }
            }
            is_occupied
        });
    }

    /// Waits until comments of other nodes are heard in a room, but not for long.
    pub(super) async fn await_hearing(&self, room: &Room) {
        if !self.inner.parts.relay.is_joined() {
            return;
        }
        self.tell_occupied(room);
        let is_heard = self.inner.hearing.rooms().get(room.id()).map(watch::Sender::subscribe);
        let Some(mut is_heard) = is_heard else { return };
        if *is_heard.borrow_and_update() || self.inner.hearing.is_away() {
            return;
        }
        if timeout(HEARING_WITHIN, is_heard.wait_for(|is_heard| *is_heard)).await.is_err() {
            self.inner.hearing.is_away.store(true, Ordering::Relaxed);
        }
    }

    /// Fetches from the store what other nodes accepted unheard, if something may be missing.
    pub(super) async fn mend(&self, room: &Room) -> Source {
        if !room.has_hole() {
            return Source::Memory;
        }
        let _one_at_a_time = room.mending.lock().await;
        let at = self.inner.parts.clock.now();
        let Some(from) = room.hole(at) else { return Source::Memory };
        if self.is_cold() {
            return Source::Neither;
        }
        match self.fetch(room, from, at).await {
            Ok(fetched) => room.mend(fetched),
            Err(error) => {
                self.turn_cold(&error);
                return Source::Neither;
            }
        }
        Source::Store
    }

    async fn fetch(&self, room: &Room, from: Timestamp, at: Timestamp) -> Result<Fetched, StoreError> {
        let (comments, left_out) = self.sift(room, from, |comments| room.retain_lost(comments)).await?;
        Ok(Fetched { at, comments, left_out })
    }

    /// Reads what the store has of a room from a moment on, and leaves of it what `retain` does. Gives the newest, oldest
    /// first and no more than half of what a ring holds, and where the ones beside them stand.
    pub(super) async fn sift(
        &self,
        room: &Room,
        from: Timestamp,
        retain: impl Fn(&mut Vec<Comment>),
    ) -> Result<(Vec<Comment>, Vec<Position>), StoreError> {
        let (store, ring) = (&self.inner.parts.store, self.inner.config.room.ring);
        // More would push out of the ring what has just been said and was not shown yet.
        let most = (ring / 2).max(1);
        let (mut found, mut beside, mut read) = (Vec::new(), Vec::new(), 0);
        let mut page = self.read(store.load_recent(room.id(), from, ring)).await?;
        loop {
            page.comments.retain(|comment| comment.ts >= from);
            let oldest = page.comments.last().filter(|_| page.has_more).map(Comment::position);
            read += page.comments.len() as u64;
            retain(&mut page.comments);
            found.append(&mut page.comments);
            beside.extend(found.drain(most.min(found.len())..).map(|comment: Comment| comment.position()));
            match oldest {
                Some(oldest) if read < MOST_COUNTED => {
                    page = self.read(store.load_before(room.id(), oldest, ring)).await?;
                }
                _ => break,
            }
        }
        found.reverse();
        Ok((found, beside))
    }

    /// Mends the rooms that have viewers.
    pub(super) async fn mend_all(&self) {
        if self.inner.parts.relay.is_joined() {
            let mend = |room: Arc<Room>| async move {
                let _next_time_if_not_now = self.mend(&room).await;
            };
            stream::iter(self.inner.rooms.occupied()).for_each_concurrent(MENDED_AT_ONCE, mend).await;
        }
    }

    /// Whether a read of the store that began at `at`, joined with this ring, lacks nothing of other nodes that was
    /// accepted before `until`: they have stored what is older than [`SETTLING`], and the ring has what is newer if it
    /// hears them for so long.
    pub(super) fn knows_others(&self, ring: Option<&Snapshot>, at: Timestamp, until: Timestamp) -> bool {
        let settled = at.minus(SETTLING);
        !self.inner.parts.relay.is_joined() || until <= settled || ring.is_some_and(|ring| ring.hears_since <= settled)
    }
}

#[cfg(test)]
#[path = "hearing_tests.rs"]
mod tests;
