//! The hallway: everything the server can do, for whichever door asks.
//!
//! The hub joins admission, rooms, write queue, store and relay; each of them knows only itself. It holds the promise
//! that matters most: a comment is queued for the store before anybody sees it.

mod flight;
mod history;
mod housekeeping;

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::warn;

pub use history::{HistoryError, PageAnswer, WindowAnswer};
pub use housekeeping::Housekeeper;

use crate::admission::{Admission, Judged};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::model::{
    AckLevel, BatchEncoder, Comment, Cursor, Draft, Identity, Position, Posted, Refusal, RoomId, Socket, TextLimits,
    Timestamp,
};
use crate::relay::{Envelope, Relay, RelayError};
use crate::room::{Begin, CutObserver, Joined, Published, Reach, Registry, Room, RoomConfig, TooManyRooms};
use crate::store::{CommentStore, Ledger, PushError, StoreError, WriteQueue};
use flight::Flights;
use history::WindowKey;

/// How the hub treats what it joins.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Rooms.
    pub room: RoomConfig,
    /// How long comments are kept.
    pub retention: Duration,
    /// How long a reader waits for the store before it is answered from memory alone.
    pub read_patience: Duration,
    /// When a sender should try again whose comment found the queue full or the server stopping.
    pub retry_after: Duration,
}

/// What the hub joins.
pub struct HubParts {
    /// Rules and rates.
    pub admission: Admission,
    /// The way to the store.
    pub queue: WriteQueue,
    /// The store, for reading.
    pub store: Arc<dyn CommentStore>,
    /// The way to other nodes.
    pub relay: Arc<dyn Relay>,
    /// The time.
    pub clock: Clock,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// What is asked of the store once for all who ask the same at the same time.
type Windows = Flights<WindowKey, history::Base>;
type Pages = Flights<(RoomId, Position, usize), Result<Arc<crate::store::Page>, HistoryError>>;

/// The hub. Clones share it.
#[derive(Clone)]
pub struct Hub {
    inner: Arc<Inner>,
}

struct Inner {
    config: HubConfig,
    rooms: Registry,
    parts: HubParts,
    windows: Windows,
    pages: Pages,
    /// After a failed read, rooms are not warmed from the store before this moment (UTC milliseconds).
    cold_until: AtomicI64,
    /// Rooms whose comments the relay was told to bring.
    occupied: Mutex<HashSet<RoomId>>,
}

/// After a failed read of the store, joins do without it for this long, so that they do not all wait for it.
const COLD: Duration = Duration::from_secs(5);

/// Most missed comments that are counted in the store for a viewer that comes back late.
const MOST_COUNTED: u64 = 100_000;

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

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
    /// The store could not be asked.
    Unknown,
}

/// Shows what rooms cut to the relay.
struct Forward(Arc<dyn Relay>);

impl CutObserver for Forward {
    fn wants_unwatched(&self) -> bool {
        self.0.is_joined()
    }

    fn cut(&self, room: &RoomId, comments: &[Arc<Posted>]) {
        self.0.forward(room, comments);
    }
}

impl Hub {
    /// A hub without rooms yet.
    #[must_use]
    pub fn new(config: HubConfig, parts: HubParts) -> Self {
        let observer: Option<Arc<dyn CutObserver>> =
            if parts.relay.is_joined() { Some(Arc::new(Forward(Arc::clone(&parts.relay)))) } else { None };
        for code in Refusal::CODES {
            drop(parts.metrics.refused.get_or_create(&[("code", code)]));
        }
        let rooms = Registry::new(config.room.clone(), parts.clock.clone(), Arc::clone(&parts.metrics), observer);
        let (windows, pages) = (Flights::new(Arc::clone(&parts.metrics)), Flights::new(Arc::clone(&parts.metrics)));
        let cold_until = AtomicI64::new(i64::MIN);
        let occupied = Mutex::default();
        Self { inner: Arc::new(Inner { config, rooms, parts, windows, pages, cold_until, occupied }) }
    }

    /// Takes a comment: judges it, gives it its time, id and place, queues it for the store, and lets it out.
    ///
    /// Whoever wants to know that it is stored waits for [`Posted::settled`].
    ///
    /// # Errors
    /// The [`Refusal`] for the sender; nobody else has seen the comment, and it leaves no trace.
    pub fn publish(&self, who: &Identity, room: &RoomId, draft: &Draft) -> Result<Published, Refusal> {
        let published = self.try_publish(who, room, draft);
        match &published {
            Ok(Published::Accepted(_)) => {}
            Ok(Published::Resent(_)) => drop(self.inner.parts.metrics.resent.inc()),
            Err(refusal) => drop(self.inner.parts.metrics.refused.get_or_create(&[("code", refusal.code())]).inc()),
        }
        published
    }

