//! The hub's promises: kept before shown, joined without loss, never long held up by a store.

use tokio::time::Instant;

use super::entrance::COLD;
use super::testing::{PATIENCE, RETRY, Scene, Told, tick};
use super::*;
use crate::metrics::{Place, SET_ASIDE_REASONS};
use crate::model::Cursor;
use crate::model::{Epoch, Seq, test_comment, test_identity};
use crate::model::{Fate, Posted};
use crate::relay::{Envelope, Heard};
use crate::room::testing::{BEGUN, Frame, config, room_id};
use crate::store::{AsideFile, Fault, Flusher, FlusherConfig, FlusherParts};

/// Puts so many comments of an earlier life of the room into the store.
fn put_earlier(scene: &Scene, n: u32) -> Vec<Comment> {
    let make = |i: u32| test_comment("r", BEGUN - 10_000 + i64::from(i), i, "earlier");
    let earlier: Vec<_> = (0..n).map(make).collect();
    earlier.iter().for_each(|comment| scene.memory.put(comment));
    earlier
}

fn foreign(comment: &Comment) -> Cursor {
    Cursor { epoch: Epoch(1), seq: Seq(5), position: comment.position(), given: None }
}

#[tokio::test(start_paused = true)]
async fn a_comment_that_finds_the_queue_full_is_refused_and_nobody_sees_it() {
    let scene = Scene::with(config(100), 2, false);
    let (_entrance, socket) = scene.join(None).await;
    let kept = scene.say(2);
    let refusal = scene.try_say().unwrap_err();
    assert_eq!(refusal.code(), "busy");
    assert!((RETRY..=RETRY * 2).contains(&refusal.retry_after().unwrap()));
    tick().await;
    assert_eq!(socket.places().len(), 2);
    scene.flush(2);
    let window = scene.hub.recent(&room_id(), Duration::from_secs(60), 100).await;
    assert_eq!(window.comments, kept);
    assert_eq!(scene.hub.page(&room_id(), None, 100).await.unwrap().comments.len(), 2);
    assert_eq!((scene.hub.ledger().accepted, scene.memory.all().len()), (2, 2));
    scene.try_say().unwrap();
}

#[tokio::test]
async fn once_intake_is_closed_senders_are_told_to_go() {
    let scene = Scene::new(100);
    scene.say(1);
    scene.hub.close_intake().await;
    assert_eq!(scene.try_say().unwrap_err().code(), "going_away");
    assert!(!scene.hub.is_open());
    assert!(matches!(scene.hub.probe().await, Err(NotReady::Stopping)));
    assert_eq!(scene.hub.ledger().accepted, 1);
}

