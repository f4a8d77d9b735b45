//! The ring against a plain list, under random operations.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::model::{Fate, test_comment};
use crate::room::batch::Taste;
use crate::room::testing::{BEGUN, PlainEncoder};

const EPOCH: Epoch = Epoch(7);
const OTHER: Epoch = Epoch(8);

#[derive(Clone, Debug)]
enum Op {
    /// Pushes so many comments, each so many milliseconds after the one before.
    Push(usize, i64),
    Cut,
    /// Puts the newest so many that the store has in front; it has all but the newest so many pushed ones.
    Prepend(prop::sample::Index, prop::sample::Index),
    /// Shows what the store has, which is every so manieth comment.
    Glimpse(usize),
    /// Resumes after one of all comments ever.
    Resume(prop::sample::Index, bool),
    BatchesFrom(prop::sample::Index, usize),
    Latest(usize),
    Settle(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let any_one = any::<prop::sample::Index>;
    prop_oneof![
        6 => (1usize..6, 0i64..3).prop_map(|(n, by)| Op::Push(n, by)),
        1 => (200usize..300, 0i64..2).prop_map(|(n, by)| Op::Push(n, by)),
        6 => Just(Op::Cut),
        2 => (any_one(), any_one()).prop_map(|(page, unflushed)| Op::Prepend(page, unflushed)),
        2 => (1usize..4).prop_map(Op::Glimpse),
        4 => (any_one(), any::<bool>()).prop_map(|(which, is_here)| Op::Resume(which, is_here)),
        2 => (any_one(), 0usize..4).prop_map(|(from, limit)| Op::BatchesFrom(from, limit)),
        1 => (0usize..20).prop_map(Op::Latest),
        1 => any_one().prop_map(Op::Settle),
    ]
}

/// The ring beside all comments that the room ever had, oldest first; the first `before` are from an earlier life.
struct Twin {
    ring: Ring,
    capacity: usize,
    all: Vec<Comment>,
    before: usize,
    pushed: Vec<Arc<Posted>>,
    ts: i64,
    n: u32,
    overhang: Arc<AtomicUsize>,
    is_prepended: bool,
    has_dropped: bool,
}

impl Twin {
    fn new(capacity: usize, before: &[i64]) -> Self {
        let ring = Ring::new(EPOCH, capacity, Timestamp::from_millis(BEGUN));
        let overhang = Arc::default();
        let (all, pushed) = (Vec::new(), Vec::new());
        let (is_prepended, has_dropped) = (false, false);
        let ts = BEGUN - 1 - before.iter().sum::<i64>();
        let mut twin =
            Self { ring, capacity, all, before: before.len(), pushed, ts, n: 0, overhang, is_prepended, has_dropped };
        for by in before {
            let comment = twin.make(*by);
            twin.all.push(comment);
        }
        twin.ts = BEGUN;
        twin
    }

    fn make(&mut self, by: i64) -> Comment {
        self.ts += by;
        self.n += 1;
        test_comment("r", self.ts, self.n, "x")
    }

    fn push(&mut self, by: i64) {
        let comment = self.make(by);
        self.all.push(comment.clone());
        let posted = Arc::new(Posted::pending(comment, self.ring.next(), Arc::clone(&self.overhang)));
        self.pushed.push(Arc::clone(&posted));
        let start = self.ring.start();
        self.ring.push(posted, Instant::now());
        self.has_dropped |= self.ring.start() != start;
    }

    fn prepend(&mut self, page: prop::sample::Index, unflushed: prop::sample::Index) {
        let stored = self.all.len() - unflushed.index(self.pushed.len() + 1);
        let take = page.index(stored + 1);
        let page = self.all[stored - take..stored].to_vec();
        let before: Vec<_> = self.ring.iter().map(|posted| posted.seq).collect();
        let is_taken = self.ring.prepend(page, take == stored);
        assert_eq!(is_taken, !self.is_prepended && !self.has_dropped, "once, and only while nothing was dropped");
        if !is_taken {
            assert_eq!(self.ring.iter().map(|posted| posted.seq).collect::<Vec<_>>(), before);
        }
        self.is_prepended |= is_taken;
    }

