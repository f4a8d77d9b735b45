//! The MongoDB store when the network or the servers are not well.

use std::time::Duration;

use bson::doc;
use danmakud::clock::Clock;
use danmakud::store::{CommentStore, MongoConfig, MongoStore, StoreError};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use crate::mongo::{at, comment, config, record, room};
use crate::support::mongod::{Access, ReplicaSet, until};
use crate::support::proxy::Proxy;

const BOUND: Duration = Duration::from_millis(1500);

/// Gives up after [`BOUND`].
fn impatient(uri: String) -> MongoConfig {
    let half = BOUND / 2;
    MongoConfig { server_selection_timeout: half, connect_timeout: half, write_timeout: half, ..config(uri) }
}

async fn is_transient_in_time<T>(operation: impl Future<Output = Result<T, StoreError>>) -> String {
    let begun = Instant::now();
    let error = operation.await.err().expect("the server is away");
    let took = begun.elapsed();
    assert!(error.is_transient(), "{error}");
    // As long again, for a busy machine.
    assert!(took < BOUND * 2, "{took:?}: {error}");
    error.to_string()
}

#[tokio::test]
async fn a_server_that_is_not_there_is_transient_within_the_bound() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = impatient(format!("mongodb://bob:hunter2@{free}"));
    let said = is_transient_in_time(MongoStore::connect(config.clone(), Clock::system())).await;
    assert!(!said.contains("hunter2") && !said.contains("bob"), "{said}");
    let store = MongoStore::open(config, Clock::system()).await.unwrap();
    assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
    let batch = [record(&store, &comment(&room("r1"), 1))];
    is_transient_in_time(store.write(&batch)).await;
    is_transient_in_time(store.load_recent(&room("r1"), at(0), 5)).await;
    is_transient_in_time(store.load_before(&room("r1"), comment(&room("r1"), 1).position(), 5)).await;
    is_transient_in_time(store.probe()).await;
    timeout(Duration::from_secs(10), store.close()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_takes_connections_and_says_nothing_is_transient_within_the_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = impatient(format!("mongodb://{}", listener.local_addr().unwrap()));
    is_transient_in_time(MongoStore::connect(config, Clock::system())).await;
}

#[tokio::test]
async fn an_index_that_takes_long_is_waited_for_while_the_server_lives_and_no_longer() {
    let set = ReplicaSet::start(1, Access::Open).await;
    let proxy = Proxy::start(set.first_address()).await;
    let uri = format!("mongodb://{}/?directConnection=true", proxy.address);
    // Nothing is written meanwhile, so no index is made.
    set.command(0, doc! { "fsync": 1, "lock": true }).await.unwrap();
    let is_building = async || {
        let current = doc! { "currentOp": 1, "command.createIndexes": { "$exists": true } };
        let current = set.command(0, current).await.ok()?;
        current.get_array("inprog").ok()?.first().map(drop)
    };
    let config = impatient(uri);
    let long = tokio::spawn(MongoStore::connect(config.clone(), Clock::system()));
    until("it is being made", is_building).await;
    sleep(BOUND * 2).await;
    assert!(!long.is_finished(), "the server answers others");
    proxy.cut();
    let begun = Instant::now();
    let given_up = timeout(BOUND * 8, long).await.expect("it is given up").unwrap();
    assert!(given_up.is_err_and(|error| error.is_transient()), "{:?}", begun.elapsed());
    proxy.mend();
    let long = tokio::spawn(MongoStore::connect(config, Clock::system()));
    until("it is being made", is_building).await;
    sleep(BOUND * 2).await;
    set.command(0, doc! { "fsyncUnlock": 1 }).await.unwrap();
    timeout(BOUND * 20, long).await.expect("it is made").unwrap().unwrap();
}

#[tokio::test]
async fn an_index_that_cannot_be_altered_now_is_transient_within_the_bound() {
    let set = ReplicaSet::start(1, Access::Open).await;
    let config = impatient(set.uri(None));
    MongoStore::connect(config.clone(), Clock::system()).await.unwrap();
    let database = set.client().await.database(&config.database);
    let other = doc! { "name": "expireAt_1", "expireAfterSeconds": 60 };
    database.run_command(doc! { "collMod": &config.collection, "index": other }).await.unwrap();
    set.command(0, doc! { "fsync": 1, "lock": true }).await.unwrap();
    is_transient_in_time(MongoStore::connect(config.clone(), Clock::system())).await;
    set.command(0, doc! { "fsyncUnlock": 1 }).await.unwrap();
    MongoStore::connect(config, Clock::system()).await.unwrap();
}

