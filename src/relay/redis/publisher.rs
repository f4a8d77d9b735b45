//! The publishing side: takes from the queue what waits and publishes it in one pipeline, in order.

use std::sync::Arc;

use redis::{ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::servers::Connection;
use super::{Lost, Shared, backoff, is_told, lock, stream};
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
    Probe,
}

impl Outgoing {
    /// Comments of a room; `stands_for` is what is lost when they are given up.
    pub(super) fn comments(room: &RoomId, payload: Vec<u8>, stands_for: Lost) -> Self {
        Self::new(What::Comments(room.clone(), stands_for), payload)
    }

    pub(super) fn probe(payload: Vec<u8>) -> Self {
        Self::new(What::Probe, payload)
    }

    fn new(what: What, payload: Vec<u8>) -> Self {
        Self { what, payload, since: Instant::now(), is_again: false }
    }

    /// The comments that others do not get without it; none for a probe.
    pub(super) fn stands_for(&self) -> Option<(&RoomId, Lost)> {
        match &self.what {
            What::Comments(room, lost) | What::Notice(room, lost) => Some((room, *lost)),
            What::Probe => None,
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
        let (number, mut connection) = self.shared.commands.get().await.inspect_err(|error| self.count(error))?;
        let published = self.publish_over(&mut connection).await;
        if published.is_err() {
            // After an error the connection is not kept: another server may be the master by now.
            self.shared.commands.discard(number).await;
        }
        published
    }

    async fn publish_over(&mut self, connection: &mut Connection) -> Result<(), RedisError> {
        let (mut bare, mut failed) = (Vec::new(), None);
        let answers = self.ask(connection, |message, shared| match message.stands_for() {
            Some((room, lost)) => {
                let (channel, keeps) = (shared.room_channel(room), shared.config.stream);
                vec![stream::append(&channel, &message.payload, lost.count, keeps, message.is_again)]
            }
            None => vec![publish(&shared.own_channel, &message.payload)],
        });
        let answers = answers.await?;
        let mut kept = Vec::new();
        for (mut message, answer) in std::mem::take(&mut self.waiting).into_iter().zip(answers) {
            let Err(error) = answer else { continue };
            self.count(&error);
            message.is_again = true;
            if concerns_the_stream(&error) {
                bare.push(message);
            } else {
                kept.push(message);
                failed.get_or_insert(error);
            }
        }
        self.waiting = bare;
        if !self.waiting.is_empty()
            && let Err(error) = self.publish_bare(connection).await
        {
            failed.get_or_insert(error);
        }
        self.waiting.append(&mut kept);
        failed.map_or(Ok(()), Err)
    }

    /// Publishes without the stream, which is dropped: it lacks these messages from now on, and who reads it later must
    /// find another one rather than one without them.
    async fn publish_bare(&mut self, connection: &mut Connection) -> Result<(), RedisError> {
        let answers = self.ask(connection, |message, shared| {
            let Some((room, _)) = message.stands_for() else { return Vec::new() };
            let channel = shared.room_channel(room);
            let mut drop = redis::cmd("DEL");
            drop.arg(stream::key(&channel));
            vec![drop, publish(&channel, &message.payload)]
        });
        let answers = answers.await?;
        let mut failed = None;
        for (message, dropped_and_published) in std::mem::take(&mut self.waiting).into_iter().zip(answers.chunks(2)) {
            if let Some(Err(error)) = dropped_and_published.last() {
                self.count(error);
                self.waiting.push(message);
                failed.get_or_insert_with(|| error.clone());
            } else if let Some((_, lost)) = message.stands_for() {
                self.shared.metrics.relay_unstreamed.inc_by(lost.count);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sends the commands for all that waits in one pipeline. From then on all of it may have been published.
    async fn ask(
        &mut self,
        connection: &mut Connection,
        commands: impl Fn(&Outgoing, &Shared) -> Vec<redis::Cmd>,
    ) -> Result<Vec<RedisResult<Value>>, RedisError> {
        let mut pipeline = Pipeline::with_capacity(self.waiting.len());
        for command in self.waiting.iter().flat_map(|message| commands(message, &self.shared)) {
            pipeline.add_command(command);
        }
        self.waiting.iter_mut().for_each(|message| message.is_again = true);
        pipeline.ignore_errors().query_async(connection).await.inspect_err(|error| self.count(error))
    }

    fn count(&self, error: &RedisError) {
        self.shared.metrics.relay_publish_failed.get_or_create(&[("reason", reason(error))]).inc();
    }
}

fn publish(channel: &str, payload: &[u8]) -> redis::Cmd {
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(channel).arg(payload);
    publish
}

/// Whether publishing without the stream may work where this failed: Redis is out of memory, or does not let us write, or
/// something else has the stream's name. A replica and a server that is starting would take it and pass it to nobody.
fn concerns_the_stream(error: &RedisError) -> bool {
    let is_elsewhere = matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::ReadOnly
                | ServerErrorKind::NoScript
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
        )
    );
    super::servers::is_answer(error) && !is_elsewhere
}

fn reason(error: &RedisError) -> &'static str {
    match error.code() {
        Some("OOM") => "out_of_memory",
        Some("READONLY") => "read_only",
        Some(_) => "refused",
        None => "unreachable",
    }
}
