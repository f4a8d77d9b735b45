//! The journal: with `durability = "disk"`, a comment is synced to the local disk before its sender hears `accepted`.
//!
//! One thread takes what is accepted out of a bounded channel and writes it to a [`Log`] in groups: whatever came while
//! the last group was being synced is the next one, so a group is as large as the disk is slow. A segment of the log is
//! deleted once every comment in it is in the store, was set aside, or is in the outbox.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tracing::{error, info, warn};

use super::log::{Batch, Log, LogConfig, LogError, Place};
use super::mongo::document;
use super::outbox::tell;
use super::trouble::Trouble;
use crate::metrics::Metrics;
use crate::model::{Comment, Posted};

/// Small, so that what is stored is soon let go of: about 20,000 comments.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// Most bytes on the disk. What is not yet in the store is bounded by the write queue, far below this.
const MAX_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Most comments in a group.
const GROUP: usize = 4096;

/// Up to so many groups only the oldest is looked at.
const FEW_GROUPS: usize = 64;

/// How often segments are looked at when nothing comes.
const IDLE: Duration = Duration::from_millis(200);

/// Where the journal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Its folder; it is made if it is missing, and belongs to the journal alone.
    pub dir: PathBuf,
}

/// The journal of this life of the server.
pub struct Journal {
    thread: JoinHandle<u64>,
    is_over: Arc<AtomicBool>,
}

/// What an earlier life has left in the journal: comments of which nobody knows whether they are stored.
pub struct Leftovers {
    log: Log,
    /// Comments of it that were not given yet; behind them are those of this life.
    left: AtomicU64,
    /// Comments that were found damaged and not given out as lost yet.
    lost: AtomicU64,
}

impl Leftovers {
    /// Opens the folder and reads what is in it. Blocks.
    ///
    /// # Errors
    /// [`LogError`]: another process has it, or it holds what this release cannot read.
    pub fn open(config: &JournalConfig) -> Result<Self, LogError> {
        let log = LogConfig { dir: config.dir.clone(), max_bytes: MAX_BYTES, segment_bytes: SEGMENT_BYTES };
        let (log, recovered) = Log::open(log)?;
        tell(&recovered, &config.dir);
        let (left, lost) = (AtomicU64::new(recovered.records), AtomicU64::new(recovered.lost));
        Ok(Self { log, left, lost })
    }

    /// How many of them were not given yet.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// Gives the next of them, oldest first, at most `limit`; `None` at the end. Blocks.
    ///
    /// # Errors
    /// [`LogError`] when the disk does not give them.
    pub fn next(&self, limit: usize) -> Result<Option<Left>, LogError> {
        let mut lost = self.lost.swap(0, Ordering::Relaxed);
        let batch = loop {
            let left = self.left();
            let limit = limit.min(usize::try_from(left).unwrap_or(limit));
            if limit == 0 {
                break None;
            }
            match self.log.read(limit, usize::MAX) {
                Err(LogError::Damaged { records, kept }) => {
                    self.left.fetch_sub(records.min(left), Ordering::AcqRel);
                    error!(comments = records, kept = %kept.display(), "the disk has lost comments of the journal");
                    lost += records;
                }
                batch => break batch?,
            }
        };
        if batch.is_none() && lost == 0 {
            return Ok(None);
        }
        let (records, place) = batch.map(|Batch { records, place }| (records, place)).unzip();
        self.left.fetch_sub(records.as_ref().map_or(0, Vec::len) as u64, Ordering::AcqRel);
        let mut left = Left { comments: Vec::new(), foreign: Vec::new(), lost, release: Release(place) };
        for bytes in records.into_iter().flatten() {
            match document::decode_any(&bytes) {
                Ok(comment) => left.comments.push(comment),
                Err(field) => left.foreign.push((field, bytes)),
            }
        }
        Ok(Some(left))
    }

    /// Forgets comments that are safe elsewhere.
    pub fn release(&self, release: Release) {
        if let Err(error) = self.log.release(release.0) {
            warn!(%error, "could not free what was brought out of the journal");
        }
    }

    /// Goes on with the journal, for at most `capacity` comments that wait to be written. Gives the way into it, which
    /// takes comments until it is dropped.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn begin(&self, capacity: usize, metrics: Arc<Metrics>) -> std::io::Result<(Sender<Arc<Posted>>, Journal)> {
        let (way_in, way_out) = bounded(capacity);
        let is_over = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            log: self.log.clone(),
            metrics,
            kept: VecDeque::new(),
            look_through_at: 0,
            failed: Vec::new(),
            is_over: Arc::clone(&is_over),
            unwritten: Trouble::default(),
            unreleased: Trouble::default(),
        };
        let thread = thread::Builder::new().name("journal".into()).spawn(move || writer.run(&way_out))?;
        Ok((way_in, Journal { thread, is_over }))
    }
}

