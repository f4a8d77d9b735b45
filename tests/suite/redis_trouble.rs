//! Redis that is there and does not take what it is given: what can be passed on is, and what cannot is told.

use std::time::Duration;

use danmakud::relay::{Heard, RedisConfig, Relay as _};

use crate::support::redis::RedisServer;
use crate::support::relay::{Node, ask, expect, posted, room_id, wait_for_subscribers, wait_until};

async fn pair(redis: &RedisServer, config: RedisConfig) -> (Node, Node) {
    let (a, mut b) = (Node::join_with(config).await, Node::join(&redis.url()).await);
    b.occupy(redis, &["r1"]).await;
    b.until_heard().await;
    (a, b)
}

fn failed(node: &Node, reason: &'static str) -> u64 {
    node.metrics.relay_publish_failed.get_or_create(&[("reason", reason)]).get()
}

async fn configure(redis: &RedisServer, key: &str, value: &str) {
    let _: String = ask(redis, &["CONFIG", "SET", key, value]).await;
}

async fn turn_read_only(redis: &RedisServer, is_read_only: bool) {
    let (host, port) = if is_read_only { ("127.0.0.1", "1") } else { ("NO", "ONE") };
    let _: String = ask(redis, &["REPLICAOF", host, port]).await;
}

#[tokio::test]
async fn without_memory_comments_are_passed_on_without_the_stream_and_nothing_passes_for_whole() {
    let redis = RedisServer::start().await;
    let (url, cable) = redis.behind_cable().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&url).await);
    b.occupy(&redis, &["r1"]).await;
    b.until_heard().await;
    a.send("r1", &["in the stream"]);
    b.texts(1).await;
    configure(&redis, "maxmemory", "1").await;
    a.send("r1", &["without"]);
    assert_eq!(b.texts(1).await, ["without"]);
    assert_eq!((failed(&a, "out_of_memory"), a.metrics.relay_unstreamed.get()), (1, 1));
    a.relay.probe().await.unwrap();
    cable.cut();
    a.send("r1", &["missed"]);
    wait_until("it is published", async || a.metrics.relay_unstreamed.get() == 2).await;
    configure(&redis, "maxmemory", "0").await;
    a.send("r1", &["in a new stream"]);
    let (texts, heard) = b.until_heard().await;
    assert_eq!((texts, heard), (vec!["in a new stream".to_owned()], Heard::Begun { room: room_id("r1"), since: None }));
    assert_eq!(b.gaps("unknown"), 1);
    a.send("r1", &["and on"]);
    assert_eq!(b.texts(1).await, ["and on"]);
}

#[tokio::test]
async fn whatever_the_reason_what_stands_in_no_stream_is_told() {
    let redis = RedisServer::start().await;
    let (url, cable) = redis.behind_cable().await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join(&url).await);
    b.occupy(&redis, &["r1"]).await;
    b.until_heard().await;
    a.send("r1", &["in the stream"]);
    b.texts(1).await;
    // The stream cannot be dropped either.
    configure(&redis, "min-replicas-to-write", "1").await;
    cable.cut();
    a.send("r1", &["missed"]);
    wait_until("it is published", async || a.metrics.relay_unstreamed.get() == 1).await;
    configure(&redis, "min-replicas-to-write", "0").await;
    assert_eq!(b.until_heard().await, (vec![], Heard::Begun { room: room_id("r1"), since: None }));
    a.send("r1", &["and on"]);
    assert_eq!(b.texts(1).await, ["and on"]);
}

