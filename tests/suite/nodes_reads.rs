//! How much of what is read while a real evening is on, on two nodes, their memory answers.

use std::path::Path;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::evening::{ROOM, replay_until};
use super::nodes::Pair;
use super::support::server::Server;
use super::support::viewer::Viewer;

/// So much of the evening, 60 times as fast.
const PART: Duration = Duration::from_secs(15 * 60);

/// A host looks at the last minute, which here is a second, and a viewer comes and goes, every other time with the cursor
/// that it had.
async fn read_on(server: &Server) {
    let _staying = Viewer::join(server.address, ROOM, "").await;
    let mut ticks = interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut since = String::new();
    loop {
        ticks.tick().await;
        let (status, window) = server.get(&format!("/api/rooms/{ROOM}/comments?last=1s&limit=1000")).await;
        assert_eq!(status, 200, "{window}");
        let viewer = Viewer::join(server.address, ROOM, &since).await;
        since = if since.is_empty() { format!("since={}", viewer.cursor) } else { String::new() };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_answers_most_of_what_an_evening_reads() {
    let pair = Pair::start("nodes_reads").await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/live-trace-a.csv");
    let report = tokio::select! {
        report = replay_until(file, pair.one.address, Some(PART)) => report,
        () = read_on(&pair.one) => unreachable!("it reads for ever"),
        () = read_on(&pair.two) => unreachable!("it reads for ever"),
    };
    for (name, server) in [("one", &pair.one), ("two", &pair.two)] {
        let by = async |source: &str| server.metric(&format!("danmaku_reads_total{{source=\"{source}\"}}")).await;
        let (memory, store, neither) = (by("memory").await, by("store").await, by("neither").await);
        let all = memory + store + neither;
        println!("node {name}: {memory} of {all} reads from memory, {store} with the store, {neither} without it");
        assert!(all > 50 && neither == 0 && memory * 100 > all * 85, "{report}");
    }
}
