//! Joins nodes through Redis Pub/Sub, over two connections whatever the number of rooms: one subscribes, one takes commands.
//!
//! A room's channel is subscribed only while the room has viewers here. A message carries all new comments of a room
//! since its last tick; the step that publishes it also writes it into the room's [stream]. What others publish while
//! this node is not connected it reads from there, and [`Heard::Resumed`] tells that nothing is missing; where the
//! stream does not reach back far enough, [`Heard::Begun`] tells of the hole.
//!
//! Redis away means that other nodes wait: what fits the queue and is not too old is published once Redis is back; what
//! is given up is counted, and they are told of it. Local delivery and storing never notice.

mod commands;
mod config;
mod connection;
mod counts;
mod entry;
mod follower;
mod probe;
mod publisher;
mod reader;
mod sent;
mod servers;
mod slots;
mod stream;
mod subscriber;
mod tally;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::commands::Commands;
pub use self::config::{MAX_STREAM, RedisConfig, Topology};
use self::publisher::Outgoing;
use self::servers::Servers;
pub(super) use self::tally::declare;
use super::codec::{self, NodeId};
use super::{Envelope, Heard, Relay, RelayError};
use crate::metrics::Metrics;
use crate::model::{Posted, Relayed, RoomId, Timestamp};

/// How long a connection may take, how long Redis may take to answer, and how long a probe may be on its way.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// So long after one probe has come back the next goes out, and so long may that take: a connection that is dead and stands
/// is noticed within twice this time, and is reopened well within 10 s. A quiet room needs no other sign of life.
const PROBE_EVERY: Duration = Duration::from_secs(3);

/// How long [`Relay::close`] may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);

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
        let servers =
            Servers::new(&config).map_err(|error| RelayError { detail: format!("{}: {error}", config.shown_url()) })?;
        let (outgoing, queue) = mpsc::channel(config.max_queued.max(1));
        let (heard, received) = mpsc::channel(config.max_received.max(2));
        let node = fastrand::u64(..).to_be_bytes();
        let stop = CancellationToken::new();
        let own_channel = format!("{}:node:{:016x}", config.prefix, u64::from_be_bytes(node));
        let shared = Arc::new(Shared {
            probe_channels: Mutex::new(vec![own_channel.clone()]),
            own_channel,
            room_prefix: format!("{}:room:", config.prefix),
            config,
            node,
            commands: Commands::new(servers),
            lost: Mutex::default(),
            told: tokio::sync::Mutex::default(),
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
        tasks.spawn(subscriber::run(Arc::clone(&shared), heard));
        tasks.close();
        let mut is_up = shared.is_up.subscribe();
        if timeout(ANSWER_WITHIN, is_up.wait_for(|is_up| *is_up)).await.is_err() {
            tracing::warn!(url = shared.config.shown_url(), "redis does not serve yet; starting without other nodes");
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
        let payload = codec::encode(self.shared.node, comments.iter().map(|posted| (&posted.comment, posted.sender())));
        let since = comments.iter().map(|posted| posted.comment.ts).min().unwrap_or(Timestamp::MAX);
        let message = Outgoing::new(room.clone(), payload, Lost { count: comments.len() as u64, since });
        if let Err(error) = self.outgoing.try_send(message) {
            self.shared.give_up(&error.into_inner());
        }
    }

    fn occupied(&self, room: &RoomId) {
        self.want(room, true);
    }

    fn vacated(&self, room: &RoomId) {
        self.want(room, false);
    }

    async fn count(&self, here: &[(RoomId, usize)]) -> Vec<Option<usize>> {
        counts::exchange(&self.shared, here).await
    }

    async fn count_elsewhere(&self, room: &RoomId) -> Option<usize> {
        counts::elsewhere(&self.shared, room).await
    }

    async fn probe(&self) -> Result<(), RelayError> {
        let failed = |error| RelayError { detail: format!("{}: {error}", self.shared.config.shown_url()) };
        probe::probe(&self.shared, ANSWER_WITHIN).await.map_err(failed)
    }

    async fn close(&self) {
        let end_tasks = async {
            self.shared.stop.cancel();
            self.tasks.wait().await;
        };
        // In this order: without the tasks Redis passes for away.
        let close = async { tokio::join!(counts::take_back(&self.shared), end_tasks) };
        if timeout(CLOSE_WITHIN, close).await.is_err() {
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

/// Comments of a room that other nodes will not be given.
#[derive(Clone, Copy, Debug)]
struct Lost {
    count: u64,
    /// When the first of them was accepted.
    since: Timestamp,
}

/// What the handle and the two tasks share.
struct Shared {
    config: RedisConfig,
    node: NodeId,
    commands: Commands,
    /// What was given up and other nodes are yet to be told of.
    lost: Mutex<HashMap<RoomId, Lost>>,
    /// Of how many viewers other nodes were told.
    told: tokio::sync::Mutex<counts::Told>,
    metrics: Arc<Metrics>,
    /// What the channels begin with that carry this node's probes, to itself alone.
    own_channel: String,
    /// One on each server.
    probe_channels: Mutex<Vec<String>>,
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

    /// A probe for each server: its channel and number, and what tells that it is back.
    fn new_probes(&self) -> (Vec<(String, u64)>, Vec<oneshot::Receiver<()>>) {
        let mut probes = lock(&self.probes);
        probes.retain(|_, probe| !probe.is_closed());
        let new = |channel: &String| {
            let (sender, receiver) = oneshot::channel();
            let number = self.next_probe.fetch_add(1, Ordering::Relaxed);
            probes.insert(number, sender);
            ((channel.clone(), number), receiver)
        };
        lock(&self.probe_channels).iter().map(new).unzip()
    }

    /// Gives up a message that cannot be published: it is counted, and other nodes are told once that is possible.
    fn give_up(&self, message: &Outgoing) {
        let lost = message.stands_for;
        if !message.is_notice {
            self.metrics.relay_dropped.inc_by(lost.count);
        }
        let mut all = lock(&self.lost);
        let sum = all.entry(message.room.clone()).or_insert(Lost { count: 0, since: lost.since });
        (sum.count, sum.since) = (sum.count + lost.count, sum.since.min(lost.since));
    }

    fn probe_came_back(&self, payload: &[u8]) {
        let Ok(number) = <[u8; 8]>::try_from(payload) else { return };
        if let Some(probe) = lock(&self.probes).remove(&u64::from_be_bytes(number)) {
            // Whoever asked may have stopped waiting.
            let _waited_for = probe.send(());
        }
    }

    /// What this node gets of other nodes' comments.
    fn received(&self, room: RoomId, comments: Vec<Relayed>) -> Heard {
        self.metrics.relay_received.inc_by(comments.len() as u64);
        Heard::Comments(Envelope { room, comments })
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

    #[tokio::test]
    async fn a_wrong_address_is_refused_without_its_password() {
        for url in ["http://:s3cret@h", "redis://:s3cret@h/not-a-number", "h:1"] {
            let error = RedisRelay::connect(RedisConfig::new(url), Arc::default()).await.unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