    fn resume(&mut self, which: prop::sample::Index, is_here: bool) {
        if self.all.is_empty() {
            return;
        }
        let i = which.index(self.all.len());
        let position = self.all[i].position();
        if is_here {
            let Some(posted) = i.checked_sub(self.before).map(|i| &self.pushed[i]) else { return };
            let cursor = Cursor { epoch: EPOCH, seq: posted.seq, position, given: None };
            assert_eq!(self.ring.resume(&cursor), Some(posted.seq.plus(1).min(self.ring.cut_end())));
            return;
        }
        // As a room does it: the place may be among comments that are not cut yet.
        self.ring.cut();
        let here: Vec<_> = self.ring.iter().map(|posted| posted.comment.id).collect();
        match self.ring.resume(&Cursor { epoch: OTHER, seq: Seq(3), position, given: None }) {
            None => assert!(!here.contains(&self.all[i].id), "a comment in the ring is where one can resume"),
            Some(place) => {
                let skip = usize::try_from(place.since(self.ring.start())).unwrap();
                let rest: Vec<_> = self.all[i + 1..].iter().map(|comment| comment.id).collect();
                assert_eq!(&here[skip..], rest, "exactly what followed");
            }
        }
    }

    fn batches_from(&self, from: prop::sample::Index, limit: usize) {
        let from = Seq(self.ring.start().0 + from.index(self.ring.len + 1) as u64);
        let mut batches = Vec::new();
        self.ring.batches_from(from, limit, &mut batches);
        assert!(batches.len() <= limit);
        if limit > 0 && from < self.ring.cut_end() {
            assert!(batches[0].first() <= from && from < batches[0].end());
        } else {
            assert!(batches.is_empty());
        }
        assert!(batches.windows(2).all(|two| two[0].end() == two[1].first()));
        assert!(batches.iter().all(|batch| (1..=MAX_BATCH).contains(&batch.comments().len())));
    }

    fn latest(&self, limit: usize) {
        let cut = self.all[..self.all.len() - self.ring.open.len()].iter().map(|comment| comment.id);
        let latest: Vec<_> = self.ring.latest(limit).iter().map(|posted| posted.comment.id).collect();
        let from_ring = limit.min(self.ring.len - self.ring.open.len());
        let shown = if self.ring.has_glimpse() { latest.len() - from_ring } else { 0 };
        assert!(cut.clone().collect::<Vec<_>>().ends_with(&latest[shown..]));
        assert_eq!(latest.len(), shown + from_ring);
        assert!(latest.len() <= limit && (shown == 0 || !self.has_dropped), "it is shown before a hole");
        let mut all = cut;
        assert!(latest.iter().all(|id| all.any(|one| one == *id)), "out of order or doubled");
    }

