//! The flusher: empties the write queue into the store, a batch at a time, until the queue is closed and empty.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span};

use super::aside::AsideFile;
use super::contract::{CommentStore, Record, StoreError, WriteReport};
use super::outbox::Outbox;
use super::outcomes::{Backoff, Outcomes};
use super::queue::WriteQueue;
use super::settle::Settler;
use crate::metrics::{Metrics, Place};
use crate::model::Posted;

/// Most comments that go to the outbox with one sync: some megabytes.
const PARKED_BATCH: usize = 8192;

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
    /// How long the store may take for a batch before it goes to the outbox.
    pub patience: Duration,
}

/// Empties a [`WriteQueue`] into a [`CommentStore`], or into the outbox while the store takes nothing.
#[derive(Clone)]
pub struct Flusher {
    config: FlusherConfig,
    queue: WriteQueue,
    store: Arc<dyn CommentStore>,
    outbox: Option<Outbox>,
    /// Cancelled when there is no time left to wait for the store.
    hurry: CancellationToken,
    settler: Settler,
    outcomes: Outcomes,
    metrics: Arc<Metrics>,
}

/// What a flusher works with.
pub struct FlusherParts {
    /// What it empties.
    pub queue: WriteQueue,
    /// What it fills.
    pub store: Arc<dyn CommentStore>,
    /// Where batches go that the store does not take; none beside a store that is local itself.
    pub outbox: Option<Outbox>,
    /// Where comments go that the store refuses for good.
    pub aside: AsideFile,
    /// Cancelled when there is no time left to wait for the store.
    pub hurry: CancellationToken,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl FlusherParts {
    /// Without an outbox, and with all the time there is.
    #[must_use]
    pub fn new(queue: WriteQueue, store: Arc<dyn CommentStore>, aside: AsideFile, metrics: Arc<Metrics>) -> Self {
        Self { queue, store, outbox: None, aside, hurry: CancellationToken::new(), metrics }
    }
}

impl Flusher {
    /// A flusher that is not running yet.
    #[must_use]
    pub fn new(config: FlusherConfig, parts: FlusherParts) -> Self {
        let FlusherParts { queue, store, outbox, aside, hurry, metrics } = parts;
        let settler = Settler::new(aside, Arc::clone(&metrics));
        let outcomes = Outcomes::new(queue.clone(), Arc::clone(&metrics));
        Self { config, queue, store, outbox, hurry, settler, outcomes, metrics }
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
                let batch = self.queue.take(self.most());
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

    /// Most comments to take out at a time: for the outbox many, for each time costs a sync.
    fn most(&self) -> usize {
        let is_for_outbox = self.hurry.is_cancelled() || self.outbox.as_ref().is_some_and(Outbox::is_in_use);
        if self.outbox.is_some() && is_for_outbox { self.config.batch.max(PARKED_BATCH) } else { self.config.batch }
    }

    /// Writes one batch, trying until the store has said of every comment what became of it, or the outbox has them.
    async fn flush(&self, batch: Vec<Arc<Posted>>) {
        let span = info_span!("flush", batch = batch.len());
        let records: Vec<Record> =
            batch.into_iter().map(|posted| Record { bytes: self.store.encode(&posted.comment), posted }).collect();
        if let Some(report) = self.write(&records).instrument(span).await {
            self.settler.settle(&records, &report, Place::Memory).await;
        }
    }

    /// Gives what the store said; `None` when the outbox has the batch.
    async fn write(&self, records: &[Record]) -> Option<WriteReport> {
        let begun = Instant::now();
        let mut attempt = 0;
        loop {
            if self.is_impatient(begun) && self.park(records).await {
                return None;
            }
            attempt += 1;
            match self.attempt(records).await {
                Ok(report) => {
                    self.outcomes.succeeded(begun);
                    if let Some(outbox) = &self.outbox {
                        outbox.set_in_use(false);
                    }
                    return Some(report);
                }
                Err(failure) => {
                    self.outcomes.failed(&failure, attempt);
                    self.pause(attempt, begun).await;
                }
            }
        }
    }

    /// Whether a batch that was begun then should go to the outbox rather than be tried again.
    fn is_impatient(&self, begun: Instant) -> bool {
        let is_away = self.outbox.as_ref().is_some_and(|outbox| outbox.is_in_use() && !outbox.may_try_store());
        is_away || self.hurry.is_cancelled() || begun.elapsed() >= self.config.patience
    }

    /// Puts a batch into the outbox, if there is one that takes it.
    async fn park(&self, records: &[Record]) -> bool {
        let Some(outbox) = &self.outbox else { return false };
        match outbox.park(records).await {
            Ok(()) => true,
            // The outbox tells of it.
            Err(_) => {
                self.metrics.outbox_refused.inc();
                false
            }
        }
    }

    /// Asks the store once; with an outbox to go to, for no longer than the patience. When that did not take the batch
    /// either, the store's own bound is the only one: it may be slow and still take everything.
    async fn attempt(&self, records: &[Record]) -> Result<WriteReport, StoreError> {
        let Some(outbox) = &self.outbox else { return self.store.write(records).await };
        let failed = |detail: &str| Err(StoreError::Transient { detail: detail.to_owned(), source: None });
        let patience = if outbox.is_full() { Duration::MAX } else { self.config.patience };
        tokio::select! {
            biased; // a write that is through counts, however late
            outcome = timeout(patience, self.store.write(records)) => match outcome {
                Ok(outcome) => outcome,
                Err(_) => failed("no answer within the write patience"),
            },
            () = self.hurry.cancelled(), if !self.hurry.is_cancelled() => failed("no time left to wait for an answer"),
        }
    }

    /// Waits before the next attempt: not beyond the patience, if there is an outbox, and not while the server stops.
    async fn pause(&self, attempt: u32, begun: Instant) {
        let backoff = Backoff { first: self.config.backoff, most: self.config.max_backoff };
        let pause = backoff.pause_after(attempt);
        if self.outbox.is_none() || begun.elapsed() >= self.config.patience {
            return sleep(pause).await;
        }
        let left = self.config.patience.saturating_sub(begun.elapsed());
        let _either = timeout(pause.min(left), self.hurry.cancelled()).await;
    }
}

#[cfg(test)]
#[path = "flusher_tests.rs"]
mod tests;
