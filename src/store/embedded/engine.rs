//! One opened data folder: its keyspaces, its writes and what makes them durable. All calls block.
//!
//! Keyspaces: `meta` (format mark, probe), one for each [bucket](BucketId), and one `tip.…` (see [`Engine::drop_expired`]).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};

use super::bucket::BucketId;
use super::{fault, key};
use crate::clock::Clock;
use crate::model::Timestamp;
use crate::store::{Record, StoreError, WriteReport};

/// The version of everything that is ours in the folder. A new one goes with a reader for the old.
const FORMAT: u32 = 1;
const FORMAT_KEY: &str = "format";
const PROBE_KEY: &str = "probe";
const META: &str = "meta";
const TIP: &str = "tip.";

/// Half a bucket's usual size at a few thousand comments a second; 17 buckets then hold at most 136 MiB in memory.
const MEMTABLE_BYTES: u64 = 8 << 20;
/// The least that the engine takes. Above it the engine flushes whichever bucket keeps the oldest journal alive.
const JOURNAL_BYTES: u64 = 64 << 20;

/// One keyspace of comments.
struct Bucket {
    keyspace: Keyspace,
    /// Whether it was written to since the last retention pass.
    is_warm: AtomicBool,
    /// Whether its memtable holds comments.
    is_dirty: AtomicBool,
}

/// The opened folder. Dropping it lets go of every file.
pub(super) struct Engine {
    db: Database,
    meta: Keyspace,
    narrowest: Duration,
    clock: Clock,
    /// Held for reading while a batch is committed and for writing while buckets come and go: the engine itself lets a
    /// batch into a keyspace that is being deleted, and it would be gone with it.
    buckets: RwLock<BTreeMap<BucketId, Bucket>>,
    commits: AtomicU64,
    /// How many commits the last fsync is known to cover.
    synced: Mutex<u64>,
    is_poisoned: AtomicBool,
    is_untrustworthy: AtomicBool,
}

impl Engine {
    pub(super) fn open(dir: &Path, narrowest: Duration, clock: Clock) -> Result<Self, StoreError> {
        refuse_foreign(dir)?;
        let refused = |error| fault::classify_open(dir, error);
        // Two workers: one may flush while the other compacts.
        let builder = Database::builder(dir).worker_threads(2).max_journaling_size(JOURNAL_BYTES);
        let db = builder.open().map_err(refused)?;
        let names = db.list_keyspace_names();
        let meta = check_format(&db, dir, names.is_empty())?;
        let mut buckets = BTreeMap::new();
        for id in names.iter().filter_map(|name| BucketId::parse(name)) {
            let keyspace = db.keyspace(&id.name(), options).map_err(refused)?;
            buckets.insert(id, Bucket { keyspace, is_warm: false.into(), is_dirty: true.into() });
        }
        Ok(Self {
            db,
            meta,
            narrowest,
            clock,
            buckets: RwLock::new(buckets),
            commits: AtomicU64::new(0),
            synced: Mutex::new(0),
            is_poisoned: AtomicBool::new(false),
            is_untrustworthy: AtomicBool::new(false),
        })
    }

    /// Whether the folder must be opened anew before anything can be written.
    pub(super) fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    /// Whether only a restart after a look at the disk will do.
    pub(super) fn is_untrustworthy(&self) -> bool {
        self.is_untrustworthy.load(Ordering::Acquire)
    }

    /// Makes the batch durable, all of it or nothing.
    pub(super) fn write(&self, batch: &[Record]) -> Result<WriteReport, StoreError> {
        let duplicates = loop {
            let missing = {
                let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
                match self.commit(batch, &buckets)? {
                    Commit::Done { duplicates } => break duplicates,
                    Commit::Missing(missing) => missing,
                }
            };
            self.create(missing)?;
        };
        // Also when all were duplicates: the write that brought them may still be waiting for its fsync.
        self.sync()?;
        Ok(WriteReport { set_aside: Vec::new(), duplicates })
    }

