//! Plugs are pulled under load; afterwards every promise is held against what MongoDB has, comment by comment.
//!
//! Each fault has a short form here. The long one is `soak`: all faults at random, at 5,000 comments a second, for as long
//! as `SOAK_MINUTES` says (30 by default), from the seed that it prints or `SOAK_SEED` gives:
//!
//! ```text
//! cargo test --release --test suite -- --ignored --nocapture soak
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::support::mongod::{Access, ReplicaSet, until};
use super::support::proxy::Proxy;
use super::support::server::{End, NO_LIMITS, Server, Start};
use super::support::storm::{Promised, Storm};

const CONFIG: &str = "[shutdown]\ndeadline = \"8s\"\nclose_spread = \"200ms\"\n[mongodb]\nconnect_timeout = \"2s\"\n\
    server_selection_timeout = \"8s\"\nwrite_timeout = \"5s\"\n[store]\nwrite_patience = \"1s\"";

/// How hard it blows, and for how long.
#[derive(Clone, Copy)]
struct Force {
    per_sec: u32,
    /// How long a fault lasts.
    lasts: Duration,
}

const SHORT: Force = Force { per_sec: 400, lasts: Duration::from_secs(3) };
const LONG: Force = Force { per_sec: 5_000, lasts: Duration::from_secs(20) };

fn start(folder: &Path, uri: &str, more: &str) -> Server {
    let config = format!("{CONFIG}\n{more}");
    Start::in_folder(folder).config(NO_LIMITS).config(&config).args(&["--mongodb", uri]).run()
}

/// Waits until the server has nothing left to store.
async fn settled(server: &Server) {
    until("everything is stored", async || {
        let (_, ledger) = server.get("/api/ledger").await;
        let open = ["inQueue", "inOutbox"].map(|place| ledger[place].as_u64().expect("a number"));
        (open == [0, 0]).then_some(())
    })
    .await;
}

fn each_once<'a>(texts: &HashMap<String, u32>, promised: impl Iterator<Item = &'a String>) {
    let wrong: Vec<_> = promised.filter(|text| texts.get(*text) != Some(&1)).collect();
    assert!(wrong.is_empty(), "{} not exactly once in MongoDB, such as {:?}", wrong.len(), wrong.first());
    assert!(texts.values().all(|count| *count == 1), "something is there twice");
}

/// Everything that was promised is in MongoDB once, and the ledger says so. Tells the longest pause of the broadcast.
async fn nothing_lost(server: Server, set: &ReplicaSet, (promised, pause): (Promised, Duration)) -> String {
    let refused = promised.refused.len();
    assert_eq!(refused, 0, "of {} comments, such as {:?}", promised.sent, promised.refused.first());
    let answered = promised.acknowledged().count() as u64;
    assert_eq!(answered, promised.sent, "every send was acknowledged");
    settled(&server).await;
    let texts = set.texts().await;
    each_once(&texts, promised.acknowledged());
    let (_, ledger) = server.get("/api/ledger").await;
    assert_eq!((&ledger["accepted"], &ledger["stored"]), (&promised.sent.into(), &promised.sent.into()), "{ledger}");
    let end = server.stop().await;
    assert_eq!(end.code, Some(0), "{end:?}");
    format!("{} comments, longest pause {pause:?}", promised.sent)
}

async fn primary(set: &ReplicaSet) -> usize {
    until("there is a primary", async || set.primary().await).await
}

/// The primary is killed, then the one that followed it, then both come back.
async fn primaries_killed(force: Force) -> String {
    let (mut set, folder) = (ReplicaSet::start_of_equals(3).await, tempfile::tempdir().expect("a folder"));
    let server = start(folder.path(), &set.uri(None), "");
    let storm = Storm::begin(server.address, "killed", force.per_sec).await;
    sleep(force.lasts / 4).await;
    let first = primary(&set).await;
    set.kill(first);
    let second = primary(&set).await;
    sleep(force.lasts / 4).await;
    set.kill(second);
    sleep(force.lasts / 4).await;
    set.restart(first).await;
    set.restart(second).await;
    primary(&set).await;
    sleep(force.lasts / 4).await;
    nothing_lost(server, &set, storm.end().await).await
}

async fn frozen(force: Force) -> String {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let server = start(folder.path(), &set.uri(None), "");
    let storm = Storm::begin(server.address, "frozen", force.per_sec).await;
    sleep(force.lasts / 4).await;
    set.freeze(0);
    sleep(force.lasts).await;
    set.thaw(0);
    sleep(force.lasts / 4).await;
    nothing_lost(server, &set, storm.end().await).await
}

async fn network_cut(force: Force) -> String {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(set.first_address()).await;
    let uri = format!("mongodb://{}/?directConnection=true", proxy.address);
    let server = start(folder.path(), &uri, "");
    let storm = Storm::begin(server.address, "cut", force.per_sec).await;
    sleep(force.lasts / 4).await;
    proxy.cut();
    sleep(force.lasts).await;
    proxy.mend();
    sleep(force.lasts / 4).await;
    nothing_lost(server, &set, storm.end().await).await
}

