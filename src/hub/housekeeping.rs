//! What has to be done now and then: dropping rooms that are over, telling rooms how many are in them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use super::Hub;
use crate::model::RoomId;
use crate::shutdown::Shutdown;

/// Keeps a hub tidy.
#[derive(Debug)]
pub struct Housekeeper {
    hub: Hub,
    every: Duration,
    /// What each room was last told about its viewers.
    told: HashMap<RoomId, usize>,
    encode_online: fn(usize) -> bytes::Bytes,
}

impl Housekeeper {
    /// A housekeeper that is not running yet. `encode_online` makes the frame that tells a room its number of viewers.
    #[must_use]
    pub fn new(hub: Hub, every: Duration, encode_online: fn(usize) -> bytes::Bytes) -> Self {
        Self { hub, every, told: HashMap::new(), encode_online }
    }

    /// Runs until the shutdown begins.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased; // a stop goes before work
                _ = shutdown.begun() => return,
                _ = ticks.tick() => drop(self.run_once()),
            }
            self.hub.mend_all().await;
        }
    }

    /// Does it once; gives how many rooms were dropped.
    pub fn run_once(&mut self) -> usize {
        let inner = &self.hub.inner;
        let mut told = HashMap::new();
        for room in inner.rooms.occupied() {
            let online = room.online();
            if self.told.get(room.id()) != Some(&online) {
                room.announce((self.encode_online)(online));
            }
            told.insert(room.id().clone(), online);
        }
        self.told = told;
        self.hub.tell_vacated();
        inner.rooms.drop_expired(inner.parts.clock.now());
        inner.parts.admission.sweep();
        let evicted = inner.rooms.sweep();
        if evicted > 0 {
            debug!(evicted, "rooms dropped");
        }
        evicted
    }
}
