//! What was said, from memory and store together: each comment once, and honest about what is missing.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::hub::testing::{PATIENCE, Scene, tick};
use crate::metrics::Place;
use crate::model::test_comment;
use crate::relay::{Envelope, Heard};
use crate::room::testing::{BEGUN, room_id};
use crate::store::Fault;

const WINDOW: Duration = Duration::from_secs(60);

fn put_earlier(scene: &Scene, n: u32) -> Vec<Comment> {
    let make = |i: u32| test_comment("r", BEGUN - 10_000 + i64::from(i), i, "earlier");
    let earlier: Vec<_> = (0..n).map(make).collect();
    earlier.iter().for_each(|comment| scene.memory.put(comment));
    earlier
}

#[tokio::test]
async fn a_ring_that_reaches_far_enough_back_answers_alone() {
    let scene = Scene::new(100);
    scene.say(1);
    scene.pass(WINDOW + Duration::from_secs(10));
    let said = scene.say(3);
    let answer = scene.hub.recent(&room_id(), WINDOW, 100).await;
    assert_eq!((answer.comments, answer.is_complete, answer.is_from_memory), (said, true, true));
    assert_eq!(scene.store.attempts().reads, 0);
}

#[tokio::test]
async fn store_and_ring_are_joined_without_doubles() {
    let scene = Scene::new(100);
    let mut all = put_earlier(&scene, 5);
    all.extend(scene.say(3));
    scene.flush(2);
    let answer = scene.hub.recent(&room_id(), WINDOW, 100).await;
    assert_eq!((answer.comments, answer.is_complete, answer.is_from_memory), (all, true, false));
    assert_eq!(scene.store.attempts().reads, 1);
}

#[tokio::test]
async fn a_room_that_is_not_in_memory_is_read_from_the_store() {
    let scene = Scene::new(100);
    let all = put_earlier(&scene, 5);
    let answer = scene.hub.recent(&room_id(), WINDOW, 100).await;
    assert_eq!((answer.comments, answer.is_complete), (all, true));
    assert_eq!(scene.metrics.rooms.get(), 0, "a query opens no room");
}

