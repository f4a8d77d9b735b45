//! Protocol v1 as its clients rely on it: greeting, sending, acknowledgements, refusals.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::support::server::{NO_LIMITS, Server, Start};
use super::support::viewer::{Viewer, texts_of};

const GUEST: &str = "guest=0123456789abcdef";

fn start(folder: &tempfile::TempDir) -> Server {
    Start::in_folder(folder.path()).config(NO_LIMITS).run()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// Says these in order, and waits until all are accepted.
async fn say_all(viewer: &mut Viewer, texts: &[String]) {
    for text in texts {
        viewer.send(&json!({"type": "send", "nonce": text, "text": text})).await;
    }
    let last = texts.last().expect("there is something to say");
    let ack = viewer.until(|frame| frame["nonce"] == json!(last)).await;
    assert_eq!(ack["type"], "ack", "{ack}");
}

#[tokio::test]
async fn hello_says_who_and_where_one_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let ann = Viewer::join(server.address, "r1", &format!("{GUEST}&name=Ann")).await;
    let hello = &ann.hello;
    assert_eq!((&hello["room"], &hello["online"], &hello["recent"]), (&json!("r1"), &json!(1), &json!([])));
    assert_eq!(hello["limits"], json!({"maxChars": 100, "minIntervalMs": 1000}));
    assert_eq!((&hello["self"]["name"], &hello["self"]["role"]), (&json!("Ann"), &json!("viewer")));
    assert!(hello["session"].is_string() && hello["cursor"].is_string(), "{hello}");
    let again = Viewer::join(server.address, "r1", GUEST).await;
    assert_eq!((&again.hello["self"]["uid"], &again.hello["online"]), (&hello["self"]["uid"], &json!(2)));
    let other = Viewer::join(server.address, "r1", "").await;
    assert_ne!(other.hello["self"]["uid"], hello["self"]["uid"]);
    assert_ne!(other.hello["session"], hello["session"]);
}

#[tokio::test]
async fn who_joins_gets_the_newest_oldest_first_and_then_what_follows() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let mut ann = Viewer::join(server.address, "r1", "").await;
    say_all(&mut ann, &numbers(0..250)).await;
    ann.until(|frame| frame["type"] == "comments" && texts_of(&frame["comments"]).contains(&"249".to_owned())).await;
    let mut bob = Viewer::join(server.address, "r1", "").await;
    assert_eq!(texts_of(&bob.hello["recent"]), numbers(50..250));
    // Its cursor stands after them.
    let mut eve = Viewer::join(server.address, "r1", &format!("since={}", bob.cursor)).await;
    assert_eq!(eve.hello["recent"], json!([]));
    ann.say("next", "next", "accepted").await;
    assert_eq!((bob.texts(1).await, eve.texts(1).await), (vec!["next".into()], vec!["next".into()]));
}

#[tokio::test]
async fn who_joins_while_others_send_sees_neither_gap_nor_double() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let (address, mut joiners) = (server.address, Vec::new());
    let mut ann = Viewer::join(address, "r1", "").await;
    for number in 0..1200 {
        ann.send(&json!({"type": "send", "text": number.to_string()})).await;
        if number % 30 == 29 {
            joiners.push(tokio::spawn(async move {
                let mut joiner = Viewer::join(address, "r1", "").await;
                joiner.texts_until("1199").await
            }));
        }
    }
    for joiner in joiners {
        let seen = joiner.await.unwrap();
        let first: usize = seen[0].parse().unwrap();
        assert_eq!(seen, numbers(first..1200));
    }
    assert_eq!(ann.texts_until("1199").await, numbers(0..1200));
}

#[tokio::test]
async fn a_send_is_acknowledged_at_its_level_and_comes_back_in_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let mut ann = Viewer::join(server.address, "r1", "name=Ann").await;
    for level in ["accepted", "stored"] {
        let frame = json!({"type": "send", "nonce": level, "text": level, "mode": 4, "color": 255, "size": 30,
            "ack": level});
        ann.send(&frame).await;
        let (mut ack, mut comment) = (Value::Null, Value::Null);
        while ack.is_null() || comment.is_null() {
            let frame = ann.frame().await;
            match frame["type"].as_str() {
                Some("ack") => ack = frame,
                Some("comments") => comment = frame["comments"][0].clone(),
                _ => {}
            }
        }
        assert_eq!(ack, json!({"type": "ack", "nonce": level, "level": level, "id": comment["id"]}));
        let expected = json!({"id": comment["id"], "uid": ann.hello["self"]["uid"], "name": "Ann", "text": level,
            "mode": 4, "color": 255, "size": 30, "ts": comment["ts"]});
        assert_eq!(comment, expected);
    }
    assert!(server.metric("danmaku_stored_total").await >= 1);
}

