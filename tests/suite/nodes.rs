//! Two servers over one MongoDB and one Redis: each comment crosses once, and a node that did not hear the other one
//! never passes its own memory for the whole.

use serde_json::{Value, json};

use super::support::mongod::ReplicaSet;
use super::support::redis::{Cable, RedisServer};
use super::support::server::{NO_LIMITS, Server, Start, until};
use super::support::viewer::{Viewer, texts_of};

pub struct Pair {
    pub one: Server,
    pub two: Server,
    pub redis: RedisServer,
    _folders: [tempfile::TempDir; 2],
}

impl Pair {
    pub async fn start(database: &str) -> Self {
        let redis = RedisServer::start().await;
        let url = redis.url();
        Self::start_with(database, redis, &url).await
    }

    /// With node two's Redis behind a cable.
    pub async fn start_behind_cable(database: &str) -> (Self, Cable) {
        let redis = RedisServer::start().await;
        let (url, cable) = redis.behind_cable().await;
        (Self::start_with(database, redis, &url).await, cable)
    }

    /// Both with this Redis, node two under this address of it.
    async fn start_with(database: &str, redis: RedisServer, url_of_two: &str) -> Self {
        let uri = ReplicaSet::shared().await.uri(None).replace("/?", &format!("/{database}?"));
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let start = async |folder: &tempfile::TempDir, url: &str| {
            let args = ["--mongodb", &uri, "--redis", url];
            let start = Start::in_folder(folder.path()).config(NO_LIMITS).args(&args);
            // It waits for the server, and what carries the cable must go on meanwhile.
            tokio::task::spawn_blocking(|| start.run()).await.unwrap()
        };
        let (one, two) = (start(&folders[0], &redis.url()).await, start(&folders[1], url_of_two).await);
        Self { one, two, redis, _folders: folders }
    }

    /// Waits until node two asks Redis for the room's comments, or no more.
    async fn until_subscribed(&self, is_subscribed: bool) {
        let client = redis::Client::open(self.redis.url()).unwrap();
        until("the room is subscribed as expected", async || {
            let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
            let asked = redis::cmd("PUBSUB").arg("NUMSUB").arg("danmakud:room:r").query_async(&mut connection).await;
            asked.is_ok_and(|(_, count): (String, i64)| (count > 0) == is_subscribed)
        })
        .await;
    }
}

/// Says something that is stored when this returns.
pub async fn say(server: &Server, text: &str) {
    let (status, answer) = server.post("r", "", &json!({"text": text, "ack": "stored"})).await;
    assert!((200..300).contains(&status), "{status} {answer}");
}

/// What the host sees on this node; fails when it passes for complete and is not.
async fn window(server: &Server, all: &[&str]) -> Value {
    let (status, window) = server.get("/api/rooms/r/comments?last=60s").await;
    assert_eq!(status, 200, "{window}");
    let is_all = texts_of(&window["comments"]) == all;
    assert!(is_all || window["complete"] == false, "passes for complete: {window}");
    window
}

/// Waits until this node has all and says so.
pub async fn until_complete(server: &Server, all: &[&str]) {
    until("the window is complete", async || window(server, all).await["complete"] == true).await;
}

#[tokio::test]
async fn comments_cross_once_and_in_their_nodes_order() {
    let pair = Pair::start("nodes_cross").await;
    let mut one = Viewer::join(pair.one.address, "r", "").await;
    let mut two = Viewer::join(pair.two.address, "r", "").await;
    for n in 0..20 {
        let (a, b) = (format!("a{n:02}"), format!("b{n:02}"));
        one.say(&a, &a, "accepted").await;
        two.say(&b, &b, "accepted").await;
    }
    for viewer in [&mut one, &mut two] {
        let texts = viewer.texts(40).await;
        for node in ["a", "b"] {
            let of_node: Vec<_> = texts.iter().filter(|text| text.starts_with(node)).cloned().collect();
            assert_eq!(of_node, (0..20).map(|n| format!("{node}{n:02}")).collect::<Vec<_>>());
        }
    }
    assert_eq!(pair.two.metric("danmaku_relay_received_total").await, 20, "counted once");
    // Longer than the store and the relay can differ: what comes twice would have come before this.
    until("both rooms are whole", async || {
        let (_, window) = pair.two.get("/api/rooms/r/comments?last=60s").await;
        window["complete"] == true && texts_of(&window["comments"]).len() == 40
    })
    .await;
    say(&pair.one, "last").await;
    assert_eq!(one.texts(1).await, ["last"]);
    assert_eq!(two.texts(1).await, ["last"]);
}

#[tokio::test]
async fn a_node_that_its_viewers_left_catches_up() {
    let pair = Pair::start("nodes_left").await;
    let mut viewer = Viewer::join(pair.two.address, "r", "").await;
    viewer.say("n", "0", "stored").await;
    viewer.texts(1).await;
    until_complete(&pair.two, &["0"]).await;
    let cursor = viewer.cursor.clone();
    drop(viewer);
    pair.until_subscribed(false).await;
    let all = ["0", "1", "2", "3", "4", "5"];
    for text in &all[1..] {
        say(&pair.one, text).await;
    }
    assert_eq!(texts_of(&window(&pair.two, &all).await["comments"]), all);
    let (_, page) = pair.two.get("/api/rooms/r/comments?limit=50").await;
    assert_eq!(texts_of(&page["comments"]).len(), all.len(), "{page}");
    let mut back = Viewer::join(pair.two.address, "r", &format!("since={cursor}")).await;
    assert_eq!(back.hello["resumed"], true);
    assert_eq!(back.texts_until("5").await, all[1..]);
    let new = Viewer::join(pair.two.address, "r", "").await;
    assert_eq!(texts_of(&new.hello["recent"]), all);
    say(&pair.one, "6").await;
    assert_eq!(back.texts(1).await, ["6"], "heard again");
    until_complete(&pair.two, &["0", "1", "2", "3", "4", "5", "6"]).await;
}

#[tokio::test]
async fn a_node_that_is_only_posted_to_does_not_pass_for_whole() {
    let pair = Pair::start("nodes_posts").await;
    say(&pair.two, "0").await;
    say(&pair.one, "1").await;
    say(&pair.two, "2").await;
    let all = ["0", "1", "2"];
    assert_eq!(texts_of(&window(&pair.two, &all).await["comments"]), all);
    let viewer = Viewer::join(pair.two.address, "r", "").await;
    assert_eq!(texts_of(&viewer.hello["recent"]), all);
    until_complete(&pair.two, &all).await;
}

#[tokio::test]
async fn a_viewer_gets_what_was_said_elsewhere_while_redis_was_away() {
    let mut pair = Pair::start("nodes_away").await;
    let mut viewer = Viewer::join(pair.two.address, "r", "").await;
    say(&pair.one, "0").await;
    assert_eq!(viewer.texts(1).await, ["0"]);
    until_complete(&pair.two, &["0"]).await;
    pair.redis.kill();
    until("node two knows that it is deaf", async || pair.two.metric("danmaku_relay_up").await == 0).await;
    let all = ["0", "1", "2"];
    say(&pair.one, "1").await;
    say(&pair.one, "2").await;
    assert_eq!(texts_of(&window(&pair.two, &all).await["comments"]), all);
    assert!(pair.redis.resume().await);
    pair.until_subscribed(true).await;
    assert_eq!(viewer.texts(2).await, all[1..]);
    until_complete(&pair.two, &all).await;
    say(&pair.one, "3").await;
    assert_eq!(viewer.texts(1).await, ["3"], "and nothing came twice");
}
