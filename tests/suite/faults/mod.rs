//! Plugs are pulled under load; afterwards every promise is held against what MongoDB has, comment by comment.
//!
//! Each fault has a short form, the tests below. The long form is `soak`: the faults at 5,000 comments a second, in a random
//! order, for `SOAK_MINUTES` (30 by default) or until each has been run `SOAK_RUNS` times; `SOAK_ONLY` names those that are
//! wanted, by what their names begin with, and `SOAK_SEED` repeats an order and what is random within a fault:
//!
//! ```text
//! cargo test --release --test suite -- --ignored --nocapture soak
//! ```

mod chaos;
mod ends;
mod full;
mod mongodb;
mod soak;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use self::ends::Health;
use super::support::mongod::{ReplicaSet, until};
use super::support::server::{NO_LIMITS, Server, Start};
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

/// The longest time in which a viewer got no comment.
const PAUSE: &str = "longest pause of the broadcast, ms";

/// What a run showed: figures, each with its name and unit.
struct Told(Vec<(&'static str, u64)>);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures: Vec<_> = self.0.iter().map(|(name, figure)| format!("{name} {figure}")).collect();
        f.write_str(&figures.join(", "))
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().expect("no run is that long")
}

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

/// Everything that was promised is in MongoDB once, and the ledger says so.
async fn nothing_lost(server: Server, set: &ReplicaSet, (promised, pause): (Promised, Duration)) -> Told {
    let refused = promised.refused.len();
    assert_eq!(refused, 0, "of {} comments, such as {:?}", promised.sent, promised.refused.first());
    let answered = promised.acknowledged().count() as u64;
    assert_eq!(answered, promised.sent, "every send was acknowledged");
    let over = Instant::now();
    settled(&server).await;
    let settled_after = over.elapsed();
    let texts = set.texts().await;
    each_once(&texts, promised.acknowledged());
    let (_, ledger) = server.get("/api/ledger").await;
    assert_eq!((&ledger["accepted"], &ledger["stored"]), (&promised.sent.into(), &promised.sent.into()), "{ledger}");
    let parked = server.metric("danmaku_outbox_parked_total").await;
    let end = server.stop().await;
    assert_eq!(end.code, Some(0), "{end:?}");
    Told(vec![
        ("comments", promised.sent),
        ("of them through the outbox", parked.unsigned_abs()),
        (PAUSE, millis(pause)),
        ("all stored after the last answer, ms", millis(settled_after)),
    ])
}

/// Has a storm blow while `fault` goes on, and before and after it.
async fn in_a_storm(
    force: Force,
    mut set: ReplicaSet,
    uri: &str,
    fault: impl AsyncFnOnce(&mut ReplicaSet, &Server),
) -> Told {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), uri, "");
    let storm = Storm::begin(server.address, "storm", force.per_sec).await;
    tokio::time::sleep(force.lasts / 4).await;
    fault(&mut set, &server).await;
    tokio::time::sleep(force.lasts / 4).await;
    nothing_lost(server, &set, storm.end().await).await
}

#[tokio::test]
async fn a_primary_killed_under_load_and_then_the_next_lose_nothing() {
    mongodb::primaries_killed(SHORT).await;
}

#[tokio::test]
async fn a_primary_that_steps_down_under_load_loses_nothing() {
    mongodb::stepped_down(SHORT).await;
}

#[tokio::test]
async fn a_majority_that_does_not_follow_under_load_loses_nothing() {
    mongodb::majority_stalled(SHORT).await;
}

#[tokio::test]
async fn a_mongod_frozen_under_load_loses_nothing() {
    mongodb::frozen(SHORT).await;
}

#[tokio::test]
async fn a_mongod_whose_disk_is_full_under_load_loses_nothing() {
    mongodb::disk_full(SHORT).await;
}

// The network is a task of these tests, and starting the server waits for its first line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_cut_in_silence_under_load_loses_nothing() {
    mongodb::network_cut(SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_changed_under_load_loses_nothing() {
    mongodb::password_changed(SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_nothing_however_mongodb_fares() {
    for health in [Health::Well, Health::Slow, Health::Frozen, Health::Away] {
        ends::stopped(SHORT, health).await;
    }
}

#[tokio::test]
async fn a_second_signal_under_load_leaves_what_the_outbox_has_and_says_what_is_lost() {
    ends::stopped_twice(SHORT).await;
}

#[tokio::test]
async fn a_kill_under_load_loses_at_most_the_bound_in_memory_and_nothing_on_disk() {
    let (lost, told) = ends::killed(SHORT, "memory").await;
    // A flush each 100 ms and the bulks on their way, on a busy machine.
    let bound = SHORT.per_sec as usize;
    assert!(lost <= bound, "{told}; that is more than a second of them");
    let (lost, told) = ends::killed(SHORT, "disk").await;
    assert_eq!(lost, 0, "{told}");
}

#[tokio::test]
async fn a_kill_during_a_replay_loses_nothing_of_the_outbox() {
    ends::killed_while_replaying(SHORT).await;
}

#[tokio::test]
async fn a_full_outbox_is_a_refusal_and_over_when_mongodb_is_back() {
    println!("{}", full::outbox_full(SHORT).await);
}

#[tokio::test]
async fn whatever_happens_at_once_loses_nothing_with_disk_durability() {
    chaos::all_at_once(SHORT).await;
}