    fn commit(&self, batch: &[Record], buckets: &BTreeMap<BucketId, Bucket>) -> Result<Commit, StoreError> {
        let now = self.clock.now();
        let mut write = OwnedWriteBatch::with_capacity(self.db.clone(), batch.len()).durability(None);
        let (mut seen, mut missing, mut duplicates) = (HashSet::with_capacity(batch.len()), BTreeSet::new(), 0);
        let mut touched = BTreeSet::new();
        for record in batch {
            let comment = &record.posted.comment;
            let id = BucketId::of(comment, self.narrowest);
            if id.has_expired(now) {
                // Its bucket would be made only to be dropped; nobody may read the comment any more.
                continue;
            }
            let Some(bucket) = buckets.get(&id) else {
                missing.insert(id);
                continue;
            };
            let key = key::encode(&comment.room, comment.position());
            let is_stored = bucket.keyspace.contains_key(&key).map_err(|error| self.failed("writing", error))?;
            if is_stored || !seen.insert((id, key.clone())) {
                duplicates += 1;
                continue;
            }
            touched.insert(id);
            write.insert(&bucket.keyspace, key, record.bytes.as_ref());
        }
        if !missing.is_empty() {
            return Ok(Commit::Missing(missing));
        }
        for bucket in touched.iter().filter_map(|id| buckets.get(id)) {
            bucket.is_warm.store(true, Ordering::Release);
            bucket.is_dirty.store(true, Ordering::Release);
        }
        write.commit().map_err(|error| self.failed_for_good("writing", error))?;
        Ok(Commit::Done { duplicates })
    }

    fn create(&self, missing: BTreeSet<BucketId>) -> Result<(), StoreError> {
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        for id in missing {
            if let Entry::Vacant(place) = buckets.entry(id) {
                let keyspace = self.db.keyspace(&id.name(), options).map_err(|error| self.failed("writing", error))?;
                place.insert(Bucket { keyspace, is_warm: true.into(), is_dirty: false.into() });
            }
        }
        Ok(())
    }

    /// Returns once everything committed before the call is on the disk. Calls that wait while another one's fsync runs
    /// share the next.
    fn sync(&self) -> Result<(), StoreError> {
        let mine = self.commits.fetch_add(1, Ordering::AcqRel) + 1;
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if *synced >= mine {
            return Ok(());
        }
        let covered = self.commits.load(Ordering::Acquire);
        // fdatasync also writes the metadata that is needed to read the data back, so the journal's growth too.
        self.db.persist(PersistMode::SyncData).map_err(|error| self.failed_for_good("syncing", error))?;
        *synced = covered;
        Ok(())
    }

    /// The keyspaces that may hold comments that have not expired, each with its comments up to now.
    pub(super) fn live(&self, now: Timestamp) -> (fjall::Snapshot, Vec<Keyspace>) {
        let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let live = buckets.iter().filter(|(id, _)| !id.has_expired(now));
        (self.db.snapshot(), live.map(|(_, bucket)| bucket.keyspace.clone()).collect())
    }

    /// Drops the buckets of which every comment has expired; gives back how many.
    ///
    /// Then moves buckets that are no longer written to from memory to their files. The engine writes a bucket out
    /// when it is large; small ones would stay in memory and keep every journal since their first comment on disk.
    pub(super) fn drop_expired(&self) -> Result<usize, StoreError> {
        let failed = |error| self.failed("dropping expired comments", error);
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let expired: Vec<BucketId> = buckets.keys().copied().filter(|id| id.has_expired(now)).collect();
        if !expired.is_empty() {
            self.renew_tip().map_err(failed)?;
        }
        for id in &expired {
            if let Some(bucket) = buckets.get(id) {
                self.db.delete_keyspace(bucket.keyspace.clone()).map_err(failed)?;
                buckets.remove(id);
            }
        }
        for bucket in buckets.values() {
            let is_cold = !bucket.is_warm.swap(false, Ordering::AcqRel);
            if is_cold && bucket.is_dirty.swap(false, Ordering::AcqRel) {
                // Hidden in the engine's documentation, but the only way to ask for it.
                bucket.keyspace.rotate_memtable().map_err(failed)?;
            }
        }
        Ok(expired.len())
    }

