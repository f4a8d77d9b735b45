//! The relay's side of a node, without the server around it.

use std::sync::Arc;
use std::time::Duration;

use danmakud::metrics::Metrics;
use danmakud::model::{Comment, CommentId, Name, Posted, RoomId, Seq, Style, Text, Timestamp, UserId};
use danmakud::relay::{Envelope, Heard, RedisConfig, RedisRelay, Relay as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::redis::RedisServer;

pub struct Node {
    pub relay: RedisRelay,
    pub received: mpsc::Receiver<Heard>,
    pub metrics: Arc<Metrics>,
}

impl Node {
    pub async fn join(url: &str) -> Self {
        Self::join_with(RedisConfig::new(url)).await
    }

    pub async fn join_with(config: RedisConfig) -> Self {
        let metrics = Arc::new(Metrics::default());
        let (relay, received) = RedisRelay::connect(config, Arc::clone(&metrics)).await.unwrap();
        Self { relay, received, metrics }
    }

    /// Marks rooms as occupied and waits until that has reached Redis: a probe goes out on the other connection, so
    /// the channels are asked for.
    pub async fn occupy(&self, redis: &RedisServer, rooms: &[&str]) {
        rooms.iter().for_each(|room| self.relay.occupied(&room_id(room)));
        for room in rooms {
            wait_for_subscribers(redis, room, |subscribers| subscribers > 0).await;
        }
    }

    /// The next thing heard.
    pub async fn hear(&mut self) -> Heard {
        timeout(Duration::from_secs(15), self.received.recv()).await.expect("nothing came").unwrap()
    }

    /// Takes comments until hearing begins or resumes; gives their texts, and which it is.
    pub async fn until_heard(&mut self) -> (Vec<String>, Heard) {
        let mut texts = Vec::new();
        loop {
            match self.hear().await {
                Heard::Comments(envelope) => texts.extend(texts_of(&envelope)),
                Heard::Lost => {}
                heard => return (texts, heard),
            }
        }
    }

    /// Takes comments until so many have come; gives their texts.
    pub async fn texts(&mut self, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        while texts.len() < count {
            texts.extend(texts_of(&self.next_envelope().await));
        }
        texts
    }

    /// How often the room's stream was read after a gap, with this outcome.
    pub fn gaps(&self, outcome: &'static str) -> u64 {
        self.metrics.relay_gaps.get_or_create(&[("outcome", outcome)]).get()
    }

    /// The texts of the next envelope, with their room.
    pub async fn next(&mut self) -> (String, Vec<String>) {
        let envelope = self.next_envelope().await;
        (envelope.room.to_string(), texts_of(&envelope))
    }

    /// The next envelope; that hearing begins or ends is passed over.
    pub async fn next_envelope(&mut self) -> Envelope {
        loop {
            if let Heard::Comments(envelope) = self.hear().await {
                return envelope;
            }
        }
    }

    pub fn send(&self, room: &str, texts: &[&str]) {
        let comments: Vec<_> = texts.iter().map(|text| Arc::new(posted(room, text))).collect();
        self.relay.forward(&room_id(room), &comments);
    }

    pub async fn wait_for_probe(&self, is_ok: bool) {
        wait_until("the probe turns", async || self.relay.probe().await.is_ok() == is_ok).await;
    }
}

fn texts_of(envelope: &Envelope) -> Vec<String> {
    envelope.comments.iter().map(|relayed| relayed.comment.text.as_str().to_owned()).collect()
}

pub fn room_id(room: &str) -> RoomId {
    RoomId::parse(room).unwrap()
}

pub fn posted(room: &str, text: &str) -> Posted {
    let ts = Timestamp::from_millis(1_700_000_000_000);
    let comment = Comment {
        id: CommentId::from_parts(ts, [1; 5], 1),
        room: room_id(room),
        ts,
        uid: UserId::new("u1"),
        name: Name::parse("阿明").unwrap(),
        text: Text::from_store(text),
        style: Style::default(),
        expire_at: ts.plus(Duration::from_secs(3600)),
    };
    Posted::stored(comment, Seq(1))
}

pub fn expect(room: &str, texts: &[&str]) -> (String, Vec<String>) {
    (room.to_owned(), texts.iter().map(|&text| text.to_owned()).collect())
}

pub async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !is_so().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

pub async fn ask<T: redis::FromRedisValue>(redis: &RedisServer, command: &[&str]) -> T {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]);
    asked.query_async(&mut connection).await.unwrap()
}

pub async fn wait_for_subscribers(redis: &RedisServer, room: &str, is_so: impl Fn(i64) -> bool) {
    let channel = format!("danmakud:room:{room}");
    wait_until("the room's subscribers are as expected", async || {
        let (_, subscribers): (String, i64) = ask(redis, &["PUBSUB", "NUMSUB", &channel]).await;
        is_so(subscribers)
    })
    .await;
}
