//! The write path put together: queue, flusher, outbox and journal in front of a store, begun and drained as one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::log::LogError;
use super::mark::{self, MarkError};
use super::recovery::Recovery;
use super::settle::Settler;
use super::{
    AsideFile, CommentStore, Flusher, FlusherConfig, FlusherParts, Journal, JournalConfig, Leftovers, Outbox,
    OutboxConfig, Replayer, ReplayerConfig, ReplayerParts, WriteQueue,
};
use crate::metrics::Metrics;

/// So long before a stop must be over, batches cease to wait for the store and go to the outbox: a full queue of 65,536
/// comments is written to a slow disk within it.
const RESERVE: Duration = Duration::from_secs(3);

/// So long before the deadline the store is given up, so that what the disk has can still be told.
const LAST: Duration = Duration::from_millis(500);

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
    /// Which part of such a store, as it may be told: what waits for one part is not brought to another. `None` if there is
    /// only one.
    pub part: Option<String>,
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
    /// What waits is for another store.
    #[error(transparent)]
    Mark(#[from] MarkError),
    /// No thread can be had.
    #[error("cannot begin the journal: {0}")]
    Thread(#[from] std::io::Error),
}

/// What stands between acceptance and the store.
pub struct WritePath {
    queue: WriteQueue,
    flusher: JoinHandle<()>,
    outbox: Option<Outbox>,
    replayer: Option<JoinHandle<()>>,
    /// Brings in what could be put nowhere at the start.
    recovery: Option<JoinHandle<()>>,
    journal: Option<Journal>,
    is_all_on_disk: bool,
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
        match (&config.outbox, &outbox) {
            (Some(OutboxConfig { dir, .. }), Some(outbox)) => claim(dir, &config, outbox.len())?,
            _ => tell_of_stranded_outbox(&config),
        }
        let leftovers = open_journal(&config)?.map(Arc::new);
        let recovery = leftovers.clone().map(|leftovers| Recovery {
            leftovers,
            outbox: outbox.clone(),
            store: Arc::clone(store),
            settler: Settler::new(aside.clone(), Arc::clone(metrics)),
            metrics: Arc::clone(metrics),
            batch: config.flusher.batch,
        });
        let recovery = match recovery {
            Some(recovery) => recovery.begin().await?,
            None => None,
        };
        let (way_in, journal) = match leftovers.filter(|_| config.journal.is_some()) {
            Some(leftovers) => {
                let (way_in, journal) = leftovers.begin(config.queue, Arc::clone(metrics))?;
                (Some(way_in), Some(journal))
            }
            None => (None, None),
        };
        let queue = WriteQueue::with_journal(config.queue, config.flusher.batch, Arc::clone(metrics), way_in);
        let replayer = outbox.clone().zip(config.outbox).map(|(outbox, OutboxConfig { per_sec, .. })| {
            let FlusherConfig { batch, backoff, max_backoff, .. } = config.flusher;
            let replaying = ReplayerConfig { batch, per_sec, backoff, max_backoff };
            let (queue, aside) = (queue.clone(), aside.clone());
            let metrics = Arc::clone(metrics);
            let parts = ReplayerParts { outbox, store: Arc::clone(store), queue, aside, metrics };
            Replayer::new(replaying, parts).spawn()
        });
        let hurry = CancellationToken::new();
        let parts = FlusherParts::new(queue.clone(), Arc::clone(store), aside, Arc::clone(metrics));
        let parts = FlusherParts { outbox: outbox.clone(), hurry: hurry.clone(), ..parts };
        let flusher = Flusher::new(config.flusher, parts).spawn();
        Ok(Self { queue, flusher, outbox, replayer, recovery, journal, is_all_on_disk: false, hurry })
    }

    /// Where accepted comments go.
    #[must_use]
    pub fn queue(&self) -> WriteQueue {
        self.queue.clone()
    }

    /// Whether what [`WritePath::drain`] left over is on the disk all the same, in the journal, for the next start.
    #[must_use]
    pub fn has_all_on_disk(&self) -> bool {
        self.is_all_on_disk
    }

    /// Empties the queue, which must be closed, into the store, or towards the deadline into the outbox, and goes on with
    /// the replay meanwhile, while the store takes it. Gives whether every comment is in one of them; the rest is given up.
    /// In the end nothing more becomes of any comment, and those who wait for that are told.
    pub async fn drain(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let (hurry, last) = (deadline - RESERVE.min(left / 3), deadline - LAST.min(left / 10));
        let is_flushed = tokio::select! {
            flushed = timeout_at(last, &mut self.flusher) => flushed.is_ok(),
            () = hurry_up(&self.hurry, hurry) => false,
        };
        if !is_flushed {
            self.flusher.abort();
        }
        if let Some(outbox) = &self.outbox {
            // Senders may be waiting for it.
            let _replayed = timeout_at(hurry, outbox.replayed()).await;
        }
        // What it has under way after that is still in the outbox, for the next start.
        if let Some(replayer) = self.replayer.take() {
            replayer.abort();
            let _aborted = timeout_at(last, replayer).await;
        }
        if let Some(recovery) = self.recovery.take().filter(|recovery| !recovery.is_finished()) {
            warn!("comments of an earlier life are still in the journal; the next start brings them in");
            recovery.abort();
        }
        self.queue.settle();
        if let Some(outbox) = self.outbox.take() {
            let _written = timeout_at(last, outbox.write_down()).await;
        }
        if let Some(journal) = self.journal.take() {
            // A disk that hangs must not hold up the end, and what it would have said is then not known.
            let closed = timeout_at(deadline, tokio::task::spawn_blocking(|| journal.close())).await;
            self.is_all_on_disk = matches!(closed, Ok(Ok(0)));
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

/// Opens the journal, if there is one or should be. Gives what an earlier life has left in it.
fn open_journal(config: &WritePathConfig) -> Result<Option<Leftovers>, WritePathError> {
    let journals = config.data_dir.join("journal");
    for other in std::fs::read_dir(&journals).into_iter().flatten().flatten() {
        if other.file_name() != config.store {
            tell_of_stranded(&other.path(), "start with that one to send them");
        }
    }
    let dir = journals.join(config.store);
    if config.journal.is_none() && !dir.exists() {
        return Ok(None);
    }
    let leftovers = Leftovers::open(&JournalConfig { dir: dir.clone() });
    let leftovers = leftovers.map_err(|source| WritePathError::Log { what: "the journal", source })?;
    claim(&dir, config, leftovers.left())?;
    Ok(Some(leftovers))
}

fn claim(dir: &Path, config: &WritePathConfig, comments: u64) -> Result<(), MarkError> {
    config.part.as_ref().map_or(Ok(()), |part| mark::claim(dir, part, comments))
}

/// Says what is left in an outbox that this configuration does without: because it says so, or because its store needs none.
fn tell_of_stranded_outbox(config: &WritePathConfig) {
    let dir = config.data_dir.join("outbox");
    let is_for_ours =
        mark::read(&dir).is_ok_and(|theirs| theirs.is_none_or(|theirs| config.part.as_ref() == Some(&theirs)));
    let advice = if config.part.is_some() && is_for_ours {
        "nothing sends them without an outbox: set store.outbox_max_bytes"
    } else {
        "they are for another store: start with that one, and with an outbox, to send them"
    };
    tell_of_stranded(&dir, advice);
}

/// Says so when an earlier life has left comments that this configuration sends nowhere.
fn tell_of_stranded(dir: &Path, advice: &str) {
    let Ok(files) = std::fs::read_dir(dir) else { return };
    let logs = files.flatten().filter(|file| file.path().extension().is_some_and(|extension| extension == "log"));
    let bytes: u64 = logs.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    if bytes > 0 {
        warn!(dir = %dir.display(), bytes, "comments wait here, and stay here: {advice}");
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "drain_tests.rs"]
mod drain_tests;
