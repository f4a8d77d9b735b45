//! Everybody sees how many are in a room on all nodes, also after a node has died or stopped.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::nodes::Pair;
use super::support::relay::ask;
use super::support::server::{Server, until};
use super::support::viewer::Viewer;

async fn online(server: &Server) -> Value {
    let (status, online) = server.get("/api/rooms/r").await;
    assert_eq!(status, 200, "{online}");
    online
}

fn answer(online: usize, here: usize) -> Value {
    json!({"room": "r", "online": online, "onlineHere": here, "complete": true})
}

async fn join(server: &Server, count: usize) -> Vec<Viewer> {
    let mut viewers = Vec::new();
    for _ in 0..count {
        viewers.push(Viewer::join(server.address, "r", "").await);
    }
    viewers
}

/// Waits until every one of them was told this number.
async fn until_told(viewers: &mut [Viewer], online: usize) {
    for viewer in viewers {
        viewer.until(|frame| frame["type"] == "room" && frame["online"] == online).await;
    }
}

#[tokio::test]
async fn viewers_of_both_nodes_count_and_a_dead_node_is_forgotten() {
    let pair = Pair::start("nodes_online").await;
    assert_eq!(online(&pair.one).await, answer(0, 0));
    let mut one = join(&pair.one, 3).await;
    until("the others are told", async || online(&pair.two).await == answer(3, 0)).await;
    let mut two = join(&pair.two, 2).await;
    assert_eq!((&two[0].hello["online"], &two[1].hello["online"]), (&json!(4), &json!(5)));
    until_told(&mut one, 5).await;
    until_told(&mut two, 5).await;
    assert_eq!((online(&pair.one).await, online(&pair.two).await), (answer(5, 3), answer(5, 2)));
    let died = Instant::now();
    drop(pair.two);
    until_told(&mut one, 3).await;
    println!("the count was right {:?} after a node had died", died.elapsed());
    assert!(died.elapsed() < Duration::from_secs(21), "15 s and a beat: {:?}", died.elapsed());
    assert_eq!(online(&pair.one).await, answer(3, 3));
}

#[tokio::test]
async fn after_churn_nobody_is_counted_and_a_stop_is_seen_at_once() {
    let pair = Pair::start("nodes_online_churn").await;
    let mut staying = join(&pair.one, 1).await;
    for _ in 0..5 {
        drop((join(&pair.one, 7).await, join(&pair.two, 8).await));
    }
    let two = join(&pair.two, 4).await;
    until_told(&mut staying, 5).await;
    drop(two);
    until_told(&mut staying, 1).await;
    until("node two knows it", async || online(&pair.two).await == answer(1, 0)).await;
    let stopped = Instant::now();
    pair.one.stop().await;
    until("nobody is left", async || online(&pair.two).await == answer(0, 0)).await;
    println!("a stop was seen {:?} after the signal", stopped.elapsed());
    let keys: Vec<String> = ask(&pair.redis, &["KEYS", "*:online"]).await;
    assert!(keys.is_empty(), "{keys:?}");
}
