//! Stopping: nothing that was accepted is lost, and everybody is told.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::support::mongod::{Access, ReplicaSet};
use super::support::redis::RedisServer;
use super::support::server::{End, LastLine, NO_LIMITS, Server, Start, until};
use super::support::viewer::{Seen, Viewer, texts_of};
use super::support::wire::Wire;

/// What a sender has seen until it was closed.
#[derive(Default)]
struct Sent {
    /// The texts that were acknowledged, in their order.
    acked: Vec<String>,
    /// Refusals.
    refused: Vec<Value>,
    bye: Value,
    code: Option<u16>,
}

/// Says one thing after another until it is closed, and tells each `progress`.
async fn send_until_closed(mut viewer: Viewer, name: usize, level: &str, progress: impl Fn()) -> Sent {
    let mut sent = Sent::default();
    for number in 0.. {
        let text = format!("{name}-{number}");
        let frame = json!({"type": "send", "nonce": text, "text": text, "ack": level});
        // After the close there is nobody to send to.
        let _may_be_closed = futures_util::SinkExt::send(&mut viewer.socket, frame.to_string().into()).await;
        loop {
            match viewer.see().await {
                Seen::Frame(frame) if frame["type"] == "bye" => sent.bye = frame,
                Seen::Frame(frame) if frame["nonce"] == json!(text) => {
                    if frame["type"] == "ack" {
                        sent.acked.push(text.clone());
                        progress();
                    } else {
                        sent.refused.push(frame);
                    }
                    break;
                }
                Seen::Frame(_) => {}
                Seen::Close(close) => {
                    sent.code = close.map(|close| close.code.into());
                    return sent;
                }
                Seen::Gone => return sent,
            }
        }
    }
    unreachable!("numbers do not end")
}

async fn all_texts(server: &Server, room: &str) -> Vec<String> {
    let (mut texts, mut before) = (Vec::new(), String::new());
    loop {
        let (status, page) = server.get(&format!("/api/rooms/{room}/comments?limit=1000{before}")).await;
        assert_eq!(status, 200, "{page}");
        texts.extend(texts_of(&page["comments"]));
        let Some(next) = page["next"].as_str() else { break };
        before = format!("&before={next}");
    }
    texts.reverse();
    texts
}

/// Stops a server under load by a signal, and looks into its store afterwards.
async fn stop_under_load(signal: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = "[shutdown]\nclose_spread = \"300ms\"\ndeadline = \"20s\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
    let (acks, address) = (std::sync::Arc::new(tokio::sync::Semaphore::new(0)), server.address);
    let mut senders = Vec::new();
    for name in 0..6 {
        let (viewer, acks) = (Viewer::join(address, &format!("r{}", name % 2), "").await, acks.clone());
        let level = if name < 4 { "accepted" } else { "stored" };
        senders.push(tokio::spawn(send_until_closed(viewer, name, level, move || acks.add_permits(1))));
    }
    let _enough = acks.acquire_many(400).await.unwrap();
    server.signal(signal);
    until("nobody is taken any more", async || TcpStream::connect(address).await.is_err()).await;
    let end = server.end().await;
    let mut all = Vec::new();
    for sender in senders {
        let sent = sender.await.unwrap();
        assert_eq!((&sent.bye["code"], sent.code), (&json!("going_away"), Some(1001)));
        assert!(sent.refused.iter().all(|refusal| refusal["code"] == "going_away"), "{:?}", sent.refused);
        assert!(sent.refused.iter().all(|refusal| refusal["retryAfterMs"].is_u64()), "{:?}", sent.refused);
        assert!(!sent.refused.is_empty(), "what is sent after the signal is answered");
        all.push(sent.acked);
    }
    let accepted: u64 = all.iter().map(|acked| acked.len() as u64).sum();
    let ledger = LastLine { accepted, stored: accepted, ..LastLine::default() };
    assert_eq!((end.code, end.ledger()), (Some(0), ledger), "{end:?}");

    let server = Start::in_folder(folder.path()).run();
    let mut stored = [all_texts(&server, "r0").await, all_texts(&server, "r1").await].concat();
    for (name, acked) in all.iter().enumerate() {
        let prefix = format!("{name}-");
        let theirs: Vec<_> = stored.extract_if(.., |text| text.starts_with(&prefix)).collect();
        assert_eq!(&theirs, acked, "each once, and in order");
    }
    assert_eq!(stored, [""; 0], "and nothing else");
}

#[tokio::test]
async fn sigterm_under_load_loses_nothing() {
    stop_under_load("TERM").await;
}

#[tokio::test]
async fn sigint_under_load_loses_nothing() {
    stop_under_load("INT").await;
}

