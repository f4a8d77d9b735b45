//! Equal reads that run at once cost one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use crate::metrics::Metrics;

type Flight<V> = Shared<BoxFuture<'static, V>>;
type Listed<V> = (Number, WeakShared<BoxFuture<'static, V>>);
type Aloft<K, V> = Mutex<HashMap<K, Listed<V>>>;

/// Tells one read from the next of the same key. Counting from 0, it does not come round.
type Number = u64;

/// Reads under way, by what they ask for.
pub(super) struct Flights<K, V: Clone> {
    aloft: Arc<Aloft<K, V>>,
    begun: AtomicU64,
    metrics: Arc<Metrics>,
}

impl<K: Clone + Eq + Hash + Send + 'static, V: Clone + Send + Sync + 'static> Flights<K, V> {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { aloft: Arc::default(), begun: AtomicU64::new(0), metrics }
    }

    /// Joins the read for `key` that is under way, or begins it. A caller that goes away does not end it for the others.
    pub(super) async fn join<F>(&self, key: K, read: impl FnOnce() -> F) -> V
    where
        F: Future<Output = V> + Send + 'static,
    {
        let flight = self.board(key, read);
        flight.await
    }

    fn board<F>(&self, key: K, read: impl FnOnce() -> F) -> Flight<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut aloft = lock(&self.aloft);
        if let Some(flight) = aloft.get(&key).and_then(|(_, flight)| flight.upgrade()) {
            self.metrics.store_reads_merged.inc();
            return flight;
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let landing = Landing { key: key.clone(), number, aloft: Arc::clone(&self.aloft) };
        let read = read();
        let flight = async move {
            let value = read.await;
            drop(landing);
            value
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            aloft.insert(key, (number, weak));
        }
        flight
    }
}

fn lock<K, V: Clone>(aloft: &Aloft<K, V>) -> MutexGuard<'_, HashMap<K, Listed<V>>> {
    aloft.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the read off the list when it is over or given up.
struct Landing<K: Eq + Hash, V: Clone> {
    key: K,
    number: Number,
    aloft: Arc<Aloft<K, V>>,
}

impl<K: Eq + Hash, V: Clone> Drop for Landing<K, V> {
    fn drop(&mut self) {
        let mut aloft = lock(&self.aloft);
        // Between its last caller leaving and this, another may have begun the same read anew.
        if aloft.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            aloft.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn equal_reads_at_once_cost_one_and_later_ones_another() {
        let metrics = Arc::new(Metrics::default());
        let flights = Flights::new(Arc::clone(&metrics));
        let (reads, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let read = || {
            let (reads, gate) = (Arc::clone(&reads), Arc::clone(&gate));
            async move {
                gate.notified().await;
                reads.fetch_add(1, Ordering::SeqCst)
            }
        };
        let together = async { tokio::join!(flights.join(1, read), flights.join(1, read), flights.join(1, read)) };
        let open = async { gate.notify_one() };
        assert_eq!(tokio::join!(together, open).0, (0, 0, 0));
        assert_eq!(metrics.store_reads_merged.get(), 2);
        gate.notify_one();
        assert_eq!(flights.join(1, read).await, 1);
        assert!(lock(&flights.aloft).is_empty());
    }

    #[tokio::test]
    async fn a_read_that_everybody_gave_up_leaves_nothing_behind() {
        let flights = Flights::<u8, ()>::new(Arc::default());
        {
            let flight = std::pin::pin!(flights.join(1, std::future::pending));
            assert!(futures_util::poll!(flight).is_pending());
            assert_eq!(lock(&flights.aloft).len(), 1);
        }
        assert!(lock(&flights.aloft).is_empty());
    }

    /// Begins the same read anew at the moment when it is given up.
    struct Anew(Arc<Flights<u8, ()>>, Arc<Mutex<Option<Flight<()>>>>);

    impl Drop for Anew {
        fn drop(&mut self) {
            *self.1.lock().unwrap() = Some(self.0.board(1, std::future::pending));
        }
    }

    #[tokio::test]
    async fn a_read_that_ends_late_leaves_the_newer_one_of_its_key_on_the_list() {
        let (flights, newer) = (Arc::new(Flights::<u8, ()>::new(Arc::default())), Arc::default());
        let anew = Anew(Arc::clone(&flights), Arc::clone(&newer));
        let read = || async move {
            let _anew = anew;
            std::future::pending().await
        };
        {
            let flight = std::pin::pin!(flights.join(1, read));
            assert!(futures_util::poll!(flight).is_pending());
        }
        assert_eq!(lock(&flights.aloft).len(), 1, "the newer read is still to be joined");
        let joined = flights.board(1, std::future::pending);
        assert!(joined.ptr_eq(newer.lock().unwrap().as_ref().unwrap()));
    }
}
