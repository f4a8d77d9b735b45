//! Reads the streams of rooms of which something may have been missed, several at once, beside the live messages.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use redis::RedisError;

use super::Shared;
use super::follower::{Entry, Follower};
use super::stream::{self, Wanted};
use crate::model::RoomId;

/// Most streams in one round trip: 64 × 200 comments of some 150 bytes are 2 MB.
const MAX_AT_ONCE: usize = 64;

/// A second attempt has a connection of its own; the first may have found that of before an outage.
const ATTEMPTS: usize = 2;

type Reading = Pin<Box<dyn Future<Output = Vec<(RoomId, Option<Vec<Entry>>)>> + Send>>;

/// What is to be read, is being read, and was read.
#[derive(Default)]
pub(super) struct Reader {
    due: HashSet<RoomId>,
    reading: Option<Reading>,
    read: VecDeque<(RoomId, Option<Vec<Entry>>)>,
}

impl Reader {
    /// Asks for a room's stream.
    pub(super) fn want(&mut self, room: &RoomId) {
        self.due.insert(room.clone());
    }

    /// Forgets everything.
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
            self.read.extend(reading.await);
            self.reading = None;
        }
    }

    pub(super) fn has_read(&self) -> bool {
        !self.read.is_empty()
    }

    /// A room and what its stream has; `None` when it could not be read.
    pub(super) fn next_read(&mut self) -> Option<(RoomId, Option<Vec<Entry>>)> {
        self.read.pop_front()
    }

    /// Whether no stream can have been lost or have expired since messages were heard last.
    pub(super) fn can_lack_nothing(&self) -> bool {
        false
    }
}

async fn read(shared: Arc<Shared>, wanted: Vec<Wanted>) -> Vec<(RoomId, Option<Vec<Entry>>)> {
    let mut read = Vec::new();
    for _ in 0..ATTEMPTS {
        match try_read(&shared, &wanted).await {
            Ok(done) => {
                read = done;
                break;
            }
            Err(error) => tracing::warn!(%error, rooms = wanted.len(), "reading streams from redis failed"),
        }
    }
    read.resize(wanted.len(), None);
    wanted.into_iter().map(|wanted| wanted.room).zip(read).collect()
}

async fn try_read(shared: &Shared, wanted: &[Wanted]) -> Result<Vec<Option<Vec<Entry>>>, RedisError> {
    let (number, mut connection) = shared.commands.get().await?;
    let read = stream::read(&mut connection, wanted).await;
    if read.is_err() {
        shared.commands.discard(number).await;
    }
    read
}
