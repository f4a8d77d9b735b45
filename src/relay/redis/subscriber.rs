//! The subscribing side: one connection, the channels of the rooms that have viewers here, and the probes.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use redis::{Msg, PushInfo, PushKind, Value};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, error::Elapsed, sleep, timeout};

use super::connection::{Connection, is_refusal};
use super::entry::{Bridge, Entry, Filled, Step};
use super::follower::Follower;
use super::reader::Reader;
use super::servers::Pushes;
use super::{ANSWER_WITHIN, PROBE_EVERY, Shared, backoff, is_told, lock, probe, tally};
use crate::model::RoomId;
use crate::relay::Heard;
use crate::relay::codec::{self, CodecError};

/// Most channels in one command, so that no command holds up the others for long.
const MAX_CHANNELS: usize = 1000;

/// Why a connection ended.
#[derive(Debug, Error)]
enum Lost {
    #[error("{0}")]
    Redis(#[from] redis::RedisError),
    #[error("no answer within {ANSWER_WITHIN:?}")]
    Silent(#[from] Elapsed),
    #[error("a probe was missed: {0}")]
    Probe(redis::RedisError),
    #[error("the connection was closed")]
    Closed,
    #[error("a channel has moved to another server of the cluster")]
    Moved,
}

impl Lost {
    fn reason(&self) -> &'static str {
        match self {
            Self::Redis(_) => "failed",
            Self::Silent(_) => "no_answer",
            Self::Probe(_) => "probe_missed",
            Self::Closed => "closed",
            Self::Moved => "moved",
        }
    }
}

/// Keeps a connection until told to stop.
pub(super) async fn run(shared: Arc<Shared>, heard: mpsc::Sender<Heard>) {
    let stop = shared.stop.clone();
    let mut subscriber = Subscriber {
        shared,
        heard,
        rooms: HashMap::new(),
        before: HashMap::new(),
        reader: Reader::default(),
        heard_until: None,
    };
    let mut attempt = 0;
    loop {
        let begun = Instant::now();
        let ended = stop.run_until_cancelled(subscriber.serve()).await;
        let was_up = *subscriber.shared.is_up.borrow();
        subscriber.shared.set_up(false);
        let Some(Err(error)) = ended else { return };
        if was_up {
            subscriber.shared.metrics.relay_disconnects.get_or_create(&[("reason", error.reason())]).inc();
            // Waits, as nothing is received meanwhile. Nobody at the other end is no reason to stop.
            if stop.run_until_cancelled(subscriber.heard.send(Heard::Lost)).await.is_none() {
                return;
            }
        }
        // A connection that did not last is not a recovery: the next attempt waits longer.
        attempt = if was_up && begun.elapsed() > PROBE_EVERY { 1 } else { attempt + 1 };
        if is_told(attempt) {
            let act = match &error {
                Lost::Redis(error) | Lost::Probe(error) => subscriber.shared.commands.servers().advice(error),
                _ => None,
            };
            match act {
                Some(act) => tracing::error!(%error, attempt, act, "redis cannot be used until somebody acts"),
                None => tracing::warn!(%error, attempt, "there is no subscription to redis"),
            }
        }
        if stop.run_until_cancelled(sleep(backoff(attempt))).await.is_none() {
            return;
        }
    }
}

struct Subscriber {
    shared: Arc<Shared>,
    heard: mpsc::Sender<Heard>,
    /// The rooms subscribed on this connection.
    rooms: HashMap<RoomId, Follower>,
    /// How far rooms were followed on earlier connections, until they are subscribed on this one.
    before: HashMap<RoomId, Follower>,
    reader: Reader,
    /// What was published until then was heard: something came that was published afterwards.
    heard_until: Option<Instant>,
}

impl Subscriber {
    /// Opens a connection, subscribes what is wanted, and serves until the connection is lost.
    async fn serve(&mut self) -> Result<(), Lost> {
        let (connection, mut pushes) = self.shared.commands.servers().open_subscription().await?;
        let probe_channels = connection.probe_channels(&self.shared.own_channel);
        timeout(ANSWER_WITHIN, connection.subscribe("SUBSCRIBE", &probe_channels)).await??;
        probe::check_writing(&connection, &probe_channels).await?;
        *lock(&self.shared.probe_channels) = probe_channels;
        self.reader.stop();
        self.begin_anew();
        self.follow_wanted(&connection).await?;
        self.before.clear();
        self.shared.metrics.relay_connects.inc();
        self.shared.set_up(true);
        tracing::info!(url = self.shared.config.shown_url(), rooms = self.rooms.len(), "subscribed at redis");
        self.receive(&connection, &mut pushes).await
    }

    /// Marks all wanted rooms as to be subscribed, and remembers how far those were followed that were wanted all the time.
    fn begin_anew(&mut self) {
        self.before.extend(self.rooms.drain());
        let mut wanted = lock(&self.shared.wanted);
        wanted.touched.iter().for_each(|room| drop(self.before.remove(room)));
        wanted.touched = wanted.rooms.clone();
    }

    async fn receive(&mut self, connection: &Connection, pushes: &mut Pushes) -> Result<(), Lost> {
        let (shared, heard) = (Arc::clone(&self.shared), self.heard.clone());
        let mut probing = pin!(probe::keep_probing(&shared));
        loop {
            self.reader.go_on(&shared, &self.rooms);
            tokio::select! {
                biased; // What was read goes before what is heard, and messages before a probe among them.
                Ok(permits) = heard.reserve_many(2), if self.reader.has_read() => self.give_read(permits),
                () = self.reader.wait(), if self.reader.is_reading() => {}
                push = pushes.recv() => self.take_push(push.ok_or(Lost::Closed)?)?,
                () = shared.wanted_changed.notified() => self.follow_wanted(connection).await?,
                missed = &mut probing => return Err(Lost::Probe(missed)),
            }
        }
    }

