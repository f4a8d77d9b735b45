//! What a node misses it reads from the room's stream: each comment once, in order, and nothing missing without a word.

use std::collections::HashSet;
use std::time::Duration;

use danmakud::relay::{Heard, RedisConfig, Relay as _};
use tokio::time::Instant;

use crate::support::redis::RedisServer;
use crate::support::relay::{Node, ask, room_id, wait_for_subscribers, wait_until};

fn begun(room: &str) -> Heard {
    Heard::Begun { room: room_id(room), since: None }
}

fn resumed(room: &str) -> Heard {
    Heard::Resumed(room_id(room))
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn send_each(node: &Node, texts: &[String]) {
    texts.iter().for_each(|text| node.send("r1", &[text]));
}

/// A node that only publishes, and one behind a cable that hears the room.
async fn publisher_and_hearer(redis: &RedisServer) -> (Node, Node, crate::support::redis::Cable) {
    let (url, cable) = redis.behind_cable().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&url).await);
    b.occupy(redis, &["r1"]).await;
    assert_eq!(b.until_heard().await, (vec![], begun("r1")));
    (a, b, cable)
}

async fn length(redis: &RedisServer, room: &str) -> i64 {
    ask(redis, &["XLEN", &format!("{{danmakud:room:{room}}}:stream")]).await
}

/// How often clients, and scripts, have given this command.
async fn calls(redis: &RedisServer, command: &str) -> i64 {
    let stats: String = ask(redis, &["INFO", "commandstats"]).await;
    let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_message_is_written_and_published_in_one_step_and_streams_keep_the_newest() {
    let redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["r1"]).await;
    send_each(&a, &numbers(0..250));
    assert_eq!(b.texts(250).await, numbers(0..250));
    assert_eq!(length(&redis, "r1").await, 200, "not one more or less");
    assert_eq!(calls(&redis, "evalsha").await, 250);
    a.send("r1", &["three", "in", "one"]);
    b.texts(3).await;
    assert_eq!(length(&redis, "r1").await, 198, "197 and the one with three");
    let many: Vec<_> = (0..300).map(|_| "x").collect();
    a.send("r1", &many);
    b.texts(300).await;
    assert_eq!(length(&redis, "r1").await, 1, "the newest message is kept whole");
}

#[tokio::test]
async fn streams_expire_some_time_apart() {
    let redis = RedisServer::start().await;
    let a = Node::join(&redis.url()).await;
    let rooms: Vec<_> = (0..30).map(|room| format!("r{room}")).collect();
    rooms.iter().for_each(|room| a.send(room, &["x"]));
    let mut expiries = HashSet::new();
    for room in &rooms {
        wait_until("the stream is there", async || length(&redis, room).await == 1).await;
        let left: i64 = ask(&redis, &["PTTL", &format!("{{danmakud:room:{room}}}:stream")]).await;
        assert!((110_000..=180_000).contains(&left), "{left}");
        expiries.insert(left / 2000);
    }
    assert!(expiries.len() > 5, "they all expire at once: {expiries:?}");
}

#[tokio::test]
async fn a_room_that_is_new_to_a_node_is_given_its_whole_stream() {
    let redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    send_each(&a, &numbers(0..5));
    b.send("r1", &["its own"]);
    wait_until("all are in the stream", async || length(&redis, "r1").await == 6).await;
    b.relay.occupied(&room_id("r1"));
    assert_eq!(b.until_heard().await, (numbers(0..5), begun("r1")));
    a.send("r1", &["live"]);
    assert_eq!(b.texts(1).await, ["live"]);
    b.relay.vacated(&room_id("r1"));
    wait_for_subscribers(&redis, "r1", |subscribers| subscribers == 0).await;
    b.relay.occupied(&room_id("r1"));
    let all = [numbers(0..5), vec!["live".to_owned()]].concat();
    assert_eq!(b.until_heard().await, (all, begun("r1")), "it is new again");
}

