//! Sends what is in the outbox to the store, oldest first, beside the comments that come in.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::error;

use super::aside::AsideFile;
use super::contract::{CommentStore, WriteReport};
use super::outbox::{Outbox, Parked};
use super::outcomes::{Backoff, Outcomes};
use super::queue::WriteQueue;
use super::settle::Settler;
use crate::metrics::{Metrics, Place};

/// How the outbox is emptied.
#[derive(Clone, Copy, Debug)]
pub struct ReplayerConfig {
    /// Most comments in a write.
    pub batch: usize,
    /// Most comments a second, so that those that come in are not starved.
    pub per_sec: u32,
    /// The wait after a first failed attempt; it doubles with each further one.
    pub backoff: Duration,
    /// The longest wait between attempts: so soon the return of the store is noticed.
    pub max_backoff: Duration,
}

/// What a replayer works with.
pub struct ReplayerParts {
    /// What it empties.
    pub outbox: Outbox,
    /// What it fills.
    pub store: Arc<dyn CommentStore>,
    /// Where it says that nothing can be stored until somebody acts.
    pub queue: WriteQueue,
    /// Where comments go that the store refuses for good.
    pub aside: AsideFile,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// Empties an [`Outbox`] into a [`CommentStore`]. It writes one batch at a time.
pub struct Replayer {
    config: ReplayerConfig,
    outbox: Outbox,
    store: Arc<dyn CommentStore>,
    settler: Settler,
    outcomes: Outcomes,
}

impl Replayer {
    /// A replayer that is not running yet.
    #[must_use]
    pub fn new(config: ReplayerConfig, parts: ReplayerParts) -> Self {
        let ReplayerParts { outbox, store, queue, aside, metrics } = parts;
        let outcomes = Outcomes::new(queue, Arc::clone(&metrics));
        Self { config, outbox, store, settler: Settler::new(aside, metrics), outcomes }
    }

    /// Runs it as a task of its own until it is aborted: what it was writing then is still in the outbox.
    #[must_use]
    pub fn spawn(self) -> JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                self.run_once().await;
            }
        })
    }

    /// Waits for something in the outbox and brings one batch of it to the store, however long that takes.
    async fn run_once(&self) {
        let parked = match self.outbox.next(self.config.batch, &*self.store).await {
            Ok(parked) => parked,
            Err(error) => {
                error!(%error, "the outbox cannot be read");
                return sleep(self.config.max_backoff).await;
            }
        };
        let begun = Instant::now();
        if !parked.records.is_empty() {
            let report = self.write(&parked).await;
            self.settler.settle(&parked.records, &report, Place::Outbox).await;
        }
        self.settler.give_up(parked.lost, &parked.foreign).await;
        self.outbox.release(&parked).await;
        sleep_until(begun + self.time_for(parked.records.len())).await;
    }

    /// Gives what the store said. It has its own time for an answer: one that is slow, and was too slow for the flusher,
    /// still takes everything here.
    async fn write(&self, parked: &Parked) -> WriteReport {
        let begun = self.outcomes.begun();
        let backoff = Backoff { first: self.config.backoff, most: self.config.max_backoff };
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.store.write(&parked.records).await {
                Ok(report) => {
                    self.outcomes.succeeded(begun);
                    self.outbox.set_in_use(false);
                    return report;
                }
                Err(failure) => self.outcomes.failed(&failure, attempt),
            }
            sleep(backoff.pause_after(attempt)).await;
        }
    }

    /// The least time for so many comments.
    fn time_for(&self, comments: usize) -> Duration {
        Duration::from_secs(1).mul_f64(comments as f64 / f64::from(self.config.per_sec.max(1)))
    }
}