#[tokio::test]
async fn everybody_is_told_when_to_come_back_and_closed_over_the_window() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[shutdown]\nclose_spread = \"1s\"\nreconnect_after = \"2s\"";
    let server = Start::in_folder(folder.path()).config(config).run();
    let mut viewers = Vec::new();
    for number in 0..40 {
        viewers.push(Viewer::join(server.address, &format!("r{}", number % 3), "").await);
    }
    let begun = Instant::now();
    server.signal("TERM");
    let mut closing = tokio::task::JoinSet::new();
    for mut viewer in viewers {
        closing.spawn(async move {
            let (code, frames) = viewer.closed().await;
            let bye = frames.last().cloned().unwrap_or_default();
            assert_eq!((code, &bye["type"], &bye["code"]), (Some(1001), &json!("bye"), &json!("going_away")));
            (begun.elapsed(), bye["reconnectAfterMs"].as_u64().unwrap())
        });
    }
    let told = closing.join_all().await;
    let (mut times, mut hints): (Vec<_>, Vec<_>) = told.into_iter().unzip();
    times.sort();
    hints.sort_unstable();
    assert!(times[39] - times[0] > Duration::from_millis(400), "they are spread: {times:?}");
    assert!(times[39] < Duration::from_secs(3), "{times:?}");
    assert!(hints[0] >= 2000 && hints[39] <= 4000 && hints[39] - hints[0] > 500, "{hints:?}");
    let end = server.end().await;
    assert_eq!((end.code, end.ledger().accepted), (Some(0), 0), "{end:?}");
}

#[tokio::test]
async fn clients_that_do_nothing_do_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[shutdown]\nclose_spread = \"100ms\"\ndeadline = \"2s\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
    // One that never closes its side, one that never sends its request, one within a body, one that is merely idle.
    let _deaf = Wire::join(server.address, "r1").await;
    let mut half = Wire::connect(server.address).await;
    half.write(b"GET /healthz HT").await;
    let mut body = Wire::connect(server.address).await;
    body.write(b"POST /api/rooms/r1/comments HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{").await;
    let mut idle = Wire::connect(server.address).await;
    idle.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    idle.head().await;
    let open = || async {
        server.metric("danmaku_connections_accepted_total").await
            - server.metric("danmaku_connections_closed_total").await
    };
    until("all of them are taken on", async || open().await >= 4).await;
    let begun = Instant::now();
    let end = server.stop().await;
    assert_eq!(end.code, Some(0), "nothing was lost: {end:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    for (signal, config) in [("TERM", "close_spread = \"20s\""), ("INT", "grace = \"20s\"")] {
        let folder = tempfile::tempdir().unwrap();
        let config = &format!("[shutdown]\n{config}");
        let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
        let mut viewers = Vec::new();
        for _ in 0..8 {
            viewers.push(Viewer::join(server.address, "r1", "").await);
        }
        viewers[0].say("n", "n", "stored").await;
        until("it is ready", async || server.request("GET", "/readyz", "").await.0 == 200).await;
        server.signal("TERM");
        if config.contains("grace") {
            until("it is announced", async || server.request("GET", "/readyz", "").await.0 == 503).await;
        } else {
            until("it has begun", async || TcpStream::connect(server.address).await.is_err()).await;
        }
        let begun = Instant::now();
        server.signal(signal);
        let end = server.end().await;
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        let ledger = LastLine { accepted: 1, stored: 1, ..LastLine::default() };
        assert_eq!((end.code, end.ledger()), (Some(1), ledger), "{end:?}");
        assert!(end.stderr.contains("a second signal"), "{end:?}");
    }
}

#[tokio::test]
async fn in_its_time_of_grace_a_server_says_that_it_goes_away_and_serves_on() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[shutdown]\ngrace = \"2s\"\nclose_spread = \"0s\"\ndeadline = \"10s\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
    until("it is ready", async || server.request("GET", "/readyz", "").await.0 == 200).await;
    let mut before = Viewer::join(server.address, "r1", "").await;
    let begun = Instant::now();
    server.signal("TERM");
    until("it is not ready", async || server.request("GET", "/readyz", "").await.0 == 503).await;
    let (_, head, body) = server.request("GET", "/readyz", "").await;
    assert!(head.contains("retry-after: ") && body.contains("going_away"), "{head}{body}");
    let mut during = Viewer::join(server.address, "r1", "").await;
    assert_eq!(during.say("n", "late", "stored").await["type"], "ack");
    assert_eq!(server.post("r1", "", &json!({"text": "posted"})).await.0, 201);
    for viewer in [&mut before, &mut during] {
        assert_eq!(viewer.texts(2).await, ["late", "posted"]);
        let (code, frames) = viewer.closed().await;
        assert_eq!((code, &frames.last().unwrap()["code"]), (Some(1001), &json!("going_away")));
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    let ledger = LastLine { accepted: 2, stored: 2, ..LastLine::default() };
    let end = server.end().await;
    assert_eq!((end.code, end.ledger()), (Some(0), ledger), "{end:?}");
}