    fn try_publish(&self, who: &Identity, room: &RoomId, draft: &Draft) -> Result<Published, Refusal> {
        let Inner { parts, rooms, .. } = &*self.inner;
        let mark = draft.nonce.as_ref().map(|nonce| (&who.uid, nonce));
        // Looked for before the rate is checked: who resends is not sending more.
        if let Some((uid, nonce)) = mark
            && let Some(posted) = rooms.get(room).and_then(|room| room.find_resent(uid, nonce))
        {
            return Ok(Published::Resent(posted));
        }
        let Judged { text, style } = parts.admission.judge(who, draft)?;
        let now = parts.clock.now();
        let make = |ts: Timestamp, id| Comment {
            id,
            room: room.clone(),
            ts,
            uid: who.uid.clone(),
            name: who.name.clone(),
            text: text.clone(),
            style,
            expire_at: ts.plus(self.inner.config.retention),
        };
        let published = rooms.with(room, |room| room.publish(now, mark, make, |posted| parts.queue.try_push(posted)));
        published.map_err(|full| self.no_room(full))?.map_err(|refused| self.not_kept(refused))
    }

    /// What a sender is told whose comment the server cannot take on now.
    #[must_use]
    pub fn busy(&self) -> Refusal {
        Refusal::Busy { retry_after: self.retry_after() }
    }

    fn no_room(&self, _full: TooManyRooms) -> Refusal {
        Refusal::TooManyRooms { retry_after: self.retry_after() }
    }

    fn not_kept(&self, refused: PushError) -> Refusal {
        match refused {
            PushError::Full => self.busy(),
            PushError::Closed => Refusal::GoingAway { retry_after: self.retry_after() },
        }
    }

    /// The configured wait and up to as much again, so that those who were refused together do not return together.
    fn retry_after(&self) -> Duration {
        self.inner.config.retry_after.mul_f64(1.0 + fastrand::f64())
    }

