//! Reading and posting over HTTP.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::support::server::{NO_LIMITS, Server, Start, until};
use super::support::viewer::{Viewer, texts_of};
use super::support::wire::Wire;

const QUICK: &str = "[shutdown]\nclose_spread = \"0s\"";
const SMALL_RING: &str = "[room]\nring = 20\nrecent = 10";

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// Says numbers in a row, so fast that many share a millisecond.
async fn say(server: &Server, range: std::ops::Range<usize>) {
    let mut viewer = Viewer::join(server.address, "r1", "").await;
    for number in range.clone() {
        viewer.send(&json!({"type": "send", "nonce": number.to_string(), "text": number.to_string()})).await;
    }
    let last = (range.end - 1).to_string();
    let ack = viewer.until(|frame| frame["nonce"] == json!(last)).await;
    assert_eq!(ack["type"], "ack", "{ack}");
}

/// Reads page by page to the end; gives all texts, newest first.
async fn read_all(server: &Server, limit: usize) -> Vec<String> {
    let (mut comments, mut before) = (Vec::new(), String::new());
    loop {
        let (status, page) = server.get(&format!("/api/rooms/r1/comments?limit={limit}{before}")).await;
        assert_eq!((status, &page["complete"]), (200, &json!(true)), "{page}");
        comments.extend(page["comments"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
        assert_eq!(page["comments"].as_array().unwrap().len(), limit, "only the last page is short");
    }
    let places: Vec<_> = comments.iter().map(|c| (c["ts"].as_i64().unwrap(), c["id"].as_str().unwrap())).collect();
    assert!(places.is_sorted_by(|newer, older| newer > older), "newest first, none twice: {places:?}");
    texts_of(&json!(comments))
}

#[tokio::test]
async fn a_window_has_the_newest_oldest_first_and_says_whether_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(QUICK).run();
    let (_, empty) = server.get("/api/rooms/r1/comments?last=60s").await;
    assert_eq!((&empty["comments"], &empty["complete"]), (&json!([]), &json!(true)), "{empty}");
    say(&server, 0..10).await;
    let (status, window) = server.get("/api/rooms/r1/comments?last=60s").await;
    assert_eq!((status, texts_of(&window["comments"])), (200, numbers(0..10)));
    assert_eq!((&window["complete"], &window["source"]), (&json!(true), &json!("memory")));
    assert_eq!(window["to"].as_i64().unwrap() - window["from"].as_i64().unwrap(), 60_000);
    let (_, cut) = server.get("/api/rooms/r1/comments?last=60s&limit=3").await;
    assert_eq!((texts_of(&cut["comments"]), &cut["complete"]), (numbers(7..10), &json!(false)));
    let (_, exact) = server.get("/api/rooms/r1/comments?last=60s&limit=10").await;
    assert_eq!(exact["complete"], true);
    let (_, other) = server.get("/api/rooms/r2/comments?last=60s").await;
    assert_eq!(other["comments"], json!([]));
    let newest = window["comments"][9]["ts"].as_i64().unwrap();
    until("they are older than 300 ms", async || {
        let (_, short) = server.get("/api/rooms/r1/comments?last=300ms").await;
        assert_eq!(short["complete"], true, "{short}");
        let is_over = short["from"].as_i64().unwrap() > newest;
        assert_eq!(is_over, short["comments"] == json!([]), "{short}");
        is_over
    })
    .await;
    assert_eq!(server.stop().await.code, Some(0));
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let (_, window) = server.get("/api/rooms/r1/comments?last=60s").await;
    assert_eq!((texts_of(&window["comments"]), &window["complete"]), (numbers(0..10), &json!(true)));
    assert_eq!(window["source"], "store");
}

#[tokio::test]
async fn pages_have_every_comment_once_from_ring_and_store() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(SMALL_RING).config(QUICK).run();
    assert_eq!(read_all(&server, 5).await, [""; 0]);
    say(&server, 0..600).await;
    let all: Vec<_> = numbers(0..600).into_iter().rev().collect();
    until("all are stored", async || server.metric("danmaku_unsettled").await == 0).await;
    for limit in [7, 100, 600, 1000] {
        assert_eq!(read_all(&server, limit).await, all, "{limit} a page");
    }
    let (_, window) = server.get("/api/rooms/r1/comments?last=60s&limit=1000").await;
    assert_eq!((texts_of(&window["comments"]), &window["complete"]), (numbers(0..600), &json!(true)));
    assert_eq!(window["source"], "store");
    assert_eq!(server.stop().await.code, Some(0));
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(SMALL_RING).run();
    assert_eq!(read_all(&server, 50).await, all, "from the store alone");
}

