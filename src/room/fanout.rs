//! The tick: cuts what has come into a batch and writes it to every viewer's socket, waking no task of theirs.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Room;
use super::batch::Batch;
use super::pace::Pace;
use super::viewer::{Delivered, Viewer};
use crate::model::{Posted, RoomId, Seq};

/// After so many viewers a tick lets other tasks of its core run.
const YIELD_EVERY: usize = 128;

/// A room with more viewers is spread over the cores, in shares of at least so many: their writes take about 2 ms, next
/// to which handing a share to another core is nothing.
const SHARE: usize = 512;

/// A room's tick ends when nothing was published for this long and nobody is in the room; the next one starts it again.
const IDLE: Duration = Duration::from_secs(5);

/// Is shown every batch as it is cut, oldest first: how the relay gets one message for each room and tick.
pub trait CutObserver: Send + Sync + 'static {
    /// Whether rooms without viewers should cut their comments too.
    fn wants_unwatched(&self) -> bool;

    /// Shows comments of `room` that this node accepted. Must not block.
    fn cut(&self, room: &RoomId, comments: &[Arc<Posted>]);
}

/// The viewers of a room.
#[derive(Debug, Default)]
pub(super) struct Audience {
    seats: Mutex<Seats>,
    count: AtomicUsize,
    is_ticking: AtomicBool,
}

#[derive(Debug, Default)]
struct Seats {
    viewers: Vec<Option<Arc<Viewer>>>,
    free: Vec<usize>,
    /// Goes up with every change, so that the tick copies the list only when it has to.
    version: u64,
}

impl Audience {
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a viewer; gives its place and how many there are now.
    pub(super) fn add(&self, viewer: Arc<Viewer>) -> (usize, usize) {
        let mut seats = self.lock();
        seats.version += 1;
        let place = match seats.free.pop() {
            Some(place) => place,
            None => {
                seats.viewers.push(None);
                seats.viewers.len() - 1
            }
        };
        if let Some(seat) = seats.viewers.get_mut(place) {
            *seat = Some(viewer);
        }
        (place, self.count.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Frees a place.
    pub(super) fn remove(&self, place: usize) {
        let mut seats = self.lock();
        seats.version += 1;
        if seats.viewers.get_mut(place).and_then(Option::take).is_some() {
            seats.free.push(place);
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        if self.is_empty() {
            *seats = Seats { version: seats.version, ..Seats::default() };
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn all(&self) -> Vec<Arc<Viewer>> {
        self.lock().viewers.iter().flatten().cloned().collect()
    }

    /// Keeps the room's own tick from starting: the test ticks.
    #[cfg(test)]
    pub(super) fn pretend_ticking(&self) {
        self.is_ticking.store(true, Ordering::Release);
    }

    #[cfg(test)]
    pub(super) fn is_ticking(&self) -> bool {
        self.is_ticking.load(Ordering::Acquire)
    }

    fn refresh(&self, copy: &mut Arc<[Arc<Viewer>]>, version: &mut u64) {
        let seats = self.lock();
        if *version != seats.version {
            *version = seats.version;
            *copy = seats.viewers.iter().flatten().cloned().collect();
        }
    }
}

/// Starts the room's tick unless it runs.
pub(super) fn ensure_running(room: &Arc<Room>) {
    if !room.audience.is_ticking.swap(true, Ordering::AcqRel) {
        let from = room.lock().ring.cut_end();
        tokio::spawn(Tick::new(room, from).run(Arc::downgrade(room)));
    }
}

/// Writes what is fresh to some of a room's viewers.
async fn write(room: &Room, viewers: &[Arc<Viewer>], which: Range<usize>, fresh: &[Arc<Batch>]) {
    let mut delivered = Delivered::default();
    let which = which.start..which.end.min(viewers.len());
    for (i, viewer) in viewers.get(which).unwrap_or_default().iter().enumerate() {
        delivered.add(viewer.offer(room, fresh));
        if i % YIELD_EVERY == YIELD_EVERY - 1 {
            tokio::task::yield_now().await;
        }
    }
    room.count(&delivered);
}

struct Tick {
    pace: Pace,
    /// The place after the last comment that this tick has shown to the viewers.
    shown: Seq,
    viewers: Arc<[Arc<Viewer>]>,
    version: u64,
    fresh: Arc<[Arc<Batch>]>,
    cores: usize,
}

impl Tick {
    fn new(room: &Room, shown: Seq) -> Self {
        let pace = Pace::new(room.config.max_window, Instant::now());
        let cores = tokio::runtime::Handle::current().metrics().num_workers();
        Self { pace, shown, viewers: Arc::default(), version: u64::MAX, fresh: Arc::default(), cores }
    }

    /// Runs until the room is gone, or nobody is in it and nothing is published any more.
    async fn run(mut self, room: Weak<Room>) {
        loop {
            let Some(room) = room.upgrade() else { return };
            if timeout(IDLE, room.dirty.notified()).await.is_err() && self.has_ended(&room) {
                return;
            }
            if !self.has_news(&room) {
                continue;
            }
            sleep_until(self.pace.due()).await;
            self.run_once(&room).await;
        }
    }

    fn has_news(&self, room: &Room) -> bool {
        room.lock().ring.next() != self.shown
    }

    fn has_ended(&self, room: &Arc<Room>) -> bool {
        if !room.audience.is_empty() || self.has_news(room) {
            return false;
        }
        // A swap, not a store: it must not be overtaken by the reads below, or who comes in now and this tick could each
        // think that the other goes on.
        room.audience.is_ticking.swap(false, Ordering::AcqRel);
        // Who came in between saw the tick running: then it goes on, unless that one has started another.
        let is_needed = !room.audience.is_empty() || self.has_news(room);
        !is_needed || room.audience.is_ticking.swap(true, Ordering::AcqRel)
    }

    /// Cuts, and writes what is new to every viewer.
    async fn run_once(&mut self, room: &Arc<Room>) {
        let begun = Instant::now();
        self.take_fresh(room);
        room.audience.refresh(&mut self.viewers, &mut self.version);
        let share = self.viewers.len().div_ceil(self.cores).max(SHARE);
        let mut others = JoinSet::new();
        for from in (share..self.viewers.len()).step_by(share) {
            let (room, viewers, fresh) = (Arc::clone(room), Arc::clone(&self.viewers), Arc::clone(&self.fresh));
            others.spawn(async move { write(&room, &viewers, from..from + share, &fresh).await });
        }
        write(room, &self.viewers, 0..share, &self.fresh).await;
        others.join_all().await;
        let comments = self.fresh.iter().map(|batch| batch.comments().len()).sum();
        self.pace.ticked(begun, comments, begun.elapsed());
        self.fresh = Arc::default();
    }

    fn take_fresh(&mut self, room: &Room) {
        let mut fresh = Vec::new();
        let mut state = room.lock();
        state.ring.cut();
        state.ring.batches_from(self.shown, usize::MAX, &mut fresh);
        self.shown = state.ring.next();
        drop(state);
        self.fresh = fresh.into();
        if let Some(observer) = room.ids.observer() {
            let local = |posted: &&Arc<Posted>| posted.is_local();
            for batch in self.fresh.iter() {
                let comments: Vec<_> = batch.comments().iter().filter(local).cloned().collect();
                if !comments.is_empty() {
                    observer.cut(&room.id, &comments);
                }
            }
        }
    }
}
