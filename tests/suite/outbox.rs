//! A MongoDB that takes nothing for a while, or for long: what was accepted waits on the disk and comes to it in the end.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bson::doc;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::support::mongod::{Access, ReplicaSet};
use super::support::server::{LastLine, NO_LIMITS, Server, Start, until};
use super::support::viewer::{Viewer, texts_of};

/// A server that soon turns to its outbox.
const IMPATIENT: &str = "[store]\nwrite_patience = \"300ms\"\n[mongodb]\nconnect_timeout = \"500ms\"\n\
    server_selection_timeout = \"500ms\"\nwrite_timeout = \"1s\"";

fn start(folder: &Path, set: &ReplicaSet, config: &str) -> Server {
    let server = Start::in_folder(folder).config(NO_LIMITS).config(IMPATIENT).config(config);
    server.args(&["--mongodb", &set.uri(None)]).run()
}

async fn ledger(server: &Server) -> LastLine {
    let (status, ledger) = server.get("/api/ledger").await;
    assert_eq!(status, 200);
    let field = |name: &str| ledger[name].as_u64().unwrap_or_else(|| panic!("no {name} in {ledger}"));
    let set_aside =
        ledger["setAside"].as_object().expect("reasons").values().filter_map(serde_json::Value::as_u64).sum();
    let line = LastLine {
        accepted: field("accepted"),
        recovered: field("recovered"),
        stored: field("stored"),
        set_aside,
        in_outbox: field("inOutbox"),
        not_stored: field("inQueue"),
    };
    let LastLine { accepted, recovered, stored, in_outbox, not_stored, .. } = line;
    assert_eq!(accepted + recovered, stored + set_aside + in_outbox + not_stored, "{ledger}");
    line
}

async fn until_stored(server: &Server, count: u64) {
    until("all is stored", async || {
        let ledger = ledger(server).await;
        (ledger.stored, ledger.in_outbox, ledger.not_stored) == (count, 0, 0)
    })
    .await;
}

async fn say_numbers(viewer: &mut Viewer, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let text = number.to_string();
        let ack = timeout(Duration::from_secs(2), viewer.say(&text, &text, "accepted")).await;
        assert_eq!(ack.expect("the store is on nobody's way")["type"], "ack");
    }
}

fn each_once(texts: &HashMap<String, u32>, count: u32) {
    assert!((0..count).all(|number| texts.get(&number.to_string()) == Some(&1)), "{texts:?}");
}

#[tokio::test]
async fn while_mongodb_is_frozen_comments_wait_on_the_disk_and_senders_hear_of_it_in_the_end() {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let server = start(folder.path(), &set, "");
    let mut ann = Viewer::join(server.address, "r1", "").await;
    let mut bob = Viewer::join(server.address, "r1", "").await;
    say_numbers(&mut ann, 0..10).await;
    until_stored(&server, 10).await;
    set.freeze(0);
    ann.send(&json!({"type": "send", "nonce": "late", "text": "10", "ack": "stored"})).await;
    say_numbers(&mut ann, 11..40).await;
    until("all of it is in the outbox", async || ledger(&server).await.in_outbox == 30).await;
    assert_eq!(bob.texts(40).await, (0..40).map(|number| number.to_string()).collect::<Vec<_>>());
    let (_, window) = server.get("/api/rooms/r1/comments?last=60s").await;
    assert_eq!((window["complete"].as_bool(), window["comments"].as_array().map(Vec::len)), (Some(true), Some(40)));
    set.thaw(0);
    let ack = ann.until(|frame| frame["nonce"] == "late").await;
    assert_eq!((ack["type"].as_str(), ack["level"].as_str()), (Some("ack"), Some("stored")), "{ack}");
    until_stored(&server, 40).await;
    say_numbers(&mut ann, 40..50).await;
    until_stored(&server, 50).await;
    each_once(&set.texts().await, 50);
    let end = server.stop().await;
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(end.ledger(), LastLine { accepted: 50, stored: 50, ..LastLine::default() });
}