#[tokio::test]
async fn an_answer_cut_by_its_limit_has_the_newest_and_says_so() {
    let scene = Scene::new(100);
    let mut all = put_earlier(&scene, 5);
    all.extend(scene.say(5));
    for limit in 0..12 {
        let answer = scene.hub.recent(&room_id(), WINDOW, limit).await;
        assert_eq!(answer.comments, all[10 - limit.min(10)..], "limit {limit}");
        assert_eq!(answer.is_complete, limit >= 10);
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_store_the_answer_is_what_memory_has_and_says_so() {
    let scene = Scene::new(100);
    put_earlier(&scene, 5);
    let said = scene.say(3);
    for fault in [Fault::Refuse, Fault::Blocked, Fault::Slow(PATIENCE * 10)] {
        scene.store.fail_until_told(fault);
        let begun = tokio::time::Instant::now();
        let answer = scene.hub.recent(&room_id(), WINDOW, 100).await;
        assert_eq!((&answer.comments, answer.is_complete), (&said, false));
        assert!(begun.elapsed() <= PATIENCE);
        assert!(scene.hub.page(&room_id(), None, 100).await.is_err());
    }
}

#[tokio::test]
async fn what_neither_ring_nor_store_has_makes_the_answer_incomplete() {
    let scene = Scene::new(1);
    let said = scene.say(600);
    let answer = scene.hub.recent(&room_id(), WINDOW, 1000).await;
    assert!(!answer.is_complete && answer.comments.len() < 600);
    assert!(!scene.hub.page(&room_id(), None, 1000).await.unwrap().is_complete);
    scene.flush(600);
    let answer = scene.hub.recent(&room_id(), WINDOW, 1000).await;
    assert_eq!((&answer.comments, answer.is_complete), (&said, true));
}

#[tokio::test]
async fn a_ring_that_was_lapped_during_the_read_makes_the_answer_incomplete() {
    let scene = Scene::new(1);
    scene.say(1);
    let scene = Arc::new(scene);
    let lapper = Arc::clone(&scene);
    scene.memory.after_next_read(move || {
        lapper.say(600);
        lapper.flush(1000);
    });
    let answer = scene.hub.recent(&room_id(), WINDOW, 1000).await;
    assert!(!answer.is_complete && answer.comments.len() < 601);
    let answer = scene.hub.recent(&room_id(), WINDOW, 1000).await;
    assert!(answer.is_complete && answer.comments.len() == 601);
}

#[tokio::test(start_paused = true)]
async fn equal_queries_at_once_cost_one_read() {
    let scene = Scene::new(100);
    let (earlier, id) = (put_earlier(&scene, 5), room_id());
    scene.store.fail_until_told(Fault::Slow(PATIENCE / 2));
    let ask = || scene.hub.recent(&id, WINDOW, 100);
    let answers = <[WindowAnswer; 4]>::from(tokio::join!(ask(), ask(), ask(), ask()));
    assert!(answers.iter().all(|answer| answer.comments == earlier && answer.is_complete));
    assert_eq!((scene.store.attempts().reads, scene.metrics.store_reads_merged.get()), (1, 3));
    let page = || scene.hub.page(&id, None, 100);
    let pages = tokio::join!(page(), page());
    assert!(pages.0 == pages.1 && pages.0.is_ok());
    assert_eq!(scene.store.attempts().reads, 2);
    let other = scene.hub.recent(&id, WINDOW, 99);
    tokio::join!(ask(), other);
    assert_eq!(scene.store.attempts().reads, 4, "unlike queries are not merged");
}

#[tokio::test]
async fn a_replay_that_ends_during_the_read_does_not_make_the_answer_whole() {
    let scene = Scene::new(100);
    let mut all = put_earlier(&scene, 3);
    scene.metrics.account.recover(1);
    all.push(test_comment("r", BEGUN - 5_000, 9, "parked"));
    let (memory, account, parked) = (Arc::clone(&scene.memory), scene.metrics.account.clone(), all[3].clone());
    scene.memory.after_next_read(move || {
        memory.put(&parked);
        account.settle(Place::Outbox, 1, &[]);
    });
    let answer = scene.hub.recent(&room_id(), WINDOW, 100).await;
    assert_eq!((&answer.comments[..], answer.is_complete), (&all[..3], false));
    let answer = scene.hub.recent(&room_id(), WINDOW, 100).await;
    assert_eq!((answer.comments, answer.is_complete), (all, true));
}

/// Begins `first`, lets the room be lapped once its read has its answer, and gives what `second` answers, which joins.
async fn lapped_between<A, B>(scene: &Scene, first: impl Future<Output = A>, second: impl Future<Output = B>) -> B {
    let release = scene.memory.hold_next_read();
    let lap_and_join = async {
        while !scene.memory.is_holding() {
            tokio::task::yield_now().await;
        }
        scene.say(600);
        scene.flush(1000);
        let mut second = std::pin::pin!(second);
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        release.send(()).unwrap();
        second.await
    };
    let (_, answer) = tokio::join!(first, lap_and_join);
    assert_eq!(scene.metrics.store_reads_merged.get(), 1);
    answer
}

#[tokio::test]
async fn who_joins_a_read_from_before_the_ring_was_lapped_is_told_that_some_are_missing() {
    let (scene, id) = (Scene::new(1), room_id());
    scene.say(1);
    let ask = || scene.hub.recent(&id, WINDOW, 1000);
    let answer = lapped_between(&scene, ask(), ask()).await;
    assert!(answer.comments.len() == 601 || !answer.is_complete, "{} and complete", answer.comments.len());
}

#[tokio::test]
async fn a_page_is_as_of_its_beginning() {
    let scene = Scene::new(1);
    let said = scene.say(2);
    scene.flush(1);
    // As if two comments were accepted while the page is read, and only the later one is stored yet.
    let later = test_comment("r", scene.clock.now().millis() + 10, 9, "later");
    scene.memory.put(&later);
    let answer = scene.hub.page(&room_id(), None, 10).await.unwrap();
    assert_eq!(answer.comments.iter().rev().cloned().collect::<Vec<_>>(), said);
}

#[tokio::test]
async fn comments_that_came_late_from_another_node_stand_in_their_place() {
    let scene = Scene::new(100);
    scene.say(1);
    scene.pass(WINDOW + Duration::from_secs(10));
    let mut all = scene.say(1);
    let now = scene.clock.now().millis();
    let comments = vec![test_comment("r", now + 5, 1, "a"), test_comment("r", now - 5, 2, "b")];
    all.extend(comments.clone());
    all.sort_by_key(Comment::position);
    let comments = comments.into_iter().map(Into::into).collect();
    scene.hub.hear(Heard::Comments(Envelope { room: room_id(), comments }));
    let answer = scene.hub.recent(&room_id(), WINDOW, 100).await;
    assert!(answer.is_from_memory);
    assert_eq!(answer.comments, all);
}

#[tokio::test]
async fn what_has_expired_is_served_from_nowhere() {
    let scene = Scene::new(100);
    put_earlier(&scene, 3);
    scene.say(3);
    scene.flush(1);
    scene.pass(Duration::from_secs(3600));
    let kept = scene.say(1);
    let answer = scene.hub.recent(&room_id(), Duration::from_secs(7200), 100).await;
    assert_eq!(answer.comments, kept);
    assert_eq!(scene.hub.page(&room_id(), None, 100).await.unwrap().comments, kept);
}

#[derive(Clone, Debug)]
enum Op {
    Say(usize),
    Flush(usize),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1usize..8).prop_map(Op::Say),
        2 => (1usize..12).prop_map(Op::Flush),
        2 => (0u64..3).prop_map(Op::Pass),
    ]
}

