//! A node that did not hear the others says so, and catches up.

use super::super::testing::{Scene, Told, tick};
use super::*;
use crate::hub::{Entrance, Housekeeper, Missed};
use crate::model::{Comment, Cursor, test_comment};
use crate::room::testing::{FakeSocket, Frame, config, room_id};

const MINUTE: Duration = Duration::from_secs(60);

fn scene() -> Scene {
    Scene::with(config(100), 1000, true)
}

/// A comment that another node accepted just now and has stored.
fn elsewhere(scene: &Scene, n: u32) -> Comment {
    let comment = test_comment("r", scene.clock.now().millis(), n, "elsewhere");
    scene.memory.put(&comment);
    comment
}

fn begun() -> Heard {
    Heard::Begun { room: room_id(), since: None }
}

fn relayed(scene: &Scene, comment: &Comment) {
    scene.hub.hear(Heard::Comments(Envelope { room: room_id(), comments: vec![comment.clone().into()] }));
}

/// Lets a viewer in, with a relay that answers.
async fn join(scene: &Scene, since: Option<Cursor>) -> (Entrance, Arc<FakeSocket>) {
    scene.relay.told.lock().unwrap().clear();
    let answer = async {
        while !scene.relay.told.lock().unwrap().contains(&Told::Occupied(room_id())) {
            tokio::task::yield_now().await;
        }
        scene.hub.hear(begun());
    };
    tokio::join!(scene.join(since), answer).0
}

fn vacate(scene: &Scene) {
    Housekeeper::new(scene.hub.clone(), MINUTE).run_once();
}

