//! The flusher against stores that fail as ordered, in paused time.

use std::collections::HashSet;
use std::path::PathBuf;

use proptest::prelude::*;
use tokio::time::timeout;

use super::*;
use crate::clock::Clock;
use crate::model::Fate;
use crate::model::{Comment, Seq, Text, Timestamp, test_comment};
use crate::store::memory::{MemoryStore, POISON};
use crate::store::{Fault, FaultyStore, PushError};

const TICK: Duration = Duration::from_millis(100);

struct Scene {
    queue: WriteQueue,
    memory: Arc<MemoryStore>,
    store: Arc<FaultyStore<MemoryStore>>,
    metrics: Arc<Metrics>,
    task: JoinHandle<()>,
    posted: Vec<Arc<Posted>>,
    dir: tempfile::TempDir,
}

impl Scene {
    async fn new(batch: usize, in_flight: usize) -> Self {
        let metrics = Arc::new(Metrics::default());
        let queue = WriteQueue::new(10_000, batch, Arc::clone(&metrics));
        let memory = Arc::new(MemoryStore::new(Clock::manual(Timestamp::from_millis(0))));
        let store = Arc::new(FaultyStore::new(Arc::clone(&memory)));
        let dir = tempfile::tempdir().unwrap();
        let (backoff, max_backoff) = (Duration::from_millis(100), Duration::from_millis(400));
        let config = FlusherConfig { interval: TICK, batch, in_flight, backoff, max_backoff, patience: Duration::ZERO };
        let aside = AsideFile::new(Self::aside(&dir));
        let task =
            Flusher::new(config, FlusherParts::new(queue.clone(), store.clone(), aside, Arc::clone(&metrics))).spawn();
        // Past the first tick, which comes at once.
        sleep(Duration::from_millis(1)).await;
        Self { queue, memory, store, metrics, task, posted: Vec::new(), dir }
    }

    fn aside(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("aside.jsonl")
    }

    fn push(&mut self, n: usize) {
        (0..n).for_each(|_| self.push_text("x"));
    }

    fn push_text(&mut self, text: &str) {
        let n = u32::try_from(self.posted.len()).unwrap();
        let comment = Comment { text: Text::from_store(text), ..test_comment("r", 1, n, "x") };
        let posted = Arc::new(Posted::pending(comment, Seq(u64::from(n)), Arc::default()));
        self.queue.try_push(Arc::clone(&posted)).unwrap();
        self.posted.push(posted);
    }

    async fn settle_all(&self) {
        let all = async {
            for posted in &self.posted {
                posted.settled().await;
            }
        };
        timeout(Duration::from_secs(600), all).await.expect("every fate becomes known");
    }

    async fn close(self) -> (Arc<Metrics>, Vec<Arc<Posted>>, Arc<MemoryStore>, WriteQueue) {
        self.queue.close().await;
        timeout(Duration::from_secs(600), self.task).await.expect("the task ends").unwrap();
        (self.metrics, self.posted, self.memory, self.queue)
    }

