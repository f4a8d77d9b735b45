//! What hostile and broken clients do on a WebSocket. None of it reaches another viewer.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};

use super::support::server::{Server, Start, until};
use super::support::viewer::{Seen, Viewer};
use super::support::wire::{BINARY, CLOSE, FIRST_TEXT, LAST, MORE, PING, PONG, TEXT, Wire, frame};

const PING_FRAME: &[u8] = b"{\"type\":\"ping\"}";

fn start(folder: &tempfile::TempDir) -> Server {
    Start::in_folder(folder.path()).run()
}

/// Sends bytes on a connection of its own; gives the codes of the close frames that come.
async fn closes(server: &Server, bytes: &[u8]) -> Vec<u16> {
    let mut wire = Wire::join(server.address, "r1").await;
    wire.write(bytes).await;
    wire.rest().await.iter().filter_map(super::support::wire::Frame::code).collect()
}

#[tokio::test]
async fn each_breach_of_the_protocol_is_closed_once_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let fragments = |count: usize, part: &[u8]| {
        let mut bytes = frame(FIRST_TEXT, part);
        bytes.extend((0..count).flat_map(|_| frame(MORE, part)));
        bytes.extend(frame(LAST, part));
        bytes
    };
    let split = |first: &[u8], second: &[u8]| [frame(FIRST_TEXT, first), frame(LAST, second)].concat();
    let mut endless = frame(TEXT, b"");
    endless.splice(1..2, [0x80 | 127, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    let table = [
        ("a frame of 8 KiB and a byte", frame(TEXT, &[b'a'; 8193]), 1009),
        ("a frame that says it is endless", endless, 1009),
        ("fragments of more than 8 KiB", fragments(9, &[b'a'; 1000]), 1009),
        ("65 fragments", fragments(63, b"a"), 1008),
        ("endless empty fragments", fragments(2000, b""), 1008),
        ("bad UTF-8", frame(TEXT, b"{\"type\":\"\xff\"}"), 1007),
        ("a surrogate in UTF-8", frame(TEXT, b"\xed\xa0\x80"), 1007),
        ("an overlong form", frame(TEXT, b"\xc0\xaf"), 1007),
        ("half a code point at the end", frame(TEXT, b"\xe5\x93"), 1007),
        ("a code point split over fragments, wrongly", split(b"\xe5\x93", b"a"), 1007),
        ("a binary frame", frame(BINARY, b"x"), 1003),
        ("a frame without mask", vec![TEXT, 2, b'{', b'}'], 1002),
        ("a reserved bit", frame(TEXT | 0x40, PING_FRAME), 1002),
        ("a reserved opcode", frame(0x83, b"x"), 1002),
        ("a reserved control opcode", frame(0x8B, b"x"), 1002),
        ("a ping of 126 bytes", frame(PING, &[0; 126]), 1002),
        ("a ping in fragments", frame(0x09, b"x"), 1002),
        ("a text within a fragmented text", [frame(FIRST_TEXT, b"a"), frame(TEXT, b"b")].concat(), 1002),
        ("a continuation of nothing", frame(LAST, b"a"), 1002),
        ("a close of one byte", frame(CLOSE, b"x"), 1002),
        ("a close with a code that no endpoint may send", frame(CLOSE, &1005_u16.to_be_bytes()), 1002),
        ("a close with bad UTF-8", frame(CLOSE, b"\x03\xe8\xff"), 1007),
        ("a close", frame(CLOSE, &1000_u16.to_be_bytes()), 1000),
        ("a close without a code", frame(CLOSE, b""), 1000),
        ("more frames than the allowance", (0..600).flat_map(|_| frame(TEXT, PING_FRAME)).collect(), 4001),
        ("more pings than the allowance", (0..600).flat_map(|_| frame(PING, b"")).collect(), 4001),
    ];
    for (what, bytes, code) in &table {
        assert_eq!(closes(&server, bytes).await, [*code], "{what}");
    }
    let begun = server.metric("danmaku_sessions_begun_total").await;
    assert_eq!(begun, i64::try_from(table.len()).unwrap());
    until("each has ended", async || server.sum("danmaku_sessions_ended_total").await == begun).await;
    server.is_well().await;
}

#[tokio::test]
async fn what_is_odd_but_allowed_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let text = json!({"type": "send", "nonce": "n", "text": "哈哈"}).to_string();
    let bytes = text.as_bytes();
    let cut = text.find('哈').unwrap() + 1;
    let mut wire = Wire::join(server.address, "r1").await;
    // Within a code point, with a ping between the fragments, and a byte at a time.
    let odd = [frame(FIRST_TEXT, &bytes[..cut]), frame(PING, b"between"), frame(LAST, &bytes[cut..])].concat();
    for byte in odd {
        wire.write(&[byte]).await;
    }
    wire.write(&frame(PONG, b"unasked")).await;
    let (mut has_pong, mut has_ack) = (false, false);
    while !(has_pong && has_ack) {
        let frame = wire.frame().await.expect("the connection goes on");
        has_pong |= frame.first == PONG && frame.payload == b"between";
        has_ack |= frame.payload.starts_with(b"{\"type\":\"ack\",\"nonce\":\"n\"");
    }
    // 64 fragments, some of them empty, and exactly 8 KiB.
    let long = format!("{{\"type\":\"ping\",\"x\":\"{}\"}}", "a".repeat(8192 - 22));
    assert_eq!(long.len(), 8192);
    wire.write(&frame(FIRST_TEXT, &long.as_bytes()[..4096])).await;
    for _ in 0..62 {
        wire.write(&frame(MORE, b"")).await;
    }
    wire.write(&frame(LAST, &long.as_bytes()[4096..])).await;
    while wire.frame().await.expect("the connection goes on").payload != b"{\"type\":\"pong\"}" {}
    server.is_well().await;
}

