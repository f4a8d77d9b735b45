//! How the write path stops, and how it gets out of a tight corner.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::tests::Scene;
use super::*;
use crate::metrics::Metrics;
use crate::store::Fault;

const SOON: Duration = Duration::from_secs(3);
const FOREVER: Duration = Duration::from_secs(3600);

/// The numbers of the comments in the outbox, in its order.
async fn numbers_in_outbox(scene: &Scene) -> Vec<usize> {
    let config = scene.config().outbox.unwrap();
    let outbox = Outbox::open(&config, Arc::<Metrics>::default()).unwrap();
    let mut numbers = Vec::new();
    while !outbox.is_empty() && numbers.len() < usize::try_from(outbox.len()).unwrap() {
        let parked = outbox.next(1000, &*scene.store).await.unwrap();
        let number = |id| scene.posted.iter().position(|posted| posted.comment.id == id).unwrap();
        numbers.extend(parked.records.iter().map(|record| number(record.posted.comment.id)));
    }
    numbers
}

#[tokio::test]
async fn a_stop_does_not_wait_for_the_next_flush() {
    let mut scene = Scene::new();
    let mut config = scene.config();
    config.flusher.interval = FOREVER;
    let life = scene.begin(config).await;
    // The first tick comes at once.
    scene.push(&life, 1);
    life.until("the flusher waits", |ledger| ledger.stored == 1).await;
    scene.push(&life, 5);
    let begun = Instant::now();
    let (is_flushed, ledger) = life.end(2 * SOON).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!((is_flushed, ledger.stored), (true, 6));
}

#[tokio::test]
async fn a_stop_with_the_store_away_is_over_once_everything_is_parked_and_says_so() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Slow(FOREVER));
    scene.push(&life, 30);
    life.until("the outbox is in use", |ledger| ledger.outbox > 0).await;
    let (begun, queue) = (Instant::now(), life.path.queue());
    assert!(timeout(Duration::ZERO, queue.settled()).await.is_err());
    let (is_flushed, ledger) = life.end(10 * SOON).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!((is_flushed, ledger.outbox, ledger.unsettled()), (true, 30, 0));
    timeout(SOON, queue.settled()).await.expect("who waits to be told of a comment is told that there is nothing");
}

#[tokio::test]
async fn a_stop_goes_on_with_the_replay_while_the_store_takes_it() {
    let mut scene = Scene::new();
    let mut config = scene.config();
    config.outbox = config.outbox.map(|outbox| OutboxConfig { per_sec: 50, ..outbox });
    let life = scene.begin(config).await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.push(&life, 60);
    life.until("all of it is parked", |ledger| ledger.outbox == 60).await;
    scene.store.heal();
    life.until("the replay has begun", |ledger| ledger.stored > 0).await;
    let (is_flushed, ledger) = life.end(10 * SOON).await;
    assert_eq!((is_flushed, ledger.stored, ledger.outbox), (true, 60, 0));
}

#[tokio::test]
async fn what_goes_into_the_outbox_is_in_the_order_in_which_it_was_accepted() {
    let mut scene = Scene::new();
    let mut config = scene.config();
    (config.flusher.in_flight, config.flusher.patience, config.queue) = (4, Duration::from_millis(300), 10_000);
    let life = scene.begin(config).await;
    scene.store.fail_until_told(Fault::Slow(FOREVER));
    // Longer than it takes until the store is tried again, with batches of all sizes.
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        scene.push(&life, 1 + fastrand::usize(..20));
        sleep(Duration::from_millis(fastrand::u64(10..60))).await;
    }
    let (_, ledger) = life.end(2 * SOON).await;
    assert_eq!(ledger.outbox, scene.posted.len() as u64);
    let numbers = numbers_in_outbox(&scene).await;
    assert_eq!(numbers, (0..scene.posted.len()).collect::<Vec<_>>());
}

#[tokio::test]
async fn after_an_outbox_was_full_the_store_has_no_more_time_than_before() {
    let mut scene = Scene::new();
    let life = scene.begin(scene.config()).await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.fill_up(&life).await;
    scene.store.heal();
    let all = scene.posted.len() as u64;
    life.until("all of it is stored", |ledger| (ledger.stored, ledger.outbox) == (all, 0)).await;
    scene.store.fail_until_told(Fault::Slow(FOREVER));
    scene.push(&life, 1);
    life.until("it is parked", |ledger| ledger.outbox == 1).await;
}

#[tokio::test]
async fn what_neither_outbox_nor_store_takes_at_the_start_is_brought_in_later() {
    let mut scene = Scene::new();
    let config = WritePathConfig { journal: scene.journal(), ..scene.config() };
    let life = scene.begin(config.clone()).await;
    scene.store.fail_until_told(Fault::Refuse);
    scene.fill_up(&life).await;
    let parked = life.ledger().outbox;
    let all = scene.posted.len();
    assert!(parked < all as u64);
    for posted in &scene.posted {
        posted.kept().await;
    }
    life.killed().await;

    let life = scene.begin(config).await;
    scene.store.heal();
    timeout(4 * SOON, async {
        while scene.memory.all().len() < all {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it is brought in while the server runs");
    scene.push(&life, 5);
    let (is_flushed, ledger) = life.end(2 * SOON).await;
    assert_eq!((is_flushed, ledger.accepted, ledger.unsettled(), ledger.outbox), (true, 5, 0, 0));
    assert_eq!(scene.memory.all().len(), all + 5);
}