/// Takes the store away under a server and stops it: 20 comments are stored, 30 come in after that.
async fn stop_without_the_store(folder: &Path, config: &str) -> End {
    let set = ReplicaSet::start(1, Access::Open).await;
    let short = "[shutdown]\ndeadline = \"2s\"\nclose_spread = \"0s\"\n[mongodb]\nconnect_timeout = \"500ms\"\n\
        server_selection_timeout = \"500ms\"\nwrite_timeout = \"1s\"";
    let server = Start::in_folder(folder).config(NO_LIMITS).config(short).config(config);
    let server = server.args(&["--mongodb", &set.uri(None)]).run();
    let mut ann = Viewer::join(server.address, "r1", "").await;
    for number in 0..20 {
        let text = number.to_string();
        assert_eq!(ann.say(&text, &text, "stored").await["type"], "ack");
    }
    drop(set);
    for number in 20..50 {
        let text = number.to_string();
        assert_eq!(ann.say(&text, &text, "accepted").await["type"], "ack", "broadcast goes on");
    }
    let begun = Instant::now();
    server.signal("TERM");
    let (code, _) = ann.closed().await;
    assert_eq!(code, Some(1001));
    let end = server.end().await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    end
}

#[tokio::test]
async fn without_its_store_a_server_leaves_everything_in_the_outbox_in_time() {
    let folder = tempfile::tempdir().unwrap();
    // The write patience is longer than the whole stop may take.
    let end = stop_without_the_store(folder.path(), "").await;
    let ledger = LastLine { accepted: 50, stored: 20, in_outbox: 30, ..LastLine::default() };
    assert_eq!((end.code, end.ledger()), (Some(0), ledger), "{end:?}");
    assert!(end.stderr.contains("30 accepted comments wait in the outbox"), "{end:?}");
    assert!(!end.stderr.contains("were not stored"), "{end:?}");
}

#[tokio::test]
async fn without_its_store_and_an_outbox_a_server_ends_at_the_deadline_and_says_what_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let end = stop_without_the_store(folder.path(), "[store]\noutbox_max_bytes = 0").await;
    let ledger = LastLine { accepted: 50, stored: 20, not_stored: 30, ..LastLine::default() };
    assert_eq!((end.code, end.ledger()), (Some(1), ledger), "{end:?}");
    assert!(end.stderr.contains("30 accepted comments were not stored"), "{end:?}");
}

#[tokio::test]
async fn what_stands_on_an_open_connection_is_answered_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[shutdown]\nclose_spread = \"0s\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
    // The head is there when the stop begins, the body comes after it.
    let body = r#"{"text":"late"}"#;
    let mut wire = Wire::connect(server.address).await;
    let head = format!("POST /api/rooms/r1/comments HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    wire.write(head.as_bytes()).await;
    until("it is taken on", async || server.metric("danmaku_connections_accepted_total").await >= 2).await;
    server.signal("TERM");
    until("it has begun", async || TcpStream::connect(server.address).await.is_err()).await;
    wire.stream.write_all(body.as_bytes()).await.unwrap();
    let head = wire.head().await;
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: "), "{head}");
    assert!(wire.ends_within(Duration::from_secs(5)).await);
    assert!(wire.unread().contains("going_away"), "{}", wire.unread());
    assert_eq!(server.end().await.code, Some(0));
}

#[tokio::test]
async fn a_redis_that_hangs_does_not_hold_up_the_end() {
    let (folder, redis) = (tempfile::tempdir().unwrap(), RedisServer::start().await);
    let mongodb = ReplicaSet::shared().await.uri(None).replace("/?", "/hung_redis?");
    let config = "[shutdown]\nclose_spread = \"0s\"\ndeadline = \"3s\"\n[mongodb]\nwrite_timeout = \"2s\"";
    let flags = ["--mongodb", &mongodb, "--redis", &redis.url()];
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).args(&flags).run();
    let mut viewer = Viewer::join(server.address, "r1", "").await;
    viewer.say("n", "n", "stored").await;
    redis.freeze();
    // Something for Redis is on its way when the stop begins.
    viewer.say("m", "m", "stored").await;
    // One that never closes its side lets the sockets take all the time that there is.
    let _deaf = Wire::join(server.address, "r1").await;
    let begun = Instant::now();
    let end = server.stop().await;
    // Waiting for Redis on top of the deadline would take three seconds more.
    assert!(begun.elapsed() < Duration::from_millis(5500), "{:?}", begun.elapsed());
    let ledger = LastLine { accepted: 2, stored: 2, ..LastLine::default() };
    assert_eq!((end.code, end.ledger()), (Some(0), ledger), "{end:?}");
}
