//! The outbox: where batches wait that the store did not take in time, on the local disk, until it is back.
//!
//! It is a [`Log`] of comments. What went in is safe from then on, through a restart and `kill -9`; it goes to the store
//! oldest first, by the [`Replayer`](super::Replayer). A crash between a replayed write and its release brings the batch
//! again, and the store then finds the ids it has. Senders who still wait for `stored` get it after the replay.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::contract::{CommentStore, Record};
use super::log::{AppendError, Batch, Log, LogConfig, LogError, Place, Recovered};
use super::mongo::document;
use super::trouble::Trouble;
use crate::metrics::Metrics;
use crate::model::{Comment, CommentId, Posted, Seq};

/// A replayed segment's file is deleted whole, so this is also about how much more than its comments an outbox takes.
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;

/// Most bytes that are read at a time: what a bulk of 1,000 comments of the largest size comes to.
const READ_BYTES: usize = 2 * 1024 * 1024;

/// How often a batch tries the store while the outbox is in use.
const TRY_STORE: Duration = Duration::from_secs(5);

/// Below so many entries, the list of those who wait is not looked through for such as wait no more.
const FEW_WAITING: usize = 4096;

/// Where the outbox is, and how much it may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// Its folder; it is made if it is missing, and belongs to the outbox alone.
    pub dir: PathBuf,
    /// Most bytes on the disk.
    pub max_bytes: u64,
    /// Most comments a second that go from it to the store.
    pub per_sec: u32,
}

impl OutboxConfig {
    /// Four segments: with fewer bytes, replaying would free too little at a time.
    pub const LEAST_BYTES: u64 = 4 * SEGMENT_BYTES;
}

/// Why the outbox did not take a batch. The batch is still the caller's.
#[derive(Debug, Error)]
pub enum ParkError {
    /// It is full, or the disk did not take it.
    #[error("the outbox does not take it: {0}")]
    Append(#[from] AppendError),
    /// The server ends.
    #[error("writing to the outbox was broken off")]
    BrokenOff,
}

/// The outbox. Clones share it.
#[derive(Clone)]
pub struct Outbox {
    inner: Arc<Inner>,
}

struct Inner {
    log: Log,
    is_in_use: AtomicBool,
    /// Whether the last batch found no room, or could not be written.
    is_full: AtomicBool,
    /// When a batch was last let through to the store though the outbox is in use.
    tried: Mutex<Instant>,
    /// Held while a batch is written and counted, and while one is read: what is read is then counted and remembered.
    order: tokio::sync::Mutex<()>,
    waiting: Mutex<Waiting>,
    filled: Notify,
    /// A batch has been replayed.
    released: Notify,
    trouble: Mutex<Trouble>,
    metrics: Arc<Metrics>,
}

/// Comments that somebody still has in hand: a ring, or a sender that waits for `stored`.
#[derive(Default)]
struct Waiting {
    by_id: HashMap<CommentId, Weak<Posted>>,
    /// With so many, those whom nobody has any more are dropped.
    look_through_at: usize,
}

/// A batch that is to be tried again.
#[derive(Default)]
pub(super) struct Parked {
    pub(super) records: Vec<Record>,
    /// Whole records that are no comments of this release, each with the field that says so.
    pub(super) foreign: Vec<(&'static str, Bytes)>,
    place: Option<Place>,
    /// Comments that the disk has lost.
    pub(super) lost: u64,
}

/// Tells what was found in a folder that is opened.
pub(super) fn tell(recovered: &Recovered, dir: &Path) {
    let dir = dir.display();
    if recovered.records > 0 {
        info!(%dir, comments = recovered.records, "comments of an earlier life are there");
    }
    for file in &recovered.damaged {
        error!(file = %file.display(), "comments may be lost: the disk gives back other bytes than it was given");
    }
    if recovered.lost > 0 {
        error!(%dir, comments = recovered.lost, "the disk has lost comments, so many at least; the ledger has them as damaged");
    }
    if recovered.torn_bytes > 0 {
        warn!(%dir, bytes = recovered.torn_bytes, "the end was torn, as by a crash while it was written");
    }
}

/// A comment of an earlier life, or one that nobody has in hand any more.
pub(super) fn revived(comment: Comment) -> Arc<Posted> {
    Arc::new(Posted::pending(comment, Seq(0), Arc::default()))
}

impl Outbox {
    /// Opens the folder, or makes a new one, and counts what an earlier life has left in it. Blocks.
    ///
    /// # Errors
    /// [`LogError`]: another process has it, or it holds what this release cannot read.
    pub fn open(config: &OutboxConfig, metrics: Arc<Metrics>) -> Result<Self, LogError> {
        let log = LogConfig { dir: config.dir.clone(), max_bytes: config.max_bytes, segment_bytes: SEGMENT_BYTES };
        let (log, recovered) = Log::open(log)?;
        tell(&recovered, &config.dir);
        metrics.account.recover(recovered.records + recovered.lost);
        metrics.account.damage(recovered.lost);
        let inner = Inner {
            is_in_use: AtomicBool::new(recovered.records > 0),
            is_full: AtomicBool::new(false),
            tried: Mutex::new(Instant::now()),
            order: tokio::sync::Mutex::new(()),
            log,
            waiting: Mutex::default(),
            filled: Notify::new(),
            released: Notify::new(),
            trouble: Mutex::default(),
            metrics,
        };
        let outbox = Self { inner: Arc::new(inner) };
        outbox.show();
        Ok(outbox)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether batches go here rather than to the store: it has taken none since the last one that was parked.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.inner.is_in_use.load(Ordering::Acquire)
    }

