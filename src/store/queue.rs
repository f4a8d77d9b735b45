//! The write queue: bounded, never waited for, closed once.
//!
//! The hub pushes into it while it holds a room's order; the flusher takes batches out. When it is full, that is a value
//! ([`PushError::Full`]) which becomes a refusal to the sender alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::metrics::{Ledger, Metrics};
use crate::model::Posted;

/// Why a comment was not taken. Nothing has happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The queue holds as many as it may.
    Full,
    /// The queue was closed: the server is about to stop.
    Closed,
}

/// Set in the gate's count once the queue is closed; the bits below count the pushes that are under way.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The queue between acceptance and the store. Clones share it.
#[derive(Clone, Debug)]
pub struct WriteQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    capacity: usize,
    batch: usize,
    /// Places taken, including those whose comment is just being sent.
    depth: AtomicUsize,
    gate: AtomicUsize,
    sender: Sender<Arc<Posted>>,
    receiver: Receiver<Arc<Posted>>,
    wake: Notify,
    /// Where each comment goes as well, to be synced before its sender is told.
    journal: Option<Sender<Arc<Posted>>>,
    /// Why nothing of it can be stored until somebody acts.
    blocked: Mutex<Option<String>>,
    /// Whether nothing more becomes of any comment in this life of the server.
    is_settled: watch::Sender<bool>,
    /// Since when the store has been offered something and has taken nothing.
    waiting_since: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
}

impl WriteQueue {
    /// A queue for at most `capacity` comments, of which the flusher is woken early when `batch` wait.
    #[must_use]
    pub fn new(capacity: usize, batch: usize, metrics: Arc<Metrics>) -> Self {
        Self::with_journal(capacity, batch, metrics, None)
    }

    /// The same, with a journal: every comment taken goes into it, too. A journal that cannot take one makes the queue full.
    #[must_use]
    pub fn with_journal(
        capacity: usize,
        batch: usize,
        metrics: Arc<Metrics>,
        journal: Option<Sender<Arc<Posted>>>,
    ) -> Self {
        let (sender, receiver) = bounded(capacity);
        Self {
            inner: Arc::new(Inner {
                capacity,
                batch: batch.max(1),
                depth: AtomicUsize::new(0),
                gate: AtomicUsize::new(0),
                sender,
                receiver,
                wake: Notify::new(),
                journal,
                blocked: Mutex::default(),
                is_settled: watch::Sender::new(false),
                waiting_since: Mutex::default(),
                metrics,
            }),
        }
    }

    /// Takes a comment, or refuses it at once. From here on it is accepted: it stays until its fate is known.
    ///
    /// # Errors
    /// [`PushError`]; the caller must not show the comment to anybody.
    pub fn try_push(&self, posted: Arc<Posted>) -> Result<(), PushError> {
        let inner = &*self.inner;
        let _under_way = inner.enter().ok_or(PushError::Closed)?;
        let has_place = |depth: usize| (depth < inner.capacity).then_some(depth + 1);
        let depth = inner.depth.fetch_update(Ordering::AcqRel, Ordering::Acquire, has_place);
        let depth = depth.map_err(|_| PushError::Full)? + 1;
        if let Some(journal) = &inner.journal {
            posted.hold();
            if journal.try_send(Arc::clone(&posted)).is_err() {
                inner.depth.fetch_sub(1, Ordering::AcqRel);
                return Err(PushError::Full);
            }
        }
        // Counted before the flusher can see it, so that a reader of the ledger never finds more settled than accepted.
        inner.metrics.account.accepted.inc();
        inner.sender.try_send(posted).expect("a place was reserved and `inner` holds the receiver");
        if depth.is_multiple_of(inner.batch) {
            inner.wake.notify_one();
        }
        Ok(())
    }

    /// Closes the queue for good. Returns once no push is under way, so that what [`WriteQueue::take`] gives from now
    /// on is all there is.
    pub async fn close(&self) {
        self.inner.gate.fetch_or(CLOSED, Ordering::AcqRel);
        while !self.is_sealed() {
            tokio::task::yield_now().await;
        }
        self.inner.wake.notify_one();
    }

