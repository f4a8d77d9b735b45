//! The flusher: empties the write queue into the store, a batch at a time, until the queue is closed and empty.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{Instrument as _, error, info_span, warn};

use super::aside::AsideFile;
use super::contract::{CommentStore, Record, StoreError, WriteReport};
use super::queue::WriteQueue;
use crate::metrics::{Metrics, SET_ASIDE_REASONS};
use crate::model::{Fate, Posted};

/// How the write queue is emptied.
#[derive(Clone, Debug)]
pub struct FlusherConfig {
    /// How often a batch is written even if it is not full.
    pub interval: Duration,
    /// Most comments in a batch.
    pub batch: usize,
    /// Most batches on their way at once.
    pub in_flight: usize,
    /// The wait after a first failed attempt; it doubles with each further one.
    pub backoff: Duration,
    /// The longest wait between attempts.
    pub max_backoff: Duration,
}

/// Empties a [`WriteQueue`] into a [`CommentStore`].
#[derive(Clone)]
pub struct Flusher {
    config: FlusherConfig,
    queue: WriteQueue,
    store: Arc<dyn CommentStore>,
    aside: Arc<AsideFile>,
    metrics: Arc<Metrics>,
}

impl Flusher {
    /// A flusher that is not running yet.
    #[must_use]
    pub fn new(
        config: FlusherConfig,
        queue: WriteQueue,
        store: Arc<dyn CommentStore>,
        aside: AsideFile,
        metrics: Arc<Metrics>,
    ) -> Self {
        // Each is shown from the start, so that a first increase can be told from a metric that is missing.
        for class in StoreError::CLASSES {
            drop(metrics.flush_retries.get_or_create(&[("class", class)]));
        }
        Self { config, queue, store, aside: Arc::new(aside), metrics }
    }

    /// Runs it as a task of its own. The task ends when the queue is closed and every comment's fate is known; aborting
    /// it before leaves the rest unsettled, and the ledger says how many.
    #[must_use]
    pub fn spawn(self) -> JoinHandle<()> {
        tokio::spawn(self.run())
    }

    async fn run(self) {
        let slots = Arc::new(Semaphore::new(self.config.in_flight));
        let mut flushes = JoinSet::new();
        let mut ticks = interval(self.config.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Closed is not enough: a push that began before may still be under way.
            let is_last = self.queue.is_sealed();
            // A tick takes what there is; a full batch does not wait for the tick.
            let at_least = tokio::select! {
                _ = ticks.tick() => 1,
                () = self.queue.woken() => if is_last { 1 } else { self.config.batch },
            };
            while self.queue.len() >= at_least {
                // The slot comes first: while the store is slow, the next batch grows instead of waiting half empty.
                let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
                let batch = self.queue.take(self.config.batch);
                let flusher = self.clone();
                flushes.spawn(async move {
                    flusher.flush(batch).await;
                    drop(slot);
                });
            }
            while flushes.try_join_next().is_some() {}
            if is_last && self.queue.is_empty() {
                break;
            }
        }
        flushes.join_all().await;
    }

    /// Writes one batch, trying until the store has said of every comment what became of it.
    async fn flush(&self, batch: Vec<Arc<Posted>>) {
        let span = info_span!("flush", batch = batch.len());
        let records: Vec<Record> =
            batch.into_iter().map(|posted| Record { bytes: self.store.encode(&posted.comment), posted }).collect();
        let report = self.write(&records).instrument(span).await;
        self.settle(&records, &report).await;
    }

    async fn write(&self, records: &[Record]) -> WriteReport {
        let begun = Instant::now();
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.store.write(records).await {
                Ok(report) => {
                    self.metrics.flush_seconds.observe(begun.elapsed().as_secs_f64());
                    self.queue.set_blocked(None);
                    return report;
                }
                Err(failure) => {
                    self.tell(&failure, attempt);
                    sleep(self.pause_after(attempt)).await;
                }
            }
        }
    }

    fn tell(&self, failure: &StoreError, attempt: u32) {
        self.metrics.flush_retries.get_or_create(&[("class", failure.class())]).inc();
        self.queue.set_blocked((!failure.is_transient()).then(|| failure.to_string()));
        if failure.is_transient() {
            warn!(error = %failure, attempt, "flush failed, the batch is kept and tried again");
        } else {
            error!(error = %failure, attempt, "flush failed and will until somebody mends it; the batch is kept");
        }
    }

    /// Doubles from `backoff` to `max_backoff`; a random half of it keeps the batches in flight from coming back as one.
    fn pause_after(&self, attempt: u32) -> Duration {
        let doubled = self.config.backoff.saturating_mul(1 << attempt.saturating_sub(1).min(16));
        doubled.min(self.config.max_backoff).mul_f64(fastrand::f64().midpoint(1.0))
    }

    async fn settle(&self, records: &[Record], report: &WriteReport) {
        self.aside.append(records, report).await;
        for record in records {
            let fate = match report.set_aside.iter().find(|aside| aside.id == record.posted.comment.id) {
                Some(aside) => {
                    let reason = known(aside.reason);
                    self.metrics.account.set_aside.get_or_create(&[("reason", reason)]).inc();
                    warn!(id = %aside.id, reason, detail = %aside.detail, "comment set aside");
                    Fate::SetAside
                }
                None => {
                    self.metrics.account.stored.inc();
                    Fate::Stored
                }
            };
            record.posted.settle(fate);
        }
    }
}

/// The reason, as the ledger knows it.
fn known(reason: &'static str) -> &'static str {
    if SET_ASIDE_REASONS.contains(&reason) { reason } else { "refused" }
}

#[cfg(test)]
#[path = "flusher_tests.rs"]
mod tests;