    /// Whether the last batch found no room, or could not be written, and nothing has changed since.
    pub(super) fn is_full(&self) -> bool {
        self.inner.is_full.load(Ordering::Acquire)
    }

    /// Whether a batch should try the store though the outbox is in use, now and then: what keeps the outbox from being
    /// emptied need not keep the store from being written to.
    pub(super) fn may_try_store(&self) -> bool {
        let mut tried = self.inner.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = tried.elapsed() >= TRY_STORE;
        if is_due {
            *tried = Instant::now();
        }
        is_due
    }

    pub(super) fn set_in_use(&self, is_in_use: bool) {
        if !is_in_use && self.is_empty() {
            self.inner.is_full.store(false, Ordering::Release);
        }
        if self.inner.is_in_use.swap(is_in_use, Ordering::AcqRel) != is_in_use {
            *self.inner.tried.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            if is_in_use {
                warn!("the store takes nothing, comments go to the outbox");
            } else {
                info!(waiting = self.inner.log.len(), "the store takes comments again");
            }
        }
        self.show();
    }

    /// Takes a batch: when this returns, it is synced to the disk, and the caller need not keep it.
    ///
    /// # Errors
    /// [`ParkError`]; nothing of the batch is in the outbox.
    pub async fn park(&self, records: &[Record]) -> Result<(), ParkError> {
        let _order = self.inner.order.lock().await;
        self.append(records).await?;
        // Counted as parked before the comments say so: who reads the room's history asks the comments first.
        self.inner.metrics.account.park(records.len() as u64);
        self.inner.metrics.outbox_parked.inc_by(records.len() as u64);
        self.remember(records);
        self.set_in_use(true);
        self.inner.filled.notify_one();
        Ok(())
    }

    /// Takes comments that an earlier life of the server accepted, as [`Outbox::park`] does.
    ///
    /// # Errors
    /// As [`Outbox::park`].
    pub async fn recover(&self, records: &[Record]) -> Result<(), ParkError> {
        let _order = self.inner.order.lock().await;
        self.append(records).await?;
        self.inner.metrics.account.recover(records.len() as u64);
        self.set_in_use(true);
        self.inner.filled.notify_one();
        Ok(())
    }

    async fn append(&self, records: &[Record]) -> Result<(), ParkError> {
        let log = self.inner.log.clone();
        let bytes: Vec<Bytes> = records.iter().map(|record| document::encode(&record.posted.comment)).collect();
        let appended =
            tokio::task::spawn_blocking(move || log.append(&bytes)).await.map_err(|_| ParkError::BrokenOff)?;
        self.tell_of_trouble(appended.as_ref().err());
        self.inner.is_full.store(appended.is_err(), Ordering::Release);
        Ok(appended.map(drop)?)
    }