#[tokio::test]
async fn what_a_cut_off_node_missed_it_is_given_before_what_follows() {
    let redis = RedisServer::start().await;
    let (a, mut b, cable) = publisher_and_hearer(&redis).await;
    send_each(&a, &numbers(0..10));
    assert_eq!(b.texts(10).await, numbers(0..10));
    cable.cut();
    let begun = Instant::now();
    send_each(&a, &numbers(10..160));
    assert_eq!(b.until_heard().await, (numbers(10..160), resumed("r1")));
    println!("a black hole was noticed and filled after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10));
    send_each(&a, &numbers(160..170));
    assert_eq!(b.texts(10).await, numbers(160..170));
    assert_eq!((b.gaps("bridged"), b.gaps("too_long"), b.gaps("unknown")), (1, 0, 0));
    assert_eq!(b.metrics.relay_read.get(), 150);
}

#[tokio::test]
async fn more_than_the_stream_keeps_is_told() {
    let redis = RedisServer::start().await;
    let (a, mut b, cable) = publisher_and_hearer(&redis).await;
    a.send("r1", &["before"]);
    assert_eq!(b.texts(1).await, ["before"]);
    cable.cut();
    send_each(&a, &numbers(0..201));
    assert_eq!(b.until_heard().await, (numbers(1..201), begun("r1")));
    assert_eq!((b.gaps("bridged"), b.gaps("too_long")), (0, 1));
}

#[tokio::test]
async fn the_first_comments_of_a_quiet_room_are_not_missed() {
    let redis = RedisServer::start().await;
    let (a, mut b, cable) = publisher_and_hearer(&redis).await;
    wait_until("a probe has come back", async || b.relay.probe().await.is_ok()).await;
    cable.cut();
    a.send("r1", &["of a new stream"]);
    assert_eq!(b.until_heard().await, (vec!["of a new stream".to_owned()], resumed("r1")));
}

#[tokio::test]
async fn a_stream_that_is_gone_when_a_node_is_back_passes_for_nothing() {
    const STREAM: &str = "{danmakud:room:r1}:stream";
    for (command, after) in [(&["DEL", STREAM][..], &["after"][..]), (&["XTRIM", STREAM, "MAXLEN", "0"], &[])] {
        let redis = RedisServer::start().await;
        let (a, mut b, cable) = publisher_and_hearer(&redis).await;
        a.send("r1", &["before"]);
        b.texts(1).await;
        wait_until("a probe has come back", async || b.relay.probe().await.is_ok()).await;
        cable.cut();
        a.send("r1", &["missed"]);
        wait_until("it is in the stream", async || length(&redis, "r1").await == 2).await;
        let _: i64 = ask(&redis, command).await;
        after.iter().for_each(|text| a.send("r1", &[text]));
        let (texts, heard) = b.until_heard().await;
        assert_eq!((texts, heard), (after.iter().map(|&text| text.to_owned()).collect(), begun("r1")), "{command:?}");
        assert_eq!(b.gaps("unknown"), 1);
    }
}

#[tokio::test]
async fn connections_that_are_killed_again_and_again_cost_nothing() {
    let redis = RedisServer::start().await;
    let (a, mut b, _cable) = publisher_and_hearer(&redis).await;
    let begun = Instant::now();
    let kill = async {
        for _ in 0..5 {
            for kind in ["pubsub", "normal"] {
                let _: i64 = ask(&redis, &["CLIENT", "KILL", "TYPE", kind]).await;
            }
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    };
    let send = async {
        for text in numbers(0..200) {
            a.send("r1", &[&text]);
            tokio::time::sleep(Duration::from_millis(12)).await;
        }
    };
    tokio::join!(kill, send);
    assert_eq!(b.texts(200).await, numbers(0..200));
    println!("healed {:?} after five losses in 2 s had begun", begun.elapsed());
    a.send("r1", &["last"]);
    assert_eq!(b.texts(1).await, ["last"]);
    wait_until("hearing has resumed", async || b.gaps("bridged") > 0).await;
    assert_eq!((b.gaps("too_long"), b.gaps("unknown")), (0, 0));
}

#[tokio::test]
async fn a_node_that_takes_too_slowly_reads_the_rest_from_the_stream() {
    let redis = RedisServer::start().await;
    let a = Node::join(&redis.url()).await;
    let mut b = Node::join_with(RedisConfig { max_received: 2, ..RedisConfig::new(&redis.url()) }).await;
    b.occupy(&redis, &["r1"]).await;
    assert_eq!(b.until_heard().await, (vec![], begun("r1")));
    send_each(&a, &numbers(0..150));
    // All but the two that fill its queue: nothing comes later that would show the gap.
    wait_until("its queue has overflowed", async || b.metrics.relay_missed.get() == 148).await;
    assert_eq!(b.texts(150).await, numbers(0..150));
    assert_eq!(b.gaps("unknown") + b.gaps("too_long"), 0);
}

#[tokio::test]
async fn a_node_that_reads_too_slowly_is_cut_off_by_redis_and_catches_up() {
    let redis = RedisServer::start().await;
    let (a, mut b, cable) = publisher_and_hearer(&redis).await;
    let _: String = ask(&redis, &["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 1mb 1"]).await;
    cable.stop(true);
    // 9 MB: more than the buffers of both kernels hold.
    let texts: Vec<_> = (0..150).map(|number| format!("{number}{}", "x".repeat(60_000))).collect();
    send_each(&a, &texts);
    wait_until("redis has cut it off", async || {
        let (_, subscribers): (String, i64) = ask(&redis, &["PUBSUB", "NUMSUB", "danmakud:room:r1"]).await;
        subscribers == 0
    })
    .await;
    cable.stop(false);
    assert!(b.texts(150).await == texts);
    let closed = || b.metrics.relay_disconnects.get_or_create(&[("reason", "closed")]).get();
    assert_eq!(closed(), 1);
}

#[tokio::test]
async fn an_answer_that_is_lost_makes_no_second_copy() {
    let redis = RedisServer::start().await;
    let (url, cable) = redis.behind_cable().await;
    let (a, mut b) = (Node::join(&url).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["r1"]).await;
    a.send("r1", &["before"]);
    assert_eq!(b.texts(1).await, ["before"]);
    cable.lose_answers();
    a.send("r1", &["once"]);
    assert_eq!(b.texts(1).await, ["once"]);
    cable.cut();
    let unreachable = || a.metrics.relay_publish_failed.get_or_create(&[("reason", "unreachable")]).get();
    wait_until("it is published again", async || unreachable() == 1 && calls(&redis, "evalsha").await == 3).await;
    assert_eq!(length(&redis, "r1").await, 2);
    a.send("r1", &["next"]);
    assert_eq!(b.texts(1).await, ["next"]);
}