/// How MongoDB fares while the server is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    Frozen,
    Away,
}

/// SIGTERM under full load: whatever was acknowledged is in MongoDB after the next start.
async fn stopped(force: Force, health: Health) -> String {
    let (mut set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let server = start(folder.path(), &set.uri(None), "");
    let storm = Storm::begin(server.address, "stopped", force.per_sec).await;
    sleep(force.lasts / 4).await;
    match health {
        Health::Well => {}
        Health::Frozen => set.freeze(0),
        Health::Away => set.kill(0),
    }
    sleep(force.lasts / 4).await;
    let begun = Instant::now();
    let end = server.stop().await;
    let took = begun.elapsed();
    let (promised, _) = storm.end().await;
    assert!(took < Duration::from_secs(9), "it has 8 s: {took:?}");
    let (ledger, acknowledged) = (end.ledger(), promised.acknowledged().count());
    assert_eq!((end.code, ledger.not_stored), (Some(0), 0), "{end:?}");
    assert_eq!(ledger.in_outbox > 0, health != Health::Well, "{end:?}");
    match health {
        Health::Well => {}
        Health::Frozen => set.thaw(0),
        Health::Away => set.restart(0).await,
    }
    let end = the_next_life(&folder, &set, "").await;
    assert_eq!((end.code, end.ledger().recovered), (Some(0), ledger.in_outbox), "{end:?}");
    each_once(&set.texts().await, promised.acknowledged());
    format!("{acknowledged} acknowledged, stopped within {took:?}, {} through the outbox", ledger.in_outbox)
}

/// Starts the server anew, and ends it once all it had is stored.
async fn the_next_life(folder: &TempDir, set: &ReplicaSet, more: &str) -> End {
    let server = start(folder.path(), &set.uri(None), more);
    settled(&server).await;
    server.stop().await
}

/// `kill -9` under full load. Gives how many acknowledged comments are lost, and how much time they span.
async fn killed(force: Force, durability: &str) -> (usize, String) {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let durability = format!("durability = \"{durability}\"");
    let server = start(folder.path(), &set.uri(None), &durability);
    let storm = Storm::begin(server.address, "lost", force.per_sec).await;
    sleep(force.lasts / 2).await;
    server.signal("KILL");
    let _end = server.end().await;
    let (promised, _) = storm.end().await;
    the_next_life(&folder, &set, &durability).await;
    let texts = set.texts().await;
    each_once(&texts, promised.stored.iter());
    let lost = promised.accepted.iter().filter(|text| !texts.contains_key(*text)).count();
    let accepted = promised.accepted.len();
    (lost, format!("of {accepted} acknowledged as accepted {lost} lost, at {} a second", force.per_sec))
}

#[tokio::test]
async fn a_primary_killed_under_load_and_then_the_next_lose_nothing() {
    primaries_killed(SHORT).await;
}

#[tokio::test]
async fn a_mongod_frozen_under_load_loses_nothing() {
    frozen(SHORT).await;
}

// The network is a task of this test, and starting the server waits for its first line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_cut_in_silence_under_load_loses_nothing() {
    network_cut(SHORT).await;
}

#[tokio::test]
async fn a_stop_under_load_loses_nothing_however_mongodb_fares() {
    for health in [Health::Well, Health::Frozen, Health::Away] {
        stopped(SHORT, health).await;
    }
}

#[tokio::test]
async fn a_kill_under_load_loses_at_most_the_bound_in_memory_and_nothing_on_disk() {
    let (lost, told) = killed(SHORT, "memory").await;
    // A flush each 100 ms and the bulks on their way, on a busy machine.
    let bound = SHORT.per_sec as usize;
    assert!(lost <= bound, "{told}; that is more than a second of them");
    let (lost, told) = killed(SHORT, "disk").await;
    assert_eq!(lost, 0, "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half an hour; see the head of this file"]
async fn soak() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (minutes, seed) = (number("SOAK_MINUTES").unwrap_or(30), number("SOAK_SEED"));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("soak: {minutes} minutes from seed {seed}");
    let (mut random, end) = (fastrand::Rng::with_seed(seed), Instant::now() + Duration::from_secs(60 * minutes));
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        let (name, told) = match random.u32(0..8) {
            0 | 1 => ("primaries killed", primaries_killed(LONG).await),
            2 => ("frozen", frozen(LONG).await),
            3 => ("network cut", network_cut(LONG).await),
            4 => ("stopped, well", stopped(LONG, Health::Well).await),
            5 => ("stopped, frozen", stopped(LONG, Health::Frozen).await),
            6 => ("stopped, away", stopped(LONG, Health::Away).await),
            _ => {
                let (_, memory) = killed(LONG, "memory").await;
                let (lost, disk) = killed(LONG, "disk").await;
                assert_eq!(lost, 0, "{disk}");
                ("killed", format!("memory: {memory}; disk: {disk}"))
            }
        };
        println!("soak {round}: {name}: {told}");
    }
}