    /// Tells of batches that were not taken, ever more rarely, and of the next one that is.
    fn tell_of_trouble(&self, error: Option<&AppendError>) {
        let mut trouble = self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = error {
            if let Some(batches) = trouble.meet(1) {
                warn!(%error, batches, "the outbox does not take a batch, it stays in memory");
            }
        } else if let Some(batches) = trouble.end() {
            info!(batches, "the outbox takes batches again; so many times it did not");
        }
    }

    fn remember(&self, records: &[Record]) {
        let mut waiting = self.waiting();
        for Record { posted, .. } in records {
            waiting.by_id.insert(posted.comment.id, Arc::downgrade(posted));
            posted.park();
        }
        if waiting.by_id.len() > waiting.look_through_at.max(FEW_WAITING) {
            // The caller still has this batch in hand; what is dropped here was parked before it.
            waiting.by_id.retain(|_, posted| posted.strong_count() > 0);
            waiting.look_through_at = waiting.by_id.len() * 2;
        }
    }

    /// The oldest comments that were not given out yet, at most `limit`, once there are some. Records that cannot be read
    /// are told and passed over. Cancellation-safe as long as the process ends after it.
    pub(super) async fn next(&self, limit: usize, store: &dyn CommentStore) -> Result<Parked, LogError> {
        loop {
            if let Some(parked) = self.try_next(limit, store).await? {
                return Ok(parked);
            }
            self.inner.filled.notified().await;
        }
    }

    async fn try_next(&self, limit: usize, store: &dyn CommentStore) -> Result<Option<Parked>, LogError> {
        let _order = self.inner.order.lock().await;
        let log = self.inner.log.clone();
        match tokio::task::spawn_blocking(move || log.read(limit, READ_BYTES)).await {
            Ok(Ok(Some(Batch { records, place }))) => Ok(Some(self.revive(&records, place, store))),
            Ok(Err(LogError::Damaged { records, kept })) => {
                error!(comments = records, kept = %kept.display(), "the disk has lost comments of the outbox");
                Ok(Some(Parked { lost: records, ..Parked::default() }))
            }
            Ok(Err(error)) => Err(error),
            // Broken off, as the process ends: there is nothing more to come.
            Ok(Ok(None)) | Err(_) => Ok(None),
        }
    }

    fn revive(&self, bytes: &[Bytes], place: Place, store: &dyn CommentStore) -> Parked {
        let mut waiting = self.waiting();
        let (mut records, mut foreign) = (Vec::with_capacity(bytes.len()), Vec::new());
        for bytes in bytes {
            match document::decode_any(bytes) {
                Ok(comment) => {
                    let kept = waiting.by_id.remove(&comment.id).and_then(|posted| posted.upgrade());
                    let posted = kept.unwrap_or_else(|| revived(comment));
                    records.push(Record { bytes: store.encode(&posted.comment), posted });
                }
                Err(field) => foreign.push((field, bytes.clone())),
            }
        }
        Parked { records, foreign, place: Some(place), lost: 0 }
    }

    /// Forgets a batch whose fate the store has told.
    pub(super) async fn release(&self, parked: &Parked) {
        let (log, place) = (self.inner.log.clone(), parked.place);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || log.release(place)).await {
            warn!(%error, "could not free what was replayed from the outbox");
        }
        self.inner.is_full.store(false, Ordering::Release);
        self.inner.released.notify_one();
        self.show();
    }

    /// Waits until it is empty; at once when the store takes nothing. One may wait at a time. Cancellation-safe.
    pub(super) async fn replayed(&self) {
        while !self.is_empty() && !self.is_in_use() {
            self.inner.released.notified().await;
        }
    }

    /// Writes down what was released, for a clean end: it does not come again at the next start.
    pub(super) async fn write_down(&self) {
        let log = self.inner.log.clone();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || log.write_down()).await {
            warn!(%error, "could not write down what was replayed; it comes again at the next start");
        }
    }

    /// Comments in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.log.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn show(&self) {
        let metrics = &self.inner.metrics;
        metrics.outbox_in_use.set(i64::from(self.is_in_use()));
        metrics.outbox_bytes.set(i64::try_from(self.inner.log.bytes()).unwrap_or(i64::MAX));
    }
}