#[tokio::test]
async fn a_network_that_turns_silent_is_noticed_and_work_goes_on_when_it_is_back() {
    let set = ReplicaSet::shared().await;
    let proxy = Proxy::start(set.first_address()).await;
    let uri = format!("mongodb://{}/?directConnection=true", proxy.address);

    let (store, _) = MongoStore::connect(impatient(uri), Clock::system()).await.unwrap();
    let batch = [record(&store, &comment(&room("r1"), 1))];
    store.probe().await.unwrap();
    proxy.cut();
    is_transient_in_time(store.write(&batch)).await;
    is_transient_in_time(store.load_recent(&room("r1"), at(0), 5)).await;
    is_transient_in_time(store.count_between(
        &room("r1"),
        danmakud::model::Position::START,
        comment(&room("r1"), 9).position(),
        5,
    ))
    .await;
    is_transient_in_time(store.probe()).await;
    proxy.mend();
    // The write that was given up may have been done or not: no document twice either way.
    until("the write succeeds", async || store.write(&batch).await.ok()).await;
    store.probe().await.unwrap();
    assert_eq!(store.load_recent(&room("r1"), at(0), 5).await.unwrap().comments.len(), 1);
}

#[tokio::test]
async fn a_majority_that_is_gone_leaves_the_batch_to_be_tried_again() {
    let mut set = ReplicaSet::start(3, Access::Open).await;
    let config = impatient(set.uri(None));
    let (store, _) = MongoStore::connect(config, Clock::system()).await.unwrap();
    let batch = [record(&store, &comment(&room("r1"), 1))];
    let report = store.write(&batch).await.unwrap();
    assert_eq!((report.duplicates, report.set_aside.len()), (0, 0));

    set.kill_all_but_the_first();
    let more = [record(&store, &comment(&room("r1"), 2))];
    let said = is_transient_in_time(store.write(&more)).await;
    assert!(said.contains("write concern not met"), "{said}");
    // The primary steps down once it has missed the others for long enough; then nothing can be written at all.
    until("the probe sees that there is no primary", async || store.probe().await.err()).await;
    is_transient_in_time(store.write(&more)).await;
}

#[tokio::test]
async fn a_user_that_may_only_read_makes_the_server_unready_until_it_may_write_again() {
    use crate::support::server;
    let (set, folder) = (ReplicaSet::start(1, Access::Password).await, tempfile::tempdir().unwrap());
    let admin = set.client().await.database("admin");
    let may = |role: &str| doc! { "updateUser": "danmakud", "roles": [{ "role": role, "db": "d" }] };
    let roles = ["readWrite", "dbAdmin"].map(|role| doc! { "role": role, "db": "d" });
    admin.run_command(doc! { "createUser": "danmakud", "pwd": "p", "roles": roles.to_vec() }).await.unwrap();
    let uri = set.uri(Some("danmakud:p")).replace("/?", "/d?") + "&authSource=admin";
    let config = "[server]\nprobe_interval = \"100ms\"";
    let server = server::Start::in_folder(folder.path()).config(config).args(&["--mongodb", &uri]).run();
    let answers = async |word: &str| server.request("GET", "/readyz", "").await.2.contains(word);
    server::until("it is ready", async || answers("ready\n").await).await;
    admin.run_command(may("read")).await.unwrap();
    let (status, _) = server.post("r1", "", &serde_json::json!({"text": "x"})).await;
    assert_eq!(status, 201);
    server::until("readiness tells it", async || answers("store_blocked").await).await;
    admin.run_command(may("readWrite")).await.unwrap();
    server::until("it is ready again", async || answers("ready\n").await).await;
    assert_eq!(server.metric("danmaku_stored_total").await, 1);
}

#[tokio::test]
async fn with_disk_nothing_is_called_accepted_over_http_that_the_disk_does_not_have() {
    use crate::support::server;
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let config = "[server]\nrequest_timeout = \"1s\"\n[store]\ndurability = \"disk\"\noutbox_max_bytes = 0\n\
        read_patience = \"500ms\"";
    let server = server::Start::in_folder(folder.path()).config(config);
    let server = server.args(&["--mongodb", &set.uri(None)]).run();
    // A journal that cannot be written, and a store that does not answer.
    std::fs::remove_dir_all(folder.path().join("journal")).unwrap();
    set.freeze(0);
    let guest = "guest=0123456789abcdef";
    for ack in ["accepted", "stored"] {
        let comment = serde_json::json!({"text": "x", "nonce": "n1", "ack": ack});
        let (status, told) = server.post("r1", guest, &comment).await;
        assert_eq!((status, told["code"].as_str()), (503, Some("not_kept")), "{told}");
        assert!(told["retryAfterMs"].is_u64(), "{told}");
    }
    set.thaw(0);
    let comment = serde_json::json!({"text": "x", "nonce": "n1", "ack": "stored"});
    server::until("it is stored", async || server.post("r1", guest, &comment).await.0 == 201).await;
    assert_eq!(server.metric("danmaku_accepted_total").await, 1, "sent again it is the same comment");
    assert_eq!(server.metric("danmaku_stored_total").await, 1);
}