    /// Subscribes and unsubscribes the rooms that changed.
    async fn follow_wanted(&mut self, connection: &Connection) -> Result<(), Lost> {
        let (mut gained, mut given_up, mut again) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut wanted = lock(&self.shared.wanted);
            for room in std::mem::take(&mut wanted.touched) {
                match (wanted.rooms.contains(&room), self.rooms.contains_key(&room)) {
                    (true, false) => gained.push(room),
                    (false, true) => given_up.push(room),
                    // It changed and changed back: whoever asks again is answered again.
                    (true, true) => again.push(room),
                    (false, false) => {}
                }
            }
        }
        for rooms in gained.chunks(MAX_CHANNELS) {
            timeout(ANSWER_WITHIN, connection.subscribe("SUBSCRIBE", &self.channels(rooms))).await??;
        }
        for rooms in given_up.chunks(MAX_CHANNELS) {
            match timeout(ANSWER_WITHIN, connection.subscribe("UNSUBSCRIBE", &self.channels(rooms))).await? {
                // What goes on coming is wanted by nobody and passed over.
                Err(error) if is_refusal(&error) => tracing::debug!(%error, "redis lets no channel be given up"),
                answer => answer?,
            }
        }
        for room in gained.into_iter().chain(again) {
            let mut follower = self.before.remove(&room).unwrap_or_else(|| Follower::new(self.shared.node));
            follower.hold(self.heard_until);
            self.reader.want(&room);
            self.rooms.insert(room, follower);
        }
        given_up.iter().for_each(|room| drop(self.rooms.remove(room)));
        Ok(())
    }

    fn channels(&self, rooms: &[RoomId]) -> Vec<String> {
        rooms.iter().map(|room| self.shared.room_channel(room)).collect()
    }

    fn take_push(&mut self, push: PushInfo) -> Result<(), Lost> {
        if push.kind == PushKind::Disconnection {
            return Err(Lost::Closed);
        }
        if push.kind == PushKind::SUnsubscribe && self.is_subscribed(push.data.first()) {
            return Err(Lost::Moved);
        }
        if let Some(message) = Msg::from_push_info(push) {
            self.take(&message);
        }
        Ok(())
    }

    fn is_subscribed(&self, channel: Option<&Value>) -> bool {
        let channel = channel.and_then(|channel| redis::from_redis_value_ref::<String>(channel).ok());
        let room = channel.and_then(|channel| self.shared.room_of(&channel));
        room.is_some_and(|room| self.rooms.contains_key(&room))
    }

    fn take(&mut self, message: &Msg) {
        let channel = message.get_channel_name();
        if channel.starts_with(&self.shared.own_channel) {
            self.heard_until = Some(Instant::now());
            return self.shared.probe_came_back(message.get_payload_bytes());
        }
        // What was on its way when the last viewer left is wanted by nobody.
        let Some(room) = self.shared.room_of(channel) else { return };
        let Some(follower) = self.rooms.get_mut(&room) else { return };
        let entry = match entry(&room, message.get_payload_bytes()) {
            Ok(entry) => entry,
            Err(error) => {
                self.shared.metrics.relay_unreadable.inc();
                tracing::debug!(%error, "a message on the relay cannot be read");
                return;
            }
        };
        // Never waits: behind this is an unbounded queue of the driver, which would grow instead.
        let Ok(permit) = self.heard.try_reserve() else {
            self.shared.metrics.relay_missed.inc_by(entry.message.count());
            follower.miss(&entry);
            return self.reader.want(&room);
        };
        match follower.take(entry) {
            Step::Nothing => {}
            Step::Give(comments) => permit.send(self.shared.received(room, comments)),
            Step::Lost(since) => permit.send(Heard::Begun { room, since: Some(since) }),
            Step::Read => self.reader.want(&room),
        }
    }

    /// Gives on what was read of one room's stream, and tells how it joins what was given before.
    fn give_read(&mut self, mut permits: mpsc::PermitIterator<'_, Heard>) {
        let Some((room, read)) = self.reader.next_read() else { return };
        let Some(follower) = self.rooms.get_mut(&room) else { return };
        let filled = match read {
            Some(read) => follower.fill(read),
            None => Some(follower.go_on()),
        };
        let Some(Filled { comments, bridge, lost_since, is_due }) = filled else {
            return self.reader.want(&room);
        };
        if is_due {
            self.reader.want(&room);
        }
        tally::count_read(&self.shared.metrics, bridge, comments.len());
        let begun = match (bridge, lost_since) {
            (Bridge::Whole, None) => Heard::Resumed(room.clone()),
            (_, since) => Heard::Begun { room: room.clone(), since },
        };
        if !comments.is_empty()
            && let Some(permit) = permits.next()
        {
            permit.send(self.shared.received(room, comments));
        }
        if let Some(permit) = permits.next() {
            permit.send(begun);
        }
    }
}

fn entry(room: &RoomId, published: &[u8]) -> Result<Entry, CodecError> {
    let (id, message) = codec::unstamp(published)?;
    Ok(Entry { id, at: Instant::now(), message: codec::decode(room, message)? })
}
