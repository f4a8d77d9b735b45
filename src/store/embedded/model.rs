//! The store against a plain map, under random operations.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{HOUR, at, open, record};
use super::*;
use crate::model::test_comment as comment;

#[derive(Clone, Debug)]
enum Operation {
    Write(Vec<Spec>),
    LoadRecent { room: usize, from: i64, limit: usize },
    LoadBefore { room: usize, before: (i64, u32), limit: usize },
    CountBetween { room: usize, after: (i64, u32), before: (i64, u32), limit: u64 },
    AdvanceClock(i64),
    DropExpired,
    Reopen,
}

/// A comment in the making: room, minutes after now, number, which retention.
type Spec = (usize, i64, u32, usize);

const ROOMS: [&str; 3] = ["a", "aa", "b"];
const RETENTIONS: [i64; 3] = [60_000, 10 * 60_000, HOUR];

fn operation() -> impl Strategy<Value = Operation> {
    let room = 0..ROOMS.len();
    let place = (-5..30i64, 0..6u32);
    let spec = (room.clone(), -2..3i64, 0..6u32, 0..RETENTIONS.len());
    prop_oneof![
        4 => prop::collection::vec(spec, 0..8).prop_map(Operation::Write),
        2 => (room.clone(), -5..30i64, 0..12usize)
            .prop_map(|(room, from, limit)| Operation::LoadRecent { room, from, limit }),
        2 => (room.clone(), place.clone(), 0..12usize)
            .prop_map(|(room, before, limit)| Operation::LoadBefore { room, before, limit }),
        2 => (room, place.clone(), place, 0..12u64)
            .prop_map(|(room, after, before, limit)| Operation::CountBetween { room, after, before, limit }),
        2 => (0..12 * 60_000i64).prop_map(Operation::AdvanceClock),
        2 => Just(Operation::DropExpired),
        1 => Just(Operation::Reopen),
    ]
}

/// What the store must look like: all comments ever written, by room and position.
#[derive(Default)]
struct Model {
    comments: BTreeMap<(String, Position), Comment>,
    now: i64,
}

impl Model {
    fn make(&self, (room, minutes, n, retention): Spec) -> Comment {
        // Whole minutes, so that times meet; the retention follows from the rest, so that an id is one comment.
        let ts = (self.now / 60_000 + minutes) * 60_000;
        let retention = RETENTIONS[(retention + n as usize) % RETENTIONS.len()];
        let made = comment(ROOMS[room], ts, n, &format!("{room} {ts} {n}"));
        let known = self.comments.get(&(ROOMS[room].to_owned(), made.position())).cloned();
        known.unwrap_or(Comment { expire_at: Timestamp::from_millis(ts + retention), ..made })
    }

    /// The room's comments that have not expired, newest first.
    fn live(&self, room: usize) -> impl Iterator<Item = Comment> {
        let is_live = move |c: &&Comment| c.room.as_str() == ROOMS[room] && c.expire_at.millis() > self.now;
        self.comments.values().rev().filter(is_live).cloned()
    }

    fn page(&self, room: usize, is_wanted: impl Fn(&Comment) -> bool, limit: usize) -> Page {
        let mut comments: Vec<Comment> = self.live(room).filter(is_wanted).collect();
        let has_more = comments.len() > limit;
        comments.truncate(limit);
        Page { comments, has_more }
    }
}

async fn check(operations: Vec<Operation>) {
    let dir = tempfile::tempdir().unwrap();
    let clock = at(0);
    let mut store = open(dir.path(), &clock);
    let mut model = Model::default();
    let place = |(minute, n): (i64, u32)| comment("a", minute * 60_000, n, "").position();
    let id = |room: usize| RoomId::parse(ROOMS[room]).unwrap();
    for operation in operations {
        match operation.clone() {
            Operation::Write(specs) => {
                let mut batch = Vec::new();
                for spec in specs {
                    let comment = model.make(spec);
                    batch.push(record(&store, comment.clone()));
                    model.comments.insert((comment.room.as_str().to_owned(), comment.position()), comment);
                }
                assert_eq!(store.write(&batch).await.unwrap().set_aside, []);
            }
            Operation::LoadRecent { room, from, limit } => {
                let from = Timestamp::from_millis(from * 60_000);
                let wanted = model.page(room, |c| c.ts >= from, limit);
                assert_eq!(store.load_recent(&id(room), from, limit).await.unwrap(), wanted, "{operation:?}");
            }
            Operation::LoadBefore { room, before, limit } => {
                let wanted = model.page(room, |c| c.position() < place(before), limit);
                assert_eq!(store.load_before(&id(room), place(before), limit).await.unwrap(), wanted, "{operation:?}");
            }
            Operation::CountBetween { room, after, before, limit } => {
                let (after, before) = (place(after), place(before));
                let is_between = |c: &Comment| after < c.position() && c.position() < before;
                let wanted = (model.live(room).filter(is_between).count() as u64).min(limit);
                assert_eq!(
                    store.count_between(&id(room), after, before, limit).await.unwrap(),
                    wanted,
                    "{operation:?}"
                );
            }
            Operation::AdvanceClock(by) => {
                model.now += by;
                clock.set(Timestamp::from_millis(model.now));
            }
            Operation::DropExpired => {
                store.drop_expired().await.unwrap();
            }
            Operation::Reopen => {
                store.close().await;
                store = open(dir.path(), &clock);
            }
        }
    }
    for room in 0..ROOMS.len() {
        let all = store.load_recent(&id(room), Timestamp::from_millis(i64::MIN), usize::MAX).await.unwrap();
        assert_eq!(all, model.page(room, |_| true, usize::MAX));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn the_store_is_a_map_that_forgets_what_expired(operations in prop::collection::vec(operation(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(operations));
    }
}
