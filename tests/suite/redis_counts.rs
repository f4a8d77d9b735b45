//! Nodes tell each other through a real Redis how many viewers their rooms have.

use std::time::Duration;

use danmakud::relay::{COUNTED_FOR, RedisConfig, Relay as _, Topology};
use tokio::time::Instant;

use crate::support::redis::RedisServer;
use crate::support::relay::{Node, ask, room_id, wait_until};

const KEY: &str = "{danmakud:room:r}:online";

impl Node {
    /// Tells so many viewers of room `r`; gives how many there are elsewhere.
    async fn count(&self, viewers: usize) -> Option<usize> {
        self.relay.count(&[(room_id("r"), viewers)]).await[0]
    }
}

#[tokio::test]
async fn nodes_add_up_and_one_that_died_is_forgotten() {
    let redis = RedisServer::start().await;
    let (a, b, c) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    assert_eq!((a.count(3).await, b.count(40).await, c.count(500).await), (Some(0), Some(3), Some(43)));
    assert_eq!((a.count(3).await, b.count(41).await, a.count(3).await), (Some(540), Some(503), Some(541)));
    let died = Instant::now();
    drop(c);
    wait_until("a beat later still counted", async || {
        assert_eq!((a.count(3).await, b.count(41).await), (Some(541), Some(503)));
        died.elapsed() > COUNTED_FOR / 3
    })
    .await;
    // Both tell all the while, as they live.
    let elsewhere = async || (a.count(3).await, b.count(41).await);
    wait_until("it is forgotten", async || elsewhere().await == (Some(41), Some(3))).await;
    println!("a dead node was forgotten {:?} after it died", died.elapsed());
    assert!(died.elapsed() < COUNTED_FOR + Duration::from_secs(1), "{:?}", died.elapsed());
    let fields: i64 = ask(&redis, &["HLEN", KEY]).await;
    assert_eq!(fields, 2, "nothing of it stays behind");
}

#[tokio::test]
async fn who_leaves_is_taken_back_and_nothing_stays_behind() {
    let redis = RedisServer::start().await;
    let (a, b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    assert_eq!((a.count(3).await, b.count(4).await), (Some(0), Some(3)));
    let expiry: i64 = ask(&redis, &["PTTL", KEY]).await;
    assert!(expiry > 0 && expiry <= COUNTED_FOR.as_millis() as i64, "if all nodes die: {expiry}");
    assert_eq!(a.relay.count_elsewhere(&room_id("r")).await, Some(4), "asking tells nothing");
    assert_eq!(a.relay.count_elsewhere(&room_id("never")).await, Some(0));
    assert_eq!(a.relay.count(&[]).await, [], "its last viewer has left");
    assert_eq!(b.relay.count_elsewhere(&room_id("r")).await, Some(0));
    b.relay.close().await;
    let keys: i64 = ask(&redis, &["DBSIZE"]).await;
    assert_eq!(keys, 0, "a node that ends takes back what it told");
    assert_eq!(b.count(5).await, None, "and tells nothing more");
    let keys: i64 = ask(&redis, &["DBSIZE"]).await;
    assert_eq!(keys, 0);
}

#[tokio::test]
async fn counts_come_back_with_redis_and_survive_what_others_write() {
    let mut redis = RedisServer::start().await;
    let (a, b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    assert_eq!((a.count(3).await, b.count(4).await), (Some(0), Some(3)));
    redis.kill();
    wait_until("it is known to be away", async || a.metrics.relay_up.get() == 0 && b.metrics.relay_up.get() == 0).await;
    let begun = Instant::now();
    assert_eq!((a.count(3).await, a.relay.count_elsewhere(&room_id("r")).await), (None, None));
    assert!(begun.elapsed() < Duration::from_millis(500), "known to be away, it is not waited for");
    assert!(redis.resume().await);
    wait_until("they count again", async || b.count(4).await.is_some() && a.count(3).await == Some(4)).await;
    let _: String = ask(&redis, &["SCRIPT", "FLUSH"]).await;
    wait_until("the script is known again", async || a.count(3).await == Some(4)).await;
    assert!(a.metrics.relay_counts_failed.get() > 0);
    let _: i64 = ask(&redis, &["HSET", KEY, "noise", "x", "ahead", "7 99999999999999", "old", "7 1"]).await;
    assert_eq!((a.count(3).await, ask::<i64>(&redis, &["HLEN", KEY]).await), (Some(4), 2));
}

#[tokio::test]
async fn where_nothing_can_be_told_nothing_is_known() {
    let redis = RedisServer::start().await;
    let (a, b) = (Node::join(&redis.url()).await, Node::join(&redis.url()).await);
    assert_eq!((a.count(3).await, b.count(4).await), (Some(0), Some(3)));
    let _: String = ask(&redis, &["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!((a.count(2).await, a.relay.count_elsewhere(&room_id("r")).await), (None, None));
    let _: String = ask(&redis, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(a.relay.count_elsewhere(&room_id("r")).await, Some(4));
    assert_eq!(b.count(4).await, Some(3), "asking does not take back what was told");
}

#[tokio::test]
async fn in_a_cluster_every_room_is_counted() {
    const ROOMS: usize = 600;
    let cluster = RedisServer::start_cluster().await;
    let config = RedisConfig { topology: Topology::Cluster, ..RedisConfig::new(&cluster[0].url()) };
    let (a, b) = (Node::join_with(config.clone()).await, Node::join_with(config).await);
    let rooms: Vec<_> = (0..ROOMS).map(|room| (room_id(&format!("r{room}")), room + 1)).collect();
    assert_eq!(a.relay.count(&rooms).await, vec![Some(0); ROOMS]);
    let begun = Instant::now();
    let elsewhere = b.relay.count(&rooms).await;
    println!("{ROOMS} rooms were counted in {:?}", begun.elapsed());
    assert_eq!(elsewhere, rooms.iter().map(|(_, viewers)| Some(*viewers)).collect::<Vec<_>>());
    a.relay.close().await;
    b.relay.close().await;
    for server in &cluster {
        assert_eq!(ask::<i64>(server, &["DBSIZE"]).await, 0);
    }
}
