//! Before there is a WebSocket: slow, giant, broken and unusual requests, on raw TCP.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, interval};

use super::support::server::{Server, Start, raw, until};
use super::support::viewer::Viewer;
use super::support::wire::{TEXT, Wire, frame, handshake};

const IMPATIENT: &str = "[server]\nrequest_timeout = \"1s\"\n[store]\nread_patience = \"500ms\"";

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

/// The code in the body of an answer.
fn code(answer: &str) -> Value {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer:?}"));
    body["code"].clone()
}

async fn ask(server: &Server, target: &str) -> String {
    raw(server.address, format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await
}

#[tokio::test]
async fn who_is_slow_with_the_handshake_is_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(IMPATIENT).run();
    let patience = Duration::from_secs(5);
    let mut silent = Wire::connect(server.address).await;
    let mut half = Wire::connect(server.address).await;
    half.write(b"GET /ws/r1 HTTP/1.1\r\nHost: x\r\nUpg").await;
    // After a whole request, half of another.
    let mut second = Wire::connect(server.address).await;
    second.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal").await;
    let trickle = async {
        let mut wire = Wire::connect(server.address).await;
        let (mut ticks, begun) = (interval(Duration::from_millis(50)), Instant::now());
        for byte in handshake("r1").bytes().cycle() {
            ticks.tick().await;
            wire.write(&[if byte == b'\n' { b'x' } else { byte }]).await;
            if wire.ends_within(Duration::from_millis(1)).await {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < patience, "a byte now and then keeps the place for ever");
        }
        unreachable!("the bytes come round for ever")
    };
    let (silent, half, second, _) =
        tokio::join!(silent.ends_within(patience), half.ends_within(patience), second.ends_within(patience), trickle);
    assert_eq!((silent, half, second), (true, true, true));
    server.is_well().await;
}

#[tokio::test]
async fn a_giant_head_is_refused_early() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let long_line = format!("GET /ws/r1 HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(100_000));
    let long_address = format!("GET /ws/r1?{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(1000));
    for (what, head) in [("line", long_line), ("address", long_address), ("many", many)] {
        let begun = Instant::now();
        let answer = raw(server.address, head.as_bytes()).await;
        assert!(["431", "414"].contains(&status(&answer)), "{what}: {answer:?}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{what}: it did not wait for the rest");
    }
    server.is_well().await;
}

#[tokio::test]
async fn what_is_not_http_is_answered_or_cut_and_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(IMPATIENT).run();
    let noise: Vec<u8> = (0..2000).map(|_| fastrand::u8(..)).collect();
    let table: [(&str, &[u8]); 8] = [
        ("noise", &noise),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("no version", b"GET /\r\n\r\n"),
        ("a bad version", b"GET / HTTP/9.9\r\n\r\n"),
        ("a header without a name", b"GET / HTTP/1.1\r\n: x\r\n\r\n"),
        ("a NUL in a header", b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n"),
        (
            "two lengths",
            b"POST /api/rooms/r1/comments HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        ),
    ];
    for (what, bytes) in table {
        let answer = raw(server.address, bytes).await;
        assert!(answer.is_empty() || status(&answer) == "400", "{what}: {answer:?}");
    }
    server.is_well().await;
}

#[tokio::test]
async fn rooms_that_are_none_are_refused_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let long = "a".repeat(65);
    let rooms = [
        ("..", "400"),
        ("%2e%2e", "400"),
        ("%2e", "400"),
        ("a%2fb", "400"),
        ("a%00", "400"),
        ("%ff", "400"),
        ("%E5%93%88", "400"),
        ("a.b", "400"),
        ("a%20b", "400"),
        ("%zz", "400"),
        (&long, "400"),
        ("a/b", "404"),
        ("../r1", "404"),
    ];
    for (room, wanted) in rooms {
        for target in [format!("/ws/{room}"), format!("/api/rooms/{room}/comments")] {
            let answer = ask(&server, &target).await;
            assert_eq!(status(&answer), wanted, "{target}: {answer}");
            let wanted = if wanted == "400" { "bad_room" } else { "not_found" };
            assert_eq!(code(&answer), wanted, "{target}");
        }
    }
    assert_eq!(server.metric("danmaku_rooms").await, 0, "none of them was opened");
    server.is_well().await;
}

#[tokio::test]
async fn what_is_no_handshake_is_refused_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let good = handshake("r1");
    let table = [
        (good.replace("Upgrade: websocket\r\n", ""), "426", "not_websocket"),
        (good.replace("Connection: Upgrade\r\n", ""), "426", "not_websocket"),
        (good.replace("Version: 13", "Version: 8"), "426", "not_websocket"),
        (good.replace("Key: dGhlIHNhbXBsZSBub25jZQ==", "Key: short"), "426", "not_websocket"),
        (good.replace("/ws/r1", "/ws/r1?token=x"), "401", "bad_token"),
        (good.replace("Host: here", "Host: here\r\nAuthorization: Bearer x"), "401", "bad_token"),
        (good.replace("/ws/r1", "/ws/r1?guest=short"), "400", "bad_guest"),
        (good.replace("/ws/r1", "/ws/r1?name=a%0Ab"), "400", "bad_name"),
        (good.replace("/ws/r1", "/ws/r1?since=a&since=b"), "400", "bad_query"),
        (good.replace("GET", "POST"), "405", "method_not_allowed"),
    ];
    for (request, wanted, word) in table {
        let request = request.replace("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n");
        let mut wire = Wire::connect(server.address).await;
        wire.write(request.as_bytes()).await;
        let head = wire.head().await;
        let length = head.to_lowercase().split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().parse();
        let body = wire.take(length.unwrap()).await;
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status(&head), &body["code"]), (wanted, &json!(word)), "{request}");
        assert_eq!(wanted == "426", head.to_lowercase().contains("\r\nupgrade: websocket\r\n"), "{head}");
    }
    server.is_well().await;
}

