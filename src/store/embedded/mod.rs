//! The store that needs no server: a folder on local disk, over the fjall engine.
//!
//! What it promises is what MongoDB promises: a write that returned is on the disk (fsync), a batch is there whole or
//! not at all, and a room reads in the order of (time, id). Comments lie in [buckets](bucket::BucketId) by the time they
//! expire, one keyspace each, and retention drops whole buckets: it never looks for expired comments one by one. One
//! process at a time has the folder.
//!
//! `key` and `codec` are the format on disk, `engine` owns the folder, `read` merges the buckets; here the blocking
//! calls are moved off the async threads, and the folder is opened anew after a failure that allows it.

mod bucket;
mod codec;
#[cfg(test)]
mod crash;
mod engine;
mod fault;
mod key;
#[cfg(test)]
mod model;
mod read;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::engine::Engine;
use super::{CommentStore, Page, Record, StoreError, WriteReport};
use crate::clock::Clock;
use crate::model::{Comment, Position, RoomId, Timestamp};

/// Where the embedded store keeps its files, and how finely it forgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The data folder; it is made if it is missing, and belongs to the store alone.
    pub dir: PathBuf,
    /// The narrowest bucket, at least a millisecond: expired comments stay on disk (though nobody reads them) at most
    /// this much longer, or an eighth of their room's retention if that is more.
    ///
    /// A retention that would span more than 16 such buckets uses wider ones (doubled until it does not), because every
    /// bucket has its own files and every read looks into all of them. So [`EmbeddedConfig::DEFAULT_BUCKET`] suits
    /// retentions from minutes to years, side by side. It may change between starts.
    pub bucket: Duration,
}

impl EmbeddedConfig {
    /// A minute: an hour of retention takes 15 buckets of four minutes.
    pub const DEFAULT_BUCKET: Duration = Duration::from_secs(60);
}

/// The embedded store. Clones share one opened folder.
#[derive(Clone)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

struct Inner {
    config: EmbeddedConfig,
    clock: Clock,
    /// Every operation holds it for reading; opening anew and closing hold it for writing.
    slot: RwLock<Slot>,
    /// Ends the retention task at [`CommentStore::close`] or with the last handle.
    retention_ends: CancellationToken,
}

enum Slot {
    Open(Engine),
    /// Opening anew has failed, and the next operation tries it again.
    Away,
    Closed,
}

impl EmbeddedStore {
    /// Opens the folder, or makes a new one. Blocks: for a large journal, some seconds.
    ///
    /// # Errors
    /// [`StoreError::Blocked`] when another process has the folder, when it holds something else or a format that this
    /// release does not know, or when it is broken; the operator must choose another folder or mend this one.
    /// [`StoreError::Transient`] when the disk is full.
    pub fn open(config: EmbeddedConfig, clock: Clock) -> Result<Self, StoreError> {
        let engine = Engine::open(&config.dir, config.bucket, clock.clone())?;
        let slot = RwLock::new(Slot::Open(engine));
        Ok(Self { inner: Arc::new(Inner { config, clock, slot, retention_ends: CancellationToken::new() }) })
    }

    /// Drops the buckets of which every comment has expired, with their files, and gives back how many. Needs no reading
    /// of comments, however many they are. [`EmbeddedStore::spawn_retention`] does it again and again.
    ///
    /// # Errors
    /// [`StoreError`] when the disk does not let it; what was not dropped is dropped by a later call.
    pub async fn drop_expired(&self) -> Result<usize, StoreError> {
        self.run(Engine::drop_expired).await
    }

    /// Starts a task that drops expired buckets at once and then `every` so often, [`EmbeddedConfig::bucket`] being a
    /// sensible choice. It ends when the store is closed or its last handle is gone. Must be called in a tokio runtime.
    pub fn spawn_retention(&self, every: Duration) {
        // Weak, so that the task does not keep the folder open.
        let store = Arc::downgrade(&self.inner);
        let end = self.inner.retention_ends.clone();
        tokio::spawn(async move {
            end.run_until_cancelled(retain(store, every)).await;
        });
    }

