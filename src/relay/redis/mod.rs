//! Joins nodes through Redis Pub/Sub, over two connections whatever the number of rooms: one subscribes, one publishes.
//!
//! A room's channel is subscribed only while the room has viewers here. A message carries all new comments of a room
//! since its last tick. Redis away means that other nodes wait: what fits the queue is published once Redis is back,
//! what does not is dropped for them and counted; local delivery and storing never notice. Comments that others
//! publish while this node is not connected do not come again; [`Heard::Begun`] tells where the hole ends.

mod publisher;
mod subscriber;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::Client;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use url::Url;

use self::publisher::Outgoing;
use super::codec::{self, NodeId};
use super::{Heard, Relay, RelayError};
use crate::metrics::Metrics;
use crate::model::{Posted, RoomId};

/// How long a connection may take, how long Redis may take to answer, and how long a probe may be on its way.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How long [`Relay::close`] may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);

/// Where Redis is and how much may wait.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://[user:password@]host[:port]`, `rediss://…` for TLS, or `redis+unix:///path`.
    pub url: String,
    /// What all channel names begin with, so that several clusters can share a Redis.
    pub prefix: String,
    /// How many messages (one a room and tick) may wait to be published; what comes on top is dropped and counted.
    pub max_queued: usize,
    /// How many envelopes may wait to be taken by this node; what comes on top is dropped and counted.
    pub max_received: usize,
}

impl RedisConfig {
    /// A configuration with the defaults: prefix `danmakud`, 4,096 messages each way.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), prefix: "danmakud".to_owned(), max_queued: 4096, max_received: 4096 }
    }

    /// The address with its password masked, fit for logs.
    #[must_use]
    pub fn shown_url(&self) -> String {
        let Ok(mut url) = Url::parse(&self.url) else { return "(not a URL)".to_owned() };
        if url.password().is_some() && url.set_password(Some("***")).is_err() {
            return "(not shown)".to_owned();
        }
        // redis+unix:// takes its password from the query.
        if url.query().is_some() {
            url.set_query(Some("***"));
        }
        url.into()
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, prefix, max_queued, max_received } = self;
        f.debug_struct("RedisConfig")
            .field("url", &self.shown_url())
            .field("prefix", prefix)
            .field("max_queued", max_queued)
            .field("max_received", max_received)
            .finish()
    }
}

/// A node's place among others. Dropping it ends its tasks at once; [`Relay::close`] sends first what waits.
pub struct RedisRelay {
    shared: Arc<Shared>,
    outgoing: mpsc::Sender<Outgoing>,
    tasks: TaskTracker,
    _stop_on_drop: DropGuard,
}

impl fmt::Debug for RedisRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRelay").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl RedisRelay {
    /// Starts the two tasks, and waits up to 2 s for Redis. That Redis is away is no error: a node must be able to
    /// start then, and it joins the others when Redis comes. The receiver yields what comes from other nodes.
    ///
    /// # Errors
    /// [`RelayError`] when the address is not one of Redis; the configuration must be changed.
    pub async fn connect(
        config: RedisConfig,
        metrics: Arc<Metrics>,
    ) -> Result<(Self, mpsc::Receiver<Heard>), RelayError> {
        let client = Client::open(config.url.as_str())
            .map_err(|error| RelayError { detail: format!("{}: {error}", config.shown_url()) })?;
        let (outgoing, queue) = mpsc::channel(config.max_queued.max(1));
        let (heard, received) = mpsc::channel(config.max_received.max(1));
        let node = fastrand::u64(..).to_be_bytes();
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            own_channel: format!("{}:node:{:016x}", config.prefix, u64::from_be_bytes(node)),
            room_prefix: format!("{}:room:", config.prefix),
            config,
            node,
            client,
            metrics,
            wanted: Mutex::default(),
            wanted_changed: Notify::new(),
            probes: Mutex::default(),
            next_probe: AtomicU64::new(0),
            is_up: watch::Sender::new(false),
            stop: stop.clone(),
        });
        let tasks = TaskTracker::new();
        tasks.spawn(publisher::run(Arc::clone(&shared), queue));
        tasks.spawn(subscriber::run(Arc::clone(&shared), outgoing.downgrade(), heard));
        tasks.close();
        let mut is_up = shared.is_up.subscribe();
        if timeout(ANSWER_WITHIN, is_up.wait_for(|is_up| *is_up)).await.is_err() {
            tracing::warn!(url = shared.config.shown_url(), "redis is away; starting without other nodes");
        }
        Ok((Self { shared, outgoing, tasks, _stop_on_drop: stop.drop_guard() }, received))
    }

    fn want(&self, room: &RoomId, is_wanted: bool) {
        let mut wanted = lock(&self.shared.wanted);
        let is_new = if is_wanted { wanted.rooms.insert(room.clone()) } else { wanted.rooms.remove(room) };
        if is_new {
            wanted.touched.insert(room.clone());
            drop(wanted);
            self.shared.wanted_changed.notify_one();
        }
    }
}

