//! The write path put together: queue, flusher, outbox and journal in front of a store, begun and drained as one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::log::{AppendError, LogError};
use super::settle::Settler;
use super::{
    AsideFile, CommentStore, Flusher, FlusherConfig, FlusherParts, Journal, JournalConfig, Left, Leftovers, Outbox,
    OutboxConfig, ParkError, Record, Replayer, ReplayerConfig, ReplayerParts, WriteQueue,
};
use crate::metrics::{Metrics, Place};
use crate::model::{Comment, Posted, Seq};

/// So long before a stop must be over, batches cease to wait for the store and go to the outbox: a full queue of 65,536
/// comments is written to a slow disk within it.
const RESERVE: Duration = Duration::from_secs(3);

/// The file of what the store refused for good.
const ASIDE: &str = "set-aside.jsonl";

/// How the write path works.
#[derive(Clone, Debug)]
pub struct WritePathConfig {
    /// Most comments in the queue.
    pub queue: usize,
    /// How the queue is emptied.
    pub flusher: FlusherConfig,
    /// Where batches go that the store does not take; `None` for nowhere.
    pub outbox: Option<OutboxConfig>,
    /// Where comments are synced before they are acknowledged; `None` for nowhere.
    pub journal: Option<JournalConfig>,
    /// Where local files go.
    pub data_dir: PathBuf,
    /// The kind of store: each has a journal of its own, so that what was accepted for one is not brought to another.
    pub store: &'static str,
}