#[tokio::test]
async fn what_comes_with_the_handshake_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let say = |nonce: &str| frame(TEXT, json!({"type": "send", "nonce": nonce, "text": nonce}).to_string().as_bytes());
    // A request before it, and three frames behind it, the last of them cut in two.
    let mut bytes = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    bytes.extend(handshake("r1").bytes());
    bytes.extend([say("a"), say("b"), say("c")].concat());
    let rest = bytes.split_off(bytes.len() - 10);
    let mut wire = Wire::connect(server.address).await;
    wire.write(&bytes).await;
    let head = wire.head().await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(wire.take(3).await, b"ok\n");
    let head = wire.head().await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    wire.write(&rest).await;
    let mut acks = Vec::new();
    while acks.len() < 3 {
        let frame: Value = serde_json::from_slice(&wire.frame().await.unwrap().payload).unwrap();
        if frame["type"] == "ack" {
            acks.push(frame["nonce"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(acks, ["a", "b", "c"]);
    server.is_well().await;
}

#[tokio::test]
async fn a_connection_too_many_is_told_so_and_gets_its_place_later() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config("[server]\nmax_connections = 2").run();
    let first = Viewer::join(server.address, "r1", "").await;
    let _second = Viewer::join(server.address, "r1", "").await;
    let mut wire = Wire::connect(server.address).await;
    let head = wire.head().await;
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("Retry-After: "), "{head}");
    assert!(wire.ends_within(Duration::from_secs(5)).await);
    let body = wire.unread();
    let length: usize = head.split("Content-Length: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
    assert_eq!(body.len(), length, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["code"], "too_many_connections");
    assert!(body["retryAfterMs"].is_u64(), "{body}");
    drop(first);
    until("there is a place again", async || Viewer::try_join(server.address, "r1", "").await.is_ok()).await;
    // The viewer that found a place has gone again, and there is one for the question.
    until("it can be asked", async || {
        let (_, _, text) = server.request("GET", "/metrics", "").await;
        let refused = "danmaku_connections_refused_total{code=\"too_many_connections\"} ";
        text.contains(refused) && !text.contains(&format!("{refused}0"))
    })
    .await;
}

#[tokio::test]
async fn the_log_of_a_session_names_its_connection_and_its_room() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config("[log]\nfilter = \"danmakud=debug\"").run();
    let wire = Wire::join(server.address, "r1").await;
    let from = wire.stream.local_addr().unwrap();
    drop(wire);
    until("it has ended", async || server.sum("danmaku_sessions_ended_total").await == 1).await;
    let log = server.stop().await.stderr;
    let line = log.lines().find(|line| line.contains("session ended")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&format!("conn={from}")) && line.contains("room=r1"), "{line}");
}