#[tokio::test]
async fn a_resent_comment_is_recognised_even_when_the_queue_is_full() {
    let scene = Scene::with(config(100), 1, false);
    let nonce = crate::model::Nonce::parse("n").ok();
    let draft = Draft { text: "x".into(), nonce, ..Draft::default() };
    let send = || scene.hub.publish(&test_identity("u"), &room_id(), &draft).unwrap();
    let first = send();
    assert!(matches!(send(), Published::Resent(posted) if Arc::ptr_eq(&posted, first.posted())));
    assert_eq!((scene.metrics.resent.get(), scene.hub.ledger().accepted), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_room_is_warmed_from_the_store_once() {
    let scene = Scene::new(100);
    let earlier = put_earlier(&scene, 3);
    let (first, second) = tokio::join!(scene.join(None), scene.join(None));
    let third = scene.join(None).await;
    for (entrance, _) in [first, second, third] {
        let recent: Vec<_> = entrance.joined.recent.iter().map(|posted| posted.comment.clone()).collect();
        assert_eq!(recent, earlier);
    }
    assert_eq!(scene.store.attempts().reads, 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_holds_joins_up_once_and_briefly() {
    let scene = Scene::new(100);
    put_earlier(&scene, 3);
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    let begun = Instant::now();
    let joins = || scene.join(None);
    let joined = tokio::join!(joins(), joins(), joins(), joins());
    assert_eq!(begun.elapsed(), PATIENCE, "they wait together, not one after the other");
    assert!(joined.0.0.joined.recent.is_empty());
    scene.join(None).await;
    assert_eq!((begun.elapsed(), scene.store.attempts().reads), (PATIENCE, 1), "the store is left alone for a while");
    scene.store.heal();
    scene.clock.set(scene.clock.now().minus(Duration::from_secs(3600)));
    tokio::time::advance(COLD).await;
    assert_eq!(scene.join(None).await.0.joined.recent.len(), 3, "whatever became of the time of day");
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_does_not_wait_for_a_store_that_is_away() {
    let scene = Scene::new(100);
    let earlier = put_earlier(&scene, 3);
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(3600)));
    let begun = Instant::now();
    for _ in 0..3 {
        let (entrance, _) = scene.join(Some(foreign(&earlier[0]))).await;
        assert_eq!(entrance.missed, Missed::AtLeast(0));
        assert_eq!(begun.elapsed(), PATIENCE);
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_from_another_life_gets_the_rest_or_its_exact_number() {
    let scene = Scene::new(1);
    let said = scene.say(600);
    scene.flush(600);
    for seen in [0, 99, 300, 511, 512, 598, 599] {
        let (entrance, socket) = scene.join(Some(foreign(&said[seen]))).await;
        tick().await;
        let Missed::Exactly(missed) = entrance.missed else { panic!("the store was not asked") };
        let told: u64 = socket.frames().iter().map(|frame| if let Frame::Gap(n) = frame { *n } else { 0 }).sum();
        assert_eq!(missed + told + socket.places().len() as u64, 599 - seen as u64, "after {seen}");
    }
    scene.store.fail_until_told(Fault::Refuse);
    assert_eq!(scene.join(Some(foreign(&said[0]))).await.0.missed, Missed::AtLeast(0));
}

#[tokio::test(start_paused = true)]
async fn a_room_dropped_while_somebody_joins_is_warmed_again() {
    let scene = Scene::with(RoomConfig { evict_after: Duration::ZERO, ..config(100) }, 100, false);
    let earlier = put_earlier(&scene, 3);
    let release = scene.memory.hold_next_read();
    let sweep = async {
        while !scene.memory.is_holding() {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.hub.inner.rooms.sweep(), 1);
        release.send(()).unwrap();
    };
    let ((entrance, _socket), ()) = tokio::join!(scene.join(None), sweep);
    assert_eq!(entrance.joined.recent.len(), earlier.len());
}

#[tokio::test(start_paused = true)]
async fn what_has_expired_is_not_told_to_who_joins() {
    let scene = Scene::new(100);
    scene.say(2);
    scene.pass(Duration::from_secs(1800));
    let kept = scene.say(1);
    let (_first, _socket) = scene.join(None).await;
    tick().await;
    scene.pass(Duration::from_secs(1800));
    let (entrance, _socket) = scene.join(None).await;
    let recent: Vec<_> = entrance.joined.recent.iter().map(|posted| posted.comment.clone()).collect();
    assert_eq!(recent, kept);
}

fn housekeeper(scene: &Scene) -> Housekeeper {
    Housekeeper::new(scene.hub.clone(), Duration::from_secs(5))
}

#[tokio::test(start_paused = true)]
async fn reads_are_counted_by_what_answered_them() {
    let scene = Scene::new(10);
    let answered =
        || ["memory", "store", "neither"].map(|by| scene.metrics.reads.get_or_create(&[("source", by)]).get());
    let minute = Duration::from_secs(60);
    put_earlier(&scene, 30);
    scene.hub.recent(&room_id(), minute, 100).await;
    scene.hub.page(&room_id(), None, 10).await.unwrap();
    scene.store.fail_until_told(Fault::Refuse);
    scene.hub.recent(&room_id(), minute, 100).await;
    assert!(scene.hub.page(&room_id(), None, 10).await.is_err());
    let (cold, _socket) = scene.join(None).await;
    assert_eq!(answered(), [0, 2, 3]);
    scene.store.heal();
    tokio::time::advance(COLD).await;
    let (_warmed, _socket) = scene.join(None).await;
    assert_eq!(answered(), [0, 3, 3]);
    scene.join(Some(cold.joined.cursor)).await;
    scene.hub.page(&room_id(), None, 5).await.unwrap();
    assert_eq!(answered(), [2, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn rooms_that_are_over_are_dropped_with_all_that_was_kept_of_them() {
    let scene = Scene::new(100);
    let housekeeper = housekeeper(&scene);
    let joined = scene.join(None).await;
    scene.say(1);
    housekeeper.run_once();
    drop(joined);
    tokio::time::advance(config(100).evict_after).await;
    assert_eq!(housekeeper.run_once(), 0, "a comment is on its way to the store");
    scene.flush(1);
    assert_eq!(housekeeper.run_once(), 1);
    assert_eq!((scene.metrics.rooms.get(), scene.metrics.viewers.get()), (0, 0));
    assert_eq!(scene.metrics.rooms_evicted.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_relay_is_told_once_when_a_room_fills_and_once_when_it_is_empty() {
    let scene = Scene::with(config(100), 100, true);
    let housekeeper = housekeeper(&scene);
    let told = || std::mem::take(&mut *scene.relay.told.lock().unwrap());
    for _ in 0..2 {
        let (first, second) = (scene.join(None).await, scene.join(None).await);
        assert_eq!(told(), [Told::Occupied(room_id())]);
        drop(first);
        housekeeper.run_once();
        assert_eq!(told(), []);
        drop(second);
        assert_eq!((0..2).map(|_| housekeeper.run_once()).sum::<usize>(), 0);
        assert_eq!(told(), [Told::Vacated(room_id())]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_from_the_relay_is_shown_and_not_sent_back() {
    let scene = Scene::with(config(100), 100, true);
    let (_entrance, socket) = scene.join(None).await;
    let comments = vec![test_comment("r", BEGUN, 1, "from elsewhere").into()];
    scene.hub.hear(Heard::Comments(Envelope { room: room_id(), comments }));
    tick().await;
    scene.say(2);
    tick().await;
    assert_eq!(socket.places().len(), 3);
    let told = scene.relay.told.lock().unwrap().clone();
    let forwarded: usize = told.iter().map(|told| if let Told::Forwarded(n) = told { *n } else { 0 }).sum();
    assert_eq!(forwarded, 2);
    assert_eq!(scene.hub.ledger().accepted, 2, "the other node keeps its own");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_every_write_is_not_ready_until_it_is_mended() {
    let (scene, dir) = (Scene::new(10), tempfile::tempdir().unwrap());
    let (tick, pause) = (Duration::from_millis(100), Duration::from_secs(2));
    let config = FlusherConfig {
        interval: tick,
        batch: 10,
        in_flight: 1,
        backoff: pause,
        max_backoff: pause,
        patience: Duration::ZERO,
    };
    let aside = AsideFile::new(dir.path().join("set-aside.jsonl"));
    let flusher = Flusher::new(
        config,
        FlusherParts::new(scene.queue.clone(), scene.store.clone(), aside, Arc::clone(&scene.metrics)),
    );
    let flusher = flusher.spawn();
    // The store answers every probe; only writing is refused.
    scene.store.fail_next_write(Fault::Blocked);
    scene.say(1);
    tokio::time::sleep(pause / 4).await;
    assert_eq!(scene.hub.probe().await.unwrap_err().code(), "store_blocked");
    tokio::time::sleep(pause * 2).await;
    scene.hub.probe().await.unwrap();
    assert_eq!(scene.hub.ledger().stored, 1);
    // Nor is one ready that takes nothing for long, which a single slow write is not yet.
    scene.store.fail_next_write(Fault::Slow(PATIENCE));
    scene.store.fail_next_write(Fault::Slow(PATIENCE * 4));
    scene.say(1);
    tokio::time::sleep(PATIENCE / 2).await;
    scene.hub.probe().await.unwrap();
    tokio::time::sleep(PATIENCE).await;
    assert_eq!(scene.hub.ledger().stored, 2);
    scene.say(1);
    tokio::time::sleep(PATIENCE * 3).await;
    assert_eq!(scene.hub.probe().await.unwrap_err().code(), "store_stalled");
    tokio::time::sleep(PATIENCE * 2).await;
    scene.hub.probe().await.unwrap();
    assert_eq!(scene.hub.ledger().stored, 3);
    flusher.abort();
}

/// As the outbox parks what waits in the queue: counted first.
fn park(scene: &Scene) -> Vec<Comment> {
    let batch = scene.queue.take(usize::MAX);
    scene.metrics.account.park(batch.len() as u64);
    batch.iter().for_each(|posted| posted.park());
    batch.iter().map(|posted| posted.comment.clone()).collect()
}

/// As the replay brings them to the store: settled after.
fn replay(scene: &Scene, parked: &[Comment]) {
    parked.iter().for_each(|comment| scene.memory.put(comment));
    scene.metrics.account.settle(Place::Outbox, parked.len() as u64, &[]);
}

/// What the window and the page have, oldest first, and whether each says it is whole and is from memory alone.
async fn history(scene: &Scene) -> (Vec<Comment>, [bool; 2]) {
    let window = scene.hub.recent(&room_id(), Duration::from_secs(60), 1000).await;
    let mut page = scene.hub.page(&room_id(), None, 1000).await.unwrap();
    page.comments.reverse();
    assert_eq!(window.comments, page.comments);
    (window.comments, [window.is_complete, page.is_complete])
}

#[tokio::test(start_paused = true)]
async fn a_room_is_not_whole_before_the_outbox_is_empty() {
    let scene = Scene::new(100);
    let mut all = put_earlier(&scene, 3);
    let parked: Vec<_> = (0..40).map(|i| test_comment("r", BEGUN - 5_000, 100 + i, "parked")).collect();
    scene.metrics.account.recover(40);
    let recent = |entrance: &Entrance| -> Vec<_> {
        entrance.joined.recent.iter().map(|posted| posted.comment.clone()).collect()
    };
    let (first, socket) = scene.join(None).await;
    assert_eq!(recent(&first), all, "what there is, is shown");
    assert_eq!(history(&scene).await, (all.clone(), [false; 2]));
    let said = scene.say(2);
    tick().await;
    let reads = scene.store.attempts().reads;
    let (second, _) = scene.join(None).await;
    assert_eq!(recent(&second), [all.clone(), said.clone()].concat());
    assert_eq!(scene.store.attempts().reads, reads, "the store is not asked again with each join");

    replay(&scene, &parked);
    all.extend(parked);
    all.extend(said);
    assert_eq!(history(&scene).await, (all.clone(), [true; 2]), "the store is asked");
    let (third, _) = scene.join(None).await;
    assert_eq!(recent(&third), all);
    let reads = scene.store.attempts().reads;
    assert_eq!(history(&scene).await, (all, [true; 2]));
    assert_eq!(scene.store.attempts().reads, reads, "it is warm now");

    // Who was there before stands where it stood.
    let later = scene.say(1);
    tick().await;
    assert_eq!(socket.places().len(), 3);
    let (resumed, again) = scene.join(Some(first.joined.cursor)).await;
    tick().await;
    assert_eq!((resumed.missed, again.places()), (Missed::Exactly(0), socket.places()));
    let (resumed, again) = scene.join(Some(foreign(&later[0]))).await;
    tick().await;
    assert_eq!((resumed.missed, again.places()), (Missed::Exactly(0), vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_room_dropped_with_parked_comments_is_whole_again_after_their_replay() {
    let scene = Scene::with(RoomConfig { evict_after: Duration::ZERO, ..config(100) }, 100, false);
    let said = scene.say(3);
    let parked = park(&scene);
    assert_eq!(scene.hub.inner.rooms.sweep(), 1);
    scene.pass(Duration::from_secs(1));
    let _viewer = scene.join(None).await;
    assert_eq!(history(&scene).await, (vec![], [false; 2]));
    replay(&scene, &parked);
    let _viewer = scene.join(None).await;
    assert_eq!(history(&scene).await, (said, [true; 2]));
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_while_comments_are_parked_is_told_that_more_may_be_missing() {
    let scene = Scene::new(100);
    let earlier = put_earlier(&scene, 3);
    scene.metrics.account.recover(1);
    assert_eq!(scene.join(Some(foreign(&earlier[0]))).await.0.missed, Missed::AtLeast(2));
    replay(&scene, &[test_comment("r", BEGUN - 5_000, 9, "parked")]);
    let (entrance, socket) = scene.join(Some(foreign(&earlier[0]))).await;
    tick().await;
    assert_eq!((entrance.missed, socket.places().len()), (Missed::Exactly(0), 3));
}

#[tokio::test(start_paused = true)]
async fn comments_on_their_way_to_the_store_are_not_in_the_number_of_those_missed() {
    let scene = Scene::new(1);
    let said = scene.say(600);
    scene.flush(100);
    assert_eq!(scene.join(Some(foreign(&said[0]))).await.0.missed, Missed::AtLeast(99));
    scene.flush(500);
    assert!(matches!(scene.join(Some(foreign(&said[0]))).await.0.missed, Missed::Exactly(n) if n > 99));
}

/// Adds up the lines of a metric, its labels' all together.
fn total(text: &str, name: &str) -> u64 {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
    });
    values.sum()
}

#[tokio::test]
async fn every_scrape_balances_while_comments_come_and_go() {
    let scene = Scene::new(10);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let scrape = || {
        for _ in 0..500 {
            let text = scene.hub.metrics();
            let [accepted, stored, set_aside, unsettled] =
                ["accepted_total", "stored_total", "set_aside_total", "unsettled"]
                    .map(|name| total(&text, &format!("danmaku_{name}")));
            assert_eq!(accepted, stored + set_aside + unsettled, "{text}");
        }
    };
    let come_and_go = || {
        for n in (0..).take_while(|_| !is_over.load(std::sync::atomic::Ordering::Relaxed)) {
            let posted = Posted::pending(test_comment("r", BEGUN, n, "x"), Seq(1), Arc::default());
            let _may_be_full = scene.queue.try_push(Arc::new(posted));
            for posted in scene.queue.take(usize::from(n % 3 == 0) * 3) {
                match n % 10 {
                    0 => scene.metrics.account.settle(Place::Memory, 0, &SET_ASIDE_REASONS[..1]),
                    _ => scene.metrics.account.settle(Place::Memory, 1, &[]),
                }
                posted.settle(Fate::Stored);
            }
        }
    };
    std::thread::scope(|scope| {
        let comers = [scope.spawn(come_and_go), scope.spawn(come_and_go)];
        let scrapers = [scope.spawn(scrape), scope.spawn(scrape), scope.spawn(scrape)];
        let outcomes = scrapers.map(|scraper| scraper.join());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        comers.into_iter().for_each(|comer| comer.join().unwrap());
        outcomes.into_iter().for_each(|outcome| outcome.expect("each scrape balances"));
    });
    assert!(scene.hub.ledger().stored > 0 && scene.hub.ledger().refused() > 0, "{}", scene.hub.ledger());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_late_through_the_relay_is_not_laid_to_the_store() {
    let scene = Scene::new(10);
    scene.relay.hangs.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(scene.hub.probe().await.unwrap_err().code(), "relay_unavailable");
    scene.relay.hangs.store(false, std::sync::atomic::Ordering::Relaxed);
    scene.store.fail_until_told(Fault::Slow(Duration::from_secs(60)));
    assert_eq!(scene.hub.probe().await.unwrap_err().code(), "store_unavailable");
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_after_the_retention_is_told_that_more_may_be_missing() {
    let scene = Scene::new(10);
    let seen = test_comment("r", BEGUN, 1, "seen long ago");
    scene.pass(Duration::from_secs(2 * 3600));
    let (entrance, _socket) = scene.join(Some(foreign(&seen))).await;
    assert_eq!(entrance.missed, Missed::AtLeast(0));
}

#[tokio::test(start_paused = true)]
async fn a_room_of_several_nodes_with_more_than_its_ring_holds_is_warmed_and_misses_nothing() {
    let scene = Scene::with(config(100), 1000, true);
    let earlier = put_earlier(&scene, 250);
    let (entrance, _socket) = scene.join(None).await;
    scene.hub.hear(Heard::Begun { room: room_id(), since: None });
    let (second, _socket) = scene.join(None).await;
    assert_eq!((entrance.joined.recent.len(), second.joined.recent.len()), (50, 50));
    let (back, socket) = scene.join(Some(foreign(&earlier[240]))).await;
    assert_eq!((back.missed, socket.places().len()), (Missed::Exactly(0), 9));
}
