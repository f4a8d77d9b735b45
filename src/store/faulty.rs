//! A store that fails on order, in front of any other.
//!
//! In the library and not under `tests/`, because integration tests and fault drills need it too: what the server does
//! while its store is slow, away, or unsure is half of what the write path is for. Nothing builds one unless asked to.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{CommentStore, Page, Record, SetAside, StoreError, WriteReport};
use crate::model::{Comment, Position, RoomId, Timestamp};

/// Chooses documents to set aside: the reason for one to refuse, `None` for one to store.
pub type Refusals = Arc<dyn Fn(&Comment) -> Option<&'static str> + Send + Sync>;

/// One way to fail.
#[derive(Clone)]
pub enum Fault {
    /// Answers this much later, and then well.
    Slow(Duration),
    /// Does nothing and reports a transient failure.
    Refuse,
    /// Does nothing and reports that somebody must act.
    Blocked,
    /// Sets aside the documents it chooses, each with its reason, and stores the others.
    RefuseDocuments(Refusals),
    /// Stores the batch and reports a transient failure, so that a second attempt meets duplicates.
    DoneButUnknown,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow(by) => f.debug_tuple("Slow").field(by).finish(),
            Self::Refuse => f.write_str("Refuse"),
            Self::Blocked => f.write_str("Blocked"),
            Self::RefuseDocuments(_) => f.write_str("RefuseDocuments"),
            Self::DoneButUnknown => f.write_str("DoneButUnknown"),
        }
    }
}

/// What was tried so far, whether it failed or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Calls of [`CommentStore::write`].
    pub writes: usize,
    /// Records in those calls, each as often as it came.
    pub records: usize,
    /// Calls that read.
    pub reads: usize,
    /// Calls of [`CommentStore::probe`].
    pub probes: usize,
}

/// Wraps a store and fails as it is told.
///
/// Two scripts: a queue of faults, one for each of the next writes ([`FaultyStore::fail_next_write`]), and a fault that
/// stays until it is told otherwise ([`FaultyStore::fail_until_told`]). The queue goes first. Reads and the probe know
/// only the second one, and of it only `Slow`, `Refuse` and `Blocked`: the other two are about writes.
#[derive(Debug)]
pub struct FaultyStore<S: ?Sized> {
    script: Mutex<Script>,
    writes: AtomicUsize,
    records: AtomicUsize,
    reads: AtomicUsize,
    probes: AtomicUsize,
    inner: Arc<S>,
}

#[derive(Debug, Default)]
struct Script {
    next: VecDeque<Fault>,
    standing: Option<Fault>,
}

impl<S: CommentStore + ?Sized> FaultyStore<S> {
    /// Wraps a store. Without orders it does what the store does.
    #[must_use]
    pub fn new(inner: Arc<S>) -> Self {
        Self {
            script: Mutex::default(),
            writes: AtomicUsize::new(0),
            records: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            inner,
        }
    }

    /// Adds a fault to the queue: it befalls one write, after those that stand before it.
    pub fn fail_next_write(&self, fault: Fault) {
        self.script().next.push_back(fault);
    }

    /// Lets every operation fail so from now on, in place of what was ordered so before.
    pub fn fail_until_told(&self, fault: Fault) {
        self.script().standing = Some(fault);
    }

    /// Forgets every fault that was ordered.
    pub fn heal(&self) {
        *self.script() = Script::default();
    }

    /// What was tried so far.
    #[must_use]
    pub fn attempts(&self) -> Attempts {
        let load = |count: &AtomicUsize| count.load(Ordering::Acquire);
        Attempts {
            writes: load(&self.writes),
            records: load(&self.records),
            reads: load(&self.reads),
            probes: load(&self.probes),
        }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Meets the standing fault, for operations other than writes.
    async fn meet(&self) -> Result<(), StoreError> {
        let fault = self.script().standing.clone();
        match fault {
            Some(Fault::Slow(by)) => tokio::time::sleep(by).await,
            Some(Fault::Refuse) => return Err(refused()),
            Some(Fault::Blocked) => return Err(blocked()),
            Some(Fault::RefuseDocuments(_) | Fault::DoneButUnknown) | None => {}
        }
        Ok(())
    }

    async fn meet_read(&self) -> Result<(), StoreError> {
        self.reads.fetch_add(1, Ordering::AcqRel);
        self.meet().await
    }

    async fn write_but_for(&self, batch: &[Record], refusals: &Refusals) -> Result<WriteReport, StoreError> {
        let (mut stored, mut set_aside) = (Vec::with_capacity(batch.len()), Vec::new());
        for record in batch {
            let comment = &record.posted.comment;
            match refusals(comment) {
                None => stored.push(record.clone()),
                Some(reason) => {
                    set_aside.push(SetAside { id: comment.id, reason, detail: "refused on order".to_owned() });
                }
            }
        }
        let mut report = self.inner.write(&stored).await?;
        report.set_aside.append(&mut set_aside);
        Ok(report)
    }
}

fn refused() -> StoreError {
    StoreError::Transient { detail: "a fault that was ordered".to_owned(), source: None }
}

fn blocked() -> StoreError {
    StoreError::Blocked { detail: "a fault that was ordered".to_owned(), source: None }
}

#[async_trait]
impl<S: CommentStore + ?Sized> CommentStore for FaultyStore<S> {
    fn encode(&self, comment: &Comment) -> Bytes {
        self.inner.encode(comment)
    }

