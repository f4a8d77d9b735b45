//! Turns: whoever has something to do in the order in which it was begun waits for those before it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Gives out turns. Turns are independent of it from then on.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next: u64,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Those that are not over.
    open: Mutex<BTreeSet<u64>>,
    is_one_over: Notify,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One's turn. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    number: u64,
    shared: Arc<Shared>,
}

impl Turns {
    /// The turn after all that were given out before.
    pub(super) fn next(&mut self) -> Turn {
        let number = self.next;
        self.next += 1;
        self.shared.open().insert(number);
        Turn { number, shared: Arc::clone(&self.shared) }
    }
}

impl Turn {
    /// Waits until all turns before this one are over. Cancellation-safe.
    pub(super) async fn come(&self) {
        loop {
            let is_one_over = self.shared.is_one_over.notified();
            if self.shared.open().first().is_none_or(|first| *first >= self.number) {
                return;
            }
            is_one_over.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared.open().remove(&self.number);
        self.shared.is_one_over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_turn_comes_when_all_before_it_are_over_in_whatever_order() {
        let mut turns = Turns::default();
        let [first, second, third] = [turns.next(), turns.next(), turns.next()];
        first.come().await;
        assert!(third.come().now_or_never().is_none());
        drop(second);
        assert!(third.come().now_or_never().is_none());
        drop(first);
        third.come().await;
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let mut turns = Turns::default();
        let (first, second) = (turns.next(), turns.next());
        let waiting = tokio::spawn(async move { second.come().await });
        tokio::task::yield_now().await;
        drop(first);
        waiting.await.unwrap();
    }
}
