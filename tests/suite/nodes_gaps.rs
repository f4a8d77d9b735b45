//! Two servers whose Redis comes and goes: viewers get every comment once, and the store is asked only where it must be.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::nodes::{Pair, say, until_complete};
use super::support::relay::ask;
use super::support::server::until;
use super::support::viewer::Viewer;

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("{number:04}")).collect()
}

/// Waits until the room on node two is whole by itself, so that no store is asked on its account any more.
async fn until_settled(pair: &Pair, viewer: &mut Viewer) {
    say(&pair.one, "first").await;
    assert_eq!(viewer.texts(1).await, ["first"]);
    until_complete(&pair.two, &["first"]).await;
    until("the room needs no store", async || {
        let before = pair.two.metric("danmaku_store_reads_total").await;
        let (_, window) = pair.two.get("/api/rooms/r/comments?last=10m").await;
        window["complete"] == true && pair.two.metric("danmaku_store_reads_total").await == before
    })
    .await;
}

#[tokio::test]
async fn what_a_cut_off_node_missed_comes_in_order_and_without_the_store() {
    let (pair, cable) = Pair::start_behind_cable("gaps_cut").await;
    let mut viewer = Viewer::join(pair.two.address, "r", "").await;
    until_settled(&pair, &mut viewer).await;
    let reads = pair.two.metric("danmaku_store_reads_total").await;
    cable.cut();
    let begun = Instant::now();
    for text in numbers(0..50) {
        say(&pair.one, &text).await;
    }
    assert_eq!(viewer.texts(50).await, numbers(0..50));
    println!("a viewer had what its node missed {:?} after the cable was cut", begun.elapsed());
    assert_eq!(pair.two.metric("danmaku_relay_gaps_total{outcome=\"bridged\"}").await, 1);
    let (_, window) = pair.two.get("/api/rooms/r/comments?last=60s").await;
    assert_eq!((window["complete"].clone(), window["comments"].as_array().unwrap().len()), (json!(true), 51));
    say(&pair.one, "last").await;
    assert_eq!(viewer.texts(1).await, ["last"], "and nothing came twice");
    // The answer above is the one read there may be.
    assert!(pair.two.metric("danmaku_store_reads_total").await <= reads + 1);
}

#[tokio::test]
async fn a_redis_that_is_killed_again_and_again_under_load_costs_no_viewer_a_comment() {
    let mut pair = Pair::start("gaps_killed").await;
    let mut viewer = Viewer::join(pair.two.address, "r", "").await;
    let mut sender = Viewer::join(pair.one.address, "r", "").await;
    let all = numbers(0..300);
    let send = async {
        for text in &all {
            sender.say(text, text, "accepted").await;
            sleep(Duration::from_millis(10)).await;
        }
    };
    let flap = async {
        for _ in 0..5 {
            sleep(Duration::from_millis(200)).await;
            pair.redis.kill();
            sleep(Duration::from_millis(200)).await;
            assert!(pair.redis.resume().await);
        }
        Instant::now()
    };
    let ((), back) = tokio::join!(send, flap);
    let mut texts = viewer.texts(all.len()).await;
    println!("the last comment was there {:?} after redis was back", back.elapsed());
    texts.sort();
    assert_eq!(texts, all, "each once");
    until("node two hears again", async || pair.two.metric("danmaku_relay_up").await == 1).await;
    say(&pair.one, "last").await;
    assert_eq!(viewer.texts(1).await, ["last"], "and nothing came twice");
}

#[tokio::test]
async fn viewers_and_rooms_cost_no_connections() {
    let pair = Pair::start("gaps_connections").await;
    let clients = async || {
        let list: String = ask(&pair.redis, &["CLIENT", "LIST"]).await;
        let is_ours = |client: &&str| !client.contains("cmd=client") && !client.contains("cmd=pubsub");
        list.lines().filter(is_ours).count()
    };
    let _first = Viewer::join(pair.two.address, "r", "").await;
    until("two connections a node are open", async || clients().await == 4).await;
    let mut viewers = Vec::new();
    for number in 0..200 {
        viewers.push(Viewer::join(pair.two.address, &format!("room{number}"), "").await);
        pair.one.post(&format!("room{number}"), "", &json!({"text": "x"})).await;
    }
    for viewer in &mut viewers {
        assert_eq!(viewer.texts_until("x").await, ["x"]);
    }
    assert_eq!(clients().await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_to_a_cut_off_node_and_back_gets_nothing_twice() {
    let (pair, cable) = Pair::start_behind_cable("gaps_back").await;
    let mut two = Viewer::join(pair.two.address, "r", "").await;
    until_settled(&pair, &mut two).await;
    let mut one = Viewer::join(pair.one.address, "r", "").await;
    cable.cut();
    for text in numbers(0..10) {
        one.say(&text, &text, "accepted").await;
    }
    assert_eq!(one.texts(10).await, numbers(0..10));
    let mut moved = Viewer::join(pair.two.address, "r", &format!("since={}", one.cursor)).await;
    two.say("there", "there", "accepted").await;
    assert_eq!(moved.texts(1).await, ["there"]);
    let mut back = Viewer::join(pair.one.address, "r", &format!("since={}", moved.cursor)).await;
    one.say("last", "last", "accepted").await;
    let texts = back.texts_until("last").await;
    assert!(texts.iter().all(|text| !numbers(0..10).contains(text)), "{texts:?}");
}