    /// Whether the queue was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.gate.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Whether the queue was closed and no push is under way: nothing comes into it any more.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.inner.gate.load(Ordering::Acquire) == CLOSED
    }

    /// Whether what is accepted is synced to a journal before its sender is told.
    #[must_use]
    pub fn is_journaled(&self) -> bool {
        self.inner.journal.is_some()
    }

    /// How many comments wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.receiver.len()
    }

    /// Whether none wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.receiver.is_empty()
    }

    /// Takes at most `limit` of those that have waited longest.
    #[must_use]
    pub fn take(&self, limit: usize) -> Vec<Arc<Posted>> {
        let batch: Vec<_> = self.inner.receiver.try_iter().take(limit).collect();
        self.inner.depth.fetch_sub(batch.len(), Ordering::AcqRel);
        batch
    }

    /// Waits until a full batch may be waiting or the queue was closed. Cancellation-safe.
    pub async fn woken(&self) {
        self.inner.wake.notified().await;
    }

    /// Says why what is taken out cannot be stored until somebody acts; `None` once it can. The flusher alone knows.
    pub(super) fn set_blocked(&self, reason: Option<String>) {
        self.inner.metrics.flush_blocked.set(i64::from(reason.is_some()));
        *self.inner.blocked.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Why what waits cannot be stored, if somebody has to act before it can.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        self.inner.blocked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says that nothing more becomes of any comment in this life of the server.
    pub(super) fn settle(&self) {
        self.inner.is_settled.send_replace(true);
    }

    /// Waits until nothing more becomes of any comment: who waits to hear of one need not wait any longer.
    /// Cancellation-safe.
    pub async fn settled(&self) {
        let mut is_settled = self.inner.is_settled.subscribe();
        // `self` holds the sender, so there is no error.
        let _is_settled = is_settled.wait_for(|is_settled| *is_settled).await;
    }

    /// Notes that the store is offered something, or has not taken it.
    pub(super) fn begin_to_wait(&self) {
        self.inner.waiting_since.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
    }

    /// Notes that the store has taken something.
    pub(super) fn cease_to_wait(&self) {
        *self.inner.waiting_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How long the store has taken nothing of what it was offered; `None` when nothing is offered, or all is well.
    #[must_use]
    pub fn waiting_for(&self) -> Option<Duration> {
        let since = *self.inner.waiting_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map(|since| since.elapsed())
    }

    /// The account of all accepted comments.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.inner.metrics.account.read()
    }
}

impl Inner {
    fn enter(&self) -> Option<UnderWay<'_>> {
        let before = self.gate.fetch_add(1, Ordering::AcqRel);
        let under_way = UnderWay(&self.gate);
        (before & CLOSED == 0).then_some(under_way)
    }
}

/// Leaves the gate when dropped.
struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Comment, Seq};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn posted(n: u64) -> Arc<Posted> {
        let comment: Comment = crate::model::test_comment("r", 1, u32::try_from(n).unwrap(), "x");
        Arc::new(Posted::pending(comment, Seq(n), Arc::default()))
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push,
        Take(usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        prop::collection::vec(prop_oneof![3 => Just(Op::Push), 1 => (0usize..6).prop_map(Op::Take)], 0..80)
    }

    proptest! {
        #[test]
        fn the_queue_is_a_bounded_fifo(capacity in 1usize..8, ops in ops()) {
            let metrics = Arc::new(Metrics::default());
            let queue = WriteQueue::new(capacity, 4, Arc::clone(&metrics));
            let (mut model, mut n) = (VecDeque::new(), 0);
            for op in ops {
                match op {
                    Op::Push => {
                        n += 1;
                        let expected = if model.len() < capacity { Ok(()) } else { Err(PushError::Full) };
                        prop_assert_eq!(queue.try_push(posted(n)), expected);
                        if expected.is_ok() {
                            model.push_back(n);
                        }
                    }
                    Op::Take(limit) => {
                        let taken: Vec<_> = queue.take(limit).iter().map(|posted| posted.seq.0).collect();
                        let expected: Vec<_> = model.drain(..limit.min(model.len())).collect();
                        prop_assert_eq!(taken, expected);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
        }
    }

    #[tokio::test]
    async fn it_is_not_sealed_while_a_push_is_under_way() {
        let queue = WriteQueue::new(8, 4, Arc::default());
        let under_way = queue.inner.enter().unwrap();
        let mut closing = std::pin::pin!(queue.close());
        assert!(futures_util::poll!(closing.as_mut()).is_pending());
        assert!(queue.is_closed() && !queue.is_sealed(), "that push may still bring a comment");
        drop(under_way);
        closing.await;
        assert!(queue.is_sealed());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn closing_leaves_exactly_what_was_accepted() {
        let metrics = Arc::new(Metrics::default());
        let queue = WriteQueue::new(1 << 20, 1000, Arc::clone(&metrics));
        let pushers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::task::spawn_blocking(move || (0u64..).take_while(|n| queue.try_push(posted(*n)).is_ok()).count())
            })
            .collect();
        while queue.len() < 1000 {
            tokio::task::yield_now().await;
        }
        queue.close().await;
        let left = queue.take(usize::MAX).len();
        let mut accepted = 0;
        for pusher in pushers {
            accepted += pusher.await.unwrap();
        }
        assert_eq!(left, accepted);
        assert_eq!(queue.try_push(posted(1)), Err(PushError::Closed));
        assert_eq!(queue.ledger().unsettled(), accepted as u64);
    }
}
