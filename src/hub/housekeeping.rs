//! What has to be done now and then: dropping rooms that are over, looking for what rooms lack.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use super::Hub;
use crate::shutdown::Shutdown;

/// Keeps a hub tidy.
#[derive(Debug)]
pub struct Housekeeper {
    hub: Hub,
    every: Duration,
}

impl Housekeeper {
    /// A housekeeper that is not running yet.
    #[must_use]
    pub fn new(hub: Hub, every: Duration) -> Self {
        Self { hub, every }
    }

    /// Runs until the shutdown begins.
    pub async fn run(self, shutdown: Shutdown) {
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
    pub fn run_once(&self) -> usize {
        let inner = &self.hub.inner;
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