/// Some of what is left in a journal.
#[derive(Debug)]
pub struct Left {
    /// The comments.
    pub comments: Vec<Comment>,
    /// Whole records that are no comments of this release, each with the field that says so.
    pub foreign: Vec<(&'static str, Bytes)>,
    /// Comments before or between them that the disk has lost.
    pub lost: u64,
    /// What [`Leftovers::release`] asks for.
    pub release: Release,
}

/// Which records of the journal are to be forgotten.
#[derive(Clone, Copy, Debug)]
pub struct Release(Option<Place>);

impl Journal {
    /// Writes what still waits, forgets what is safe elsewhere, and waits until that is done. Blocks. Nothing may be
    /// accepted any more. Gives how many comments are neither here nor safe elsewhere.
    pub fn close(self) -> u64 {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|_| {
            error!("the journal's thread has panicked");
            u64::MAX
        })
    }
}

struct Writer {
    log: Log,
    metrics: Arc<Metrics>,
    /// Groups that are on the disk and not all safe elsewhere, oldest first.
    kept: VecDeque<(Place, Vec<Arc<Posted>>)>,
    look_through_at: usize,
    /// Comments that could not be written and are not safe elsewhere yet.
    failed: Vec<Arc<Posted>>,
    is_over: Arc<AtomicBool>,
    unwritten: Trouble,
    unreleased: Trouble,
}

impl Writer {
    /// Gives how many comments are neither written nor safe elsewhere in the end.
    fn run(mut self, comments: &Receiver<Arc<Posted>>) -> u64 {
        loop {
            match comments.recv_timeout(IDLE) {
                Ok(first) => {
                    let group = std::iter::once(first).chain(comments.try_iter()).take(GROUP).collect();
                    self.write(group);
                }
                Err(RecvTimeoutError::Timeout) if self.is_over.load(Ordering::Acquire) => break,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.release_what_is_safe();
        }
        self.release_what_is_safe();
        // The last word: each comment by itself, so that none comes again that need not.
        let each = self.kept.iter().flat_map(|(place, group)| place.each().zip(group));
        let safe = each.filter(|(_, posted)| posted.is_safe()).map(|(place, _)| place);
        if let Err(error) = self.log.release(safe).and_then(|()| self.log.write_down()) {
            warn!(%error, "could not write down what is safe of the journal; it comes again at the next start");
        }
        self.failed.len() as u64
    }

    fn write(&mut self, group: Vec<Arc<Posted>>) {
        let bytes: Vec<Bytes> = group.iter().map(|posted| document::encode(&posted.comment)).collect();
        match self.log.append(&bytes) {
            Ok(place) => {
                self.metrics.journal_syncs.inc();
                group.iter().for_each(|posted| posted.keep());
                self.kept.push_back((place, group));
                if let Some(comments) = self.unwritten.end() {
                    info!(comments, "the journal can be written again; so many were not");
                }
            }
            Err(error) => {
                // They are acknowledged once they are stored, and late is all that is lost.
                self.metrics.journal_failed.inc_by(group.len() as u64);
                if let Some(comments) = self.unwritten.meet(group.len() as u64) {
                    error!(%error, comments, "the journal cannot be written");
                }
                self.failed.extend(group);
            }
        }
    }

    /// Groups become safe about in their order, so looking at the oldest is mostly enough; behind one that the store is
    /// long about the others are looked through each time they have doubled.
    fn release_what_is_safe(&mut self) {
        self.failed.retain(|posted| !posted.is_safe());
        let mut safe = Vec::new();
        if self.kept.len() > self.look_through_at.max(FEW_GROUPS) {
            self.kept.retain(|(place, group)| {
                let is_safe = group.iter().all(|posted| posted.is_safe());
                safe.extend(is_safe.then_some(*place));
                !is_safe
            });
            self.look_through_at = self.kept.len() * 2;
        }
        while let Some((place, group)) = self.kept.front()
            && group.iter().all(|posted| posted.is_safe())
        {
            safe.push(*place);
            self.kept.pop_front();
        }
        match self.log.release(safe) {
            Ok(()) => drop(self.unreleased.end()),
            Err(error) => {
                if let Some(times) = self.unreleased.meet(1) {
                    warn!(%error, times, "could not free what is safe of the journal");
                }
            }
        }
    }
}
