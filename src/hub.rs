//! The hallway: everything the server can do, for whichever door asks.
//!
//! The hub joins admission, rooms, write queue, store and relay; each of them knows only itself. It holds the promise
//! that matters most: a comment is queued for the store before anybody sees it.

mod census;
mod entrance;
mod flight;
mod hearing;
mod history;
mod housekeeping;
mod source;
mod strays;
#[cfg(test)]
mod testing;

use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use census::{Census, Online};
pub use entrance::{Entrance, Missed};
pub use history::{HistoryError, PageAnswer, WindowAnswer};
pub use housekeeping::Housekeeper;

use crate::admission::{Admission, Judged};
use crate::clock::Clock;
use crate::metrics::{Ledger, Metrics};
use crate::model::{AckLevel, Comment, Draft, Identity, Position, Posted, Refusal, RoomId, TextLimits, Timestamp};
use crate::relay::{Relay, RelayError};
use crate::room::{CutObserver, Published, Registry, RoomConfig, Sender, TooManyRooms};
use crate::store::{CommentStore, PushError, StoreError, WriteQueue};
use flight::Flights;
use hearing::Hearing;
use history::WindowKey;
use source::Source;
use tokio::time::{Instant, timeout};

/// A probe of the store or the relay that takes longer than this has failed.
const PROBE_PATIENCE: Duration = Duration::from_secs(3);

/// How the hub treats what it joins.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Rooms.
    pub room: RoomConfig,
    /// How long comments are kept.
    pub retention: Duration,
    /// How long a reader waits for the store before it is answered from memory alone.
    pub read_patience: Duration,
    /// How long the store may take nothing of what it is offered before the server is not ready.
    pub write_patience: Duration,
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
type Pages = Flights<(RoomId, Position, usize), Result<Arc<history::PageBase>, HistoryError>>;

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
    /// After a failed read, rooms are not warmed from the store before this moment.
    cold_until: Mutex<Option<Instant>>,
    /// Rooms whose comments the relay was told to bring, and whether it does.
    hearing: Hearing,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("config", &self.inner.config).finish_non_exhaustive()
    }
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
        let rooms = Registry::new(config.room.clone(), parts.clock.clone(), Arc::clone(&parts.metrics), observer);
        Source::declare(&parts.metrics);
        let (windows, pages) = (Flights::new(Arc::clone(&parts.metrics)), Flights::new(Arc::clone(&parts.metrics)));
        let (cold_until, hearing) = (Mutex::default(), Hearing::default());
        Self { inner: Arc::new(Inner { config, rooms, parts, windows, pages, cold_until, hearing }) }
    }

    /// Takes a comment: judges it, gives it its time, id and place, queues it for the store, and lets it out.
    ///
    /// Whoever wants to know that it is stored waits for [`Posted::settled`].
    ///
    /// # Errors
    /// The [`Refusal`] for the sender; nobody else has seen the comment, and it leaves no trace.
    pub fn publish(&self, who: &Identity, room: &RoomId, draft: &Draft) -> Result<Published, Refusal> {
        // The doors count refusals, for most drafts that are refused there never come here.
        let published = self.try_publish(who, room, draft)?;
        if matches!(published, Published::Resent(_)) {
            self.inner.parts.metrics.resent.inc();
        }
        Ok(published)
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
        let sender = Sender { role: who.role, mark };
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
        let published =
            rooms.with(room, |room| room.publish(now, &sender, make, |posted| parts.queue.try_push(posted)));
        published.map_err(|full| self.no_room(full))?.map_err(|refused| self.not_kept(refused))
    }

    /// What a sender is told whose comment the server cannot take on now.
    #[must_use]
    pub fn busy(&self) -> Refusal {
        Refusal::Busy { retry_after: self.retry_after() }
    }

    /// Whether a sender who asks for this waits for more than the queue, be it the store or the journal.
    #[must_use]
    pub fn has_to_wait(&self, level: AckLevel) -> bool {
        level == AckLevel::Stored || self.inner.parts.queue.is_journaled()
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

    /// Waits until nothing more becomes of any comment, near the end of a stop. Cancellation-safe.
    pub async fn settled(&self) {
        self.inner.parts.queue.settled().await;
    }

    /// Takes no more comments. Returns once none is being taken any more.
    pub async fn close_intake(&self) {
        self.inner.parts.queue.close().await;
    }

    /// Waits until the rooms' ticks have shown every comment that was accepted before, to the viewers here and to the
    /// relay. Cancellation-safe.
    pub async fn shown(&self) {
        for room in self.inner.rooms.all() {
            room.shown().await;
        }
    }

    /// Whether comments are taken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.inner.parts.queue.is_closed()
    }

    /// Goes through to the store and through the relay and back.
    ///
    /// # Errors
    /// [`NotReady`] with what did not answer in time, or why nothing can be stored.
    pub async fn probe(&self) -> Result<(), NotReady> {
        let Inner { parts, .. } = &*self.inner;
        if parts.queue.is_closed() {
            return Err(NotReady::Stopping);
        }
        let late = || format!("a probe did not come back within {PROBE_PATIENCE:?}");
        let (store, relay) =
            tokio::join!(timeout(PROBE_PATIENCE, parts.store.probe()), timeout(PROBE_PATIENCE, parts.relay.probe()));
        let store = store.unwrap_or_else(|_| Err(StoreError::Transient { detail: late(), source: None }));
        store.map_err(NotReady::Store)?;
        // A store can answer probes and take no writes: a user that may only read is enough for that.
        parts.queue.blocked().map_or(Ok(()), |reason| Err(NotReady::Blocked(reason)))?;
        // So can one whose disk is locked, or that has lost its majority.
        let stalled = parts.queue.waiting_for().filter(|waited| *waited > self.inner.config.write_patience);
        stalled.map_or(Ok(()), |waited| Err(NotReady::Stalled(waited)))?;
        relay.unwrap_or_else(|_| Err(RelayError { detail: late() })).map_err(NotReady::Relay)
    }

    /// The metrics as text, with the gauges that are read off rather than counted.
    #[must_use]
    pub fn metrics(&self) -> String {
        let Inner { parts, .. } = &*self.inner;
        parts.metrics.queued.set(i64::try_from(parts.queue.len()).unwrap_or(i64::MAX));
        parts.metrics.to_text()
    }
}