#[tokio::test]
async fn a_read_only_redis_is_as_good_as_away_to_whoever_hears() {
    let redis = RedisServer::start().await;
    let (a, mut b) = pair(&redis, RedisConfig::new(&redis.url())).await;
    a.relay.probe().await.unwrap();
    turn_read_only(&redis, true).await;
    a.send("r1", &["meanwhile"]);
    let error = b.relay.probe().await.unwrap_err();
    assert!(error.to_string().contains("read only"), "{error}");
    assert_eq!(b.hear().await, Heard::Lost);
    wait_until("the other one knows as well", async || a.metrics.relay_up.get() == 0).await;
    turn_read_only(&redis, false).await;
    a.wait_for_probe(true).await;
    b.wait_for_probe(true).await;
    assert_eq!(b.texts(1).await, ["meanwhile"]);
    let lost = |node: &Node| node.metrics.relay_disconnects.get_or_create(&[("reason", "probe_missed")]).get();
    assert_eq!((lost(&a), lost(&b)), (1, 1), "it is not tried again and again");
    assert_eq!(a.metrics.relay_dropped.get(), 0);
}

#[tokio::test]
async fn without_memory_a_node_is_ready_all_the_same() {
    let redis = RedisServer::start().await;
    let (a, mut b) = pair(&redis, RedisConfig::new(&redis.url())).await;
    configure(&redis, "maxmemory", "1").await;
    a.relay.probe().await.unwrap();
    a.send("r1", &["live"]);
    assert_eq!(b.texts(1).await, ["live"]);
}