fn recent(entrance: &Entrance) -> Vec<Comment> {
    entrance.joined.recent.iter().map(|posted| posted.comment.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_room_that_was_only_posted_to_never_passes_for_whole() {
    let scene = scene();
    let here = scene.say(1);
    scene.flush(1);
    scene.pass(Duration::from_secs(1));
    let there = elsewhere(&scene, 1);
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((window.comments, window.is_complete), (vec![here[0].clone(), there.clone()], false));
    let page = scene.hub.page(&room_id(), None, 100).await.unwrap();
    assert_eq!((page.comments.len(), page.is_complete), (2, false));
    scene.pass(SETTLING * 2);
    let page = scene.hub.page(&room_id(), Some(there.position()), 100).await.unwrap();
    assert_eq!((page.comments, page.is_complete), (here.clone(), true), "all nodes have stored what is so old");
    assert_eq!(recent(&join(&scene, None).await.0), [here[0].clone(), there]);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_is_heard_long_enough_is_whole_from_memory() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    assert!(!scene.hub.recent(&room_id(), MINUTE, 100).await.is_complete, "others may have comments not stored yet");
    // Accepted before hearing began, stored since.
    let late = elsewhere(&scene, 1);
    scene.pass(SETTLING);
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((&window.comments, window.is_complete), (&vec![late.clone()], true));
    scene.hub.mend_all().await;
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((window.comments, window.is_complete, window.is_from_memory), (vec![late], true, true));
    tick().await;
    assert_eq!(socket.places().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_to_a_room_that_was_vacated_gets_what_it_missed() {
    let scene = scene();
    let (entrance, socket) = join(&scene, None).await;
    let first = scene.say(1);
    tick().await;
    let cursor = entrance.joined.seat.room().newest_cursor();
    assert_eq!(socket.places().len(), 1);
    scene.pass(SETTLING * 2);
    scene.hub.mend_all().await;
    drop(entrance);
    vacate(&scene);
    scene.pass(Duration::from_secs(7));
    scene.flush(1);
    let missed: Vec<_> = (1..6).map(|n| elsewhere(&scene, n)).collect();
    let all: Vec<_> = first.into_iter().chain(missed).collect();
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((&window.comments, window.is_complete), (&all, false));
    let (back, socket) = join(&scene, Some(cursor)).await;
    assert_eq!((back.missed, back.joined.is_resumed), (Missed::Exactly(0), true));
    assert_eq!(socket.places().len(), 5, "each once");
    assert_eq!(recent(&scene.join(None).await.0), all);
}

#[tokio::test(start_paused = true)]
async fn who_stays_while_the_relay_is_lost_gets_the_rest_from_the_store_and_once() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(SETTLING);
    scene.hub.mend_all().await;
    assert!(scene.hub.recent(&room_id(), MINUTE, 100).await.is_complete);
    scene.hub.hear(Heard::Lost);
    scene.pass(Duration::from_secs(2));
    let missed = elsewhere(&scene, 1);
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((window.comments.len(), window.is_complete), (1, false));
    scene.hub.mend_all().await;
    scene.hub.hear(begun());
    relayed(&scene, &missed);
    let heard = elsewhere(&scene, 2);
    relayed(&scene, &heard);
    scene.pass(SETTLING);
    scene.hub.mend_all().await;
    tick().await;
    assert_eq!(socket.places().len(), 2);
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((window.comments.len(), window.is_complete, window.is_from_memory), (2, true, true));
}

fn told_as_missed(socket: &FakeSocket) -> u64 {
    socket.frames().iter().map(|frame| if let Frame::Gap(n) = frame { *n } else { 0 }).sum()
}

#[tokio::test(start_paused = true)]
async fn what_there_is_no_room_for_is_told_as_a_gap_once_no_node_can_bring_it() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(SETTLING * 4);
    scene.hub.mend_all().await;
    scene.hub.hear(Heard::Lost);
    let missed: Vec<_> = (0..130).map(|n| elsewhere(&scene, n)).collect();
    scene.hub.hear(begun());
    for (seconds, told, given) in [(2, 0, 50), (14, 30, 100), (5, 30, 100)] {
        scene.pass(Duration::from_secs(seconds));
        scene.hub.mend_all().await;
        tick().await;
        assert_eq!((told_as_missed(&socket), socket.places().len()), (told, given));
    }
    missed.iter().for_each(|comment| relayed(&scene, comment));
    tick().await;
    assert_eq!(socket.places().len(), 100, "what was told is not given as well");
}

#[tokio::test(start_paused = true)]
async fn without_the_store_who_comes_back_is_told_that_something_may_be_missing() {
    let scene = scene();
    let (entrance, _socket) = join(&scene, None).await;
    let cursor = entrance.joined.seat.room().newest_cursor();
    drop(entrance);
    vacate(&scene);
    scene.pass(MINUTE);
    scene.store.fail_until_told(crate::store::Fault::Refuse);
    assert_eq!(join(&scene, Some(cursor)).await.0.missed, Missed::AtLeast(0));
}

#[tokio::test(start_paused = true)]
async fn where_the_relay_bridges_the_gap_nothing_is_missing_and_no_store_is_asked() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(SETTLING);
    scene.hub.mend_all().await;
    let reads = scene.metrics.store_reads.get();
    scene.hub.hear(Heard::Lost);
    scene.hub.mend_all().await;
    assert!(!scene.hub.recent(&room_id(), MINUTE, 100).await.is_complete, "deaf");
    let missed = elsewhere(&scene, 1);
    relayed(&scene, &missed);
    scene.hub.hear(Heard::Resumed(room_id()));
    scene.hub.mend_all().await;
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((window.comments, window.is_complete, window.is_from_memory), (vec![missed], true, true));
    assert_eq!(scene.metrics.store_reads.get(), reads + 1, "for the answer while it was deaf");
    tick().await;
    assert_eq!(socket.places().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hole_from_before_a_bridged_gap_is_mended_all_the_same() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(Duration::from_secs(1));
    scene.hub.hear(Heard::Lost);
    let before = elsewhere(&scene, 1);
    scene.hub.hear(Heard::Resumed(room_id()));
    assert!(!scene.hub.recent(&room_id(), MINUTE, 100).await.is_complete);
    scene.pass(SETTLING);
    scene.hub.mend_all().await;
    let window = scene.hub.recent(&room_id(), MINUTE, 100).await;
    assert_eq!((window.comments, window.is_complete, window.is_from_memory), (vec![before], true, true));
    tick().await;
    assert_eq!(socket.places().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_another_node_gave_up_long_ago_is_fetched() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(SETTLING);
    scene.hub.mend_all().await;
    let given_up = elsewhere(&scene, 1);
    scene.pass(MINUTE);
    assert!(scene.hub.recent(&room_id(), MINUTE * 2, 100).await.is_complete, "nobody has told");
    scene.hub.hear(Heard::Begun { room: room_id(), since: Some(given_up.ts) });
    scene.hub.mend_all().await;
    tick().await;
    assert_eq!(socket.places().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_was_vacated_does_not_go_on_from_where_it_was() {
    let scene = scene();
    let (entrance, _socket) = join(&scene, None).await;
    scene.pass(SETTLING);
    scene.hub.mend_all().await;
    drop(entrance);
    vacate(&scene);
    scene.pass(MINUTE);
    let missed = elsewhere(&scene, 1);
    scene.relay.told.lock().unwrap().clear();
    let late = async {
        while scene.relay.told.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        // Of the time before it was vacated, on its way since.
        scene.hub.hear(Heard::Resumed(room_id()));
    };
    let ((entrance, _socket), ()) = tokio::join!(scene.join(None), late);
    assert_eq!(recent(&entrance), [missed]);
}

#[tokio::test(start_paused = true)]
async fn in_a_rush_what_was_heard_and_has_left_the_ring_does_not_come_twice_and_what_was_not_comes_once() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    let mut lost = Vec::new();
    for n in 0..500 {
        scene.pass(Duration::from_millis(5));
        let comment = elsewhere(&scene, n);
        if n % 100 == 7 {
            lost.push(comment);
        } else {
            relayed(&scene, &comment);
        }
        // Two looks into the store while hearing is new, of which one comes long after some have left the ring.
        if [300, 499].contains(&n) {
            scene.hub.mend_all().await;
        }
        tick().await;
    }
    // What the store was faster to bring than the relay, long gone from the ring.
    lost.iter().for_each(|comment| relayed(&scene, comment));
    tick().await;
    let told = socket.frames().iter().filter(|frame| matches!(frame, Frame::Gap(_))).count();
    assert_eq!((socket.places().len(), told), (500, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_connection_missed_in_a_rush_is_given_or_told() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(SETTLING * 4);
    scene.hub.mend_all().await;
    // Nothing is heard any more, and it is noticed six seconds later. Meanwhile what is said here fills the ring twice.
    let mut n = 0;
    for round in 0..6 {
        for _ in 0..40 {
            scene.pass(Duration::from_millis(25));
            n += 1;
            elsewhere(&scene, n);
            scene.say(1);
        }
        scene.flush(40);
        tick().await;
        assert_eq!(socket.places().len(), 40 * (round + 1));
    }
    scene.hub.hear(Heard::Lost);
    scene.hub.hear(begun());
    for _ in 0..2 {
        scene.hub.mend_all().await;
        scene.pass(Duration::from_secs(16));
    }
    tick().await;
    assert_eq!((told_as_missed(&socket), socket.places().len()), (140, 240 + 100), "of 240 from elsewhere");
}

#[tokio::test(start_paused = true)]
async fn who_leaves_before_its_node_has_caught_up_is_told_elsewhere_that_something_may_be_missing() {
    let (here, there) = (scene(), scene());
    let (entrance, _socket) = join(&here, None).await;
    let (_stays, _other_socket) = join(&there, None).await;
    let pass = |by| {
        here.pass(by);
        there.pass(by);
    };
    pass(SETTLING * 4);
    here.hub.mend_all().await;
    there.hub.mend_all().await;
    here.hub.hear(Heard::Lost);
    pass(Duration::from_secs(1));
    // Accepted by a third node, heard there alone; the next one is heard by both.
    let missed = elsewhere(&here, 1);
    relayed(&there, &missed);
    pass(Duration::from_secs(1));
    here.hub.hear(begun());
    let heard = elsewhere(&here, 2);
    [&here, &there].into_iter().for_each(|scene| relayed(scene, &heard));
    tick().await;
    let leave = async || entrance.joined.seat.room().newest_cursor();
    let (moved, socket) = there.join(Some(leave().await)).await;
    tick().await;
    assert_eq!((moved.missed, socket.places().len()), (Missed::AtLeast(0), 0));
    pass(SETTLING);
    here.hub.mend_all().await;
    tick().await;
    let (moved, socket) = there.join(Some(leave().await)).await;
    tick().await;
    assert_eq!((moved.missed, socket.places().len()), (Missed::Exactly(0), 0), "it had all by then");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_said_while_a_node_was_deaf_leaves_nothing_in_doubt() {
    let (here, there) = (scene(), scene());
    let (entrance, _socket) = join(&here, None).await;
    let (_stays, _other_socket) = join(&there, None).await;
    let heard = elsewhere(&here, 1);
    [&here, &there].into_iter().for_each(|scene| relayed(scene, &heard));
    tick().await;
    let cursor = entrance.joined.seat.room().newest_cursor();
    assert_eq!(there.join(Some(cursor)).await.0.missed, Missed::Exactly(0));
}

#[tokio::test(start_paused = true)]
async fn what_is_found_of_the_others_keeps_nothing_back_that_was_said_here() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(SETTLING * 4);
    scene.hub.mend_all().await;
    scene.hub.hear(Heard::Lost);
    let missed: Vec<_> = (0..130).map(|n| elsewhere(&scene, n)).collect();
    scene.pass(Duration::from_secs(2));
    scene.relay.told.lock().unwrap().clear();
    scene.say(3);
    // Before the room's tick has shown them.
    scene.hub.mend_all().await;
    tick().await;
    let told = std::mem::take(&mut *scene.relay.told.lock().unwrap());
    let forwarded: usize = told.iter().map(|told| if let Told::Forwarded(n) = told { *n } else { 0 }).sum();
    assert_eq!(forwarded, 3, "{told:?}");
    // The others' relay held them back, and brings them now.
    missed.iter().for_each(|comment| relayed(&scene, comment));
    scene.hub.hear(begun());
    scene.pass(SETTLING);
    scene.hub.mend_all().await;
    tick().await;
    assert_eq!((told_as_missed(&socket), socket.places().len()), (0, 3 + 130), "each once");
    let window = scene.hub.recent(&room_id(), MINUTE, 200).await;
    assert_eq!((window.comments.len(), window.is_complete), (133, true));
}

#[tokio::test(start_paused = true)]
async fn who_leaves_a_deaf_node_that_has_found_the_newest_alone_is_told_elsewhere() {
    let (here, there) = (scene(), scene());
    let (entrance, _socket) = join(&here, None).await;
    let (_stays, _other_socket) = join(&there, None).await;
    for scene in [&here, &there] {
        scene.pass(SETTLING * 4);
        scene.hub.mend_all().await;
    }
    here.hub.hear(Heard::Lost);
    for n in 0..80 {
        relayed(&there, &elsewhere(&here, n));
    }
    here.pass(Duration::from_secs(2));
    here.hub.mend_all().await;
    tick().await;
    let cursor = entrance.joined.seat.room().newest_cursor();
    assert_eq!(there.join(Some(cursor)).await.0.missed, Missed::AtLeast(0), "30 were left for later");
}

#[tokio::test(start_paused = true)]
async fn what_one_node_has_given_up_brings_nothing_of_the_others_again() {
    let scene = scene();
    let (_entrance, socket) = join(&scene, None).await;
    scene.pass(SETTLING * 4);
    scene.hub.mend_all().await;
    let since = scene.clock.now();
    for n in 0..600 {
        scene.pass(Duration::from_millis(100));
        relayed(&scene, &elsewhere(&scene, n));
        tick().await;
    }
    scene.hub.hear(Heard::Begun { room: room_id(), since: Some(since) });
    for _ in 0..5 {
        scene.hub.mend_all().await;
        scene.pass(Duration::from_secs(5));
        tick().await;
    }
    assert_eq!((told_as_missed(&socket), socket.places().len()), (0, 600));
}
