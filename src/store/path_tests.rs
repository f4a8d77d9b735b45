//! The whole write path against a store that fails as ordered, with a real outbox and a real journal.

use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::*;
use crate::clock::Clock;
use crate::metrics::Ledger;
use crate::model::{Comment, Fate, Posted, Seq, Text, Timestamp, test_comment};
use crate::store::memory::{MemoryStore, POISON};
use crate::store::{Fault, FaultyStore, PushError};

pub(super) struct Scene {
    pub(super) dir: TempDir,
    pub(super) memory: Arc<MemoryStore>,
    pub(super) store: Arc<FaultyStore<MemoryStore>>,
    pub(super) posted: Vec<Arc<Posted>>,
}

/// One life of the server.
pub(super) struct Life {
    pub(super) path: WritePath,
    pub(super) metrics: Arc<Metrics>,
}

impl Scene {
    pub(super) fn new() -> Self {
        let memory = Arc::new(MemoryStore::new(Clock::manual(Timestamp::from_millis(0))));
        let store = Arc::new(FaultyStore::new(Arc::clone(&memory)));
        Self { dir: tempfile::tempdir().unwrap(), memory, store, posted: Vec::new() }
    }

    pub(super) fn config(&self) -> WritePathConfig {
        let ms = Duration::from_millis;
        WritePathConfig {
            queue: 100,
            flusher: FlusherConfig {
                interval: ms(10),
                batch: 10,
                in_flight: 2,
                backoff: ms(10),
                max_backoff: ms(20),
                patience: ms(50),
            },
            outbox: Some(OutboxConfig {
                dir: self.dir.path().join("outbox"),
                max_bytes: OutboxConfig::LEAST_BYTES,
                per_sec: 1_000_000,
            }),
            journal: None,
            data_dir: self.dir.path().to_owned(),
            store: "memory",
            part: Some("database d, collection c".into()),
        }
    }

    pub(super) fn journal(&self) -> Option<JournalConfig> {
        Some(JournalConfig { dir: self.dir.path().join("journal") })
    }

    pub(super) async fn begin(&self, config: WritePathConfig) -> Life {
        let metrics = Arc::new(Metrics::default());
        let store: Arc<dyn CommentStore> = Arc::clone(&self.store) as _;
        Life { path: WritePath::begin(config, &store, &metrics).await.unwrap(), metrics }
    }

    pub(super) fn make(&mut self, text: &str) -> Arc<Posted> {
        let n = u32::try_from(self.posted.len()).unwrap();
        let comment = Comment { text: Text::from_store(text), ..test_comment("r", 1, n, "x") };
        let posted = Arc::new(Posted::pending(comment, Seq(u64::from(n)), Arc::default()));
        self.posted.push(Arc::clone(&posted));
        posted
    }

    pub(super) fn push(&mut self, life: &Life, count: usize) {
        for _ in 0..count {
            let posted = self.make("x");
            life.path.queue().try_push(posted).unwrap();
        }
    }