#[tokio::test]
async fn a_ping_from_a_silent_viewer_is_answered_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let mut wire = Wire::join(server.address, "r1").await;
    for payload in [&b""[..], b"hello", &[0; 125]] {
        let asked = Instant::now();
        wire.write(&frame(PING, payload)).await;
        let mut pong = wire.frame().await.expect("the connection goes on");
        while pong.first == TEXT {
            pong = wire.frame().await.expect("the connection goes on");
        }
        assert_eq!((pong.first, pong.payload.as_slice()), (PONG, payload));
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    }
    server.is_well().await;
}

#[tokio::test]
async fn a_quiet_viewer_that_answers_pings_stays_and_one_that_does_not_goes() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[server]\nping_interval = \"1s\"\nping_timeout = \"500ms\"";
    let server = Start::in_folder(folder.path()).config(config).run();
    let mut quiet = Viewer::join(server.address, "r1", "").await;
    // Two that have vanished without a word: their sockets stay open, and nothing answers.
    let mut lost = [Wire::join(server.address, "r1").await, Wire::join(server.address, "r1").await];
    assert_eq!(server.metric("danmaku_viewers").await, 3);
    let joined = Instant::now();
    // The quiet one reads, so that its library answers pings, and is told of the right number.
    let told = async {
        while !matches!(quiet.see().await, Seen::Frame(frame) if frame["type"] == "room" && frame["online"] == 1) {}
        // It may be told before the others come; it goes on reading, and answering pings, until they are gone.
        until("the others are gone", async || {
            let _frames = timeout(Duration::from_millis(50), quiet.see()).await;
            server.metric("danmaku_viewers").await <= 1
        })
        .await;
    };
    let counted = async {
        until("the others count no more", async || server.metric("danmaku_viewers").await == 1).await;
        joined.elapsed()
    };
    let gone = async {
        let [first, second] = &mut lost;
        let (first, second) = tokio::join!(first.rest(), second.rest());
        for frames in [first, second] {
            assert_eq!(frames.last().and_then(super::support::wire::Frame::code), Some(4003), "{frames:?}");
        }
        joined.elapsed()
    };
    let all = async { tokio::join!(told, counted, gone) };
    let ((), counted, gone) = timeout(Duration::from_secs(20), all).await.unwrap();
    // Interval and timeout are 1.5 s, and for 2 s after that they could still close properly.
    let bound = Duration::from_secs(3);
    assert!(counted < bound && gone < bound, "counted after {counted:?}, gone after {gone:?}");
    until("the gauge is right", async || server.metric("danmaku_viewers").await == 1).await;
    let code = "danmaku_sessions_ended_total{code=\"ping_timeout\"}";
    until("both have ended", async || server.metric(code).await == 2).await;
    let (status, _) = server.post("r1", "", &json!({"text": "still there?"})).await;
    assert_eq!((status, quiet.texts(1).await), (201, vec!["still there?".into()]));
}
