//! Reads the streams of rooms of which something may have been missed, several at once, beside the live messages.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::time::{Instant, sleep};

use super::follower::{Entry, Follower, Life, Read};
use super::stream::{self, EXPIRES_AFTER, Streams, Wanted};
use super::{Shared, backoff};
use crate::model::RoomId;

/// Most streams in one round trip: 64 × 200 comments of some 150 bytes are 2 MB.
const MAX_AT_ONCE: usize = 64;

/// Some 3 s of attempts, each with a connection of its own: the first may find that of before an outage. Then rooms go on
/// without what they missed.
const ATTEMPTS: u32 = 5;

/// Messages that were heard so lately are in their streams still, with some time to spare for the way there and back.
const RECENT: Duration = EXPIRES_AFTER.checked_sub(Duration::from_secs(20)).expect("a stream expires later");

type Reading = Pin<Box<dyn Future<Output = (Option<Arc<Life>>, Vec<(RoomId, Option<Vec<Entry>>)>)> + Send>>;

/// What is to be read, is being read, and was read.
#[derive(Default)]
pub(super) struct Reader {
    due: HashSet<RoomId>,
    reading: Option<Reading>,
    read: VecDeque<(RoomId, Option<Vec<Entry>>)>,
    /// Where these were read.
    life: Option<Arc<Life>>,
    /// Until when all messages were heard that were published.
    heard_until: Option<Instant>,
}

impl Reader {
    /// Asks for a room's stream.
    pub(super) fn want(&mut self, room: &RoomId) {
        self.due.insert(room.clone());
    }

    /// Notes that what was published until now was heard.
    pub(super) fn hears(&mut self) {
        self.heard_until = Some(Instant::now());
    }

    /// Forgets what was to be read.
    pub(super) fn stop(&mut self) {
        *self = Self { heard_until: self.heard_until, ..Self::default() };
    }

    /// Begins the next read, once what the last one brought is taken.
    pub(super) fn go_on(&mut self, shared: &Arc<Shared>, rooms: &HashMap<RoomId, Follower>) {
        if self.reading.is_some() || !self.read.is_empty() || self.due.is_empty() {
            return;
        }
        let next: Vec<_> = self.due.iter().take(MAX_AT_ONCE).cloned().collect();
        self.due.retain(|room| !next.contains(room));
        let wanted = next.into_iter().filter_map(|room| {
            let from = rooms.get(&room)?.place();
            Some(Wanted { channel: shared.room_channel(&room), room, from })
        });
        self.reading = Some(Box::pin(read(Arc::clone(shared), wanted.collect())));
    }

    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Waits for the read that is under way. Cancellation-safe.
    pub(super) async fn wait(&mut self) {
        if let Some(reading) = &mut self.reading {
            let (life, read) = reading.await;
            self.reading = None;
            (self.life, self.read) = (life, read.into());
        }
    }

    pub(super) fn has_read(&self) -> bool {
        !self.read.is_empty()
    }

    /// A room and what its stream has; `None` when it could not be read.
    pub(super) fn next_read(&mut self) -> Option<(RoomId, Option<Read>)> {
        let (room, entries) = self.read.pop_front()?;
        let is_recent = self.heard_until.is_some_and(|until| until.elapsed() < RECENT);
        Some((room, entries.map(|entries| Read { entries, life: self.life.clone(), is_recent })))
    }
}

async fn read(shared: Arc<Shared>, wanted: Vec<Wanted>) -> (Option<Arc<Life>>, Vec<(RoomId, Option<Vec<Entry>>)>) {
    let (mut life, mut read) = (None, Vec::new());
    for attempt in 1..=ATTEMPTS {
        match try_read(&shared, &wanted).await {
            Ok(done) => {
                (life, read) = done;
                break;
            }
            Err(error) => {
                tracing::debug!(%error, attempt, rooms = wanted.len(), "reading streams from redis failed");
                sleep(backoff(attempt)).await;
            }
        }
    }
    read.resize(wanted.len(), None);
    (life, wanted.into_iter().map(|wanted| wanted.room).zip(read).collect())
}

async fn try_read(shared: &Shared, wanted: &[Wanted]) -> Result<Streams, RedisError> {
    let (number, mut connection) = shared.commands.get().await?;
    let read = stream::read(&mut connection, wanted).await;
    if read.is_err() {
        shared.commands.discard(number).await;
    }
    read
}