#[tokio::test]
async fn readers_see_neither_gap_nor_double_while_comments_are_sent() {
    const COUNT: usize = 600;
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(SMALL_RING).run();
    let reading = async {
        let (mut rounds, mut seen) = (0, 0);
        while seen < COUNT {
            let (_, window) = server.get("/api/rooms/r1/comments?last=60s&limit=1000").await;
            let texts = texts_of(&window["comments"]);
            let unique: HashSet<_> = texts.iter().collect();
            assert_eq!(unique.len(), texts.len(), "no doubles: {texts:?}");
            if window["complete"] == true {
                assert_eq!(texts, numbers(0..texts.len()), "a window that is whole has no gap");
            }
            let mut before = String::new();
            let mut pages = Vec::new();
            loop {
                let (_, page) = server.get(&format!("/api/rooms/r1/comments?limit=100{before}")).await;
                pages.push((page["complete"] == true, texts_of(&page["comments"])));
                let Some(next) = page["next"].as_str() else { break };
                before = format!("&before={next}");
            }
            seen = pages.first().and_then(|(_, page)| page.first()).map_or(0, |newest| newest.parse().unwrap()) + 1;
            if pages.iter().all(|(is_complete, _)| *is_complete) && !pages[0].1.is_empty() {
                let pages: Vec<_> = pages.into_iter().flat_map(|(_, page)| page).collect();
                let whole: Vec<_> = numbers(0..seen).into_iter().rev().collect();
                assert_eq!(pages, whole, "pages that are whole have no gap");
                rounds += 1;
            }
        }
        rounds
    };
    let sending = async {
        for begin in (0..COUNT).step_by(30) {
            say(&server, begin..begin + 30).await;
            // While some are in neither ring nor store, answers rightly say that they are not whole.
            until("these are stored", async || server.metric("danmaku_unsettled").await == 0).await;
        }
    };
    let ((), rounds) = tokio::join!(sending, reading);
    assert!(rounds > 0);
}

#[tokio::test]
async fn parameters_that_are_wrong_are_refused_with_their_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let cursor = Viewer::join(server.address, "r1", "").await.cursor;
    let table = [
        ("limit=0", "bad_limit"),
        ("limit=-1", "bad_limit"),
        ("limit=abc", "bad_limit"),
        ("limit=", "bad_limit"),
        ("limit=1001", "bad_limit"),
        ("limit=99999999999999999999", "bad_limit"),
        ("last=60s&limit=1001", "bad_limit"),
        ("last=60s&limit=1.5", "bad_limit"),
        ("last=601s", "bad_last"),
        ("last=11m", "bad_last"),
        ("last=0s", "bad_last"),
        ("last=", "bad_last"),
        ("last=60", "bad_last"),
        ("last=-5s", "bad_last"),
        ("last=99999999999999999999s", "bad_last"),
        (&format!("last=60s&before={cursor}"), "bad_query"),
        ("limit=1&limit=2", "bad_query"),
        ("before=", "bad_cursor"),
        ("before=abc", "bad_cursor"),
        (&format!("before={}", "A".repeat(4000)), "bad_cursor"),
    ];
    for (query, code) in table {
        let (status, error) = server.get(&format!("/api/rooms/r1/comments?{query}")).await;
        assert_eq!((status, &error["code"]), (400, &json!(code)), "{query}: {error}");
        assert!(error["message"].is_string() && error.get("comments").is_none(), "{error}");
    }
    for good in ["limit=1", "limit=1000", "last=600s", "last=1ms", "unknown=1", &format!("before={cursor}")] {
        let (status, answer) = server.get(&format!("/api/rooms/r1/comments?{good}")).await;
        assert_eq!(status, 200, "{good}: {answer}");
    }
}

#[tokio::test]
async fn a_post_is_acknowledged_at_its_level_and_reaches_viewers() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let mut viewer = Viewer::join(server.address, "r1", "").await;
    for level in ["accepted", "stored"] {
        let body = json!({"text": level, "ack": level, "mode": 5, "color": 1, "size": 64, "unknown": [1]});
        let (status, answer) = server.post("r1", "name=Bot", &body).await;
        assert_eq!((status, &answer["level"]), (201, &json!(level)), "{answer}");
        let frame = viewer.until(|frame| frame["type"] == "comments").await;
        let uid = &frame["comments"][0]["uid"];
        let comment = json!({"id": answer["id"], "ts": answer["ts"], "uid": uid, "name": "Bot", "text": level,
            "mode": 5, "color": 1, "size": 64});
        assert_eq!(frame["comments"], json!([comment]));
    }
    let again = json!({"text": "again", "nonce": "n1"});
    let first = server.post("r1", "guest=0123456789abcdef", &again).await;
    assert_eq!(server.post("r1", "guest=0123456789abcdef", &again).await, first);
    let (_, page) = server.get("/api/rooms/r1/comments").await;
    assert_eq!(texts_of(&page["comments"]), ["again", "stored", "accepted"]);
}

