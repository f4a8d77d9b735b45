//! An outbox that has no room left.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::support::mongod::{Access, ReplicaSet, until};
use super::super::support::storm::{Promised, ROOM};
use super::super::support::viewer::Viewer;
use super::{Force, Told, each_once, millis, settled, start};

/// The smallest outbox there is, and a queue to match it.
const SMALL: &str = "outbox_max_bytes = 67108864\nqueue = 5000\noutbox_replay_per_sec = 20000";

/// So many send as fast as they are answered.
const SENDERS: usize = 16;

/// How many of a sender's comments may be unanswered.
const AHEAD: u64 = 32;

/// A text of nearly the largest size, and few characters: one on the screen, seven in Unicode, 25 bytes each.
fn large(name: &str) -> String {
    format!("{name} {}", "👨\u{200d}👩\u{200d}👧\u{200d}👦".repeat(38))
}

/// MongoDB is frozen until the outbox and the queue are full, and for a while longer. Senders are refused with `busy`
/// alone; once it is back, all they were promised is stored and they are served again.
pub async fn outbox_full(force: Force) -> Told {
    let (set, folder) = (ReplicaSet::start(1, Access::Open).await, tempfile::tempdir().expect("a folder"));
    let server = start(folder.path(), &set.uri(None), SMALL);
    set.freeze(0);
    let is_over = watch::Sender::new(false);
    let send = |n| tokio::spawn(send_until_over(server.address, format!("full-{n}"), is_over.subscribe()));
    let senders: Vec<JoinHandle<Promised>> = (0..SENDERS).map(send).collect();
    let begun = Instant::now();
    // A sender may be refused earlier, while the flusher still has patience with the store.
    until("the outbox is full", async || (server.metric("danmaku_outbox_refused_total").await > 0).then_some(())).await;
    until("a sender is refused", async || (server.sum("danmaku_refused_total").await > 0).then_some(())).await;
    let (full_after, memory_when_full) = (begun.elapsed(), server.memory_kib());
    let mut most_memory = memory_when_full;
    for _tenth in 0..10 {
        sleep(force.lasts / 10).await;
        most_memory = most_memory.max(server.memory_kib());
    }
    let mut other = Viewer::join(server.address, "other", "").await;
    let refusal = other.say("n", "n", "accepted").await;
    assert_eq!(refusal["code"], "busy", "{refusal}");
    set.thaw(0);
    let back = Instant::now();
    let mut number = 0;
    until("a sender is served again", async || {
        number += 1;
        let text = format!("again-{number}");
        (other.say(&text, &text, "stored").await["type"] == "ack").then_some(())
    })
    .await;
    let served_after = back.elapsed();
    is_over.send_replace(true);
    let (mut acknowledged, mut refused) = (Vec::new(), 0);
    for sender in senders {
        let promised = sender.await.expect("a sender does not panic");
        acknowledged.extend(promised.accepted);
        refused += promised.refused.len();
    }
    let over = Instant::now();
    settled(&server).await;
    let settled_after = over.elapsed();
    let texts = set.texts().await;
    each_once(&texts, acknowledged.iter());
    assert_eq!(texts.len(), acknowledged.len() + 1, "what was refused is not stored");
    let end = server.stop().await;
    assert_eq!((end.code, end.ledger().stored), (Some(0), texts.len() as u64), "{end:?}");
    Told(vec![
        ("acknowledged", acknowledged.len() as u64),
        ("refused with busy", refused as u64),
        ("full after ms", millis(full_after)),
        ("memory when full, KiB", memory_when_full),
        ("most memory while full, KiB", most_memory),
        ("served again after ms", millis(served_after)),
        ("all stored after the last answer, ms", millis(settled_after)),
    ])
}

/// Sends comments, some ahead of their answers, and heeds what a refusal says.
async fn send_until_over(address: SocketAddr, name: String, is_over: watch::Receiver<bool>) -> Promised {
    // What others say is not looked at.
    let mut viewer = Viewer::join(address, ROOM, "rate=1").await;
    let mut promised = Promised::default();
    let (mut answered, mut not_before) = (0, Instant::now());
    loop {
        while promised.sent < answered + AHEAD && Instant::now() >= not_before && !*is_over.borrow() {
            let nonce = format!("{name}-{}", promised.sent);
            let text = large(&nonce);
            promised.sent += 1;
            viewer.send(&json!({"type": "send", "nonce": nonce, "text": text, "ack": "accepted"})).await;
        }
        if answered == promised.sent {
            if *is_over.borrow() {
                return promised;
            }
            sleep_until(not_before).await;
            continue;
        }
        let answer = viewer.until(|frame| frame["type"] == "ack" || frame["type"] == "error").await;
        answered += 1;
        if answer["type"] == "ack" {
            promised.accepted.insert(large(answer["nonce"].as_str().expect("it was sent")));
        } else {
            assert_eq!(answer["code"], "busy", "{answer}");
            promised.refused.push("busy".to_owned());
            let wait = answer["retryAfterMs"].as_u64().expect("it says when");
            not_before = Instant::now() + Duration::from_millis(wait);
        }
    }
}
