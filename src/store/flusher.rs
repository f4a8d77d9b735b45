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
use super::turns::{Turn, Turns};
use crate::metrics::{Metrics, Place};
use crate::model::Posted;

/// Most comments that go to the outbox with one sync: some megabytes.
const PARKED_BATCH: usize = 8192;

/// How the write queue is emptied.
#[derive(Clone, Debug)]
pub struct FlusherConfig {
    /// How often a batch is written even if it is not full.
    pub interval: Duration,
    /// Most comments in one write to the store.
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
        let mut turns = Turns::default();
        loop {
            // A tick takes what there is; a full batch does not wait for the tick.
            let is_woken_early = tokio::select! {
                _ = ticks.tick() => false,
                () = self.queue.woken() => true,
            };
            // Closed is not enough: a push that began before may still be under way. Nothing gets any fuller after it.
            let is_last = self.queue.is_sealed();
            let at_least = if is_woken_early && !is_last { self.config.batch } else { 1 };
            while self.queue.len() >= at_least {
                // The slot comes first: while the store is slow, the next batch grows instead of waiting half empty.
                let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
                let (batch, turn, flusher) = (self.queue.take(self.most()), turns.next(), self.clone());
                flushes.spawn(async move {
                    flusher.flush(batch, turn).await;
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
        if self.is_for_outbox() { self.config.batch.max(PARKED_BATCH) } else { self.config.batch }
    }

    /// Whether the next batch goes to the outbox before the store is asked.
    fn is_for_outbox(&self) -> bool {
        self.outbox.as_ref().is_some_and(|outbox| outbox.is_in_use() || self.hurry.is_cancelled())
    }

    /// Sees to it that a batch is in the outbox, or that the store has said of every comment what became of it.
    async fn flush(&self, batch: Vec<Arc<Posted>>, turn: Turn) {
        let span = info_span!("flush", batch = batch.len());
        let records: Vec<Record> =
            batch.into_iter().map(|posted| Record { bytes: self.store.encode(&posted.comment), posted }).collect();
        self.bring(&records, turn).instrument(span).await;
    }

    async fn bring(&self, records: &[Record], turn: Turn) {
        if self.is_for_outbox() && self.park(records, &turn).await {
            drop(turn);
            return self.try_store(records).await;
        }
        for records in records.chunks(self.config.batch) {
            if let Some(report) = self.write(records, &turn).await {
                self.settler.settle(records, &report, Place::Memory).await;
            }
        }
    }

    /// Gives what the store said; `None` when the outbox has the batch.
    async fn write(&self, records: &[Record], turn: &Turn) -> Option<WriteReport> {
        let begun = self.outcomes.begun();
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.attempt(records, begun).await {
                Ok(report) => {
                    self.succeeded(begun);
                    return Some(report);
                }
                Err(failure) => self.outcomes.failed(&failure, attempt),
            }
            self.pause(attempt, begun).await;
            let is_impatient = self.is_for_outbox() || begun.elapsed() >= self.config.patience;
            if is_impatient && self.park(records, turn).await {
                return None;
            }
        }
    }

    fn succeeded(&self, begun: Instant) {
        self.outcomes.succeeded(begun);
        if let Some(outbox) = &self.outbox {
            outbox.set_in_use(false);
        }
    }

    /// Puts a batch into the outbox, if there is one that takes it, after those that were taken out of the queue before.
    async fn park(&self, records: &[Record], turn: &Turn) -> bool {
        let Some(outbox) = &self.outbox else { return false };
        // An earlier batch has been tried for as long by then; if it is not through, the outbox takes neither.
        let _come_or_not = timeout(self.config.patience, turn.come()).await;
        match outbox.park(records).await {
            Ok(()) => true,
            // The outbox tells of it.
            Err(_) => {
                self.metrics.outbox_refused.inc();
                false
            }
        }
    }

    /// Now and then asks the store to take comments that are in the outbox, too: what keeps the replay from going on need
    /// not keep new comments from being stored. The replay finds them there.
    async fn try_store(&self, records: &[Record]) {
        let is_due = self.outbox.as_ref().is_some_and(Outbox::may_try_store);
        if !is_due || self.hurry.is_cancelled() {
            return;
        }
        let begun = Instant::now();
        let few = records.get(..self.config.batch).unwrap_or(records);
        match self.attempt(few, begun).await {
            Ok(_) => self.succeeded(begun),
            Err(failure) => self.outcomes.failed(&failure, 1),
        }
    }

    /// Asks the store once; with an outbox to go to, until the patience is over. When that did not take the batch either,
    /// the store's own bound is the only one: it may be slow and still take everything.
    async fn attempt(&self, records: &[Record], begun: Instant) -> Result<WriteReport, StoreError> {
        let Some(outbox) = &self.outbox else { return self.store.write(records).await };
        let failed = |detail: &str| Err(StoreError::Transient { detail: detail.to_owned(), source: None });
        let left = self.config.patience.saturating_sub(begun.elapsed());
        let left = if outbox.is_full() { Duration::MAX } else { left };
        tokio::select! {
            biased; // a write that is through counts, however late
            outcome = timeout(left, self.store.write(records)) => match outcome {
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
