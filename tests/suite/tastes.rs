//! What a viewer asks for in its address: comments in another form, and fewer of them.

use serde_json::json;
use tokio::time::{Duration, Instant, interval, sleep_until};
use tokio_tungstenite::tungstenite::Error;

use super::support::server::{NO_LIMITS, Server, Start, until};
use super::support::viewer::{Viewer, texts_of};
use super::support::wire::{Wire, handshake};

/// Says so many things, one every so often.
async fn say_steadily(server: &Server, count: usize, every: Duration) {
    let mut speaker = Viewer::join(server.address, "r1", "").await;
    let mut ticks = interval(every);
    for n in 0..count {
        ticks.tick().await;
        speaker.send(&json!({"type": "send", "nonce": format!("n{n}"), "text": format!("{n}")})).await;
    }
    until("all is said", async || server.metric("danmaku_accepted_total").await >= i64::try_from(count).unwrap()).await;
}

/// Takes comments until so many of those said are got or told as left out; gives the times of those it got and how many
/// it did not.
async fn take(viewer: &mut Viewer, count: u64, said: u64) -> (Vec<i64>, u64) {
    let (mut times, mut left_out) = (Vec::new(), 0);
    while times.len() as u64 + left_out < count {
        let frame = viewer.until(|frame| frame["type"] == "comments" || frame["type"] == "gap").await;
        assert_eq!(frame["type"], "comments", "{frame}");
        times.extend(frame["comments"].as_array().unwrap().iter().map(|comment| comment["ts"].as_i64().unwrap()));
        left_out += frame["leftOut"].as_u64().unwrap();
    }
    assert!(times.len() as u64 + left_out <= said, "{} got and {left_out} left out of {said}", times.len());
    (times, left_out)
}

fn most_in_a_second(times: &[i64]) -> usize {
    let within = |from: &i64| times.iter().filter(|ts| (*from..from + 1_000).contains(ts)).count();
    times.iter().map(within).max().unwrap_or_default()
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_refused_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let long = "9".repeat(5_000);
    let compress = ["", "gzip", "ZSTD", "zstd,br", "zstd%00", "identity", "%E5%93%88", "br%20", &long];
    let rate = [
        "",
        "0",
        "00",
        "-1",
        "%2B5",
        "+5",
        "5.0",
        "1e3",
        "0x10",
        "%205",
        "5%20",
        "5%00",
        "NaN",
        "%EF%BC%95",
        "4294967296",
        &long,
    ];
    let compress = compress.map(|value| (format!("compress={value}"), "bad_compress"));
    let twice = [("compress=br&compress=br".to_owned(), "bad_query"), ("rate=1&rate=1".to_owned(), "bad_query")];
    for (query, code) in
        compress.into_iter().chain(rate.map(|value| (format!("rate={value}"), "bad_rate"))).chain(twice)
    {
        let Err(Error::Http(answer)) = Viewer::try_join(server.address, "r1", &query).await else {
            panic!("{query} was taken");
        };
        let body: serde_json::Value = serde_json::from_slice(answer.body().as_deref().unwrap()).unwrap();
        assert_eq!((answer.status().as_u16(), &body["code"]), (400, &json!(code)), "{query}");
    }
    let (status, body) = server.get("/api/rooms/r1/comments?limit=%2B5").await;
    assert_eq!((status, &body["code"]), (400, &json!("bad_limit")));
    for query in ["rate=1", "rate=007", "rate=4294967295", "compress=zstd&rate=5"] {
        drop(Viewer::join(server.address, "r1", query).await);
    }
    server.is_well().await;
}

#[tokio::test]
async fn compression_for_each_connection_is_declined() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    for offer in ["permessage-deflate", "permessage-deflate; client_max_window_bits, permessage-deflate"] {
        let mut wire = Wire::connect(server.address).await;
        let offered = format!("\r\nSec-WebSocket-Extensions: {offer}\r\n\r\n");
        wire.write(handshake("r1?compress=deflate").replace("\r\n\r\n", &offered).as_bytes()).await;
        let head = wire.head().await.to_lowercase();
        assert!(head.starts_with("http/1.1 101") && !head.contains("sec-websocket-extensions"), "{head}");
        let hello = wire.frame().await.expect("the server says hello");
        assert_eq!(hello.first, super::support::wire::TEXT, "no bit of an extension is set");
    }
    server.is_well().await;
}

#[tokio::test]
async fn who_asks_for_twenty_a_second_of_a_steady_stream_gets_them_evenly() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let mut viewer = Viewer::join(server.address, "r1", "rate=20").await;
    let (told, ()) = tokio::join!(take(&mut viewer, 390, 400), say_steadily(&server, 400, Duration::from_millis(10)));
    let (times, left_out) = told;
    assert!(most_in_a_second(&times) <= 20, "{times:?}");
    assert!(left_out > 200 && times.len() >= 60, "{} {left_out}", times.len());
    let pause = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    // A tenth of a second, but for a machine that is busy with other things.
    assert!(pause < 500, "a pause of {pause} ms: {times:?}");
}

#[tokio::test]
async fn the_first_who_asks_for_fewer_is_held_to_it_when_it_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let since = Viewer::join(server.address, "r1", "").await.cursor;
    say_steadily(&server, 400, Duration::from_millis(5)).await;
    let mut viewer = Viewer::join(server.address, "r1", &format!("rate=5&since={since}")).await;
    assert_eq!(viewer.hello["resumed"], json!(true));
    // Later than the stretch that a rate is held over, so that there is room for this one.
    sleep_until(Instant::now() + Duration::from_millis(1_500)).await;
    let last = Viewer::join(server.address, "r1", "").await.say("last", "last", "accepted").await;
    assert_eq!(last["type"], "ack", "{last}");
    let (times, left_out) = take(&mut viewer, 401, 401).await;
    assert!(most_in_a_second(&times) <= 5, "{times:?}");
    assert!(left_out >= 380, "{left_out}");
    // The metric counts the same.
    assert_eq!(server.metric("danmaku_left_out_total").await, i64::try_from(left_out).unwrap());
}

#[tokio::test]
async fn who_comes_later_is_told_only_of_what_was_left_out_since() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let _first = Viewer::join(server.address, "r1", "rate=1").await;
    say_steadily(&server, 100, Duration::from_millis(2)).await;
    let mut late = Viewer::join(server.address, "r1", "rate=1").await;
    let last = texts_of(&late.hello["recent"]).last().unwrap().parse::<u64>().unwrap();
    sleep_until(Instant::now() + Duration::from_millis(1_500)).await;
    Viewer::join(server.address, "r1", "").await.say("last", "last", "accepted").await;
    let (times, left_out) = take(&mut late, 100 - last, 100 - last).await;
    assert_eq!((times.len() as u64, left_out), (100 - last - left_out, 99 - last));
}
