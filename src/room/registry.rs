//! All rooms in memory: found without a global lock, made when first used, dropped when long unused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use thiserror::Error;

use super::fanout::CutObserver;
use super::{Retired, Room, RoomConfig};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::model::{Epoch, RoomId, Timestamp};

/// As many rooms are in memory as may be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0} rooms are in memory, as many as may be")]
pub struct TooManyRooms(pub usize);

/// Where comments and rooms get their numbers: one for each server, so that tests can have several in a process.
pub(super) struct Ids {
    process: [u8; 5],
    counter: AtomicU32,
    observer: Option<Arc<dyn CutObserver>>,
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ids").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Ids {
    fn new(observer: Option<Arc<dyn CutObserver>>) -> Self {
        let mut process = [0; 5];
        process.fill_with(|| fastrand::u8(..));
        Self { process, counter: AtomicU32::new(fastrand::u32(..)), observer }
    }

    #[cfg(test)]
    pub(super) fn start_counting_at(&self, counter: u32) {
        self.counter.store(counter, Ordering::Relaxed);
    }

    /// What names this process in comment ids.
    pub(super) fn process(&self) -> [u8; 5] {
        self.process
    }

    /// The next number for a comment id.
    pub(super) fn count(&self) -> u32 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// An epoch no room has had before, here or elsewhere: 64 random bits; 0 means none.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(fastrand::u64(1..))
    }

    pub(super) fn observer(&self) -> Option<&Arc<dyn CutObserver>> {
        self.observer.as_ref()
    }
}

/// The rooms of one server. Clones share them.
#[derive(Clone, Debug)]
pub struct Registry {
    pub(super) rooms: Arc<DashMap<RoomId, Arc<Room>>>,
    pub(super) config: Arc<RoomConfig>,
    pub(super) ids: Arc<Ids>,
    clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

impl Registry {
    /// No rooms yet. `observer`, if any, is shown every batch that a room cuts.
    #[must_use]
    pub fn new(
        config: RoomConfig,
        clock: Clock,
        metrics: Arc<Metrics>,
        observer: Option<Arc<dyn CutObserver>>,
    ) -> Self {
        Self { rooms: Arc::default(), config: Arc::new(config), ids: Arc::new(Ids::new(observer)), clock, metrics }
    }

    /// The room, if it is in memory.
    #[must_use]
    pub fn get(&self, id: &RoomId) -> Option<Arc<Room>> {
        self.rooms.get(id).map(|room| Arc::clone(&room))
    }

    /// Does `act` with the room, made if need be. `act` may find the room retired; then it is given a new one.
    ///
    /// # Errors
    /// [`TooManyRooms`] when the room is not in memory and no more may be.
    pub fn with<T>(
        &self,
        id: &RoomId,
        mut act: impl FnMut(&Arc<Room>) -> Result<T, Retired>,
    ) -> Result<T, TooManyRooms> {
        loop {
            let room = self.get_or_make(id)?;
            if let Ok(done) = act(&room) {
                return Ok(done);
            }
            // A sweep retires rooms under the lock that `get_or_make` takes: by now the room is out of the map.
        }
    }

    /// The room, made if need be.
    ///
    /// # Errors
    /// [`TooManyRooms`] when the room is not in memory and no more may be.
    pub fn get_or_make(&self, id: &RoomId) -> Result<Arc<Room>, TooManyRooms> {
        if let Some(room) = self.get(id) {
            return Ok(room);
        }
        if self.len() >= self.config.max_rooms {
            return Err(TooManyRooms(self.config.max_rooms));
        }
        match self.rooms.entry(id.clone()) {
            Entry::Occupied(entry) => Ok(Arc::clone(entry.get())),
            Entry::Vacant(entry) => {
                // Counted first: several may have come past the check above for the last place.
                if usize::try_from(self.metrics.rooms.inc()).is_ok_and(|before| before >= self.config.max_rooms) {
                    self.metrics.rooms.dec();
                    return Err(TooManyRooms(self.config.max_rooms));
                }
                let (ids, metrics) = (Arc::clone(&self.ids), Arc::clone(&self.metrics));
                let room = Room::new(id.clone(), Arc::clone(&self.config), ids, metrics, self.clock.now());
                Ok(Arc::clone(&entry.insert(Arc::new(room))))
            }
        }
    }

    /// Rooms in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.metrics.rooms.get()).unwrap_or(0)
    }

    /// Whether no room is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All rooms in memory.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Room>> {
        self.rooms.iter().map(|room| Arc::clone(&room)).collect()
    }

    /// All rooms that have viewers on this node.
    #[must_use]
    pub fn occupied(&self) -> Vec<Arc<Room>> {
        self.rooms.iter().filter(|room| room.online() > 0).map(|room| Arc::clone(&room)).collect()
    }

    /// Lets every room go of comments that have expired.
    pub fn drop_expired(&self, now: Timestamp) {
        for room in self.rooms.iter() {
            room.drop_expired(now);
        }
    }

    /// Drops the rooms that are over; gives how many.
    pub fn sweep(&self) -> usize {
        let mut evicted = 0;
        self.rooms.retain(|_, room| {
            let is_over = room.try_retire();
            evicted += usize::from(is_over);
            !is_over
        });
        self.metrics.rooms.dec_by(i64::try_from(evicted).unwrap_or(i64::MAX));
        self.metrics.rooms_evicted.inc_by(evicted as u64);
        evicted
    }
}