    /// Pushes large comments until the outbox and the queue take no more.
    pub(super) async fn fill_up(&mut self, life: &Life) {
        // 64 MiB in comments of 200 KiB.
        let large = "x".repeat(200 * 1024);
        let mut refused = 0;
        while life.metrics.outbox_refused.get() == 0 || refused < 50 {
            let posted = self.make(&large);
            if life.path.queue().try_push(posted) == Err(PushError::Full) {
                self.posted.pop();
                refused += 1;
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

impl Life {
    pub(super) fn ledger(&self) -> Ledger {
        self.metrics.account.read()
    }

    pub(super) async fn until(&self, what: &str, is_so: impl Fn(Ledger) -> bool) {
        let wait = async {
            while !is_so(self.ledger()) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let late = || panic!("waited in vain until {what}: {}", self.ledger());
        timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| late());
    }

    /// Ends as after a kill: nothing is drained, the folders are just let go of.
    pub(super) async fn killed(self) {
        let Self { mut path, .. } = self;
        path.flusher.abort();
        if let Some(replayer) = path.replayer.take() {
            replayer.abort();
        }
        path.outbox = None;
        if let Some(journal) = path.journal.take() {
            tokio::task::spawn_blocking(|| journal.close()).await.unwrap();
        }
        // The flusher's batches in flight hold the outbox until they are gone.
        sleep(Duration::from_millis(50)).await;
    }

    /// Ends as a server does that is told to stop.
    pub(super) async fn end(mut self, within: Duration) -> (bool, Ledger) {
        self.path.queue().close().await;
        let is_flushed = self.path.drain(Instant::now() + within).await;
        (is_flushed, self.ledger())
    }
}

#[tokio::test]
async fn what_the_store_does_not_take_waits_in_the_outbox_and_is_stored_once_it_is_back() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.push(&life, 35);
    life.until("all of it is parked", |ledger| ledger.outbox == 35).await;
    assert!(life.metrics.outbox_in_use.get() == 1 && life.metrics.outbox_bytes.get() > 35 * 100);
    assert!(scene.posted.iter().all(|posted| posted.is_safe() && posted.fate().is_none()));
    scene.store.heal();
    life.until("all of it is stored", |ledger| (ledger.stored, ledger.outbox) == (35, 0)).await;
    assert!(scene.posted.iter().all(|posted| posted.fate() == Some(Fate::Stored)), "who still waits is told");
    assert_eq!((life.metrics.outbox_in_use.get(), scene.memory.all().len()), (0, 35));
    scene.push(&life, 5);
    life.until("what comes afterwards goes straight to the store", |ledger| ledger.stored == 40).await;
    assert_eq!(life.metrics.outbox_parked.get(), 35);
    let (is_flushed, ledger) = life.end(Duration::from_secs(10)).await;
    assert_eq!((is_flushed, ledger.unsettled()), (true, 0));
}

#[tokio::test]
async fn a_store_too_slow_for_the_patience_takes_everything_through_the_outbox_and_once() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_millis(300)));
    scene.push(&life, 10);
    life.until("it is parked", |ledger| ledger.outbox == 10).await;
    life.until("it is stored", |ledger| (ledger.stored, ledger.outbox) == (10, 0)).await;
    scene.store.fail_next_write(Fault::DoneButUnknown);
    scene.push(&life, 10);
    life.until("the rest is stored", |ledger| (ledger.stored, ledger.outbox) == (20, 0)).await;
    assert_eq!(scene.memory.all().len(), 20, "given up or not known, and then done again: stored once");
}

#[tokio::test]
async fn what_the_replayer_meets_is_told_and_readiness_follows() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Blocked);
    scene.push(&life, 10);
    life.until("it is parked", |ledger| ledger.outbox == 10).await;
    let queue = life.path.queue();
    let blocked = async |is_wanted: bool| {
        while queue.blocked().is_some() != is_wanted {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), blocked(true)).await.expect("the replayer says why nothing is stored");
    scene.store.heal();
    timeout(Duration::from_secs(10), blocked(false)).await.expect("and that it is, though no comment comes in");
    life.until("it is stored", |ledger| (ledger.stored, ledger.outbox) == (10, 0)).await;
}

#[tokio::test]
async fn a_stop_without_the_store_leaves_everything_to_the_next_start() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 60);
    let begun = Instant::now();
    let (is_flushed, ledger) = life.end(Duration::from_secs(3)).await;
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!((is_flushed, ledger.outbox, ledger.unsettled()), (true, 60, 0));
    scene.store.heal();
    let life = scene.begin(scene.config()).await;
    assert_eq!(life.ledger().recovered, 60);
    life.until("all of it is stored", |ledger| (ledger.stored, ledger.outbox) == (60, 0)).await;
    let ids: std::collections::HashSet<_> = scene.memory.all().iter().map(|comment| comment.id).collect();
    assert!(scene.posted.iter().all(|posted| ids.contains(&posted.comment.id)));
}

