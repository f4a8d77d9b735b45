//! Nodes that exchange comments through a real Redis.

use std::sync::Arc;
use std::time::Duration;

use danmakud::metrics::Metrics;
use danmakud::relay::{RedisConfig, RedisRelay, Relay as _};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep};

use crate::support::redis::RedisServer;
use crate::support::relay::{Node, ask, expect, posted, room_id, wait_for_subscribers, wait_until};

#[tokio::test]
async fn two_nodes_exchange_comments_whole_and_in_order_and_never_get_their_own() {
    let redis = RedisServer::start().await;
    let (mut a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    a.occupy(&redis, &["r1"]).await;
    b.occupy(&redis, &["r1"]).await;
    wait_for_subscribers(&redis, "r1", |subscribers| subscribers == 2).await;
    a.send("r1", &["one", "二"]);
    a.send("r1", &["three"]);
    assert_eq!(b.next().await, expect("r1", &["one", "二"]));
    assert_eq!(b.next().await, expect("r1", &["three"]));
    b.send("r1", &["back"]);
    // Its own came before this one, were they delivered at all.
    assert_eq!(a.next().await, expect("r1", &["back"]));
    b.send("r1", &["x"]);
    let envelope = a.next_envelope().await;
    assert_eq!(envelope.comments, [posted("r1", "x").comment.into()], "every field survives");
    assert_eq!((a.metrics.relay_received.get(), b.metrics.relay_received.get()), (2, 3));
}

#[tokio::test]
async fn only_rooms_with_viewers_arrive() {
    let redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["left", "here"]).await;
    b.relay.vacated(&room_id("left"));
    wait_for_subscribers(&redis, "left", |subscribers| subscribers == 0).await;
    a.send("left", &["unwanted"]);
    a.send("never", &["unwanted"]);
    a.send("here", &["wanted"]);
    assert_eq!(b.next().await, expect("here", &["wanted"]));
    assert_eq!(b.metrics.relay_received.get(), 1);
}

#[tokio::test]
async fn redis_dies_and_returns_and_so_does_the_exchange() {
    let mut redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["r1", "r2"]).await;
    a.relay.probe().await.unwrap();
    redis.kill();
    a.wait_for_probe(false).await;
    let begun = Instant::now();
    a.send("r1", &["while away"]);
    assert!(begun.elapsed() < Duration::from_millis(50), "forwarding never waits");
    assert!(redis.resume().await);
    a.wait_for_probe(true).await;
    b.wait_for_probe(true).await;
    wait_for_subscribers(&redis, "r2", |subscribers| subscribers == 1).await;
    a.send("r2", &["again"]);
    // "while away" may have been published before b was back; pub/sub has no memory.
    while b.next().await != expect("r2", &["again"]) {}
    assert_eq!(b.metrics.relay_connects.get(), 2);
}

#[tokio::test]
async fn a_node_starts_while_redis_is_away_and_joins_later() {
    let mut redis = RedisServer::start().await;
    redis.kill();
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.relay.occupied(&room_id("r1"));
    assert!(a.relay.probe().await.is_err());
    assert!(redis.resume().await);
    wait_for_subscribers(&redis, "r1", |subscribers| subscribers == 1).await;
    a.send("r1", &["late"]);
    assert_eq!(b.next().await, expect("r1", &["late"]));
}

#[tokio::test]
async fn a_connection_that_died_in_silence_is_reopened_within_ten_seconds() {
    let redis = RedisServer::start().await;
    let (url, cable) = redis.behind_cable().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&url).await);
    b.occupy(&redis, &["r1"]).await;
    cable.cut();
    let begun = Instant::now();
    wait_until("the connection is reopened", async || b.metrics.relay_connects.get() == 2).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    a.send("r1", &["after"]);
    assert_eq!(b.next().await, expect("r1", &["after"]));
    b.wait_for_probe(true).await;
}

#[tokio::test]
async fn a_quiet_connection_is_left_alone() {
    let redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["r1"]).await;
    // Real time, as a real server is on the other side: longer than two probes and their answers.
    sleep(Duration::from_secs(8)).await;
    a.send("r1", &["after the quiet"]);
    assert_eq!(b.next().await, expect("r1", &["after the quiet"]));
    assert_eq!((a.metrics.relay_connects.get(), b.metrics.relay_connects.get()), (1, 1));
}

