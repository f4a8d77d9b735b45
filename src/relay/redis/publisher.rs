//! The publishing side: takes from the queue what waits and publishes it in one pipeline, in order.

use std::sync::Arc;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::connection::Connection;
use super::sent::Sent;
use super::{Lost, Shared, backoff, is_told, lock, stream, tally};
use crate::model::RoomId;
use crate::relay::codec;

/// Most messages in one pipeline; about as many bytes as one write to a socket moves well (256 × some 100 bytes).
const MAX_PIPELINED: usize = 256;

/// A message that waits to be published.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) room: RoomId,
    payload: Vec<u8>,
    /// The comments that others do not get without it.
    pub(super) stands_for: Lost,
    /// Whether it tells of comments that were given up before.
    pub(super) is_notice: bool,
    since: Instant,
    /// Whether it may have been published already: an attempt failed, or its answer did not come.
    is_again: bool,
}

impl Outgoing {
    /// Comments of a room.
    pub(super) fn new(room: RoomId, payload: Vec<u8>, stands_for: Lost) -> Self {
        Self { room, payload, stands_for, is_notice: false, since: Instant::now(), is_again: false }
    }
}

/// Publishes until told to stop, then what still waits, as far as one attempt goes.
pub(super) async fn run(shared: Arc<Shared>, mut queue: mpsc::Receiver<Outgoing>) {
    let mut publisher = Publisher { shared, waiting: Vec::new(), seq: 0 };
    let mut attempt = 0;
    let stop = publisher.shared.stop.clone();
    loop {
        if publisher.waiting.is_empty() {
            publisher.take_notices();
        }
        if publisher.waiting.is_empty() {
            tokio::select! {
                taken = queue.recv_many(&mut publisher.waiting, MAX_PIPELINED) => if taken == 0 { return },
                () = stop.cancelled(), if !queue.is_closed() => {
                    queue.close();
                    continue;
                }
            }
            publisher.number();
        }
        publisher.give_up_old();
        match publisher.publish().await {
            Ok(()) => attempt = 0,
            Err(_) if stop.is_cancelled() => break,
            Err(error) => {
                attempt += 1;
                if is_told(attempt) {
                    tracing::warn!(%error, attempt, "publishing to redis failed");
                }
                tokio::select! {
                    () = sleep(backoff(attempt)) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }
    queue.close();
    while let Ok(message) = queue.try_recv() {
        publisher.waiting.push(message);
    }
    publisher.waiting.iter().for_each(|message| publisher.shared.give_up(message));
}

struct Publisher {
    shared: Arc<Shared>,
    /// Taken from the queue and not yet published, in order.
    waiting: Vec<Outgoing>,
    seq: u64,
}

impl Publisher {
    /// Numbers messages in the order in which they will be published. The numbers tell other nodes which of them were
    /// published again.
    fn number(&mut self) {
        for message in &mut self.waiting {
            self.seq += 1;
            codec::set_seq(&mut message.payload, self.seq);
        }
    }

    /// Takes up what other nodes are to be told of comments that were given up.
    fn take_notices(&mut self) {
        let notice = |(room, lost): (RoomId, Lost)| {
            let payload = codec::encode_lost(self.shared.node, lost.count, lost.since);
            Outgoing { is_notice: true, ..Outgoing::new(room, payload, lost) }
        };
        let mut lost = lock(&self.shared.lost);
        let rooms: Vec<_> = lost.keys().take(MAX_PIPELINED).cloned().collect();
        self.waiting.extend(rooms.iter().filter_map(|room| lost.remove_entry(room)).map(notice));
        drop(lost);
        self.number();
    }

    fn give_up_old(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.waiting.retain(|message| {
            let is_old = !message.is_notice && message.since.elapsed() > shared.config.max_age;
            if is_old {
                shared.give_up(message);
            }
            !is_old
        });
    }

    /// Publishes what waits; what could not be published still waits afterwards, in its order.
    async fn publish(&mut self) -> Result<(), RedisError> {
        let (number, connection) = self.shared.commands.get().await.inspect_err(|error| self.count(error))?;
        let published = self.publish_over(&connection).await;
        if published.is_err() {
            // After an error the connection is not kept: another server may be the master by now.
            self.shared.commands.discard(number).await;
        }
        published
    }

    async fn publish_over(&mut self, connection: &Connection) -> Result<(), RedisError> {
        let keeps = self.shared.config.stream;
        let append = |message: &Outgoing, publish: &str, channel: &str| {
            stream::append((publish, channel), &message.payload, message.stands_for.count, keeps, message.is_again)
        };
        // Redis is out of memory, or does not let us write, or something else has the stream's name.
        let appended = self.send(connection, append, |error| connection.is_refusal(error)).await;
        self.waiting = appended.refused;
        let published = self.publish_without_streams(connection).await;
        self.waiting.extend(appended.failed);
        appended.error.map_or(published, Err)
    }

    /// Publishes without the streams, which are dropped: they lack these messages from now on, and who reads them later
    /// must find others rather than ones without them.
    async fn publish_without_streams(&mut self, connection: &Connection) -> Result<(), RedisError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let drop = |_: &Outgoing, _: &str, channel: &str| {
            let mut drop = redis::cmd("DEL");
            drop.arg(stream::key(channel));
            drop
        };
        // One that cannot be dropped shows by what Redis has refused that it lacks something.
        let _dropped = self.ask(connection, drop).await;
        let publish =
            |message: &Outgoing, publish: &str, channel: &str| publish_bare(publish, channel, &message.payload);
        let published = self.send(connection, publish, |_| false).await;
        let comments = published.published.iter().map(|message| message.stands_for.count).sum();
        self.shared.metrics.relay_unstreamed.inc_by(comments);
        self.waiting = published.failed;
        published.error.map_or(Ok(()), Err)
    }

    /// Sends what waits, all of it; what others have gone past is given up, and they are told that they lack it.
    async fn send(
        &mut self,
        connection: &Connection,
        command: impl Fn(&Outgoing, &str, &str) -> Cmd,
        is_refusal: impl Fn(&RedisError) -> bool,
    ) -> Sent {
        let answers = self.ask(connection, command).await;
        let mut sent = Sent::sort(std::mem::take(&mut self.waiting), answers, is_refusal);
        sent.overtaken.drain(..).for_each(|message| self.shared.give_up(&message));
        sent
    }

    /// Sends a command for each message that waits, in one round trip. From then on it may have been published.
    async fn ask(
        &mut self,
        connection: &Connection,
        command: impl Fn(&Outgoing, &str, &str) -> Cmd,
    ) -> Vec<RedisResult<Value>> {
        let publish = connection.command("PUBLISH");
        let channels: Vec<_> = self.waiting.iter().map(|message| self.shared.room_channel(&message.room)).collect();
        let commands = self.waiting.iter().zip(&channels);
        let commands = commands.map(|(message, channel)| (channel.as_str(), command(message, publish, channel)));
        let answers = connection.ask(commands.collect()).await;
        self.waiting.iter_mut().for_each(|message| message.is_again = true);
        answers.iter().filter_map(|answer| answer.as_ref().err()).for_each(|error| self.count(error));
        answers
    }

    fn count(&self, error: &RedisError) {
        tally::count_failed(&self.shared.metrics, error);
    }
}

fn publish_bare(command: &str, channel: &str, payload: &[u8]) -> Cmd {
    let mut publish = redis::cmd(command);
    publish.arg(channel).arg(payload);
    publish
}