    /// Takes comments that another node accepted.
    pub fn deliver(&self, envelope: Envelope) {
        let count = envelope.comments.len();
        let Some(room) = self.inner.rooms.get(&envelope.room) else { return };
        // A room that was dropped meanwhile has nobody to deliver to.
        if room.deliver(envelope.comments).is_ok() {
            self.inner.parts.metrics.relay_received.inc_by(count as u64);
        }
    }

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
        encoder: Arc<dyn BatchEncoder>,
        since: Option<Cursor>,
    ) -> Result<Entrance, Refusal> {
        let rooms = &self.inner.rooms;
        let room = rooms.get_or_make(id).map_err(|full| self.no_room(full))?;
        self.warm(&room).await;
        let (begin, missed) = match since {
            None => (Begin::Newest, Missed::Exactly(0)),
            Some(cursor) => self.begin_after(&room, cursor).await,
        };
        let join = |room: &Arc<Room>| room.join(Arc::clone(&socket), Arc::clone(&encoder), begin);
        let mut joined = rooms.with(id, join).map_err(|full| self.no_room(full))?;
        let now = self.inner.parts.clock.now();
        joined.recent.retain(|posted| posted.comment.expire_at > now);
        self.tell_occupied(id);
        Ok(Entrance { joined, missed })
    }

    /// Tells the relay of a room that has viewers from now on.
    fn tell_occupied(&self, id: &RoomId) {
        if self.inner.parts.relay.is_joined() && self.occupied().insert(id.clone()) {
            self.inner.parts.relay.occupied(id);
        }
    }

    /// Tells the relay of rooms that have no viewers any more.
    fn tell_vacated(&self) {
        // A join counts its viewer before it takes this lock, so a room that is filling again is not given up.
        self.occupied().retain(|id| {
            let is_occupied = self.inner.rooms.get(id).is_some_and(|room| room.online() > 0);
            if !is_occupied {
                self.inner.parts.relay.vacated(id);
            }
            is_occupied
        });
    }

    fn occupied(&self) -> MutexGuard<'_, HashSet<RoomId>> {
        self.inner.occupied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a viewer with this cursor begins, and what it has missed that the ring does not know of.
    async fn begin_after(&self, room: &Room, cursor: Cursor) -> (Begin, Missed) {
        let Reach::Before { start, oldest } = room.reach(&cursor) else {
            return (Begin::After(cursor), Missed::Exactly(0));
        };
        let before = oldest.unwrap_or(Position::END);
        let counted = self.read(self.inner.parts.store.count_between(room.id(), cursor.position, before, MOST_COUNTED));
        let missed = match counted.await {
            Ok(count) => Missed::Exactly(count),
            Err(_) => Missed::Unknown,
        };
        (Begin::From(start), missed)
    }

    /// Puts what the store has of the room in front of its ring, once. A store that does not answer is done without.
    async fn warm(&self, room: &Room) {
        if room.warmed.initialized()
            || self.inner.parts.clock.now().millis() < self.inner.cold_until.load(Ordering::Relaxed)
        {
            return;
        }
        let load = || async {
            let capacity = self.inner.config.room.ring;
            let load = self.inner.parts.store.load_recent(room.id(), Timestamp::MIN, capacity);
            let mut page = self.read(load).await?;
            page.comments.reverse();
            room.prepend(page.comments, !page.has_more);
            Ok::<_, StoreError>(())
        };
        if let Err(error) = room.warmed.get_or_try_init(load).await {
            let until = self.inner.parts.clock.now().plus(COLD);
            self.inner.cold_until.store(until.millis(), Ordering::Relaxed);
            warn!(%error, "cannot load a room's comments from the store; viewers start without");
        }
    }

    /// Waits for a read of the store, for the configured patience.
    async fn read<T>(&self, read: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.inner.parts.metrics.store_reads.inc();
        let patience = self.inner.config.read_patience;
        tokio::time::timeout(patience, read).await.unwrap_or_else(|_| {
            let detail = format!("no answer within {patience:?}");
            Err(StoreError::Transient { detail, source: None })
        })
    }

    /// What texts must keep to, and the time between two comments of one user.
    #[must_use]
    pub fn limits(&self) -> (TextLimits, Duration) {
        let config = self.inner.parts.admission.config();
        (config.text, config.min_interval)
    }

    /// The account of all accepted comments.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.inner.parts.queue.ledger()
    }

    /// Takes no more comments. Returns once none is being taken any more.
    pub async fn close_intake(&self) {
        self.inner.parts.queue.close().await;
    }

    /// Whether comments are taken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.inner.parts.queue.is_closed()
    }

    /// Goes through to the store and through the relay and back.
    ///
    /// # Errors
    /// [`NotReady`] with what did not answer.
    pub async fn probe(&self) -> Result<(), NotReady> {
        let Inner { parts, .. } = &*self.inner;
        if parts.queue.is_closed() {
            return Err(NotReady::Stopping);
        }
        let (store, relay) = tokio::join!(parts.store.probe(), parts.relay.probe());
        store.map_err(NotReady::Store)?;
        relay.map_err(NotReady::Relay)
    }

    /// The metrics as text, with the gauges that are read off rather than counted.
    #[must_use]
    pub fn metrics(&self) -> String {
        let Inner { parts, .. } = &*self.inner;
        parts.metrics.queued.set(i64::try_from(parts.queue.len()).unwrap_or(i64::MAX));
        parts.metrics.unsettled.set(i64::try_from(self.ledger().unsettled()).unwrap_or(i64::MAX));
        parts.metrics.to_text()
    }
}

/// Why the server should get no traffic now.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// It is about to stop.
    #[error("the server is about to stop")]
    Stopping,
    /// The store did not take a probe.
    #[error("{0}")]
    Store(#[source] StoreError),
    /// The relay did not pass a probe on.
    #[error("{0}")]
    Relay(#[source] RelayError),
}

impl NotReady {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Stopping => "going_away",
            Self::Store(_) => "store_unavailable",
            Self::Relay(_) => "relay_unavailable",
        }
    }
}

/// Waits until a comment has reached the level its sender asked for. `None` when the store refused it for good.
///
/// Cancellation-safe.
pub async fn acknowledged(posted: &Posted, level: AckLevel) -> Option<AckLevel> {
    match level {
        AckLevel::Accepted => Some(level),
        AckLevel::Stored => (posted.settled().await == crate::model::Fate::Stored).then_some(level),
    }
}

#[cfg(test)]
mod tests;
