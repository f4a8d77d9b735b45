//! Coming back with a cursor: exactly what was missed, or how much of it is gone.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use tokio_tungstenite::tungstenite::Error;

use super::support::server::{NO_LIMITS, Server, Start};
use super::support::viewer::{Viewer, texts_of};

/// Where a cursor's sequence number stands among its bytes.
const SEQ: std::ops::Range<usize> = 9..17;

const SMALL_RING: &str = "[room]\nring = 20\nrecent = 10";

async fn say_all(server: &Server, range: std::ops::Range<u64>) {
    let mut viewer = Viewer::join(server.address, "r1", "").await;
    for number in range {
        let text = number.to_string();
        let ack = viewer.say(&text, &text, "accepted").await;
        assert_eq!(ack["type"], "ack", "{ack}");
    }
}

/// Comes back after `since`; gives how many it is told to have missed, and the numbers it gets until `last`.
async fn come_back(server: &Server, since: &str, last: u64) -> (u64, Vec<u64>) {
    let mut viewer = Viewer::join(server.address, "r1", &format!("since={since}")).await;
    assert_eq!((&viewer.hello["resumed"], &viewer.hello["recent"]), (&json!(true), &json!([])), "{}", viewer.hello);
    let (mut missed, mut seen) = (0, Vec::new());
    while seen.last() != Some(&last) {
        let frame = viewer.frame().await;
        match frame["type"].as_str() {
            Some("gap") => {
                assert!(seen.is_empty() && frame["exact"].is_null(), "{frame}");
                missed += frame["missed"].as_u64().unwrap();
            }
            Some("comments") => seen.extend(texts_of(&frame["comments"]).iter().map(|t| t.parse::<u64>().unwrap())),
            _ => {}
        }
    }
    (missed, seen)
}

/// Each cursor a viewer has had while the numbers of `range` were said, with the number it stands on.
async fn cursors(server: &Server, range: std::ops::Range<u64>) -> Vec<(u64, String)> {
    let mut viewer = Viewer::join(server.address, "r1", "").await;
    let mut cursors = Vec::new();
    say_all(server, range.clone()).await;
    while cursors.last().is_none_or(|(number, _)| number + 1 != range.end) {
        let frame = viewer.until(|frame| frame["type"] == "comments").await;
        let last = texts_of(&frame["comments"]).last().unwrap().parse().unwrap();
        cursors.push((last, viewer.cursor.clone()));
    }
    cursors
}

#[tokio::test]
async fn who_comes_back_gets_exactly_what_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let cursors = cursors(&server, 0..40).await;
    say_all(&server, 40..60).await;
    for (number, cursor) in cursors {
        assert_eq!(come_back(&server, &cursor, 59).await, (0, (number + 1..60).collect()), "after {number}");
    }
}

#[tokio::test]
async fn who_comes_back_too_late_is_told_how_many_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(SMALL_RING).run();
    let cursors = cursors(&server, 0..30).await;
    // A batch is dropped as a whole, and has at most 256.
    say_all(&server, 30..400).await;
    for (number, cursor) in cursors {
        let (missed, seen) = come_back(&server, &cursor, 399).await;
        assert!(missed > 0 && seen.len() >= 20, "after {number}: {missed} {seen:?}");
        assert_eq!(seen, (number + 1 + missed..400).collect::<Vec<_>>(), "after {number}");
    }
}

#[tokio::test]
async fn after_a_restart_who_comes_back_gets_exactly_what_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let quick = "[shutdown]\nclose_spread = \"0s\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(quick).run();
    let cursors = cursors(&server, 0..10).await;
    say_all(&server, 10..20).await;
    assert_eq!(server.stop().await.code, Some(0));
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    for (number, cursor) in &cursors {
        assert_eq!(come_back(&server, cursor, 19).await, (0, (number + 1..20).collect()), "after {number}");
    }
    say_all(&server, 20..25).await;
    for (number, cursor) in &cursors {
        assert_eq!(come_back(&server, cursor, 24).await, (0, (number + 1..25).collect()), "after {number}");
    }
}

#[tokio::test]
async fn after_a_restart_what_the_ring_cannot_hold_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let quick = "[shutdown]\nclose_spread = \"0s\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(SMALL_RING).config(quick).run();
    let cursors = cursors(&server, 0..10).await;
    say_all(&server, 10..60).await;
    assert_eq!(server.stop().await.code, Some(0));
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(SMALL_RING).run();
    for (number, cursor) in cursors {
        let (missed, seen) = come_back(&server, &cursor, 59).await;
        assert!(missed > 0, "after {number}");
        assert_eq!(seen, (number + 1 + missed..60).collect::<Vec<_>>(), "after {number}");
    }
}

#[tokio::test]
async fn a_cursor_that_is_none_is_refused_at_the_handshake() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let good = Viewer::join(server.address, "r1", "").await.cursor;
    let long = "A".repeat(5000);
    for bad in ["", "x", &good[1..], &format!("{good}A"), &good.replace('A', "*"), &format!("Z{}", &good[1..]), &long] {
        let Err(Error::Http(answer)) = Viewer::try_join(server.address, "r1", &format!("since={bad}")).await else {
            panic!("{bad} was taken");
        };
        let body: serde_json::Value = serde_json::from_slice(answer.body().as_deref().unwrap()).unwrap();
        assert_eq!((answer.status().as_u16(), &body["code"]), (400, &json!("bad_cursor")), "{bad}");
    }
    server.is_well().await;
}

#[tokio::test]
async fn a_forged_cursor_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let (_, real) = cursors(&server, 0..5).await.pop().unwrap();
    let mut forgeries = Vec::new();
    for place in 0..real.len() {
        forgeries.extend(["A", "_", "8"].map(|new| format!("{}{new}{}", &real[..place], &real[place + 1..])));
    }
    for seq in [0, 1, u64::from(u32::MAX), 1 << 33, u64::MAX] {
        let mut bytes = URL_SAFE_NO_PAD.decode(&real).unwrap();
        bytes[SEQ].copy_from_slice(&u64::to_be_bytes(seq));
        forgeries.push(URL_SAFE_NO_PAD.encode(bytes));
    }
    for (number, forged) in forgeries.into_iter().enumerate() {
        match Viewer::try_join(server.address, "r1", &format!("since={forged}")).await {
            Ok(mut viewer) => {
                let text = format!("forged {number}");
                viewer.say(&text, &text, "accepted").await;
                // Whatever it was told to have missed, it gets what comes from now on.
                viewer.until(|f| f["type"] == "comments" && texts_of(&f["comments"]).last() == Some(&text)).await;
            }
            Err(Error::Http(answer)) => assert_eq!(answer.status(), 400, "{forged}"),
            Err(error) => panic!("{forged}: {error}"),
        }
    }
    // Nor do they poison a metric: the ring has never dropped a comment here, so nobody has missed one.
    assert_eq!(server.metric("danmaku_missed_total").await, 0);
    server.is_well().await;
}