    fn check(&self) {
        let ring = &self.ring;
        let here: Vec<_> = ring.iter().cloned().collect();
        assert_eq!(here.len(), ring.len);
        assert!(ring.len < self.capacity.max(1) + MAX_BATCH);
        assert!(ring.len >= self.pushed.len().min(self.capacity), "nothing was dropped without need");
        assert!(here.iter().enumerate().all(|(i, posted)| posted.seq == ring.start().plus(i)), "there is a hole");
        assert_eq!(ring.start().plus(ring.len), ring.next());
        assert_eq!(ring.cut_end().plus(ring.open.len()), ring.next());
        let ids: Vec<_> = here.iter().map(|posted| posted.comment.id).collect();
        assert!(self.all.iter().map(|comment| comment.id).collect::<Vec<_>>().ends_with(&ids), "doubled or lost");
        let ids: HashSet<_> = ids.into_iter().collect();
        let claimed = self.all.iter().filter(|comment| comment.ts >= ring.whole_from());
        assert!(claimed.clone().all(|comment| ids.contains(&comment.id)), "it is not whole from there on");
        let is_left = |posted: &&Arc<Posted>| !ids.contains(&posted.comment.id) && posted.fate().is_none();
        assert_eq!(self.overhang.load(Ordering::SeqCst), self.pushed.iter().filter(is_left).count());
        let cursor = ring.cursor();
        assert_eq!((cursor.epoch, cursor.seq.plus(1)), (EPOCH, ring.cut_end()), "the cursor stands on a cut");
        let uncut = &self.all[self.all.len() - ring.open.len()..];
        assert!(uncut.iter().all(|comment| comment.position() > cursor.position));
        if !self.pushed.is_empty() {
            let cut = &self.all[..self.all.len() - ring.open.len()];
            let dropped_or_had = |comment: &Comment| ids.contains(&comment.id) || self.has_dropped;
            let had = cut.iter().filter(|comment| dropped_or_had(comment));
            assert!(had.clone().all(|comment| comment.position() <= cursor.position));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn the_ring_is_the_newest_part_of_all_comments(
        capacity in prop_oneof![0usize..12, 200usize..600],
        before in prop::collection::vec(0i64..3, 0..20),
        ops in prop::collection::vec(op(), 0..60),
    ) {
        let mut twin = Twin::new(capacity, &before);
        twin.check();
        for op in ops {
            match op {
                Op::Push(n, by) => (0..n).for_each(|_| twin.push(by)),
                Op::Cut => twin.ring.cut(),
                Op::Prepend(page, unflushed) => twin.prepend(page, unflushed),
                Op::Glimpse(every) => twin.ring.glimpse(twin.all.iter().step_by(every).cloned().collect()),
                Op::Resume(which, is_here) => twin.resume(which, is_here),
                Op::BatchesFrom(from, limit) => twin.batches_from(from, limit),
                Op::Latest(limit) => twin.latest(limit),
                Op::Settle(_) if twin.pushed.is_empty() => {}
                Op::Settle(which) => twin.pushed[which.index(twin.pushed.len())].settle(Fate::Stored),
            }
            twin.check();
        }
    }
}

#[test]
fn a_reader_that_begins_while_all_is_uncut_gets_all_of_it() {
    let mut twin = Twin::new(10, &[]);
    twin.push(1);
    let cursor = twin.ring.cursor();
    twin.ring.cut();
    assert_eq!(twin.ring.resume(&cursor), Some(twin.pushed[0].seq));
}

#[test]
fn what_the_store_has_is_not_put_in_front_again_once_it_was_dropped() {
    let mut twin = Twin::new(3, &[1, 1]);
    assert!(twin.ring.prepend(twin.all.clone(), true));
    (0..4).for_each(|_| twin.push(1));
    assert_eq!(twin.ring.start(), FIRST, "just what was put in front has been dropped");
    assert!(!twin.ring.prepend(twin.all[..2].to_vec(), true));
}

#[test]
fn a_glimpse_is_shown_and_no_more_until_all_is_put_in_front() {
    let mut twin = Twin::new(10, &[1, 1, 1]);
    twin.ring.glimpse(vec![twin.all[0].clone(), twin.all[2].clone()]);
    twin.push(1);
    twin.ring.cut();
    let texts = |twin: &Twin| twin.ring.latest(9).iter().map(|posted| posted.comment.id).collect::<Vec<_>>();
    let ids: Vec<_> = twin.all.iter().map(|comment| comment.id).collect();
    assert_eq!(texts(&twin), [ids[0], ids[2], ids[3]]);
    let position = twin.all[2].position();
    assert_eq!(
        twin.ring.resume(&Cursor { epoch: OTHER, seq: Seq(3), position, given: None }),
        None,
        "nobody resumes from it"
    );
    twin.check();
    assert!(twin.ring.prepend(twin.all[..3].to_vec(), true));
    assert_eq!((texts(&twin), twin.ring.has_glimpse()), (ids, false));
    twin.is_prepended = true;
    twin.check();
}

#[test]
fn one_of_a_glimpse_that_the_relay_brings_later_is_not_shown_twice() {
    let mut twin = Twin::new(10, &[1]);
    twin.ring.glimpse(twin.all.clone());
    twin.ring.push(Arc::new(Posted::foreign(twin.all[0].clone(), twin.ring.next())), Instant::now());
    twin.ring.cut();
    assert_eq!(twin.ring.latest(9).len(), 1);
}

#[test]
fn a_comment_that_came_late_from_another_node_is_not_doubled_by_the_store() {
    let mut twin = Twin::new(10, &[]);
    let (late, here) = (test_comment("r", BEGUN, 1, "late"), test_comment("r", BEGUN + 5, 2, "here"));
    for comment in [&here, &late] {
        twin.ring.push(Arc::new(Posted::foreign(comment.clone(), twin.ring.next())), Instant::now());
    }
    twin.ring.prepend(vec![late.clone()], true);
    assert_eq!(twin.ring.iter().filter(|posted| posted.comment.id == late.id).count(), 1);
}

#[test]
fn a_cursor_from_a_forger_waits_for_nothing() {
    let mut twin = Twin::new(10, &[]);
    twin.push(1);
    twin.ring.cut();
    let cursor = Cursor { seq: Seq(u64::MAX), ..twin.ring.cursor() };
    assert_eq!(twin.ring.resume(&cursor), Some(twin.ring.cut_end()));
}

#[test]
fn a_batch_is_encoded_once_for_each_format() {
    let mut twin = Twin::new(10, &[]);
    (0..3).for_each(|_| twin.push(1));
    twin.ring.cut();
    let (encoder, mut batches) = (Arc::new(PlainEncoder::default()), Vec::new());
    let taste = Taste::all(Arc::clone(&encoder) as _);
    twin.ring.batches_from(twin.ring.start(), 9, &mut batches);
    let frames: Vec<_> = (0..5).map(|_| batches[0].frame(&taste).clone()).collect();
    assert!(frames.iter().all(|frame| frame.as_ptr() == frames[0].as_ptr()), "the bytes are shared");
    assert_eq!(encoder.encoded.load(Ordering::SeqCst), 1);
}