#[tokio::test]
async fn what_is_left_in_the_outbox_at_the_end_is_sent_after_the_next_start() {
    let (mut set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let config = "[shutdown]\ndeadline = \"6s\"\nclose_spread = \"0s\"";
    let server = start(folder.path(), &set, config);
    let mut ann = Viewer::join(server.address, "r1", "").await;
    say_numbers(&mut ann, 0..20).await;
    until_stored(&server, 20).await;
    set.kill(0);
    say_numbers(&mut ann, 20..50).await;
    let end = server.stop().await;
    let expected = LastLine { accepted: 50, stored: 20, in_outbox: 30, ..LastLine::default() };
    assert_eq!((end.code, end.ledger()), (Some(0), expected), "{end:?}");
    assert!(end.stderr.contains("30 accepted comments wait in the outbox"), "{end:?}");
    set.restart(0).await;
    let server = start(folder.path(), &set, config);
    until_stored(&server, 30).await;
    assert_eq!(ledger(&server).await.recovered, 30);
    each_once(&set.texts().await, 50);
    let end = server.stop().await;
    let expected = LastLine { recovered: 30, stored: 30, ..LastLine::default() };
    assert_eq!((end.code, end.ledger()), (Some(0), expected), "{end:?}");
}

#[tokio::test]
async fn a_server_that_has_served_before_starts_without_mongodb_and_prepares_it_later() {
    let (mut set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    assert_eq!(start(folder.path(), &set, "").stop().await.code, Some(0));
    set.client().await.database("danmakud").drop().await.unwrap();
    set.kill(0);
    let server = start(folder.path(), &set, "");
    let mut ann = Viewer::join(server.address, "r1", "").await;
    let mut bob = Viewer::join(server.address, "r1", "").await;
    say_numbers(&mut ann, 0..20).await;
    assert_eq!(bob.texts(20).await, (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
    until("it says that it is not ready", async || server.request("GET", "/readyz", "").await.0 == 503).await;
    set.restart(0).await;
    until_stored(&server, 20).await;
    each_once(&set.texts().await, 20);
    let danmaku = set.client().await.database("danmakud").collection::<bson::Document>("danmaku");
    until("its indexes are there", async || danmaku.list_index_names().await.is_ok_and(|names| names.len() == 3)).await;
    until("it says that it is ready", async || server.request("GET", "/readyz", "").await.0 == 200).await;
    assert_eq!(server.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_server_that_has_served_before_does_not_wait_for_a_mongodb_that_is_silent_or_cannot_be_looked_up() {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let begin = |uri: &str| Start::in_folder(folder.path()).args(&["--mongodb", uri]).run();
    let uri = set.uri(None);
    assert_eq!(begin(&uri).stop().await.code, Some(0));
    set.client().await.database("danmakud").drop().await.unwrap();
    set.freeze(0);
    for uri in [uri.as_str(), "mongodb+srv://db.invalid"] {
        let begun = Instant::now();
        let server = begin(uri);
        // Less than mongodb.server_selection_timeout.
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        let mut ann = Viewer::join(server.address, "r1", "").await;
        say_numbers(&mut ann, 0..1).await;
        server.signal("KILL");
        server.end().await;
    }
    let server = begin(&uri);
    set.thaw(0);
    let danmaku = set.client().await.database("danmakud").collection::<bson::Document>("danmaku");
    until("its indexes are there", async || danmaku.list_index_names().await.is_ok_and(|names| names.len() == 3)).await;
    assert_eq!(server.stop().await.code, Some(0));
}

#[tokio::test]
async fn the_outbox_survives_a_kill() {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let server = start(folder.path(), &set, "");
    let mut ann = Viewer::join(server.address, "r1", "").await;
    set.freeze(0);
    say_numbers(&mut ann, 0..100).await;
    until("all of it is in the outbox", async || ledger(&server).await.in_outbox == 100).await;
    server.signal("KILL");
    assert_eq!(server.end().await.code, None);
    set.thaw(0);
    let server = start(folder.path(), &set, "");
    until_stored(&server, 100).await;
    each_once(&set.texts().await, 100);
}

#[tokio::test]
async fn with_disk_durability_a_kill_loses_nothing_acknowledged() {
    const COUNT: u32 = 300;
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    // Nothing is flushed, so that the journal is all there is.
    let config = "flush_interval = \"60s\"\ndurability = \"disk\"";
    let config = IMPATIENT.replace("[store]\n", &format!("[store]\n{config}\n"));
    let begin = |config: &str| {
        let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config);
        server.args(&["--mongodb", &set.uri(None)]).run()
    };
    let server = begin(&config);
    let mut ann = Viewer::join(server.address, "r1", "").await;
    // The flusher's first tick comes at once.
    say_numbers(&mut ann, 0..COUNT).await;
    server.signal("KILL");
    assert_eq!(server.end().await.code, None);
    let server = begin(IMPATIENT);
    until("all is stored", async || set.texts().await.len() == COUNT as usize).await;
    each_once(&set.texts().await, COUNT);
    let end = server.stop().await;
    assert_eq!((end.code, end.ledger().not_stored, end.ledger().in_outbox), (Some(0), 0, 0), "{end:?}");
}

#[tokio::test]
async fn with_disk_durability_the_embedded_store_loses_nothing_acknowledged_either() {
    const COUNT: u32 = 300;
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\nflush_interval = \"60s\"\ndurability = \"disk\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
    let mut ann = Viewer::join(server.address, "r1", "").await;
    say_numbers(&mut ann, 0..COUNT).await;
    server.signal("KILL");
    assert_eq!(server.end().await.code, None);
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let (_, page) = server.get("/api/rooms/r1/comments?last=60s&limit=1000").await;
    let texts: Vec<_> = page["comments"].as_array().unwrap().iter().map(|comment| comment["text"].clone()).collect();
    assert_eq!(texts, (0..COUNT).map(|number| json!(number.to_string())).collect::<Vec<_>>());
    assert_eq!(server.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_stop_in_the_midst_of_a_replay_leaves_the_next_life_just_what_is_not_stored() {
    let (mut set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let slow = "[shutdown]\ndeadline = \"6s\"\nclose_spread = \"0s\"";
    let impatient = IMPATIENT.replace("[store]\n", "[store]\nbatch = 20\noutbox_replay_per_sec = 20\n");
    let begin = |set: &ReplicaSet, config: &str| {
        let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).config(slow);
        server.args(&["--mongodb", &set.uri(None)]).run()
    };
    let server = begin(&set, &impatient);
    let mut ann = Viewer::join(server.address, "r1", "").await;
    set.kill(0);
    say_numbers(&mut ann, 0..200).await;
    until("all of it is in the outbox", async || ledger(&server).await.in_outbox == 200).await;
    set.restart(0).await;
    until("some of it is stored", async || ledger(&server).await.stored >= 40).await;
    let end = server.stop().await;
    let left = end.ledger().in_outbox;
    assert!(end.code == Some(0) && (1..=160).contains(&left), "{end:?}");
    let server = begin(&set, IMPATIENT);
    until_stored(&server, left).await;
    assert_eq!(ledger(&server).await.recovered, left);
    each_once(&set.texts().await, 200);
}

/// The texts of the room's window and of its newest page, which must be the same, and whether each is said to be whole.
async fn history(server: &Server) -> (Vec<String>, [bool; 2]) {
    let (_, window) = server.get("/api/rooms/r1/comments?last=300s&limit=100").await;
    let (_, page) = server.get("/api/rooms/r1/comments?limit=100").await;
    let mut paged = texts_of(&page["comments"]);
    paged.reverse();
    assert!(paged.starts_with(&texts_of(&window["comments"])), "the page is read later: {window} {page}");
    (paged, [&window, &page].map(|answer| answer["complete"].as_bool().expect("a flag")))
}

#[tokio::test]
async fn what_a_room_lacks_while_the_outbox_is_replayed_is_said_and_there_after_it() {
    let (mut set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    // 5 at a time, one batch a second.
    let slow = IMPATIENT.replace("[store]\n", "[store]\nbatch = 5\noutbox_replay_per_sec = 5\n");
    let begin = |set: &ReplicaSet| {
        let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(&slow);
        let server = server.config("[shutdown]\ndeadline = \"6s\"\nclose_spread = \"0s\"");
        server.args(&["--mongodb", &set.uri(None)]).run()
    };
    let server = begin(&set);
    let mut ann = Viewer::join(server.address, "r1", "").await;
    say_numbers(&mut ann, 0..3).await;
    until_stored(&server, 3).await;
    set.kill(0);
    say_numbers(&mut ann, 3..43).await;
    let end = server.stop().await;
    assert_eq!((end.code, end.ledger().in_outbox), (Some(0), 40), "{end:?}");
    set.restart(0).await;

    let server = begin(&set);
    let early = Viewer::join(server.address, "r1", "").await;
    assert!(texts_of(&early.hello["recent"]).starts_with(&["0", "1", "2"].map(str::to_owned)), "{}", early.hello);
    let (texts, is_complete) = history(&server).await;
    assert!(texts.len() < 43 && ledger(&server).await.in_outbox > 0, "the replay was too fast for this test");
    assert_eq!(is_complete, [false; 2]);
    until_stored(&server, 40).await;
    let all: Vec<_> = (0..43).map(|number| number.to_string()).collect();
    assert_eq!(history(&server).await, (all.clone(), [true; 2]));
    let late = Viewer::join(server.address, "r1", "").await;
    assert_eq!(texts_of(&late.hello["recent"]), all);
    let reads = server.metric("danmaku_store_reads_total").await;
    assert_eq!(history(&server).await, (all, [true; 2]));
    assert_eq!(server.metric("danmaku_store_reads_total").await, reads, "memory has it all");
}

#[tokio::test]
async fn a_mongodb_that_answers_and_stores_nothing_makes_the_server_unready_until_it_does() {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let server = Start::in_folder(folder.path()).config("[server]\nprobe_interval = \"100ms\"").config(IMPATIENT);
    let server = server.args(&["--mongodb", &set.uri(None)]).run();
    let answers = async |word: &str| server.request("GET", "/readyz", "").await.2.contains(word);
    until("it is ready", async || answers("ready\n").await).await;
    set.command(0, doc! { "fsync": 1, "lock": true }).await.unwrap();
    let mut ann = Viewer::join(server.address, "r1", "").await;
    say_numbers(&mut ann, 0..5).await;
    until("readiness tells it", async || answers("store_stalled").await).await;
    assert_eq!(ledger(&server).await.in_outbox, 5, "MongoDB still answers probes");
    set.command(0, doc! { "fsyncUnlock": 1 }).await.unwrap();
    until_stored(&server, 5).await;
    until("it is ready again", async || answers("ready\n").await).await;
    each_once(&set.texts().await, 5);
}

#[tokio::test]
async fn what_waits_for_one_database_is_not_sent_to_another_and_who_has_no_outbox_is_told_of_it() {
    let (mut set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().unwrap());
    let begin = |database: &str, config: &str| {
        let server = Start::in_folder(folder.path()).config(config).config("[shutdown]\ndeadline = \"6s\"");
        server.args(&["--mongodb", &set.uri(None).replace("/?", &format!("/{database}?"))])
    };
    let server = begin("danmakud", IMPATIENT).run();
    let mut ann = Viewer::join(server.address, "r1", "").await;
    set.kill(0);
    say_numbers(&mut ann, 0..5).await;
    assert_eq!(server.stop().await.ledger().in_outbox, 5);
    let (other, without) = (begin("other", IMPATIENT), IMPATIENT.replace("[store]", "[store]\noutbox_max_bytes = 0"));
    let (without, same) = (begin("danmakud", &without), begin("danmakud", IMPATIENT));
    let other_again = begin("other", IMPATIENT);
    set.restart(0).await;

    let end = other.fail().await;
    let told = end.stderr.lines().find(|line| line.starts_with("danmakud: ")).unwrap_or_default();
    assert!(end.code == Some(1) && told.contains("5 comments for database danmakud, collection danmaku"), "{end:?}");
    assert!(told.contains("database other, collection danmaku") && told.contains("outbox"), "{told}");
    let end = without.run().stop().await;
    assert!(end.code == Some(0) && end.stderr.contains("set store.outbox_max_bytes"), "{end:?}");
    let server = same.run();
    until_stored(&server, 5).await;
    assert_eq!(server.stop().await.code, Some(0));
    each_once(&set.texts().await, 5);
    let end = other_again.run().stop().await;
    assert_eq!((end.code, end.ledger().recovered), (Some(0), 0), "{end:?}");
}