#[async_trait]
impl Relay for RedisRelay {
    fn is_joined(&self) -> bool {
        true
    }

    fn forward(&self, room: &RoomId, comments: &[Arc<Posted>]) {
        if comments.is_empty() {
            return;
        }
        let message = Outgoing {
            channel: self.shared.room_channel(room),
            payload: codec::encode(self.shared.node, comments.iter().map(|posted| (&posted.comment, posted.sender()))),
            comments: comments.len() as u64,
        };
        if let Err(error) = self.outgoing.try_send(message) {
            self.shared.metrics.relay_dropped.inc_by(error.into_inner().comments);
        }
    }

    fn occupied(&self, room: &RoomId) {
        self.want(room, true);
    }

    fn vacated(&self, room: &RoomId) {
        self.want(room, false);
    }

    async fn probe(&self) -> Result<(), RelayError> {
        let failed = |detail: &str| RelayError { detail: format!("{}: {detail}", self.shared.config.shown_url()) };
        let (message, back) = self.shared.new_probe();
        self.outgoing.try_send(message).map_err(|_| failed("too much waits to be published"))?;
        match timeout(ANSWER_WITHIN, back).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(failed("a probe did not come back within 2 s")),
        }
    }

    async fn close(&self) {
        self.shared.stop.cancel();
        if timeout(CLOSE_WITHIN, self.tasks.wait()).await.is_err() {
            tracing::warn!("the relay did not end in time");
        }
    }
}

/// Which rooms have viewers here, and which of them the subscriber has not looked at since they changed.
#[derive(Default)]
struct Wanted {
    rooms: HashSet<RoomId>,
    touched: HashSet<RoomId>,
}

/// What the handle and the two tasks share.
struct Shared {
    config: RedisConfig,
    node: NodeId,
    client: Client,
    metrics: Arc<Metrics>,
    /// Carries this node's probes, to itself alone.
    own_channel: String,
    room_prefix: String,
    wanted: Mutex<Wanted>,
    wanted_changed: Notify,
    /// Probes on their way. Those that nobody waits for any more are swept when a new one starts.
    probes: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    next_probe: AtomicU64,
    is_up: watch::Sender<bool>,
    stop: CancellationToken,
}

impl Shared {
    fn room_channel(&self, room: &RoomId) -> String {
        format!("{}{room}", self.room_prefix)
    }

    fn room_of(&self, channel: &str) -> Option<RoomId> {
        RoomId::parse(channel.strip_prefix(&self.room_prefix)?).ok()
    }

    fn new_probe(&self) -> (Outgoing, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let number = self.next_probe.fetch_add(1, Ordering::Relaxed);
        let mut probes = lock(&self.probes);
        probes.retain(|_, probe| !probe.is_closed());
        probes.insert(number, sender);
        let payload = number.to_be_bytes().to_vec();
        (Outgoing { channel: self.own_channel.clone(), payload, comments: 0 }, receiver)
    }

    fn probe_came_back(&self, payload: &[u8]) {
        let Ok(number) = <[u8; 8]>::try_from(payload) else { return };
        if let Some(probe) = lock(&self.probes).remove(&u64::from_be_bytes(number)) {
            // Whoever asked may have stopped waiting.
            let _waited_for = probe.send(());
        }
    }

    fn set_up(&self, is_up: bool) {
        self.metrics.relay_up.set(i64::from(is_up));
        self.is_up.send_replace(is_up);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every section leaves the data whole, so a panic elsewhere says nothing against it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Half to all of 100 ms, 200 ms, … up to 2 s. Short, as each second away is a second of comments missed; spread, so
/// that nodes which lost one Redis do not come back at once.
fn backoff(attempt: u32) -> Duration {
    let longest = Duration::from_millis(100).saturating_mul(1 << attempt.min(5)).min(Duration::from_secs(2));
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Whether a failed attempt is told: the 1st, 2nd, 4th, 8th …, as an outage of hours needs no line every second.
fn is_told(attempt: u32) -> bool {
    attempt.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_never_shown() {
        for url in [
            "redis://user:s3cret@h:1/0",
            "redis://:s3cret@h",
            "rediss://:s3cret@h",
            "redis+unix:///x?pass=s3cret",
            "s3cret",
        ] {
            let config = RedisConfig::new(url);
            let shown = format!("{config:?} {}", config.shown_url());
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        assert_eq!(RedisConfig::new("redis://user:p@h:1/0").shown_url(), "redis://user:***@h:1/0");
    }

    #[tokio::test]
    async fn a_wrong_address_is_refused_without_its_password() {
        for url in ["http://:s3cret@h", "redis://:s3cret@h/not-a-number", "h:1"] {
            let error = RedisRelay::connect(RedisConfig::new(url), Arc::default()).await.unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