    /// Puts an empty keyspace above all others before any is deleted.
    ///
    /// fjall 3.1 numbers keyspaces from the highest it finds when it opens a folder, and its write numbers from the
    /// highest in the keyspaces that are left, its own table of keyspaces not counted. Were the highest keyspaces
    /// deleted, their numbers would come again, and in that table the old deletion, having the higher write number,
    /// would win over the new entry: at a later start the new keyspace is gone, with comments that had been synced.
    fn renew_tip(&self) -> fjall::Result<()> {
        let is_tip = |name: &str| name.starts_with(TIP);
        let old: Vec<_> = self.db.list_keyspace_names().into_iter().filter(|name| is_tip(name)).collect();
        let last = old.iter().filter_map(|name| name.strip_prefix(TIP)?.parse::<u64>().ok()).max().unwrap_or(0);
        self.db.keyspace(&format!("{TIP}{}", last + 1), options)?;
        for name in old {
            self.db.delete_keyspace(self.db.keyspace(&name, options)?)?;
        }
        Ok(())
    }

    /// Writes, syncs and reads back a mark.
    pub(super) fn probe(&self) -> Result<(), StoreError> {
        let mark = self.clock.now().millis().to_be_bytes();
        self.meta.insert(PROBE_KEY, mark).map_err(|error| self.failed_for_good("probing", error))?;
        self.sync()?;
        match self.meta.get(PROBE_KEY).map_err(|error| self.failed("probing", error))? {
            Some(_) => Ok(()),
            None => Err(fault::blocked("the embedded store does not give back what was written to it")),
        }
    }

    /// Puts everything on the disk, for an orderly end.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.db.persist(PersistMode::SyncAll).map_err(|error| self.failed("closing", error))
    }

    /// Classifies the engine's error and remembers what it means for the operations to come.
    pub(super) fn failed(&self, doing: &str, error: fjall::Error) -> StoreError {
        self.is_poisoned.fetch_or(matches!(error, fjall::Error::Poisoned), Ordering::AcqRel);
        fault::classify(doing, error)
    }

    /// As [`Engine::failed`], for failures after which the engine takes no more writes.
    pub(super) fn failed_for_good(&self, doing: &str, error: fjall::Error) -> StoreError {
        self.is_untrustworthy.fetch_or(fault::is_untrustworthy(&error), Ordering::AcqRel);
        self.is_poisoned.store(true, Ordering::Release);
        fault::classify(doing, error)
    }
}

enum Commit {
    Done { duplicates: usize },
    Missing(BTreeSet<BucketId>),
}

fn options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES)
}

/// Refuses a folder that the engine would take for an empty one and write into.
fn refuse_foreign(dir: &Path) -> Result<(), StoreError> {
    let refused = |error| fault::classify_open(dir, fjall::Error::Io(error));
    if !dir.try_exists().map_err(refused)? || dir.join("version").try_exists().map_err(refused)? {
        return Ok(());
    }
    let Some(first) = dir.read_dir().map_err(refused)?.next() else { return Ok(()) };
    let first = first.map_err(refused)?.file_name();
    Err(fault::blocked(format!(
        "the data folder {} holds {}, but no danmakud data, or a first start in it was cut off: empty it or name another",
        dir.display(),
        first.display(),
    )))
}

/// Reads the format mark, or sets it in a new folder.
fn check_format(db: &Database, dir: &Path, is_new: bool) -> Result<Keyspace, StoreError> {
    let refused = |error| fault::classify_open(dir, error);
    let meta = db.keyspace(META, options).map_err(refused)?;
    let mark = meta.get(FORMAT_KEY).map_err(refused)?;
    let dir = dir.display();
    match mark.as_deref().map(std::str::from_utf8) {
        // Also when `meta` is all there is: a first start may have been cut off before the mark was on the disk.
        None if is_new || db.keyspace_count() == 1 => {
            meta.insert(FORMAT_KEY, FORMAT.to_string()).map_err(refused)?;
            db.persist(PersistMode::SyncAll).map_err(refused)?;
            Ok(meta)
        }
        None => Err(fault::blocked(format!("the data folder {dir} does not belong to danmakud"))),
        Some(Ok(mark)) if mark.parse() == Ok(FORMAT) => Ok(meta),
        Some(mark) => Err(fault::blocked(format!(
            "the data folder {dir} is in format {}, and this server reads format {FORMAT}: use the server that wrote it, or another folder",
            mark.unwrap_or("?"),
        ))),
    }
}