#[tokio::test]
async fn a_stop_whose_time_is_shorter_than_the_patience_still_parks_everything() {
    let mut scene = Scene::new();
    let mut config = scene.config();
    config.flusher.patience = Duration::from_secs(3600);
    let life = scene.begin(config).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 60);
    let (is_flushed, ledger) = life.end(Duration::from_secs(3)).await;
    assert_eq!((is_flushed, ledger.outbox, ledger.unsettled()), (true, 60, 0));
}

#[tokio::test]
async fn with_the_outbox_full_the_queue_fills_senders_are_refused_and_all_is_well_afterwards() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.fill_up(&life).await;
    let ledger = life.ledger();
    assert!(ledger.outbox > 200 && ledger.unsettled() >= 100, "{ledger}");
    assert!(life.metrics.outbox_bytes.get() <= i64::try_from(OutboxConfig::LEAST_BYTES).unwrap());
    scene.store.heal();
    let all = scene.posted.len();
    life.until("all of it is stored", |ledger| ledger.stored == all as u64 && ledger.outbox == 0).await;
    assert_eq!(scene.memory.all().len(), all);
}

#[tokio::test]
async fn one_that_the_store_refuses_is_set_aside_after_the_replay_as_well() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Refuse);
    let bad = scene.make(POISON);
    life.path.queue().try_push(bad).unwrap();
    scene.push(&life, 4);
    life.until("all of it is parked", |ledger| ledger.outbox == 5).await;
    scene.store.heal();
    life.until("each has its fate", |ledger| (ledger.stored, ledger.refused(), ledger.outbox) == (4, 1, 0)).await;
    assert_eq!(scene.posted[0].fate(), Some(Fate::SetAside));
    assert!(std::fs::read_to_string(scene.dir.path().join(ASIDE)).unwrap().contains(POISON));
}

#[tokio::test]
async fn with_a_journal_a_comment_is_kept_before_it_is_stored_and_survives_a_kill() {
    let mut scene = Scene::new();
    let config = WritePathConfig { journal: scene.journal(), outbox: None, ..scene.config() };
    let life = scene.begin(config.clone()).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 30);
    for posted in &scene.posted {
        timeout(Duration::from_secs(10), posted.kept()).await.expect("the disk takes it");
        assert!(!posted.is_safe());
    }
    assert!(life.metrics.journal_syncs.get() >= 1);
    life.killed().await;
    scene.store.heal();
    let life = scene.begin(config).await;
    assert_eq!((life.ledger().recovered, life.ledger().stored, scene.memory.all().len()), (30, 30, 30));
    let (is_flushed, ledger) = life.end(Duration::from_secs(10)).await;
    assert_eq!((is_flushed, ledger.unsettled()), (true, 0));
    let left: u64 = Leftovers::open(&JournalConfig { dir: scene.dir.path().join("journal/memory") })
        .unwrap()
        .next(1000)
        .unwrap()
        .map_or(0, |_| 1);
    assert_eq!(left, 0, "what is stored is let go of");
}

#[tokio::test]
async fn what_is_left_in_a_journal_is_not_brought_to_another_part_of_the_store() {
    let mut scene = Scene::new();
    let config = WritePathConfig { journal: scene.journal(), outbox: None, ..scene.config() };
    let life = scene.begin(config.clone()).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 30);
    for posted in &scene.posted {
        timeout(Duration::from_secs(10), posted.kept()).await.expect("the disk takes it");
    }
    life.killed().await;
    scene.store.heal();
    let other = WritePathConfig { part: Some("database e, collection c".into()), ..config.clone() };
    let store: Arc<dyn CommentStore> = Arc::clone(&scene.store) as _;
    let refused = WritePath::begin(other.clone(), &store, &Arc::default()).await.err().expect("they are not for it");
    assert!(matches!(&refused, WritePathError::Mark(MarkError::Other { comments: 30, .. })), "{refused}");
    assert_eq!(scene.memory.all().len(), 0);
    let life = scene.begin(config).await;
    assert_eq!((life.ledger().stored, life.end(Duration::from_secs(10)).await.1.unsettled()), (30, 0));
    scene.begin(other).await.killed().await;
}

