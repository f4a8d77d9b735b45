//! The tick: cuts what has come into a batch and writes it to every viewer's socket, waking no task of theirs.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::error;

use super::batch::Batch;
use super::online::Elsewhere;
use super::pace::Pace;
use super::viewer::{Delivered, Viewer};
use super::{Room, State};
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
pub(super) struct Audience(Mutex<Seats>);

#[derive(Debug, Default)]
struct Seats {
    viewers: Vec<Option<Arc<Viewer>>>,
    free: Vec<usize>,
    /// Goes up with every change, so that the tick copies the list only when it has to.
    version: u64,
    /// What all viewers are to get with the next tick, the latest of it.
    news: Option<Bytes>,
    is_ticking: bool,
    /// The place after the last comment that the tick has shown.
    shown: Seq,
    elsewhere: Elsewhere,
}

impl Seats {
    fn len(&self) -> usize {
        self.viewers.len() - self.free.len()
    }

    fn everywhere(&self) -> usize {
        self.len() + self.elsewhere.known().unwrap_or(0)
    }
}

impl Audience {
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a viewer; gives its place and how many there are now, on other nodes as well.
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
        (place, seats.everywhere())
    }

    /// Frees a place.
    pub(super) fn remove(&self, place: usize) {
        let mut seats = self.lock();
        seats.version += 1;
        if seats.viewers.get_mut(place).and_then(Option::take).is_some() {
            seats.free.push(place);
        }
        if seats.len() == 0 {
            (seats.viewers, seats.free, seats.news) = (Vec::new(), Vec::new(), None);
            // It is kept up to date only while somebody is here.
            seats.elsewhere = Elsewhere::default();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn everywhere(&self) -> usize {
        self.lock().everywhere()
    }

    pub(super) fn elsewhere(&self) -> Option<usize> {
        self.lock().elsewhere.known()
    }

    pub(super) fn note_elsewhere(&self, elsewhere: Elsewhere) {
        self.lock().elsewhere = elsewhere;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has all viewers told with the next tick.
    pub(super) fn announce(&self, news: Bytes) {
        let mut seats = self.lock();
        if seats.len() > 0 {
            seats.news = Some(news);
        }
    }

    /// Notes that a tick runs, which has yet to show what stands at `from`; gives false, and changes nothing, when one
    /// does already.
    pub(super) fn begin_ticking(&self, from: Seq) -> bool {
        let mut seats = self.lock();
        if !seats.is_ticking {
            (seats.is_ticking, seats.shown) = (true, from);
            return true;
        }
        false
    }

    /// Whether no tick has yet to show what stands before `end`.
    pub(super) fn has_shown(&self, end: Seq) -> bool {
        let seats = self.lock();
        !seats.is_ticking || seats.shown >= end
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<Arc<Viewer>> {
        self.lock().viewers.iter().flatten().cloned().collect()
    }

    #[cfg(test)]
    pub(super) fn is_ticking(&self) -> bool {
        self.lock().is_ticking
    }
}

/// Starts the room's tick unless it runs; `state` is the room's. What is cut already it takes for shown, so a comment that
/// it is to show comes in while the room is still locked: in between, somebody who resumes could cut it.
pub(super) fn ensure_running(room: &Arc<Room>, state: &State) {
    let from = state.ring.cut_end();
    if room.audience.begin_ticking(from) {
        tokio::spawn(Tick::new(room, from).run(Arc::downgrade(room)));
    }
}

/// What a tick shows to the viewers.
#[derive(Debug, Default)]
struct Show {
    news: Option<Bytes>,
    fresh: Vec<Arc<Batch>>,
}

/// Shows it to some of a room's viewers.
async fn write(room: &Room, viewers: &[Arc<Viewer>], which: Range<usize>, show: &Show) {
    let mut delivered = Delivered::default();
    let which = which.start..which.end.min(viewers.len());
    for (i, viewer) in viewers.get(which).unwrap_or_default().iter().enumerate() {
        // A fault, such as in an encoder, ends this viewer and nobody else.
        match catch_unwind(AssertUnwindSafe(|| viewer.offer(room, show.news.as_ref(), &show.fresh))) {
            Ok(had) => delivered.add(had),
            Err(_) => {
                error!("writing to a viewer has panicked, it is let go");
                viewer.end();
                viewer.rouse();
            }
        }
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
    cores: usize,
}

impl Tick {
    fn new(room: &Room, shown: Seq) -> Self {
        let pace = Pace::new(room.config.max_window, Instant::now());
        let cores = tokio::runtime::Handle::current().metrics().num_workers();
        Self { pace, shown, viewers: Arc::default(), version: u64::MAX, cores }
    }

    /// Runs until the room is gone, or nobody is in it and nothing is published any more.
    async fn run(mut self, room: Weak<Room>) {
        loop {
            let Some(room) = room.upgrade() else { return };
            if timeout(IDLE, room.dirty.notified()).await.is_err() {
                if self.has_ended(&room) {
                    return;
                }
                // Those who have left meanwhile are let go of.
                self.refresh(&room.audience.lock());
            }
            if self.has_news(&room) {
                sleep_until(self.pace.due()).await;
                self.run_once(&room).await;
            }
        }
    }

    fn has_news(&self, room: &Room) -> bool {
        room.lock().ring.next() != self.shown || room.audience.lock().news.is_some()
    }

    /// Ends the tick if it is over. Under both locks: who comes in and who publishes takes one of them, and starts the
    /// tick again afterwards.
    fn has_ended(&self, room: &Room) -> bool {
        let state = room.lock();
        let mut seats = room.audience.lock();
        let is_over = seats.len() == 0 && state.ring.next() == self.shown;
        seats.is_ticking &= !is_over;
        drop((state, seats));
        room.ticked.notify_waiters();
        is_over
    }

    fn refresh(&mut self, seats: &Seats) {
        if self.version != seats.version {
            self.version = seats.version;
            self.viewers = seats.viewers.iter().flatten().cloned().collect();
        }
    }

    /// Cuts, and writes what is new to every viewer.
    async fn run_once(&mut self, room: &Arc<Room>) {
        let begun = Instant::now();
        let fresh = self.take_fresh(room);
        let comments = fresh.iter().map(|batch| batch.comments().len()).sum();
        let news = self.look_round(&room.audience);
        let show = Arc::new(Show { news, fresh });
        let share = self.viewers.len().div_ceil(self.cores).max(SHARE);
        let mut others = JoinSet::new();
        for from in (share..self.viewers.len()).step_by(share) {
            let (room, viewers, show) = (Arc::clone(room), Arc::clone(&self.viewers), Arc::clone(&show));
            others.spawn(async move { write(&room, &viewers, from..from + share, &show).await });
        }
        write(room, &self.viewers, 0..share, &show).await;
        others.join_all().await;
        room.audience.lock().shown = self.shown;
        room.ticked.notify_waiters();
        self.pace.ticked(begun, comments, begun.elapsed());
    }

    /// Who is there now; gives the news they are to get.
    fn look_round(&mut self, audience: &Audience) -> Option<Bytes> {
        let mut seats = audience.lock();
        self.refresh(&seats);
        seats.news.take()
    }

    fn take_fresh(&mut self, room: &Room) -> Vec<Arc<Batch>> {
        let fresh = room.cut_after(&mut self.shown);
        if let Some(observer) = room.ids.observer() {
            let local = |posted: &&Arc<Posted>| posted.is_local();
            for batch in &fresh {
                let comments: Vec<_> = batch.comments().iter().filter(local).cloned().collect();
                if !comments.is_empty() {
                    observer.cut(&room.id, &comments);
                }
            }
        }
        fresh
    }
}