/// Pages through all there is, flushing in between; gives the comments, newest first, and whether all pages were whole.
async fn page_through(scene: &Scene, limit: usize, flushes: &[usize]) -> (Vec<Comment>, bool) {
    let (mut found, mut is_complete, mut before) = (Vec::new(), true, None);
    for flush in flushes.iter().copied().chain(std::iter::repeat(0)) {
        let page = scene.hub.page(&room_id(), before, limit).await.unwrap();
        assert!(page.comments.len() <= limit);
        found.extend(page.comments);
        is_complete &= page.is_complete;
        let Some(next) = page.next else { break };
        before = Some(next.position);
        scene.flush(flush);
    }
    (found, is_complete)
}

async fn paging(ring: usize, earlier: u32, is_warm: bool, limit: usize, ops: Vec<Op>, flushes: Vec<usize>) {
    let scene = Scene::new(ring);
    let mut all = put_earlier(&scene, earlier);
    // A viewer makes the room tick, so that its ring is cut and drops; without the store it starts cold.
    if !is_warm {
        scene.store.fail_until_told(Fault::Refuse);
    }
    let _viewer = scene.join(None).await;
    scene.store.heal();
    for op in ops {
        match op {
            Op::Say(n) => all.extend(scene.say(n)),
            Op::Flush(n) => scene.flush(n),
            Op::Pass(ms) => scene.pass(Duration::from_millis(ms)),
        }
        tick().await;
    }
    all.reverse();
    let (found, is_complete) = page_through(&scene, limit, &flushes).await;
    let ids: HashSet<_> = found.iter().map(|comment| comment.id).collect();
    assert_eq!(ids.len(), found.len(), "doubled");
    if is_complete {
        assert_eq!(found, all);
    }
    assert!(found.windows(2).all(|two| two[0].position() > two[1].position()));
    scene.flush(usize::MAX);
    assert_eq!(page_through(&scene, limit, &[]).await, (all, true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn paging_gives_every_comment_once(
        ring in 1usize..20,
        earlier in 0u32..15,
        is_warm in any::<bool>(),
        limit in 1usize..10,
        ops in prop::collection::vec(op(), 0..15),
        flushes in prop::collection::vec(0usize..6, 0..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(paging(ring, earlier, is_warm, limit, ops, flushes));
    }
}
