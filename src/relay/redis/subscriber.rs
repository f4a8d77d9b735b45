//! The subscribing side: one connection, the channels of the rooms that have viewers here, and the probes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::Msg;
use redis::aio::{PubSubSink, PubSubStream};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, error::Elapsed, interval_at, sleep, timeout};

use super::publisher::Outgoing;
use super::{ANSWER_WITHIN, Shared, backoff, is_told, lock};
use crate::model::RoomId;
use crate::relay::codec::{self, Batch, NodeId};
use crate::relay::{Envelope, Heard};

/// How often a probe goes out. One that is not back when the next is due means a dead connection, so that a
/// half-open one is noticed within two periods and reopened well within 10 s. A quiet room needs no other sign of life.
const PROBE_EVERY: Duration = Duration::from_secs(3);

/// Most channels in one command, so that no command holds up the others for long.
const MAX_CHANNELS: usize = 1000;

/// Most nodes whose last message is remembered. A restarted node has a new id, so the map would grow for ever.
const MAX_NODES: usize = 1024;

/// Why a connection ended.
#[derive(Debug, Error)]
enum Lost {
    #[error("{0}")]
    Redis(#[from] redis::RedisError),
    #[error("no answer within {ANSWER_WITHIN:?}")]
    Silent(#[from] Elapsed),
    #[error("a probe was missed")]
    Probe,
    #[error("the connection was closed")]
    Closed,
}

/// Keeps a connection until told to stop. `outgoing` is weak: the queue ends with the relay's handle.
pub(super) async fn run(shared: Arc<Shared>, outgoing: mpsc::WeakSender<Outgoing>, heard: mpsc::Sender<Heard>) {
    let stop = shared.stop.clone();
    let mut subscriber =
        Subscriber { shared, outgoing, heard, rooms: HashSet::new(), owed: HashSet::new(), seen: HashMap::new() };
    let mut attempt = 0;
    loop {
        let begun = Instant::now();
        let ended = stop.run_until_cancelled(subscriber.serve()).await;
        let was_up = *subscriber.shared.is_up.borrow();
        subscriber.shared.set_up(false);
        let Some(Err(error)) = ended else { return };
        // Waits, as nothing is received meanwhile. Nobody at the other end is no reason to stop.
        if was_up && stop.run_until_cancelled(subscriber.heard.send(Heard::Lost)).await.is_none() {
            return;
        }
        // A connection that did not last is not a recovery: the next attempt waits longer.
        attempt = if was_up && begun.elapsed() > PROBE_EVERY { 1 } else { attempt + 1 };
        if is_told(attempt) {
            tracing::warn!(%error, attempt, "there is no subscription to redis");
        }
        if stop.run_until_cancelled(sleep(backoff(attempt))).await.is_none() {
            return;
        }
    }
}

struct Subscriber {
    shared: Arc<Shared>,
    outgoing: mpsc::WeakSender<Outgoing>,
    heard: mpsc::Sender<Heard>,
    /// The rooms subscribed on this connection.
    rooms: HashSet<RoomId>,
    /// Those of them whose [`Heard::Begun`] is due: what comes for them before it is told is dropped.
    owed: HashSet<RoomId>,
    /// The last message had of each node, which tells what was published again. It outlives the connection.
    seen: HashMap<NodeId, u64>,
}

impl Subscriber {
    /// Opens a connection, subscribes what is wanted, and serves until the connection is lost.
    async fn serve(&mut self) -> Result<(), Lost> {
        let (mut sink, mut stream) = timeout(ANSWER_WITHIN, self.shared.client.get_async_pubsub()).await??.split();
        timeout(ANSWER_WITHIN, sink.subscribe(&self.shared.own_channel)).await??;
        self.rooms.clear();
        self.owed.clear();
        {
            let mut wanted = lock(&self.shared.wanted);
            wanted.touched = wanted.rooms.clone();
        }
        self.follow_wanted(&mut sink).await?;
        self.shared.metrics.relay_connects.inc();
        self.shared.set_up(true);
        tracing::info!(url = self.shared.config.shown_url(), rooms = self.rooms.len(), "subscribed at redis");
        self.receive(&mut sink, &mut stream).await
    }

    async fn receive(&mut self, sink: &mut PubSubSink, stream: &mut PubSubStream) -> Result<(), Lost> {
        let (shared, heard) = (Arc::clone(&self.shared), self.heard.clone());
        let mut probe = None;
        let mut due = interval_at(Instant::now() + PROBE_EVERY, PROBE_EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased; // What hearing begins with goes before what is heard, and messages before a probe among them.
                Ok(permit) = heard.reserve(), if !self.owed.is_empty() => self.tell_begun(permit),
                message = stream.next() => self.take(&message.ok_or(Lost::Closed)?),
                () = shared.wanted_changed.notified() => self.follow_wanted(sink).await?,
                _ = due.tick() => probe = self.next_probe(probe)?,
            }
        }
    }

    /// Subscribes and unsubscribes the rooms that changed.
    async fn follow_wanted(&mut self, sink: &mut PubSubSink) -> Result<(), Lost> {
        let (mut gained, mut given_up) = (Vec::new(), Vec::new());
        {
            let mut wanted = lock(&self.shared.wanted);
            for room in std::mem::take(&mut wanted.touched) {
                match (wanted.rooms.contains(&room), self.rooms.contains(&room)) {
                    (true, false) => gained.push(room),
                    (false, true) => given_up.push(room),
                    // It changed and changed back: whoever asks again is answered again.
                    (true, true) => drop(self.owed.insert(room)),
                    (false, false) => {}
                }
            }
        }
        for rooms in gained.chunks(MAX_CHANNELS) {
            timeout(ANSWER_WITHIN, sink.subscribe(self.channels(rooms))).await??;
        }
        for rooms in given_up.chunks(MAX_CHANNELS) {
            timeout(ANSWER_WITHIN, sink.unsubscribe(self.channels(rooms))).await??;
        }
        self.owed.extend(gained.iter().cloned());
        self.rooms.extend(gained);
        given_up.iter().for_each(|room| {
            self.rooms.remove(room);
            self.owed.remove(room);
        });
        Ok(())
    }

    fn tell_begun(&mut self, permit: mpsc::Permit<'_, Heard>) {
        if let Some(room) = self.owed.iter().next().cloned() {
            self.owed.remove(&room);
            permit.send(Heard::Begun(room));
        }
    }

    fn channels(&self, rooms: &[RoomId]) -> Vec<String> {
        rooms.iter().map(|room| self.shared.room_channel(room)).collect()
    }

    /// Looks after the probe that went out before, and sends the next.
    fn next_probe(&self, before: Option<oneshot::Receiver<()>>) -> Result<Option<oneshot::Receiver<()>>, Lost> {
        if before.is_some_and(|mut probe| probe.try_recv().is_err()) {
            return Err(Lost::Probe);
        }
        let Some(outgoing) = self.outgoing.upgrade() else { return Ok(None) };
        let (message, back) = self.shared.new_probe();
        // A full queue is the publisher's trouble and says nothing about this connection.
        Ok(outgoing.try_send(message).is_ok().then_some(back))
    }

    fn take(&mut self, message: &Msg) {
        let channel = message.get_channel_name();
        if channel == self.shared.own_channel {
            return self.shared.probe_came_back(message.get_payload_bytes());
        }
        // What was on its way when the last viewer left is wanted by nobody.
        let Some(room) = self.shared.room_of(channel).filter(|room| self.rooms.contains(room)) else { return };
        match codec::decode(&room, message.get_payload_bytes()) {
            Ok(batch) if batch.node == self.shared.node || self.is_known(&batch) => {}
            Ok(Batch { comments, .. }) => {
                let count = comments.len() as u64;
                self.shared.metrics.relay_received.inc_by(count);
                // Never waits: behind this is an unbounded queue of the driver, which would grow instead.
                let is_dropped = self.owed.contains(&room)
                    || self.heard.try_send(Heard::Comments(Envelope { room: room.clone(), comments })).is_err();
                if is_dropped {
                    self.shared.metrics.relay_missed.inc_by(count);
                    self.owed.insert(room);
                }
            }
            Err(error) => {
                self.shared.metrics.relay_unreadable.inc();
                tracing::debug!(%error, "a message on the relay cannot be read");
            }
        }
    }

    /// Whether a message was had before; if not, it is from now on.
    fn is_known(&mut self, batch: &Batch) -> bool {
        if self.seen.len() >= MAX_NODES && !self.seen.contains_key(&batch.node) {
            // After a thousand restarts somewhere: at worst one batch that is published again right now comes twice.
            self.seen.clear();
        }
        let last = self.seen.entry(batch.node).or_default();
        let is_known = batch.seq <= *last;
        *last = batch.seq.max(*last);
        is_known
    }
}
