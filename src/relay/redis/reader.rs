//! Reads the streams of rooms of which something may have been missed, several at once, beside the live messages.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use redis::RedisError;
use tokio::time::{Instant, sleep};

use super::entry::Read;
use super::follower::Follower;
use super::stream::{self, Streams, Wanted};
use super::{Shared, backoff};
use crate::model::RoomId;

/// Most streams in one round trip: 64 × 200 comments of some 150 bytes are 2 MB.
const MAX_AT_ONCE: usize = 64;

/// Some 3 s of attempts, each with a connection of its own: the first may find that of before an outage. Then rooms go on
/// without what they missed.
const ATTEMPTS: u32 = 5;

/// What came of one round trip: rooms with what their streams have, or `None` where they could not be read.
type Brought = Vec<(RoomId, Option<Read>)>;

type Reading = Pin<Box<dyn Future<Output = Brought> + Send>>;

/// What is to be read, is being read, and was read.
#[derive(Default)]
pub(super) struct Reader {
    due: HashSet<RoomId>,
    reading: Option<Reading>,
    read: VecDeque<(RoomId, Option<Read>)>,
}

impl Reader {
    /// Asks for a room's stream.
    pub(super) fn want(&mut self, room: &RoomId) {
        self.due.insert(room.clone());
    }

    /// Forgets what was to be read.
    pub(super) fn stop(&mut self) {
        *self = Self::default();
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
            self.read = reading.await.into();
            self.reading = None;
        }
    }

    pub(super) fn has_read(&self) -> bool {
        !self.read.is_empty()
    }

    /// A room and what its stream has; `None` when it could not be read.
    pub(super) fn next_read(&mut self) -> Option<(RoomId, Option<Read>)> {
        self.read.pop_front()
    }
}

async fn read(shared: Arc<Shared>, wanted: Vec<Wanted>) -> Brought {
    for attempt in 1..=ATTEMPTS {
        let at = Instant::now();
        match try_read(&shared, &wanted).await {
            Ok((life, streams)) => {
                let read = |entries| Read { entries, life: life.clone(), at };
                let rooms = wanted.into_iter().map(|wanted| wanted.room);
                return rooms.zip(streams).map(|(room, entries)| (room, entries.map(read))).collect();
            }
            Err(error) => {
                tracing::debug!(%error, attempt, rooms = wanted.len(), "reading streams from redis failed");
                sleep(backoff(attempt)).await;
            }
        }
    }
    wanted.into_iter().map(|wanted| (wanted.room, None)).collect()
}

async fn try_read(shared: &Shared, wanted: &[Wanted]) -> Result<Streams, RedisError> {
    let (number, connection) = shared.commands.get().await?;
    let read = stream::read(&connection, wanted).await;
    if read.is_err() {
        shared.commands.discard(number).await;
    }
    read
}
