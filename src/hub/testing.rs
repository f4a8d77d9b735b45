//! What the tests of the hub share: a hub over a store in memory, flushed by hand, and a relay that records.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::{Entrance, Hub, HubConfig, HubParts};
use crate::admission::{Admission, AdmissionConfig};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::model::{
    Comment, Cursor, Draft, Fate, Posted, Refusal, RoomId, Socket, TextLimits, Timestamp, test_identity,
};
use crate::relay::{Relay, RelayError};
use crate::room::testing::{BEGUN, FakeSocket, PlainEncoder, config, room_id};
use crate::room::{RoomConfig, Taste};
use crate::store::memory::MemoryStore;
use crate::store::{FaultyStore, WriteQueue};

pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
pub(crate) const RETRY: Duration = Duration::from_millis(500);

/// What a relay was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Occupied(RoomId),
    Vacated(RoomId),
    Forwarded(usize),
    /// So many viewers in all rooms here.
    Counted(usize),
}

#[derive(Debug)]
pub(crate) struct FakeRelay {
    is_joined: bool,
    /// Whether probes are never answered.
    pub(crate) hangs: AtomicBool,
    pub(crate) told: Mutex<Vec<Told>>,
    /// How many viewers every room has elsewhere.
    pub(crate) elsewhere: Mutex<Option<usize>>,
}

#[async_trait]
impl Relay for FakeRelay {
    fn is_joined(&self) -> bool {
        self.is_joined
    }

    fn forward(&self, _room: &RoomId, comments: &[Arc<Posted>]) {
        self.told.lock().unwrap().push(Told::Forwarded(comments.len()));
    }

    fn occupied(&self, room: &RoomId) {
        self.told.lock().unwrap().push(Told::Occupied(room.clone()));
    }

    fn vacated(&self, room: &RoomId) {
        self.told.lock().unwrap().push(Told::Vacated(room.clone()));
    }

    async fn count(&self, here: &[(RoomId, usize)]) -> Vec<Option<usize>> {
        self.told.lock().unwrap().push(Told::Counted(here.iter().map(|(_, viewers)| viewers).sum()));
        vec![*self.elsewhere.lock().unwrap(); here.len()]
    }

    async fn count_elsewhere(&self, _room: &RoomId) -> Option<usize> {
        *self.elsewhere.lock().unwrap()
    }

    async fn probe(&self) -> Result<(), RelayError> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn close(&self) {}
}

pub(crate) struct Scene {
    pub(crate) hub: Hub,
    pub(crate) queue: WriteQueue,
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) store: Arc<FaultyStore<MemoryStore>>,
    pub(crate) relay: Arc<FakeRelay>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
}

impl Scene {
    pub(crate) fn new(ring: usize) -> Self {
        Self::with(config(ring), 10_000, false)
    }

    pub(crate) fn with(room: RoomConfig, queue: usize, is_joined: bool) -> Self {
        let (clock, metrics) = (Clock::manual(Timestamp::from_millis(BEGUN)), Arc::new(Metrics::default()));
        let queue = WriteQueue::new(queue, 1000, Arc::clone(&metrics));
        let memory = Arc::new(MemoryStore::new(clock.clone()));
        let store = Arc::new(FaultyStore::new(Arc::clone(&memory)));
        let relay = Arc::new(FakeRelay {
            is_joined,
            hangs: AtomicBool::new(false),
            told: Mutex::default(),
            elsewhere: Mutex::default(),
        });
        let text = TextLimits { max_chars: 100, max_bytes: 1024, max_combining: 6 };
        let burst = NonZeroU32::MIN;
        let parts = HubParts {
            admission: Admission::new(AdmissionConfig { text, min_interval: Duration::ZERO, burst }),
            queue: queue.clone(),
            store: store.clone(),
            relay: relay.clone(),
            clock: clock.clone(),
            metrics: Arc::clone(&metrics),
        };
        let retention = Duration::from_secs(3600);
        let (read_patience, write_patience) = (PATIENCE, PATIENCE * 2);
        let config = HubConfig { room, retention, read_patience, write_patience, retry_after: RETRY };
        Self { hub: Hub::new(config, parts), queue, memory, store, relay, clock, metrics }
    }

    pub(crate) fn try_say(&self) -> Result<Arc<Posted>, Refusal> {
        let draft = Draft { text: "x".into(), ..Draft::default() };
        self.hub.publish(&test_identity("u"), &room_id(), &draft).map(|published| Arc::clone(published.posted()))
    }

    pub(crate) fn say(&self, n: usize) -> Vec<Comment> {
        (0..n).map(|_| self.try_say().unwrap().comment.clone()).collect()
    }

    /// Puts so many of those that have waited longest into the store.
    pub(crate) fn flush(&self, n: usize) {
        for posted in self.queue.take(n) {
            self.memory.put(&posted.comment);
            posted.settle(Fate::Stored);
        }
    }

    pub(crate) fn pass(&self, by: Duration) {
        self.clock.set(self.clock.now().plus(by));
    }

    pub(crate) async fn try_join(&self, since: Option<Cursor>) -> (Result<Entrance, Refusal>, Arc<FakeSocket>) {
        let socket = FakeSocket::open();
        let encoder = Arc::new(PlainEncoder::default());
        (self.hub.join(&room_id(), Arc::clone(&socket) as Arc<dyn Socket>, Taste::all(encoder), since).await, socket)
    }

    /// Lets a viewer in and opens it.
    pub(crate) async fn join(&self, since: Option<Cursor>) -> (Entrance, Arc<FakeSocket>) {
        let (entrance, socket) = self.try_join(since).await;
        let entrance = entrance.unwrap();
        entrance.joined.seat.open();
        (entrance, socket)
    }
}

/// Lets the rooms' ticks run.
pub(crate) async fn tick() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}
