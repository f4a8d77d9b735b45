//! Counting the viewers of rooms: this node's are told to the others, theirs are asked for, and viewers are told the sum.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::Hub;
use super::hearing::HEARING_WITHIN;
use crate::model::RoomId;
use crate::relay::COUNTED_FOR;
use crate::room::Room;
use crate::shutdown::Shutdown;

/// How many viewers a room has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Online {
    /// On this node.
    pub here: usize,
    /// On the other nodes; `None` when it is not known.
    pub elsewhere: Option<usize>,
}

/// Counts again and again. It is a task beside the housekeeper's, for that one may wait long for the store, and what was
/// told would be forgotten meanwhile.
#[derive(Debug)]
pub struct Census {
    hub: Hub,
    every: Duration,
    /// What the viewers of each room were last told.
    told: HashMap<RoomId, usize>,
    encode_online: fn(usize) -> bytes::Bytes,
}

impl Census {
    /// A census that is not running yet. `encode_online` makes the frame that tells a room its number of viewers.
    #[must_use]
    pub fn new(hub: Hub, every: Duration, encode_online: fn(usize) -> bytes::Bytes) -> Self {
        Self { hub, every, told: HashMap::new(), encode_online }
    }

    /// Runs until the shutdown has begun and nobody is left: viewers that leave then go to other nodes, and must not be
    /// counted twice.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.run_once().await;
            if shutdown.has_begun() && self.told.is_empty() {
                return;
            }
        }
    }

    /// Counts once.
    pub async fn run_once(&mut self) {
        let inner = &self.hub.inner;
        let rooms = inner.rooms.occupied();
        if inner.parts.relay.is_joined() {
            let here: Vec<_> = rooms.iter().map(|room| (room.id().clone(), room.online())).collect();
            let elsewhere = inner.parts.relay.count(&here).await;
            for (room, viewers) in rooms.iter().zip(elsewhere) {
                note(room, viewers);
            }
        }
        let mut told = HashMap::new();
        for room in rooms {
            let online = room.online_everywhere();
            if self.told.get(room.id()) != Some(&online) {
                room.announce((self.encode_online)(online));
            }
            told.insert(room.id().clone(), online);
        }
        self.told = told;
    }
}

/// What is not known now leaves what was known to its age.
fn note(room: &Room, viewers: Option<usize>) {
    if let Some(viewers) = viewers {
        room.note_elsewhere(viewers, Instant::now() + COUNTED_FOR);
    }
}

impl Hub {
    /// Learns how many viewers a room has elsewhere, for somebody who is about to join it. Those who come meanwhile wait
    /// for the same answer, and not for long.
    pub(super) async fn await_count(&self, room: &Room) {
        let relay = &self.inner.parts.relay;
        if !relay.is_joined() || room.online_elsewhere().is_some() || self.inner.hearing.is_away() {
            return;
        }
        let ask = async {
            let _one_at_a_time = room.counting.lock().await;
            if room.online_elsewhere().is_none() {
                note(room, relay.count_elsewhere(room.id()).await);
            }
        };
        let _joins_without_it = timeout(HEARING_WITHIN, ask).await;
    }

    /// Counts the viewers of a room.
    pub async fn online(&self, id: &RoomId) -> Online {
        let room = self.inner.rooms.get(id);
        let here = room.as_ref().map_or(0, |room| room.online());
        // A room that nobody is in here is not kept up to date.
        let known = room.filter(|_| here > 0).and_then(|room| room.online_elsewhere());
        let elsewhere = match known {
            Some(viewers) => Some(viewers),
            None => self.inner.parts.relay.count_elsewhere(id).await,
        };
        Online { here, elsewhere }
    }
}

#[cfg(test)]
#[path = "census_tests.rs"]
mod tests;