    async fn write(&self, batch: &[Record]) -> Result<WriteReport, StoreError> {
        self.writes.fetch_add(1, Ordering::AcqRel);
        self.records.fetch_add(batch.len(), Ordering::AcqRel);
        let fault = {
            let mut script = self.script();
            script.next.pop_front().or_else(|| script.standing.clone())
        };
        match fault {
            None => self.inner.write(batch).await,
            Some(Fault::Slow(by)) => {
                tokio::time::sleep(by).await;
                self.inner.write(batch).await
            }
            Some(Fault::Refuse) => Err(refused()),
            Some(Fault::Blocked) => Err(blocked()),
            Some(Fault::RefuseDocuments(refusals)) => self.write_but_for(batch, &refusals).await,
            Some(Fault::DoneButUnknown) => {
                self.inner.write(batch).await?;
                Err(refused())
            }
        }
    }

    async fn load_recent(&self, room: &RoomId, from: Timestamp, limit: usize) -> Result<Page, StoreError> {
        self.meet_read().await?;
        self.inner.load_recent(room, from, limit).await
    }

    async fn load_before(&self, room: &RoomId, before: Position, limit: usize) -> Result<Page, StoreError> {
        self.meet_read().await?;
        self.inner.load_before(room, before, limit).await
    }

    async fn count_between(
        &self,
        room: &RoomId,
        after: Position,
        before: Position,
        limit: u64,
    ) -> Result<u64, StoreError> {
        self.meet_read().await?;
        self.inner.count_between(room, after, before, limit).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.probes.fetch_add(1, Ordering::AcqRel);
        self.meet().await?;
        self.inner.probe().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::model::{Posted, Seq, test_comment as comment};
    use crate::store::{EmbeddedConfig, EmbeddedStore};

    fn open() -> (FaultyStore<dyn CommentStore>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig { dir: dir.path().join("data"), bucket: EmbeddedConfig::DEFAULT_BUCKET };
        let store = EmbeddedStore::open(config, Clock::manual(Timestamp::from_millis(0))).unwrap();
        (FaultyStore::new(Arc::new(store)), dir)
    }

    fn batch(store: &dyn CommentStore, numbers: std::ops::Range<u32>) -> Vec<Record> {
        let make = |n: u32| {
            let comment = comment("r", i64::from(n), n, "x");
            Record { bytes: store.encode(&comment), posted: Arc::new(Posted::pending(comment, Seq(1), Arc::default())) }
        };
        numbers.map(make).collect()
    }

    async fn stored(store: &dyn CommentStore) -> usize {
        let all = store.load_recent(&RoomId::parse("r").unwrap(), Timestamp::from_millis(0), 100).await;
        all.unwrap().comments.len()
    }

    #[tokio::test]
    async fn queued_faults_befall_one_write_each_in_order() {
        let (store, _dir) = open();
        let batch = batch(&store, 0..3);
        store.fail_next_write(Fault::Refuse);
        store.fail_next_write(Fault::Blocked);
        assert!(store.write(&batch).await.unwrap_err().is_transient());
        assert!(!store.write(&batch).await.unwrap_err().is_transient());
        assert_eq!(stored(&store).await, 0);
        assert_eq!(store.write(&batch).await.unwrap(), WriteReport::default());
        assert_eq!(stored(&store).await, 3);
        assert_eq!(store.attempts(), Attempts { writes: 3, records: 9, reads: 2, probes: 0 });
    }

    #[tokio::test]
    async fn a_standing_fault_holds_for_every_operation_until_it_heals() {
        let (store, _dir) = open();
        let batch = batch(&store, 0..1);
        store.fail_until_told(Fault::Refuse);
        for _ in 0..3 {
            assert!(store.write(&batch).await.is_err());
            assert!(store.probe().await.is_err());
        }
        store.heal();
        store.write(&batch).await.unwrap();
        store.probe().await.unwrap();
        assert_eq!(store.attempts(), Attempts { writes: 4, records: 4, reads: 0, probes: 4 });
    }

    #[tokio::test]
    async fn a_write_done_in_secret_meets_duplicates_when_tried_again() {
        let (store, _dir) = open();
        let batch = batch(&store, 0..2);
        store.fail_next_write(Fault::DoneButUnknown);
        assert!(store.write(&batch).await.unwrap_err().is_transient());
        assert_eq!(store.write(&batch).await.unwrap().duplicates, 2);
        assert_eq!(stored(&store).await, 2);
    }

    #[tokio::test]
    async fn chosen_documents_are_set_aside_and_the_others_stored() {
        let (store, _dir) = open();
        let batch = batch(&store, 0..4);
        store.fail_next_write(Fault::RefuseDocuments(Arc::new(|c| (c.ts.millis() == 2).then_some("schema"))));
        let report = store.write(&batch).await.unwrap();
        let aside: Vec<_> = report.set_aside.iter().map(|aside| (aside.id, aside.reason)).collect();
        assert_eq!(aside, [(batch[2].posted.comment.id, "schema")]);
        assert_eq!(stored(&store).await, 3);
    }

    #[tokio::test]
    async fn a_slow_write_is_late_and_done() {
        let (store, _dir) = open();
        let batch = batch(&store, 0..1);
        store.fail_next_write(Fault::Slow(Duration::from_millis(50)));
        let begun = tokio::time::Instant::now();
        store.write(&batch).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(50));
        assert_eq!(stored(&store).await, 1);
    }
}