#[tokio::test]
async fn a_resent_nonce_is_one_comment_also_over_a_reconnect() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let mut bob = Viewer::join(server.address, "r1", "").await;
    let mut ann = Viewer::join(server.address, "r1", GUEST).await;
    let first = ann.say("n1", "once", "accepted").await;
    let second = ann.say("n1", "once", "stored").await;
    drop(ann);
    let mut ann = Viewer::join(server.address, "r1", GUEST).await;
    let third = ann.say("n1", "once", "accepted").await;
    assert_eq!((&second["id"], &third["id"]), (&first["id"], &first["id"]), "{first} {second} {third}");
    // Another guest's nonce is another's.
    let theirs = bob.say("n1", "twice", "accepted").await;
    assert_ne!(theirs["id"], first["id"]);
    let (_, page) = server.get("/api/rooms/r1/comments").await;
    assert_eq!(texts_of(&page["comments"]), ["twice", "once"]);
    assert_eq!(server.metric("danmaku_resent_total").await, 2);
}

#[tokio::test]
async fn every_refusal_has_its_code_and_the_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let mut ann = Viewer::join(server.address, "r1", "").await;
    let send = |fields: Value| {
        let mut frame = json!({"type": "send", "nonce": "n", "text": "x"});
        frame.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        frame.to_string()
    };
    let table = [
        (send(json!({"text": " "})), "text_blank"),
        (send(json!({"text": "\u{200b}"})), "text_invisible"),
        (send(json!({"text": "a\nb"})), "text_control"),
        (send(json!({"text": "a\u{202e}b"})), "text_bidi"),
        (send(json!({"text": format!("a{}", "\u{316}".repeat(7))})), "text_combining"),
        (send(json!({"text": "好".repeat(101)})), "text_too_long"),
        (send(json!({"text": "a".repeat(4000)})), "text_too_large"),
        (send(json!({"mode": 2})), "bad_mode"),
        (send(json!({"color": 0x0100_0000})), "bad_color"),
        (send(json!({"color": -1})), "bad_color"),
        (send(json!({"size": 11})), "bad_size"),
        (send(json!({"size": 65})), "bad_size"),
        (send(json!({"text": 5})), "bad_field"),
        (send(json!({"text": null})), "bad_field"),
        (send(json!({"ack": "soon"})), "bad_field"),
        (send(json!({"nonce": "n".repeat(65)})), "bad_nonce"),
        (send(json!({"nonce": ""})), "bad_nonce"),
        (send(json!({"type": "shout"})), "unknown_type"),
        ("{}".into(), "bad_field"),
        ("[1]".into(), "bad_field"),
        ("not json".into(), "bad_json"),
        (String::new(), "bad_json"),
    ];
    let mut counts = std::collections::BTreeMap::new();
    for (frame, code) in table {
        ann.send_raw(Message::text(frame.clone())).await;
        let error = ann.until(|frame| frame["type"] != "room").await;
        assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!(code)), "{frame}: {error}");
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 5), "{error}");
        let has_nonce = frame.contains("\"nonce\":\"n\"");
        assert_eq!(error["nonce"] == "n", has_nonce, "under its nonce: {error}");
        *counts.entry(code).or_insert(0) += 1;
    }
    for (code, count) in counts {
        assert_eq!(server.metric(&format!("danmaku_refused_total{{code=\"{code}\"}}")).await, count, "{code}");
    }
    let ack = ann.say("good", "good", "accepted").await;
    assert_eq!(ack["type"], "ack");
    let (_, page) = server.get("/api/rooms/r1/comments").await;
    assert_eq!(texts_of(&page["comments"]), ["good"], "what was refused left no trace");
}

#[tokio::test]
async fn who_is_too_fast_is_told_when_to_come_back_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[limits]\nmin_interval = \"300ms\"\nburst = 2";
    let server = Start::in_folder(folder.path()).config(config).run();
    let mut ann = Viewer::join(server.address, "r1", GUEST).await;
    let mut bob = Viewer::join(server.address, "r1", "").await;
    for nonce in ["a", "b"] {
        assert_eq!(ann.say(nonce, nonce, "accepted").await["type"], "ack");
    }
    let mut error = ann.say("c", "c", "accepted").await;
    assert_eq!((&error["code"], &error["type"]), (&json!("rate_limited"), &json!("error")), "{error}");
    // Another connection of the same guest, another room, HTTP: the limit is the guest's.
    let mut elsewhere = Viewer::join(server.address, "r2", GUEST).await;
    assert_eq!(elsewhere.say("c", "c", "accepted").await["code"], "rate_limited");
    // Sending again what was accepted is not sending more, and others are not held up.
    assert_eq!(ann.say("b", "b", "accepted").await["type"], "ack");
    assert_eq!(bob.say("x", "x", "accepted").await["type"], "ack");
    while error["type"] == "error" {
        let wait = error["retryAfterMs"].as_u64().unwrap_or_else(|| panic!("{error}"));
        assert!(wait <= 300, "{error}");
        // The wait is what the server asked for; half a millisecond can be lost to its rounding.
        tokio::time::sleep(std::time::Duration::from_millis(wait + 1)).await;
        error = ann.say("c", "c", "accepted").await;
    }
    assert_eq!(error["type"], "ack", "the same connection sends on");
}