/// The user that the README says to make, called `danmakud`, with some rights changed.
async fn user(redis: &RedisServer, changes: &[&str]) -> RedisConfig {
    let readme = include_str!("../../README.md");
    let documented = readme.lines().find(|line| line.starts_with("ACL SETUSER ")).expect("the README says it");
    let rights: Vec<_> = documented.split(' ').chain(changes.iter().copied()).collect();
    let _: String = ask(redis, &rights).await;
    RedisConfig::new(&format!("redis://danmakud:secret@127.0.0.1:{}", redis.port()))
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough() {
    let redis = RedisServer::start().await;
    let config = user(&redis, &[]).await;
    let (a, mut b) = pair(&redis, config.clone()).await;
    let mut c = Node::join_with(config).await;
    c.occupy(&redis, &["r1", "other"]).await;
    c.relay.vacated(&room_id("other"));
    wait_for_subscribers(&redis, "other", |subscribers| subscribers == 0).await;
    a.send("r1", &["live"]);
    assert_eq!((b.texts(1).await, c.texts(1).await), (vec!["live".to_owned()], vec!["live".to_owned()]));
    assert_eq!(a.relay.count(&[(room_id("r1"), 2)]).await, [Some(0)]);
    assert_eq!(c.relay.count_elsewhere(&room_id("r1")).await, Some(2));
    c.relay.probe().await.unwrap();
    let _: i64 = ask(&redis, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    while c.until_heard().await.1 != Heard::Resumed(room_id("r1")) {}
    a.relay.close().await;
    c.relay.close().await;
    let refused: Vec<redis::Value> = ask(&redis, &["ACL", "LOG"]).await;
    assert_eq!(refused, []);
    assert_eq!(a.metrics.relay_unstreamed.get(), 0);
}

#[tokio::test]
async fn a_channel_that_cannot_be_given_up_costs_nothing() {
    let redis = RedisServer::start().await;
    let config = user(&redis, &["-unsubscribe"]).await;
    let (a, mut b) = (Node::join(&redis.url()).await, Node::join_with(config).await);
    b.occupy(&redis, &["r1", "other"]).await;
    b.relay.vacated(&room_id("other"));
    wait_until("it was refused", async || {
        let refused: Vec<redis::Value> = ask(&redis, &["ACL", "LOG"]).await;
        !refused.is_empty()
    })
    .await;
    a.send("other", &["unwanted"]);
    a.send("r1", &["wanted"]);
    assert_eq!(b.next().await, expect("r1", &["wanted"]));
    b.relay.probe().await.unwrap();
    assert_eq!(b.metrics.relay_connects.get(), 1);
}

#[tokio::test]
async fn scripts_that_may_not_be_made_known_are_done_without() {
    let redis = RedisServer::start().await;
    let config = user(&redis, &["-script|load"]).await;
    let mut b = Node::join_with(config.clone()).await;
    b.occupy(&redis, &["r1"]).await;
    let a = Node::join_with(config).await;
    for text in ["1", "2"] {
        a.send("r1", &[text]);
        assert_eq!(b.texts(1).await, [text]);
    }
    assert_eq!((a.metrics.relay_unstreamed.get(), a.metrics.relay_dropped.get()), (2, 0));
}

#[tokio::test]
async fn what_a_read_only_redis_refuses_follows_when_it_takes_it() {
    let redis = RedisServer::start().await;
    let (a, mut b) = pair(&redis, RedisConfig::new(&redis.url())).await;
    turn_read_only(&redis, true).await;
    a.send("r1", &["1"]);
    a.send("r1", &["2"]);
    wait_until("it is refused", async || failed(&a, "read_only") >= 2).await;
    turn_read_only(&redis, false).await;
    assert_eq!(b.texts(2).await, ["1", "2"]);
    assert_eq!((a.metrics.relay_dropped.get(), a.metrics.relay_unstreamed.get()), (0, 0));
}

#[tokio::test]
async fn what_was_given_up_is_told_to_the_others() {
    let redis = RedisServer::start().await;
    let (a, mut b) = pair(&redis, RedisConfig { max_queued: 1, ..RedisConfig::new(&redis.url()) }).await;
    turn_read_only(&redis, true).await;
    a.send("r1", &["0"]);
    wait_until("it is refused", async || failed(&a, "read_only") > 0).await;
    // One is in the publisher's hand, one waits.
    (1..5).for_each(|number| a.send("r1", &[&number.to_string()]));
    assert_eq!(a.metrics.relay_dropped.get(), 3);
    turn_read_only(&redis, false).await;
    assert_eq!(b.texts(1).await, ["0"]);
    let since = Some(posted("r1", "").comment.ts);
    assert_eq!(b.hear().await, Heard::Begun { room: room_id("r1"), since });
    assert_eq!(b.texts(1).await, ["1"]);
    let mut late = Node::join(&redis.url()).await;
    late.relay.occupied(&room_id("r1"));
    let (texts, heard) = late.until_heard().await;
    assert_eq!((texts.len(), heard), (2, Heard::Begun { room: room_id("r1"), since }), "the stream tells it as well");
}

#[tokio::test]
async fn what_has_waited_too_long_is_given_up() {
    let redis = RedisServer::start().await;
    let config = RedisConfig { max_age: Duration::from_millis(300), ..RedisConfig::new(&redis.url()) };
    let (a, mut b) = pair(&redis, config).await;
    turn_read_only(&redis, true).await;
    a.send("r1", &["old"]);
    wait_until("it is given up", async || a.metrics.relay_dropped.get() == 1).await;
    turn_read_only(&redis, false).await;
    assert!(matches!(b.hear().await, Heard::Begun { since: Some(_), .. }));
    a.send("r1", &["new"]);
    assert_eq!(b.texts(1).await, ["new"]);
}

#[tokio::test]
async fn a_name_that_something_else_has_is_taken_over() {
    let redis = RedisServer::start().await;
    let (a, mut b) = pair(&redis, RedisConfig::new(&redis.url())).await;
    let _: String = ask(&redis, &["SET", "{danmakud:room:r1}:stream", "noise"]).await;
    for text in ["1", "2"] {
        a.send("r1", &[text]);
        assert_eq!(b.texts(1).await, [text]);
    }
    assert_eq!((failed(&a, "refused"), a.metrics.relay_unstreamed.get()), (1, 1), "the second is in a stream");
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let redis = RedisServer::start().await;
    let (a, mut b) = pair(&redis, RedisConfig::new(&redis.url())).await;
    let _: String = ask(&redis, &["SCRIPT", "FLUSH"]).await;
    a.send("r1", &["x"]);
    assert_eq!(b.texts(1).await, ["x"]);
    assert_eq!(a.metrics.relay_unstreamed.get(), 0);
}