#[tokio::test]
async fn a_node_has_two_connections_whatever_the_number_of_rooms() {
    let redis = RedisServer::start().await;
    let node = Node::join(&redis.url()).await;
    let rooms: Vec<_> = (0..3_000).map(|number| format!("room-{number}")).collect();
    rooms.iter().for_each(|room| node.relay.occupied(&room_id(room)));
    for room in &rooms[..500] {
        node.send(room, &["x"]);
    }
    for room in [&rooms[0], &rooms[2_999]] {
        wait_for_subscribers(&redis, room, |subscribers| subscribers == 1).await;
    }
    let counts: Vec<_> = rooms.iter().map(|room| (room_id(room), 1)).collect();
    let begun = Instant::now();
    assert_eq!(node.relay.count(&counts).await, vec![Some(0); rooms.len()]);
    println!("{} rooms were counted in {:?}", rooms.len(), begun.elapsed());
    node.relay.probe().await.unwrap();
    let clients: String = ask(&redis, &["CLIENT", "LIST"]).await;
    // The one that asks is on the list, and so may be ones that asked before and are just leaving.
    let of_node = clients.lines().filter(|client| !client.contains("cmd=client") && !client.contains("cmd=pubsub"));
    assert_eq!(of_node.count(), 2, "{clients}");
}

#[tokio::test]
async fn what_overflows_the_queue_is_counted_and_blocks_nobody() {
    let mut redis = RedisServer::start().await;
    let config = RedisConfig { max_queued: 10, ..RedisConfig::new(&redis.url()) };
    redis.kill();
    let metrics = Arc::new(Metrics::default());
    let (relay, _received) = RedisRelay::connect(config, Arc::clone(&metrics)).await.unwrap();
    let comments = [Arc::new(posted("r1", "a")), Arc::new(posted("r1", "b"))];
    // 10 wait in the queue and up to 256 are in the publisher's hand.
    for _ in 0..1_000 {
        relay.forward(&room_id("r1"), &comments);
    }
    assert!(relay.probe().await.is_err());
    assert!(metrics.relay_dropped.get() >= 2 * (1_000 - 10 - 256), "{}", metrics.relay_dropped.get());
    relay.close().await;
    assert_eq!(metrics.relay_dropped.get(), 2_000, "what could not be sent at the end is counted, too");
}

#[tokio::test]
async fn close_sends_what_waits() {
    let redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["r1"]).await;
    for _ in 0..1_000 {
        a.send("r1", &["x"]);
    }
    a.relay.close().await;
    for _ in 0..1_000 {
        assert_eq!(b.next().await, expect("r1", &["x"]));
    }
    assert_eq!(a.metrics.relay_dropped.get(), 0);
}

#[tokio::test]
async fn foreign_messages_are_counted_and_harm_nothing() {
    let redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["r1"]).await;
    for noise in ["", "hello", "\u{1}\u{7f}"] {
        let _receivers: i64 = ask(&redis, &["PUBLISH", "danmakud:room:r1", noise]).await;
    }
    a.send("r1", &["real"]);
    assert_eq!(b.next().await, expect("r1", &["real"]));
    assert_eq!(b.metrics.relay_unreadable.get(), 3);
}

#[tokio::test]
async fn a_message_that_is_published_again_is_delivered_once() {
    let redis = RedisServer::start().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    b.occupy(&redis, &["r1"]).await;
    let mut wire = redis::Client::open(redis.url()).unwrap().get_async_pubsub().await.unwrap();
    wire.subscribe("danmakud:room:r1").await.unwrap();
    a.send("r1", &["once"]);
    let message = wire.on_message().next().await.unwrap();
    let mut connection = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let mut publish = redis::cmd("PUBLISH");
    publish.arg("danmakud:room:r1").arg(message.get_payload_bytes());
    publish.exec_async(&mut connection).await.unwrap();
    a.send("r1", &["next"]);
    assert_eq!(b.next().await, expect("r1", &["once"]));
    assert_eq!(b.next().await, expect("r1", &["next"]));
}

#[tokio::test]
async fn a_password_is_used_and_never_told() {
    let redis = RedisServer::start_with(Some("s3cret")).await;
    let node = Node::join(&redis.url()).await;
    node.relay.probe().await.unwrap();
    let wrong = Node::join(&redis.url().replace("s3cret", "wr0ng")).await;
    let error = wrong.relay.probe().await.unwrap_err();
    let told = format!("{:?} {:?} {error} {error:?}", node.relay, wrong.relay);
    assert!(!told.contains("s3cret") && !told.contains("wr0ng"), "{told}");
}
