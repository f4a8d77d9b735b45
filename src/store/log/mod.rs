//! A queue of records on local disk: ordered, bounded in bytes, and there again after a crash.
//!
//! It knows bytes and nothing of what they mean. What is appended is synced before the call returns; it is read oldest
//! first, and it goes when it is released, in any order. The folder holds one file a segment (format: `format.rs`), a
//! lock, what the disk damaged, and a note of what is released (`released.rs`). A segment is deleted once all its records
//! are released; the note is written now and then and by [`Log::write_down`]: **after a crash, what was released since may
//! be read again**. Consumers must bear records coming twice.
//!
//! All calls but the counts do file I/O and block; asynchronous callers make them on a thread for it.

mod append;
mod error;
mod folder;
mod format;
mod read;
mod recover;
mod released;
mod state;
mod survey;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use error::{AppendError, LogError};
use folder::Folder;
pub use folder::make_folder;
pub(super) use folder::{MARK, replace_file};
pub use read::Batch;
use read::Cursor;
pub use recover::Recovered;
pub use state::Place;
use state::{Limits, State};
use tokio::time::Instant;

/// How often it is written down what is released, if that has changed: two fsyncs each time.
const WRITE_DOWN: Duration = Duration::from_secs(10);

/// Where a log is and how large it grows.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Its folder, which holds nothing else. It is made if it is missing.
    pub dir: PathBuf,
    /// Most bytes that the segments take on disk together. Files of damaged bytes do not count.
    pub max_bytes: u64,
    /// Bytes from which on a segment is followed by a new one; it is longer by at most one append. Disk is freed by the
    /// segment, so this is also how much a slow record keeps, and how much comes twice after a restart.
    pub segment_bytes: u64,
}

/// An opened log. Clones share it; the folder is free for another opening when the last is dropped.
#[derive(Clone, Debug)]
pub struct Log {
    inner: Arc<Inner>,
}

/// The locks are taken from top to bottom. `noted`, `cursor` and `active` are held during I/O, `state` never.
#[derive(Debug)]
struct Inner {
    folder: Folder,
    /// When it was written down what is released, and what was.
    noted: Mutex<(Instant, Vec<Place>)>,
    cursor: Mutex<Cursor>,
    /// The file of the segment that the state calls active.
    active: Mutex<Option<File>>,
    state: Mutex<State>,
}

impl Log {
    /// Opens the log and mends what a crash left. Reads all of it once, to check it.
    ///
    /// The records found are read first, in the order in which they were appended; new ones come behind them.
    ///
    /// # Errors
    /// [`LogError`] if the folder is in use, holds something else, or cannot be read or mended. No record is lost by it,
    /// and a later attempt may succeed once the reason, which the error names, is gone.
    pub fn open(config: LogConfig) -> Result<(Self, Recovered), LogError> {
        let folder = Folder::open(&config.dir)?;
        let limits = Limits { max_bytes: config.max_bytes, segment_bytes: config.segment_bytes };
        let (state, recovered) = recover::recover(&folder, limits)?;
        let (cursor, active) = (Mutex::new(Cursor::START), Mutex::new(None));
        // What the note says of segments that are gone stays there until it is written anew.
        let noted = Mutex::new((Instant::now(), state.settled()));
        let inner = Inner { folder, noted, cursor, active, state: Mutex::new(state) };
        Ok((Self { inner: Arc::new(inner) }, recovered))
    }

    /// Appends records in this order, all of them or none, and returns when they are on the disk. Costs one write and
    /// one fsync, and a few more when a segment begins; concurrent calls wait for each other. Of an append that a crash
    /// cut off, some records may be there afterwards, in order.
    ///
    /// # Errors
    /// [`AppendError`]; none of the records is in the log, and those appended before are.
    pub fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Place, AppendError> {
        self.inner.append(records)
    }

    /// Reads the oldest records that were neither read nor released: at most `limit_records` of together at most
    /// `limit_bytes`, but at least one. Fewer come where a segment or a run of unreleased records ends. `None` if there
    /// are none; they stay in the log until they are released.
    ///
    /// # Errors
    /// [`LogError::Damaged`] once for records that the disk lost, [`LogError::Io`] if it could not be read now. The next
    /// call goes on where this one stopped; behind records that the disk alone could not read, which stay in the log.
    pub fn read(&self, limit_records: usize, limit_bytes: usize) -> Result<Option<Batch>, LogError> {
        let batch = self.inner.read(limit_records, limit_bytes);
        if matches!(batch, Err(LogError::Damaged { .. })) {
            // Nothing may be left of the segment. What cannot be deleted now is tried again at the next release.
            let _retried_later = self.inner.delete_freed();
        }
        batch
    }

    /// Goes back to the oldest record that was not released, so that what was read and not settled is read again.
    pub fn rewind(&self) {
        *lock(&self.inner.cursor) = Cursor::START;
    }

    /// Says that records are settled and need not be kept, in whatever order that comes about, read or not. Those that
    /// were released before are passed over. Deletes the segments of which this was the last.
    ///
    /// # Errors
    /// [`LogError::Io`] if a file could not be deleted or written. The records are released all the same; the next call
    /// tries to delete the file again, and until then it counts in [`Log::bytes`].
    pub fn release(&self, places: impl IntoIterator<Item = Place>) -> Result<(), LogError> {
        {
            let mut state = lock(&self.inner.state);
            for place in places {
                state.settle(place);
            }
        }
        self.inner.delete_freed()?;
        let is_due = lock(&self.inner.noted).0.elapsed() >= WRITE_DOWN;
        if is_due { self.write_down() } else { Ok(()) }
    }

    /// Writes down what is released, so that the next opening does not read it again: for a clean end.
    ///
    /// # Errors
    /// [`LogError::Io`]; an earlier note stays, and some records come twice after the next opening.
    pub fn write_down(&self) -> Result<(), LogError> {
        let mut noted = lock(&self.inner.noted);
        noted.0 = Instant::now();
        let settled = lock(&self.inner.state).settled();
        if settled != noted.1 {
            released::write(&self.inner.folder, &settled)?;
            noted.1 = settled;
        }
        Ok(())
    }

    /// How many records were appended and not released.
    #[must_use]
    pub fn len(&self) -> u64 {
        lock(&self.inner.state).records()
    }

    /// Whether all were released.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the segments take on disk: what `max_bytes` bounds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        lock(&self.inner.state).bytes()
    }
}

impl Inner {
    fn delete_freed(&self) -> Result<(), LogError> {
        let freed = lock(&self.state).take_freed();
        if freed.is_empty() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for freed in freed {
            let deleted = self.folder.delete(freed.segment);
            lock(&self.state).has_deleted(freed, deleted.is_ok());
            outcome = outcome.and(deleted);
        }
        // A deleted file takes space for as long as it is open. If an append holds the lock, it closes the file itself.
        if let Ok(mut active) = self.active.try_lock()
            && !lock(&self.state).has_active()
        {
            *active = None;
        }
        outcome
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod crash;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
