//! The disk that the server keeps its own files on is full.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::support::mongod::disk::Disk;
use super::support::mongod::{Access, ReplicaSet};
use super::support::server::{NO_LIMITS, Server, Start, until};
use super::support::viewer::Viewer;

const CONFIG: &str = "[store]\ndurability = \"disk\"\nwrite_patience = \"300ms\"\n[mongodb]\nconnect_timeout = \"500ms\"\n\
    server_selection_timeout = \"500ms\"\nwrite_timeout = \"1s\"\n[shutdown]\ndeadline = \"4s\"\nclose_spread = \"0s\"";

fn start(disk: &Disk, set: &ReplicaSet) -> Server {
    start_with(disk, set, CONFIG)
}

fn start_with(disk: &Disk, set: &ReplicaSet, config: &str) -> Server {
    Start::on_disk(disk).config(NO_LIMITS).config(config).args(&["--mongodb", &set.uri(None)]).run()
}

async fn say_numbers(server: &Server, numbers: std::ops::Range<u32>) {
    let mut ann = Viewer::join(server.address, "r1", "").await;
    for number in numbers {
        let ack = ann.say(&number.to_string(), &number.to_string(), "accepted").await;
        assert_eq!(ack["type"], "ack", "{ack}");
    }
}

#[tokio::test]
async fn with_no_room_anywhere_nothing_is_acknowledged_and_the_end_says_what_is_lost() {
    let (set, disk) = (ReplicaSet::start(1, Access::Open).await, Disk::mount(64));
    let server = start(&disk, &set);
    say_numbers(&server, 0..10).await;
    until("they are stored", async || server.metric("danmaku_stored_total").await == 10).await;
    set.freeze(0);
    disk.fill();
    let mut ann = Viewer::join(server.address, "r1", "").await;
    // What is left of the last page of the file takes some 20.
    for number in 0..100 {
        let nonce = format!("lost-{number}");
        ann.send(&json!({"type": "send", "nonce": nonce, "text": nonce, "ack": "accepted"})).await;
    }
    until("the journal has failed", async || server.metric("danmaku_journal_failed_total").await >= 50).await;
    let ack = timeout(Duration::from_millis(500), ann.until(|frame| frame["nonce"] == "lost-99")).await;
    assert!(ack.is_err(), "it is neither stored nor on the disk: {ack:?}");
    let end = server.stop().await;
    assert_eq!((end.code, end.ledger().not_stored), (Some(1), 100), "{end:?}");
    assert!(end.stderr.contains("100 accepted comments were not stored"), "{end:?}");
    assert!(!end.stderr.contains("wait in the journal"), "{end:?}");
}

#[tokio::test]
async fn a_disk_that_was_full_does_not_make_a_later_end_a_loss() {
    let (set, disk) = (ReplicaSet::start(1, Access::Open).await, Disk::mount(64));
    let server = start(&disk, &set);
    disk.fill();
    let mut ann = Viewer::join(server.address, "r1", "").await;
    let ack = ann.say("n", "only the store has it", "accepted").await;
    assert_eq!(ack["type"], "ack", "{ack}");
    assert!(server.metric("danmaku_journal_failed_total").await > 0);
    disk.free();
    set.freeze(0);
    say_numbers(&server, 0..20).await;
    let end = server.stop().await;
    assert_eq!((end.code, end.ledger().not_stored), (Some(0), 0), "{end:?}");
    set.thaw(0);
    let server = start(&disk, &set);
    until("all is stored", async || set.texts().await.len() == 21).await;
    assert_eq!(server.stop().await.code, Some(0));
}

#[tokio::test]
async fn what_is_left_in_the_journal_goes_to_the_store_when_the_disk_has_no_room() {
    let (set, disk) = (ReplicaSet::start(1, Access::Open).await, Disk::mount(64));
    // Nothing goes to the outbox before the kill.
    let patient = CONFIG.replace("300ms", "60s");
    let server = start_with(&disk, &set, &patient);
    set.freeze(0);
    say_numbers(&server, 0..50).await;
    disk.fill();
    server.signal("KILL");
    assert_eq!(server.end().await.code, None);
    set.thaw(0);
    let server = start(&disk, &set);
    until("all is stored", async || set.texts().await.len() == 50).await;
    disk.free();
    assert_eq!(server.stop().await.code, Some(0));
}