#[tokio::test]
async fn pings_are_answered_and_unknown_fields_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let mut ann = Viewer::join(server.address, "r1", "unknown=1").await;
    ann.send(&json!({"type": "ping", "extra": {"deep": [1]}})).await;
    assert_eq!(ann.until(|frame| frame["type"] != "room").await, json!({"type": "pong"}));
    ann.send(&json!({"type": "send", "nonce": "n", "text": "hi", "uid": "admin", "name": "Root", "id": "1"})).await;
    ann.until(|frame| frame["nonce"] == "n").await;
    let (_, page) = server.get("/api/rooms/r1/comments").await;
    assert_eq!(page["comments"][0]["uid"], ann.hello["self"]["uid"], "who sends is not the client's to say");
    assert_eq!(page["comments"][0]["name"], ann.hello["self"]["name"]);
}

#[tokio::test]
async fn a_clients_clock_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder);
    let mut ann = Viewer::join(server.address, "r1", "").await;
    let five_minutes = 300_000_i64;
    for number in 0..40_i64 {
        let wrong = if number % 2 == 0 { -five_minutes } else { five_minutes };
        let ts = 1_700_000_000_000 + wrong - number * 1000;
        let frame = json!({"type": "send", "nonce": number.to_string(), "text": number.to_string(), "ts": ts,
            "time": ts, "timestamp": ts});
        ann.send(&frame).await;
    }
    let seen = ann.texts_until("39").await;
    assert_eq!(seen, numbers(0..40), "the order is that of arrival");
    let (_, window) = server.get("/api/rooms/r1/comments?last=60s").await;
    assert_eq!(texts_of(&window["comments"]), numbers(0..40));
    let times: Vec<_> = window["comments"].as_array().unwrap().iter().map(|c| c["ts"].as_i64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let (from, to) = (window["from"].as_i64().unwrap(), window["to"].as_i64().unwrap());
    assert!(times.iter().all(|ts| (from..=to).contains(ts)), "times are the server's: {times:?}");
}

#[tokio::test]
async fn a_send_over_the_acks_that_may_wait_is_refused_and_counted_if_it_would_wait_too() {
    // With the journal every acknowledgement waits.
    for (durability, answer) in [("memory", "ack"), ("disk", "error")] {
        fill_with_acks(durability, answer).await;
    }
}

async fn fill_with_acks(durability: &str, answer: &str) {
    let folder = tempfile::tempdir().unwrap();
    // Nothing is flushed while the test runs, so every acknowledgement of the store waits.
    let config = format!("[store]\nflush_interval = \"10s\"\nbatch = 10000\ndurability = \"{durability}\"");
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(&config).run();
    let mut ann = Viewer::join(server.address, "r1", "").await;
    // The first tick of the flusher comes at once and takes what is there.
    ann.say("first", "first", "stored").await;
    for number in 0..=4096 {
        let nonce = number.to_string();
        ann.send(&json!({"type": "send", "nonce": nonce, "text": "x", "ack": "stored"})).await;
    }
    let error = ann.until(|frame| frame["type"] == "error").await;
    assert_eq!((&error["code"], &error["nonce"]), (&json!("busy"), &json!("4096")), "{error}");
    assert_eq!(server.metric("danmaku_refused_total{code=\"busy\"}").await, 1);
    let last = ann.say("last", "x", "accepted").await;
    assert_eq!(last["type"], answer, "{last}");
}

#[tokio::test]
async fn acknowledgements_by_the_thousand_reach_a_client_that_reads() {
    const COUNT: usize = 4000;
    let folder = tempfile::tempdir().unwrap();
    // All of them are stored by one bulk, and so are acknowledged at once.
    let config = "[store]\nflush_interval = \"2s\"\nbatch = 10000";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
    let mut sender = Viewer::join(server.address, "r1", "").await;
    for number in 0..COUNT {
        let nonce = format!("{number:064}");
        sender.send(&json!({"type": "send", "nonce": nonce, "text": "x", "ack": "stored"})).await;
    }
    let mut acknowledged = std::collections::HashSet::new();
    while acknowledged.len() < COUNT {
        let frame = sender.frame().await;
        if frame["type"] == "ack" {
            assert_eq!(frame["level"], "stored");
            assert!(acknowledged.insert(frame["nonce"].to_string()), "acknowledged twice: {frame}");
        }
    }
    server.is_well().await;
}

#[tokio::test]
async fn a_room_too_many_is_told_so_and_closed_with_a_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config("[room]\nmax_rooms = 1").run();
    let _ann = Viewer::join(server.address, "r1", "").await;
    let mut wire = super::support::wire::Wire::upgrade(server.address, "r2").await;
    let frames = wire.rest().await;
    let error: Value = serde_json::from_slice(&frames[0].payload).unwrap();
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("too_many_rooms")), "{error}");
    assert!(error["retryAfterMs"].is_u64(), "{error}");
    assert_eq!((frames.len(), frames[1].code()), (2, Some(4004)), "the server is not going away");
    assert_eq!(server.metric("danmaku_sessions_ended_total{code=\"busy\"}").await, 1);
}
