//! Redis as operators run it: with replicas that take over, with sentinels that say so, and as a cluster.

use std::time::Duration;

use danmakud::relay::{Heard, RedisConfig, Relay as _, Topology};
use tokio::time::Instant;

use crate::support::redis::RedisServer;
use crate::support::relay::{Node, ask, room_id, wait_until};

/// A master and its replica, once that has caught up.
async fn master_and_replica() -> (RedisServer, RedisServer) {
    let (master, replica) = (RedisServer::start().await, RedisServer::start().await);
    let _: String = ask(&replica, &["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    wait_until("the replica follows", async || {
        let info: String = ask(&replica, &["INFO", "replication"]).await;
        info.contains("master_link_status:up")
    })
    .await;
    (master, replica)
}

async fn hearing(config: RedisConfig, rooms: &[&str]) -> Node {
    let mut node = Node::join_with(config).await;
    for room in rooms {
        node.relay.occupied(&room_id(room));
        assert!(matches!(node.until_heard().await.1, Heard::Begun { .. }));
    }
    node
}

/// Sends until something of it is heard, and takes the rest of it.
async fn exchange(a: &Node, b: &mut Node, room: &str) {
    a.send(room, &["after"]);
    while b.next().await.1 != ["after"] {}
}

#[tokio::test]
async fn of_several_addresses_the_master_is_used_and_after_a_failover_the_new_one() {
    let (mut master, replica) = master_and_replica().await;
    // The replica comes first, and is passed over.
    let config = RedisConfig::new(&format!("redis://127.0.0.1:{},127.0.0.1:{}/0", replica.port(), master.port()));
    let (a, mut b) = (Node::join_with(config.clone()).await, hearing(config, &["r1"]).await);
    a.send("r1", &["before"]);
    assert_eq!(b.texts(1).await, ["before"]);
    let subscribers: (String, i64) = ask(&master, &["PUBSUB", "NUMSUB", "danmakud:room:r1"]).await;
    assert_eq!(subscribers.1, 1);
    master.kill();
    let begun = Instant::now();
    a.send("r1", &["meanwhile"]);
    let _: String = ask(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    let (mut texts, heard) = b.until_heard().await;
    println!("heard again {:?} after the failover", begun.elapsed());
    assert_eq!(heard, Heard::Begun { room: room_id("r1"), since: None }, "the old master may have had more");
    if texts.is_empty() {
        texts = b.texts(1).await;
    }
    assert_eq!(texts, ["meanwhile"]);
    exchange(&a, &mut b, "r1").await;
    b.wait_for_probe(true).await;
}

#[tokio::test]
async fn sentinels_name_the_master_and_the_next_one() {
    let (mut master, replica) = master_and_replica().await;
    let sentinel = RedisServer::start_sentinel("evening", master.port()).await;
    let topology = Topology::Sentinel { service: "evening".to_owned() };
    // The first sentinel is away.
    let url = format!("redis://127.0.0.1:1,127.0.0.1:{}", sentinel.port());
    let config = RedisConfig { topology, ..RedisConfig::new(&url) };
    wait_until("the sentinel knows the replica", async || {
        let replicas: Vec<redis::Value> = ask(&sentinel, &["SENTINEL", "REPLICAS", "evening"]).await;
        replicas.len() == 1
    })
    .await;
    let (a, mut b) = (Node::join_with(config.clone()).await, hearing(config, &["r1"]).await);
    a.send("r1", &["before"]);
    assert_eq!(b.texts(1).await, ["before"]);
    master.kill();
    let begun = Instant::now();
    wait_until("the replica is promoted", async || {
        let role: Vec<redis::Value> = ask(&replica, &["ROLE"]).await;
        role[0] == redis::Value::BulkString(b"master".to_vec())
    })
    .await;
    println!("the sentinel took {:?}", begun.elapsed());
    b.until_heard().await;
    exchange(&a, &mut b, "r1").await;
    println!("heard again {:?} after the master died", begun.elapsed());
    b.wait_for_probe(true).await;
}

#[tokio::test]
async fn a_service_that_no_sentinel_knows_is_an_error_of_the_probe() {
    let master = RedisServer::start().await;
    let sentinel = RedisServer::start_sentinel("evening", master.port()).await;
    let topology = Topology::Sentinel { service: "morning".to_owned() };
    let node = Node::join_with(RedisConfig { topology, ..RedisConfig::new(&sentinel.url()) }).await;
    assert!(node.relay.probe().await.is_err());
}

const ROOMS: [&str; 6] = ["r1", "r2", "r3", "r4", "r5", "r6"];

#[tokio::test]
async fn in_a_cluster_each_room_is_on_its_server_and_gaps_are_filled() {
    let cluster = RedisServer::start_cluster().await;
    let config = RedisConfig { topology: Topology::Cluster, ..RedisConfig::new(&cluster[0].url()) };
    let (a, mut b) = (Node::join_with(config.clone()).await, hearing(config, &ROOMS).await);
    a.relay.probe().await.unwrap();
    let send_and_hear = async |b: &mut Node, text: &str| {
        ROOMS.iter().for_each(|room| a.send(room, &[text]));
        let mut heard = Vec::new();
        for _ in ROOMS {
            let (room, texts) = b.next().await;
            assert_eq!(texts, [text]);
            heard.push(room);
        }
        heard.sort();
        assert_eq!(heard, ROOMS);
    };
    send_and_hear(&mut b, "live").await;
    let mut with_streams = 0;
    for server in &cluster {
        let keys: i64 = ask(server, &["DBSIZE"]).await;
        let channels: Vec<String> = ask(server, &["PUBSUB", "SHARDCHANNELS", "danmakud:room:*"]).await;
        assert_eq!(channels.len() as i64, keys, "each stream is where its channel is");
        with_streams += i64::from(keys > 0);
    }
    assert!(with_streams > 1, "the rooms are spread");
    for server in &cluster {
        let _: i64 = ask(server, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    }
    ROOMS.iter().for_each(|room| a.send(room, &["missed"]));
    let (mut missed, mut resumed) = (0, 0);
    while resumed < ROOMS.len() || missed < ROOMS.len() {
        match b.hear().await {
            Heard::Comments(envelope) => missed += envelope.comments.len(),
            Heard::Resumed(_) => resumed += 1,
            Heard::Lost => {}
            Heard::Begun { room, .. } => panic!("{room} has a hole"),
        }
    }
    assert_eq!((missed, b.gaps("bridged")), (ROOMS.len(), ROOMS.len() as u64));
    send_and_hear(&mut b, "again").await;
    b.wait_for_probe(true).await;
}

#[tokio::test]
async fn a_slot_that_moves_takes_its_rooms_along() {
    let cluster = RedisServer::start_cluster().await;
    let config = RedisConfig { topology: Topology::Cluster, ..RedisConfig::new(&cluster[0].url()) };
    let (a, mut b) = (Node::join_with(config.clone()).await, hearing(config, &["r1"]).await);
    a.send("r1", &["before"]);
    assert_eq!(b.texts(1).await, ["before"]);
    let slot: i64 = ask(&cluster[0], &["CLUSTER", "KEYSLOT", "danmakud:room:r1"]).await;
    RedisServer::move_slot(&cluster, slot).await;
    let begun = Instant::now();
    a.send("r1", &["moved"]);
    assert_eq!(b.texts(1).await, ["moved"]);
    println!("a moved slot was followed after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10));
    exchange(&a, &mut b, "r1").await;
    assert_eq!((b.gaps("bridged"), b.gaps("unknown")), (1, 0), "its stream came along");
}

#[tokio::test]
async fn in_a_cluster_the_replica_of_a_dead_master_takes_its_rooms_over() {
    let mut cluster = RedisServer::start_cluster().await;
    let slot: u16 = ask(&cluster[0], &["CLUSTER", "KEYSLOT", "danmakud:room:r1"]).await;
    let dies = usize::from(slot > 5460) + usize::from(slot > 10_922);
    let _replica = cluster[dies].start_cluster_replica().await;
    let url = cluster[(dies + 1) % cluster.len()].url();
    let config = RedisConfig { topology: Topology::Cluster, ..RedisConfig::new(&url) };
    let (a, mut b) = (Node::join_with(config.clone()).await, hearing(config, &ROOMS).await);
    a.send("r1", &["before"]);
    assert_eq!(b.next().await.1, ["before"]);
    cluster[dies].kill();
    let begun = Instant::now();
    a.send("r1", &["meanwhile"]);
    while b.next().await.1 != ["meanwhile"] {}
    println!("heard again {:?} after a master of the cluster had died", begun.elapsed());
    for room in ROOMS {
        exchange(&a, &mut b, room).await;
    }
    b.wait_for_probe(true).await;
}