/// Why the server should get no traffic now.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// It is about to stop.
    #[error("the server is about to stop")]
    Stopping,
    /// No probe has come back since the start.
    #[error("no probe has come back yet")]
    NotProbed,
    /// The store did not take a probe.
    #[error("{0}")]
    Store(#[source] StoreError),
    /// The store takes probes and no comments, until somebody acts.
    #[error("comments are kept in memory: {0}")]
    Blocked(String),
    /// The store takes probes and no comments, and it is not known for how long.
    #[error("no comment was stored for {}, they wait", humantime::format_duration(Duration::from_secs(.0.as_secs())))]
    Stalled(Duration),
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
            Self::NotProbed => "not_probed",
            Self::Store(_) => "store_unavailable",
            Self::Blocked(_) => "store_blocked",
            Self::Stalled(_) => "store_stalled",
            Self::Relay(_) => "relay_unavailable",
        }
    }
}

/// Waits until a comment has reached the level its sender asked for. `None` when the store refused it for good.
///
/// Cancellation-safe.
pub async fn acknowledged(posted: &Posted, level: AckLevel) -> Option<AckLevel> {
    match level {
        AckLevel::Accepted => {
            posted.kept().await;
            Some(level)
        }
        AckLevel::Stored => (posted.settled().await == crate::model::Fate::Stored).then_some(level),
    }
}

#[cfg(test)]
mod tests;
