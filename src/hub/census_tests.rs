//! Rooms are told how many are in them, other nodes' viewers included as long as they are known.

use super::super::testing::{Scene, Told};
use super::*;
use crate::relay::Heard;
use crate::room::testing::{Frame, config, own_frame, room_id};

const BEAT: Duration = Duration::from_secs(5);

fn census(scene: &Scene) -> Census {
    Census::new(scene.hub.clone(), BEAT, |online| own_frame(u32::try_from(online).unwrap(), 0))
}

fn among_others(elsewhere: usize) -> Scene {
    let scene = Scene::with(config(100), 100, true);
    tell(&scene, Some(elsewhere));
    scene
}

fn tell(scene: &Scene, elsewhere: Option<usize>) {
    *scene.relay.elsewhere.lock().unwrap() = elsewhere;
}

/// Counts thrice within a second, and lets the room tick.
async fn count(census: &mut Census) {
    for _ in 0..3 {
        census.run_once().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_room_is_told_its_number_of_viewers_when_it_changes() {
    let scene = Scene::new(100);
    let mut census = census(&scene);
    let (_first, socket) = scene.join(None).await;
    count(&mut census).await;
    let second = scene.join(None).await;
    count(&mut census).await;
    assert_eq!(second.1.frames(), [Frame::Own(2)]);
    drop(second);
    count(&mut census).await;
    assert_eq!(socket.frames(), [Frame::Own(1), Frame::Own(2), Frame::Own(1)]);
    assert_eq!(*scene.relay.told.lock().unwrap(), [], "a node that is alone has nobody to tell");
}

#[tokio::test(start_paused = true)]
async fn viewers_elsewhere_count_from_the_first_hello_until_they_are_outdated() {
    let scene = among_others(5);
    let mut census = census(&scene);
    let (entrance, socket) = scene.join(None).await;
    assert_eq!(entrance.joined.online, 6);
    count(&mut census).await;
    tell(&scene, Some(7));
    count(&mut census).await;
    let known = Instant::now();
    tell(&scene, None);
    count(&mut census).await;
    assert_eq!(scene.hub.online(&room_id()).await, Online { here: 1, elsewhere: Some(7) });
    tokio::time::sleep_until(known + COUNTED_FOR).await;
    count(&mut census).await;
    assert_eq!(socket.frames(), [Frame::Own(6), Frame::Own(8), Frame::Own(1)]);
    assert_eq!(scene.hub.online(&room_id()).await, Online { here: 1, elsewhere: None });
}

#[tokio::test(start_paused = true)]
async fn a_room_that_fills_again_is_not_told_what_it_was_told_before() {
    let scene = among_others(5);
    let first = scene.join(None).await;
    assert_eq!(first.0.joined.online, 6);
    scene.hub.hear(Heard::Begun { room: room_id(), since: None });
    drop(first);
    tell(&scene, Some(7));
    assert_eq!(scene.join(None).await.0.joined.online, 8);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_nobody_is_in_here_is_asked_for() {
    let scene = among_others(5);
    assert_eq!(scene.hub.online(&room_id()).await, Online { here: 0, elsewhere: Some(5) });
    drop(scene.join(None).await);
    tell(&scene, Some(6));
    assert_eq!(scene.hub.online(&room_id()).await, Online { here: 0, elsewhere: Some(6) });
    assert_eq!(scene.metrics.rooms.get(), 1, "asking for a room makes none");
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_counted_to_its_end() {
    let (scene, shutdown) = (among_others(0), Shutdown::default());
    let running = tokio::spawn(census(&scene).run(shutdown.clone()));
    let (first, second) = (scene.join(None).await, scene.join(None).await);
    tokio::time::sleep(BEAT).await;
    shutdown.begin(BEAT * 10);
    drop(first);
    tokio::time::sleep(BEAT).await;
    drop(second);
    running.await.unwrap();
    let mut told = scene.relay.told.lock().unwrap().clone();
    told.retain(|told| matches!(told, Told::Counted(_)));
    told.dedup();
    assert_eq!(told, [0, 2, 1, 0].map(Told::Counted));
}