    /// Runs a blocking operation off the async threads.
    async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Engine) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || inner.run(operation)).await;
        done.unwrap_or_else(|error| {
            Err(StoreError::Transient {
                detail: "an operation of the embedded store was broken off".to_owned(),
                source: Some(error.into()),
            })
        })
    }
}

async fn retain(store: Weak<Inner>, every: Duration) {
    // A period of zero makes tokio panic.
    let mut interval = tokio::time::interval(every.max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(inner) = store.upgrade() else { return };
        match (EmbeddedStore { inner }).drop_expired().await {
            Ok(0) => {}
            Ok(buckets) => info!(buckets, "dropped expired comments"),
            Err(error) => warn!(%error, "could not drop expired comments"),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.retention_ends.cancel();
    }
}

impl Inner {
    fn run<T>(&self, operation: impl FnOnce(&Engine) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.mend()?;
        match &*self.slot.read().unwrap_or_else(PoisonError::into_inner) {
            Slot::Open(engine) => operation(engine),
            Slot::Away => Err(fault::blocked("the embedded store could not be opened again")),
            Slot::Closed => Err(fault::blocked("the embedded store is closed")),
        }
    }

    /// Opens the folder anew when the engine has shut itself after a failed write. The engine reads its journal again
    /// and cuts off what is incomplete, so that memory and disk agree once more.
    fn mend(&self) -> Result<(), StoreError> {
        let is_broken = |slot: &Slot| match slot {
            Slot::Open(engine) => engine.is_poisoned(),
            Slot::Away => true,
            Slot::Closed => false,
        };
        if !is_broken(&self.slot.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if !is_broken(&slot) {
            return Ok(());
        }
        if matches!(&*slot, Slot::Open(engine) if engine.is_untrustworthy()) {
            return Err(fault::blocked("the disk failed to keep what was written: check it, then restart the server"));
        }
        // Its files must be let go of before they can be taken again.
        *slot = Slot::Away;
        *slot = Slot::Open(Engine::open(&self.config.dir, self.config.bucket, self.clock.clone())?);
        info!("opened the embedded store anew after a failed write");
        Ok(())
    }
}

#[async_trait]
impl CommentStore for EmbeddedStore {
    fn encode(&self, comment: &Comment) -> Bytes {
        codec::encode(comment)
    }

    async fn write(&self, batch: &[Record]) -> Result<WriteReport, StoreError> {
        let batch = batch.to_vec();
        self.run(move |engine| engine.write(&batch)).await
    }

    async fn load_recent(&self, room: &RoomId, from: Timestamp, limit: usize) -> Result<Page, StoreError> {
        let (room, now) = (room.clone(), self.inner.clock.now());
        self.run(move |engine| read::load(engine, &room, &key::since(&room, from), now, limit)).await
    }

    async fn load_before(&self, room: &RoomId, before: Position, limit: usize) -> Result<Page, StoreError> {
        let (room, now) = (room.clone(), self.inner.clock.now());
        self.run(move |engine| read::load(engine, &room, &key::before(&room, before), now, limit)).await
    }

    async fn count_between(
        &self,
        room: &RoomId,
        after: Position,
        before: Position,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let Some(range) = key::between(room, after, before) else { return Ok(0) };
        let now = self.inner.clock.now();
        self.run(move |engine| read::count(engine, &range, now, limit)).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.run(Engine::probe).await
    }

    async fn close(&self) {
        self.inner.retention_ends.cancel();
        let inner = Arc::clone(&self.inner);
        let close = move || {
            // Waits for the operations that are under way.
            let mut slot = inner.slot.write().unwrap_or_else(PoisonError::into_inner);
            if let Slot::Open(engine) = &*slot
                && let Err(error) = engine.flush()
            {
                warn!(%error, "could not flush the embedded store at its end");
            }
            *slot = Slot::Closed;
        };
        if let Err(error) = tokio::task::spawn_blocking(close).await {
            warn!(%error, "could not close the embedded store");
        }
    }
}
