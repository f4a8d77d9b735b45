//! The publishing side: takes from the queue what waits and publishes it in one pipeline, in order.

use std::sync::Arc;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::connection::{Connection, is_refusal};
use super::{Lost, Shared, backoff, is_told, lock, stream, tally};
use crate::model::RoomId;
use crate::relay::codec;

/// Most messages in one pipeline; about as many bytes as one write to a socket moves well (256 × some 100 bytes).
const MAX_PIPELINED: usize = 256;

/// A message that waits to be published.
#[derive(Debug)]
pub(super) struct Outgoing {
    what: What,
    payload: Vec<u8>,
    since: Instant,
    /// Whether it may have been published already: an attempt failed, or its answer did not come.
    is_again: bool,
}

#[derive(Debug)]
enum What {
    Comments(RoomId, Lost),
    Notice(RoomId, Lost),
    /// On this channel.
    Probe(String),
}

impl Outgoing {
    /// Comments of a room; `stands_for` is what is lost when they are given up.
    pub(super) fn comments(room: &RoomId, payload: Vec<u8>, stands_for: Lost) -> Self {
        Self::new(What::Comments(room.clone(), stands_for), payload)
    }

    pub(super) fn probe(channel: &str, payload: Vec<u8>) -> Self {
        Self::new(What::Probe(channel.to_owned()), payload)
    }

    fn new(what: What, payload: Vec<u8>) -> Self {
        Self { what, payload, since: Instant::now(), is_again: false }
    }

    /// The comments that others do not get without it; none for a probe.
    pub(super) fn stands_for(&self) -> Option<(&RoomId, Lost)> {
        match &self.what {
            What::Comments(room, lost) | What::Notice(room, lost) => Some((room, *lost)),
            What::Probe(_) => None,
        }
    }

    fn channel(&self, shared: &Shared) -> String {
        match &self.what {
            What::Comments(room, _) | What::Notice(room, _) => shared.room_channel(room),
            What::Probe(channel) => channel.clone(),
        }
    }

    /// Whether it tells of comments that were given up before.
    pub(super) fn is_notice(&self) -> bool {
        matches!(self.what, What::Notice(..))
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
        for message in self.waiting.iter_mut().filter(|message| message.stands_for().is_some()) {
            self.seq += 1;
            codec::set_seq(&mut message.payload, self.seq);
        }
    }

    /// Takes up what other nodes are to be told of comments that were given up.
    fn take_notices(&mut self) {
        let lost = std::mem::take(&mut *lock(&self.shared.lost));
        let notice = |(room, lost): (RoomId, Lost)| {
            let payload = codec::encode_lost(self.shared.node, lost.count, lost.since);
            Outgoing::new(What::Notice(room, lost), payload)
        };
        self.waiting.extend(lost.into_iter().map(notice));
        self.number();
    }

    fn give_up_old(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.waiting.retain(|message| {
            let is_old = !message.is_notice() && message.since.elapsed() > shared.config.max_age;
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
        let append = |message: &Outgoing, publish: &str, channel: &str| match message.stands_for() {
            Some((_, lost)) => {
                stream::append((publish, channel), &message.payload, lost.count, keeps, message.is_again)
            }
            None => publish_bare(publish, channel, &message.payload),
        };
        let answers = self.ask(connection, append).await;
        let (mut bare, mut kept, mut failed) = (Vec::new(), Vec::new(), None);
        for (message, answer) in std::mem::take(&mut self.waiting).into_iter().zip(answers) {
            match answer {
                Ok(_) => {}
                // Redis is out of memory, or does not let us write, or something else has the stream's name.
                Err(error) if is_refusal(&error) => bare.push(message),
                Err(error) => {
                    kept.push(message);
                    failed.get_or_insert(error);
                }
            }
        }
        self.waiting = bare;
        if let Err(error) = self.publish_without_streams(connection).await {
            failed.get_or_insert(error);
        }
        self.waiting.append(&mut kept);
        failed.map_or(Ok(()), Err)
    }

    /// Publishes without the streams, which are dropped: they lack these messages from now on, and who reads them later
    /// must find others rather than ones without them.
    async fn publish_without_streams(&mut self, connection: &Connection) -> Result<(), RedisError> {
        let drop = |_: &Outgoing, _: &str, channel: &str| {
            let mut drop = redis::cmd("DEL");
            drop.arg(stream::key(channel));
            drop
        };
        // Whether a stream that cannot be written can be dropped is left open: there may be none.
        let _dropped = self.ask(connection, drop).await;
        let publish =
            |message: &Outgoing, publish: &str, channel: &str| publish_bare(publish, channel, &message.payload);
        let answers = self.ask(connection, publish).await;
        let mut failed = None;
        for (message, answer) in std::mem::take(&mut self.waiting).into_iter().zip(answers) {
            if let Err(error) = answer {
                self.waiting.push(message);
                failed.get_or_insert(error);
            } else if let Some((_, lost)) = message.stands_for() {
                self.shared.metrics.relay_unstreamed.inc_by(lost.count);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sends a command for each message that waits, in one round trip. From then on it may have been published.
    async fn ask(
        &mut self,
        connection: &Connection,
        command: impl Fn(&Outgoing, &str, &str) -> Cmd,
    ) -> Vec<RedisResult<Value>> {
        let publish = connection.command("PUBLISH");
        let channels: Vec<_> = self.waiting.iter().map(|message| message.channel(&self.shared)).collect();
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
