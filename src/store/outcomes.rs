//! What attempts to write come to, told in one way by all who write: in the log, in the metrics and in readiness.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, warn};

use super::contract::StoreError;
use super::queue::WriteQueue;
use crate::metrics::Metrics;

/// Tells how writing goes. Clones share it.
#[derive(Clone)]
pub(super) struct Outcomes {
    queue: WriteQueue,
    metrics: Arc<Metrics>,
}

impl Outcomes {
    pub(super) fn new(queue: WriteQueue, metrics: Arc<Metrics>) -> Self {
        // Each is shown from the start, so that a first increase can be told from a metric that is missing.
        for class in StoreError::CLASSES {
            drop(metrics.flush_retries.get_or_create(&[("class", class)]));
        }
        Self { queue, metrics }
    }

    /// A bulk is about to be offered to the store for the first time; gives the moment.
    pub(super) fn begun(&self) -> Instant {
        self.queue.begin_to_wait();
        Instant::now()
    }

    /// The store has taken a bulk that it was first offered then.
    pub(super) fn succeeded(&self, begun: Instant) {
        self.metrics.flush_seconds.observe(begun.elapsed().as_secs_f64());
        self.queue.set_blocked(None);
        self.queue.cease_to_wait();
    }

    pub(super) fn failed(&self, failure: &StoreError, attempt: u32) {
        self.metrics.flush_retries.get_or_create(&[("class", failure.class())]).inc();
        self.queue.set_blocked((!failure.is_transient()).then(|| failure.to_string()));
        self.queue.begin_to_wait();
        if failure.is_transient() {
            warn!(error = %failure, attempt, "flush failed, the batch is kept and tried again");
        } else {
            error!(error = %failure, attempt, "flush failed and will until somebody mends it; the batch is kept");
        }
    }
}

/// The waits between attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub(super) first: Duration,
    pub(super) most: Duration,
}

impl Backoff {
    /// Doubles from the first to the longest; a random half of it keeps those who wait from coming back as one.
    pub(super) fn pause_after(self, attempt: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << attempt.saturating_sub(1).min(16));
        doubled.min(self.most).mul_f64(fastrand::f64().midpoint(1.0))
    }
}