#[tokio::test]
async fn a_post_that_breaks_a_rule_is_refused_with_status_and_code() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[limits]\nmin_interval = \"1h\"\nburst = 1\n[server]\nrequest_timeout = \"1s\"\n\
                  [store]\nread_patience = \"500ms\"";
    let server = Start::in_folder(folder.path()).config(config).run();
    let comments = "/api/rooms/r1/comments";
    let ok = r#"{"text":"x"}"#;
    let big = format!("{{\"text\":\"x\",\"y\":\"{}\"}}", "y".repeat(9000));
    let guest = format!("{comments}?guest=0123456789abcdef");
    let table: [(&str, &str, &str, u16, &str); 20] = [
        ("POST", comments, "", 400, "bad_json"),
        ("POST", comments, "{", 400, "bad_json"),
        ("POST", comments, "{}", 400, "bad_field"),
        ("POST", comments, r#"["send","n1","x"]"#, 400, "bad_field"),
        ("POST", comments, r#"{"text":1}"#, 400, "bad_field"),
        ("POST", comments, r#"{"text":"x","ack":"now"}"#, 400, "bad_field"),
        ("POST", comments, r#"{"text":"x","nonce":""}"#, 400, "bad_nonce"),
        ("POST", comments, r#"{"text":" "}"#, 400, "text_blank"),
        ("POST", comments, r#"{"text":"x","mode":7}"#, 400, "bad_mode"),
        ("POST", comments, r#"{"text":"x","color":16777216}"#, 400, "bad_color"),
        ("POST", comments, r#"{"text":"x","size":1}"#, 400, "bad_size"),
        ("POST", "/api/rooms/r.1/comments", ok, 400, "bad_room"),
        ("POST", "/api/rooms/r1/comments?token=x", ok, 401, "bad_token"),
        ("POST", "/api/rooms/r1/comments?guest=x", ok, 400, "bad_guest"),
        ("POST", "/api/rooms/r1/comments?name=%00", ok, 400, "bad_name"),
        ("POST", comments, &big, 413, "too_big"),
        ("DELETE", comments, "", 405, "method_not_allowed"),
        ("POST", "/healthz", "", 405, "method_not_allowed"),
        ("GET", "/nothing", "", 404, "not_found"),
        ("GET", "/assets/nothing", "", 404, "not_found"),
    ];
    let mut counts = std::collections::BTreeMap::new();
    for (method, path, body, status, code) in table {
        let (answered, head, answer) = server.request(method, path, body).await;
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{method} {path}: {answer}"));
        assert_eq!((answered, &answer["code"]), (status, &json!(code)), "{method} {path} {body}: {answer}");
        assert_eq!(status == 405, head.contains("\r\nallow: "), "{head}");
        if method == "POST" && path.starts_with(comments) || code == "bad_room" {
            *counts.entry(code).or_insert(0) += 1;
        }
    }
    for (code, count) in counts {
        assert_eq!(server.metric(&format!("danmaku_refused_total{{code=\"{code}\"}}")).await, count, "{code}");
    }
    assert_eq!(server.request("POST", &guest, ok).await.0, 201, "what was refused did not count");
    let (status, head, answer) = server.request("POST", &guest, ok).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["code"]), (429, &json!("rate_limited")));
    let wait = answer["retryAfterMs"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&wait), "{answer}");
    assert!(head.contains(&format!("\r\nretry-after: {}\r\n", wait.div_ceil(1000))), "{wait} {head}");
    let mut slow = Wire::connect(server.address).await;
    let begun = Instant::now();
    slow.write(format!("POST {comments} HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{{\"text").as_bytes()).await;
    let head = slow.head().await;
    assert!(head.starts_with("HTTP/1.1 408"), "{head}");
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_eq!(server.metric("danmaku_accepted_total").await, 1);
    assert_eq!(server.metric("danmaku_refused_total{code=\"rate_limited\"}").await, 1);
    assert_eq!(server.metric("danmaku_refused_total{code=\"timeout\"}").await, 1);
}
