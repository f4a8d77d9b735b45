//! The server is stopped and killed while comments come in.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::support::mongod::{Access, ReplicaSet, until};
use super::super::support::proxy::Proxy;
use super::super::support::server::End;
use super::super::support::storm::Storm;
use super::{Force, Told, each_once, millis, settled, start};

/// How MongoDB fares while the server is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Each answer takes a while.
    Slow,
    Frozen,
    Away,
}

/// A slow answer: shorter than the write patience, so that MongoDB still takes everything.
const SLOW: Duration = Duration::from_millis(300);

/// SIGTERM under full load: whatever was acknowledged is in MongoDB after the next start.
pub async fn stopped(force: Force, health: Health) -> Told {
    let (mut set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(set.first_address()).await;
    let uri = format!("mongodb://{}/?directConnection=true", proxy.address);
    let server = start(folder.path(), &uri, "");
    let storm = Storm::begin(server.address, "stopped", force.per_sec).await;
    sleep(force.lasts / 4).await;
    match health {
        Health::Well => {}
        Health::Slow => proxy.slow_down(SLOW),
        Health::Frozen => set.freeze(0),
        Health::Away => set.kill(0),
    }
    sleep(force.lasts / 4).await;
    let begun = Instant::now();
    let end = server.stop().await;
    let took = begun.elapsed();
    let (promised, _) = storm.end().await;
    // It has 8 s, and would wait for a store in vain.
    assert!(took < Duration::from_secs(6), "{took:?}");
    let (ledger, acknowledged) = (end.ledger(), promised.acknowledged().count());
    assert_eq!((end.code, ledger.not_stored), (Some(0), 0), "{end:?}");
    if matches!(health, Health::Frozen | Health::Away) {
        assert!(ledger.in_outbox > 0, "{end:?}");
    }
    match health {
        Health::Well => {}
        Health::Slow => proxy.mend(),
        Health::Frozen => set.thaw(0),
        Health::Away => set.restart(0).await,
    }
    let end = the_next_life(folder.path(), &uri, "").await;
    assert_eq!((end.code, end.ledger().recovered), (Some(0), ledger.in_outbox), "{end:?}");
    each_once(&set.texts().await, promised.acknowledged());
    Told(vec![
        ("acknowledged", acknowledged as u64),
        ("of them through the outbox", ledger.in_outbox),
        ("stopped within ms, of 8000", millis(took)),
    ])
}

/// A second signal while MongoDB is frozen: what the outbox has is safe, and the last line counts the rest.
pub async fn stopped_twice(force: Force) -> Told {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let server = start(folder.path(), &set.uri(None), "");
    let storm = Storm::begin(server.address, "twice", force.per_sec).await;
    sleep(force.lasts / 4).await;
    set.freeze(0);
    until("comments go to the outbox", async || (server.metric("danmaku_outbox_parked_total").await > 0).then_some(()))
        .await;
    sleep(force.lasts / 4).await;
    server.signal("TERM");
    server.signal("INT");
    let begun = Instant::now();
    let end = server.end().await;
    let took = begun.elapsed();
    let (promised, _) = storm.end().await;
    let ledger = end.ledger();
    assert_eq!(end.code, Some(1), "{end:?}");
    set.thaw(0);
    the_next_life(folder.path(), &set.uri(None), "").await;
    let texts = set.texts().await;
    each_once(&texts, promised.stored.iter());
    let lost = promised.accepted.iter().filter(|text| !texts.contains_key(*text)).count() as u64;
    assert!(lost <= ledger.not_stored, "{lost} lost: {end:?}");
    Told(vec![
        ("in the outbox", ledger.in_outbox),
        ("said to be lost", ledger.not_stored),
        ("acknowledged and lost", lost),
        ("ended within ms", millis(took)),
    ])
}

/// Starts the server anew, and ends it once all it had is stored.
async fn the_next_life(folder: &Path, uri: &str, more: &str) -> End {
    let server = start(folder, uri, more);
    settled(&server).await;
    server.stop().await
}

/// `kill -9` under full load. Gives how many acknowledged comments are lost.
pub async fn killed(force: Force, durability: &str) -> (usize, Told) {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let durability = format!("durability = \"{durability}\"");
    let server = start(folder.path(), &set.uri(None), &durability);
    let storm = Storm::begin(server.address, "lost", force.per_sec).await;
    // Not at a multiple of the flush interval.
    sleep(force.lasts / 4 + Duration::from_millis(fastrand::u64(0..1000))).await;
    server.signal("KILL");
    let _end = server.end().await;
    let (promised, _) = storm.end().await;
    the_next_life(folder.path(), &set.uri(None), &durability).await;
    let texts = set.texts().await;
    each_once(&texts, promised.stored.iter());
    let lost = promised.accepted.iter().filter(|text| !texts.contains_key(*text)).count();
    let of_time = lost as u64 * 2 * 1000 / u64::from(force.per_sec);
    let told = Told(vec![
        ("acknowledged", promised.acknowledged().count() as u64),
        ("accepted and lost", lost as u64),
        // Half of all ask for `accepted`.
        ("that is ms of comments", of_time),
    ]);
    (lost, told)
}

/// `kill -9` while the outbox is replayed.
pub async fn killed_while_replaying(force: Force) -> Told {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let slowly = format!("outbox_replay_per_sec = {}\nbatch = 100", force.per_sec / 2);
    let server = start(folder.path(), &set.uri(None), &slowly);
    let storm = Storm::begin(server.address, "replayed", force.per_sec).await;
    set.freeze(0);
    sleep(force.lasts).await;
    storm.hush();
    until("all of it is in the outbox", async || {
        let (_, ledger) = server.get("/api/ledger").await;
        (ledger["inQueue"] == 0 && ledger["inOutbox"] != 0).then_some(())
    })
    .await;
    set.thaw(0);
    let before = server.metric("danmaku_stored_total").await;
    until("the replay has begun", async || (server.metric("danmaku_stored_total").await > before + 200).then_some(()))
        .await;
    let left = server.metric("danmaku_outbox_comments").await;
    assert!(left > 0, "the replay was too fast for this test");
    server.signal("KILL");
    let _end = server.end().await;
    let (promised, _) = storm.end().await;
    let end = the_next_life(folder.path(), &set.uri(None), "").await;
    each_once(&set.texts().await, promised.acknowledged());
    Told(vec![("in the outbox at the kill", left.unsigned_abs()), ("found there", end.ledger().recovered)])
}