/// Why the write path cannot begin. What is on the disk stays there.
#[derive(Debug, Error)]
pub enum WritePathError {
    /// The outbox or the journal cannot be had.
    #[error("cannot use {what}: {source}")]
    Log {
        /// Which of them.
        what: &'static str,
        /// Why.
        #[source]
        source: LogError,
    },
    /// What an earlier life left in the journal can be put nowhere.
    #[error("cannot bring {comments} comments out of the journal: {problem}")]
    Recovery {
        /// How many at least.
        comments: usize,
        /// Why.
        problem: String,
    },
    /// No thread can be had.
    #[error("cannot begin the journal: {0}")]
    Thread(#[from] std::io::Error),
}

/// What stands between acceptance and the store.
pub struct WritePath {
    metrics: Arc<Metrics>,
    queue: WriteQueue,
    flusher: JoinHandle<()>,
    outbox: Option<Outbox>,
    replayer: Option<JoinHandle<()>>,
    journal: Option<Journal>,
    has_journal: bool,
    hurry: CancellationToken,
}

impl WritePath {
    /// Brings what an earlier life left on the disk to where it is safe, and begins.
    ///
    /// # Errors
    /// [`WritePathError`]; nothing is running then, and nothing was lost.
    pub async fn begin(
        config: WritePathConfig,
        store: &Arc<dyn CommentStore>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, WritePathError> {
        let aside = AsideFile::new(config.data_dir.join(ASIDE));
        let outbox = config.outbox.as_ref().map(|config| Outbox::open(config, Arc::clone(metrics)));
        let outbox = outbox.transpose().map_err(|source| WritePathError::Log { what: "the outbox", source })?;
        if outbox.is_none() {
            tell_of_stranded(&config.data_dir.join("outbox"));
        }
        let (way_in, journal) = match recover(&config, outbox.as_ref(), store, metrics).await? {
            Some(leftovers) if config.journal.is_some() => {
                let (way_in, journal) = leftovers.begin(config.queue, Arc::clone(metrics))?;
                (Some(way_in), Some(journal))
            }
            _ => (None, None),
        };
        let queue = WriteQueue::with_journal(config.queue, config.flusher.batch, Arc::clone(metrics), way_in);
        let replayer = outbox.clone().zip(config.outbox).map(|(outbox, OutboxConfig { per_sec, .. })| {
            let FlusherConfig { batch, backoff, max_backoff, .. } = config.flusher;
            let replaying = ReplayerConfig { batch, per_sec, backoff, max_backoff };
            let (queue, aside) = (queue.clone(), aside.clone());
            let parts = ReplayerParts { outbox, store: Arc::clone(store), queue, aside, metrics: Arc::clone(metrics) };
            Replayer::new(replaying, parts).spawn()
        });
        let hurry = CancellationToken::new();
        let parts = FlusherParts::new(queue.clone(), Arc::clone(store), aside, Arc::clone(metrics));
        let parts = FlusherParts { outbox: outbox.clone(), hurry: hurry.clone(), ..parts };
        let flusher = Flusher::new(config.flusher, parts).spawn();
        Ok(Self {
            metrics: Arc::clone(metrics),
            queue,
            flusher,
            outbox,
            replayer,
            has_journal: journal.is_some(),
            journal,
            hurry,
        })
    }

    /// Where accepted comments go.
    #[must_use]
    pub fn queue(&self) -> WriteQueue {
        self.queue.clone()
    }

    /// Whether what is not stored at the end is on the disk all the same, in the journal, for the next start.
    #[must_use]
    pub fn has_all_on_disk(&self) -> bool {
        self.has_journal && self.metrics.journal_failed.get() == 0
    }

    /// Empties the queue, which must be closed, into the store, or towards the deadline into the outbox. Gives whether
    /// every comment is safe; the rest is given up.
    pub async fn drain(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let hurry = deadline - RESERVE.min(left / 3);
        let is_flushed = tokio::select! {
            flushed = timeout_at(deadline, &mut self.flusher) => flushed.is_ok(),
            () = hurry_up(&self.hurry, hurry) => false,
        };
        if !is_flushed {
            self.flusher.abort();
        }
        // What it has under way is still in the outbox, for the next start.
        if let Some(replayer) = self.replayer.take() {
            replayer.abort();
            let _aborted = timeout_at(deadline, replayer).await;
        }
        if let Some(outbox) = self.outbox.take() {
            let _written = timeout_at(deadline, outbox.write_down()).await;
        }
        if let Some(journal) = self.journal.take() {
            // A disk that hangs must not hold up the end; what is not let go of comes again at the next start.
            let _ended = timeout_at(deadline, tokio::task::spawn_blocking(|| journal.close())).await;
        }
        is_flushed
    }
}

/// Says that there is no time left to wait, then never returns.
async fn hurry_up(hurry: &CancellationToken, at: Instant) {
    sleep_until(at).await;
    hurry.cancel();
    std::future::pending().await
}

/// Puts what an earlier life left in the journal into the outbox, or into the store if the outbox has no room or there is
/// none. Gives the journal, if there is one or should be.
async fn recover(
    config: &WritePathConfig,
    outbox: Option<&Outbox>,
    store: &Arc<dyn CommentStore>,
    metrics: &Arc<Metrics>,
) -> Result<Option<Leftovers>, WritePathError> {
    let journals = config.data_dir.join("journal");
    for other in std::fs::read_dir(&journals).into_iter().flatten().flatten() {
        if other.file_name() != config.store {
            tell_of_stranded(&other.path());
        }
    }
    let dir = journals.join(config.store);
    if config.journal.is_none() && !dir.exists() {
        return Ok(None);
    }
    let failed = |source| WritePathError::Log { what: "the journal", source };
    let settler = Settler::new(AsideFile::new(config.data_dir.join(ASIDE)), Arc::clone(metrics));
    let leftovers = Leftovers::open(&JournalConfig { dir }).map_err(failed)?;
    let mut found = 0;
    while let Some(Left { comments, foreign, lost, release }) = leftovers.next(config.flusher.batch).map_err(failed)? {
        found += comments.len();
        let problem = |problem: String| WritePathError::Recovery { comments: found, problem };
        let records: Vec<_> = comments.into_iter().map(|comment| record(comment, &**store)).collect();
        let is_parked = match outbox {
            _ if records.is_empty() => true,
            Some(outbox) => match outbox.recover(&records).await {
                Ok(()) => true,
                Err(ParkError::Append(AppendError::Full { .. })) => false,
                Err(error) => return Err(problem(error.to_string())),
            },
            None => false,
        };
        if !is_parked {
            let report = store.write(&records).await.map_err(|error| problem(error.to_string()))?;
            metrics.account.recover(records.len() as u64);
            settler.settle(&records, &report, Place::Outbox).await;
        }
        metrics.account.recover(foreign.len() as u64 + lost);
        settler.give_up(lost, &foreign).await;
        leftovers.release(release);
    }
    if found > 0 {
        info!(comments = found, "brought in what was left in the journal; some may have been stored before");
    }
    Ok(Some(leftovers))
}

fn record(comment: Comment, store: &dyn CommentStore) -> Record {
    let posted = Arc::new(Posted::pending(comment, Seq(0), Arc::default()));
    Record { bytes: store.encode(&posted.comment), posted }
}

/// Says so when an earlier life has left comments that this configuration sends nowhere.
fn tell_of_stranded(dir: &Path) {
    let Ok(files) = std::fs::read_dir(dir) else { return };
    let bytes: u64 = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum();
    if bytes > 0 {
        warn!(dir = %dir.display(), bytes, "comments wait here for another store: start with that one to send them");
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