    /// Every fate is what the ledger and the store say.
    fn check(&self) {
        let count = |fate| self.posted.iter().filter(|posted| posted.fate() == fate).count() as u64;
        let ledger = self.queue.ledger();
        assert_eq!(ledger.accepted, self.posted.len() as u64);
        assert_eq!((ledger.stored, ledger.refused()), (count(Some(Fate::Stored)), count(Some(Fate::SetAside))));
        assert_eq!(ledger.unsettled(), count(None));
        let kept: HashSet<_> = self.memory.all().iter().map(|comment| comment.id).collect();
        let is_stored = |posted: &&Arc<Posted>| posted.fate() == Some(Fate::Stored);
        assert!(self.posted.iter().filter(is_stored).all(|posted| kept.contains(&posted.comment.id)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_goes_at_once_and_the_rest_with_the_tick() {
    let mut scene = Scene::new(10, 2).await;
    let begun = Instant::now();
    scene.push(10);
    scene.settle_all().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    scene.push(9);
    scene.settle_all().await;
    assert_eq!(begun.elapsed(), TICK - Duration::from_millis(1));
    assert_eq!((scene.store.attempts().writes, scene.store.attempts().records), (2, 19));
    scene.check();
}

#[tokio::test(start_paused = true)]
async fn so_many_batches_as_allowed_are_on_their_way_at_once() {
    let mut scene = Scene::new(2, 3).await;
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(1)));
    let begun = Instant::now();
    scene.push(8);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(scene.store.attempts().writes, 3);
    scene.check();
    scene.settle_all().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
    assert_eq!(scene.store.attempts().writes, 4);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_is_kept_and_tried_again_ever_later() {
    for _ in 0..20 {
        let mut scene = Scene::new(3, 1).await;
        (0..5).for_each(|_| scene.store.fail_next_write(Fault::Refuse));
        let begun = Instant::now();
        scene.push(3);
        scene.settle_all().await;
        // 100, 200, 400, 400, 400 ms, of each at least a half.
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(750) && waited <= Duration::from_millis(1510), "{waited:?}");
        assert_eq!((scene.store.attempts().writes, scene.store.attempts().records), (6, 18));
        assert_eq!(scene.metrics.flush_retries.get_or_create(&[("class", "transient")]).get(), 5);
        scene.check();
    }
}

#[test]
fn pauses_differ_so_that_batches_do_not_come_back_together() {
    let backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_millis(400) };
    for (attempt, most) in [(1, 100), (2, 200), (3, 400), (4, 400), (100, 400), (u32::MAX, 400)] {
        let most = Duration::from_millis(most);
        let pauses: HashSet<_> = (0..50).map(|_| backoff.pause_after(attempt)).collect();
        assert!(pauses.iter().all(|pause| *pause >= most / 2 && *pause <= most), "{attempt}: {pauses:?}");
        assert!(pauses.len() > 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_counts_once() {
    let mut scene = Scene::new(5, 1).await;
    (0..3).for_each(|_| scene.store.fail_next_write(Fault::DoneButUnknown));
    scene.push(5);
    sleep(Duration::from_millis(1)).await;
    assert_eq!((scene.memory.all().len(), scene.queue.ledger().stored), (5, 0), "stored, but nobody knows");
    scene.settle_all().await;
    assert_eq!((scene.memory.all().len(), scene.queue.ledger().stored), (5, 5));
    scene.check();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_needs_somebody_is_shown_until_it_is_mended() {
    let mut scene = Scene::new(2, 1).await;
    scene.store.fail_until_told(Fault::Blocked);
    scene.push(2);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(scene.metrics.flush_blocked.get(), 1);
    assert!(scene.metrics.flush_retries.get_or_create(&[("class", "blocked")]).get() > 10);
    scene.check();
    scene.store.heal();
    scene.settle_all().await;
    assert_eq!(scene.metrics.flush_blocked.get(), 0);
    scene.check();
}

#[tokio::test(start_paused = true)]
async fn one_bad_document_is_set_aside_with_its_reason_and_the_others_stored() {
    let mut scene = Scene::new(500, 1).await;
    scene.push(250);
    scene.push_text(POISON);
    scene.push(249);
    scene.settle_all().await;
    assert_eq!(scene.memory.all().len(), 499);
    let bad = &scene.posted[250];
    assert_eq!(bad.fate(), Some(Fate::SetAside));
    let file = std::fs::read_to_string(Scene::aside(&scene.dir)).unwrap();
    let lines: Vec<serde_json::Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["id"], bad.comment.id.to_string());
    assert_eq!((&lines[0]["reason"], &lines[0]["text"]), (&"schema".into(), &POISON.into()));
    assert_eq!(scene.metrics.account.read().set_aside, [1, 0, 0, 0]);
    scene.check();
}

#[tokio::test(start_paused = true)]
async fn a_comment_is_set_aside_even_if_it_cannot_be_written_down() {
    let mut scene = Scene::new(2, 1).await;
    std::fs::create_dir(Scene::aside(&scene.dir)).unwrap();
    scene.push_text(POISON);
    scene.push(1);
    scene.settle_all().await;
    scene.check();
}

#[tokio::test(start_paused = true)]
async fn closing_drains_everything_through_an_outage_and_then_ends() {
    let mut scene = Scene::new(4, 2).await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.push(30);
    sleep(Duration::from_secs(5)).await;
    let store = Arc::clone(&scene.store);
    let healer = tokio::spawn(async move {
        sleep(Duration::from_secs(20)).await;
        store.heal();
    });
    let (metrics, posted, memory, queue) = scene.close().await;
    assert!(healer.is_finished(), "it waits for the store");
    assert_eq!((memory.all().len(), metrics.account.read().stored, queue.ledger().unsettled()), (30, 30, 0));
    assert_eq!(queue.try_push(Arc::clone(&posted[0])), Err(PushError::Closed));
}

#[tokio::test(start_paused = true)]
async fn aborting_it_leaves_exactly_the_rest_unsettled() {
    let mut scene = Scene::new(4, 2).await;
    scene.push(8);
    scene.settle_all().await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.push(11);
    sleep(Duration::from_secs(1)).await;
    scene.task.abort();
    assert!((&mut scene.task).await.unwrap_err().is_cancelled());
    scene.store.heal();
    sleep(Duration::from_secs(60)).await;
    assert_eq!((scene.queue.ledger().unsettled(), scene.memory.all().len()), (11, 8));
    scene.check();
}

#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    PushPoison,
    Next(Fault),
    Standing(Fault),
    Heal,
    Wait(u64),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (1u64..900).prop_map(|ms| Fault::Slow(Duration::from_millis(ms))),
        Just(Fault::Refuse),
        Just(Fault::Blocked),
        Just(Fault::DoneButUnknown),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (1usize..12).prop_map(Op::Push),
        2 => Just(Op::PushPoison),
        4 => fault().prop_map(Op::Next),
        1 => fault().prop_map(Op::Standing),
        1 => Just(Op::Heal),
        5 => (0u64..400).prop_map(Op::Wait),
    ]
}

async fn through(batch: usize, in_flight: usize, ops: Vec<Op>) {
    let mut scene = Scene::new(batch, in_flight).await;
    for op in ops {
        match op {
            Op::Push(n) => scene.push(n),
            Op::PushPoison => scene.push_text(POISON),
            Op::Next(fault) => scene.store.fail_next_write(fault),
            Op::Standing(fault) => scene.store.fail_until_told(fault),
            Op::Heal => scene.store.heal(),
            Op::Wait(ms) => sleep(Duration::from_millis(ms)).await,
        }
    }
    scene.store.heal();
    let (metrics, posted, memory, queue) = scene.close().await;
    let mut kept: Vec<_> = memory.all().iter().map(|comment| comment.id).collect();
    kept.sort_unstable();
    let is_poison = |posted: &&Arc<Posted>| posted.comment.text.as_str() == POISON;
    let (bad, good): (Vec<_>, Vec<_>) = posted.iter().partition(is_poison);
    let mut expected: Vec<_> = good.iter().map(|posted| posted.comment.id).collect();
    expected.sort_unstable();
    assert_eq!(kept, expected, "each is stored exactly once");
    assert!(good.iter().all(|posted| posted.fate() == Some(Fate::Stored)));
    assert!(bad.iter().all(|posted| posted.fate() == Some(Fate::SetAside)));
    let ledger = queue.ledger();
    assert_eq!((ledger.stored, ledger.refused()), (good.len() as u64, bad.len() as u64));
    assert_eq!((ledger.unsettled(), metrics.flush_blocked.get()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn through_any_faults_every_comment_is_stored_once_or_set_aside(
        batch in 1usize..9,
        in_flight in 1usize..4,
        ops in prop::collection::vec(op(), 0..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(through(batch, in_flight, ops));
    }
}