#[tokio::test]
async fn what_is_left_in_a_journal_goes_to_the_outbox_though_the_journal_is_off_now() {
    let mut scene = Scene::new();
    let config = WritePathConfig { journal: scene.journal(), ..scene.config() };
    let mut slow = config.clone();
    slow.flusher.patience = Duration::from_secs(3600);
    let life = scene.begin(slow).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 30);
    for posted in &scene.posted {
        posted.kept().await;
    }
    life.killed().await;
    scene.store.heal();
    let life = scene.begin(scene.config()).await;
    life.until("all of it is stored", |ledger| (ledger.recovered, ledger.stored, ledger.outbox) == (30, 30, 0)).await;
    assert_eq!(scene.memory.all().len(), 30);
}

#[tokio::test]
async fn a_clean_stop_in_the_midst_of_a_replay_leaves_just_what_is_not_stored() {
    let mut scene = Scene::new();
    let mut config = scene.config();
    config.outbox.as_mut().unwrap().per_sec = 10;
    let life = scene.begin(config).await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.push(&life, 60);
    life.until("all of it is parked", |ledger| ledger.outbox == 60).await;
    scene.store.heal();
    life.until("some of it is stored", |ledger| ledger.stored >= 10).await;
    // What is stored is released before the second is over in which it may be.
    sleep(Duration::from_millis(200)).await;
    let (_, ledger) = life.end(Duration::from_secs(3)).await;
    assert!((1..60).contains(&ledger.outbox), "{ledger}");
    let life = scene.begin(scene.config()).await;
    assert_eq!(life.ledger().recovered, ledger.outbox);
    life.until("the rest is stored", |now| (now.stored, now.outbox) == (ledger.outbox, 0)).await;
    assert_eq!(scene.memory.all().len(), 60);
}

#[tokio::test]
async fn what_was_stored_does_not_come_out_of_a_closed_journal_again() {
    let mut scene = Scene::new();
    let config = WritePathConfig { journal: scene.journal(), outbox: None, ..scene.config() };
    let life = scene.begin(config.clone()).await;
    // The first batch hangs, those behind it do not.
    scene.store.fail_next_write(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 10);
    for posted in &scene.posted {
        posted.kept().await;
    }
    sleep(Duration::from_millis(100)).await;
    scene.push(&life, 20);
    life.until("those behind it are stored", |ledger| ledger.stored == 20).await;
    life.killed().await;
    scene.store.heal();
    let life = scene.begin(config).await;
    assert_eq!((life.ledger().recovered, scene.memory.all().len()), (10, 30));
}

/// Flips a bit in the last byte of the first segment of a log, and in one before it.
fn damage(dir: &Path) {
    let mut files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let path = files.find(|path| path.extension().is_some_and(|ending| ending == "log")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    // The length of the first record, and the last byte of the last.
    [24, last].into_iter().for_each(|at| bytes[at] ^= 1);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn what_the_disk_has_lost_of_the_outbox_is_in_the_ledger() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 60);
    let (_, ledger) = life.end(Duration::from_secs(3)).await;
    assert_eq!(ledger.outbox, 60);
    damage(&scene.dir.path().join("outbox"));
    scene.store.heal();
    let life = scene.begin(scene.config()).await;
    assert_eq!((life.ledger().recovered, life.ledger().refused()), (60, 2));
    life.until("the rest is stored", |ledger| (ledger.stored, ledger.outbox) == (58, 0)).await;
    assert_eq!(life.ledger().unsettled(), 0);
}

#[tokio::test]
async fn what_the_disk_has_lost_of_the_journal_is_in_the_ledger() {
    let mut scene = Scene::new();
    let config = WritePathConfig { journal: scene.journal(), outbox: None, ..scene.config() };
    let life = scene.begin(config.clone()).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    scene.push(&life, 30);
    for posted in &scene.posted {
        posted.kept().await;
    }
    life.killed().await;
    damage(&scene.dir.path().join("journal/memory"));
    scene.store.heal();
    let ledger = scene.begin(config).await.ledger();
    assert_eq!((ledger.recovered, ledger.stored, ledger.refused(), ledger.unsettled()), (30, 28, 2, 0));
}
