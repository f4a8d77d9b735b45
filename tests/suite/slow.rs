//! Viewers that read slowly or not at all, and crowds that come and go.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, timeout};

use super::support::server::{Server, Start, until};
use super::support::viewer::{Viewer, texts_of};
use super::support::wire::{CLOSE, Frame, PING, Wire, frame};

/// Large comments, so that sockets are soon full, and a small ring, so that a viewer soon falls off its end.
const LARGE: &str = "[limits]\nmin_interval = \"0s\"\nmax_chars = 10000\nmax_text_bytes = 10000\n\
    [room]\nring = 20\nrecent = 5\n[server]\nmax_message_bytes = 32768\nmax_frames_per_sec = 100000";

fn large(number: usize) -> String {
    format!("{number} {}", "x".repeat(9900))
}

fn number(text: &str) -> usize {
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Says `count` large comments, a few at a time, while `reader` reads on; fails when that one misses any.
async fn say(server: &Server, reader: &mut Viewer, count: usize) {
    let mut sender = Viewer::join(server.address, "elsewhere", "").await;
    for numbers in (0..count).collect::<Vec<_>>().chunks(10) {
        for number in numbers {
            let body = json!({"text": large(*number)});
            let (status, answer) = server.post("r1", "", &body).await;
            assert_eq!(status, 201, "{answer}");
        }
        let seen = reader.texts(numbers.len()).await;
        assert_eq!(seen.iter().map(|text| self::number(text)).collect::<Vec<_>>(), numbers);
    }
    sender.say("n", "others are not held up", "accepted").await;
}

/// Reads until a comment, and gives all numbers and what was told as missed before each.
async fn account(wire: &mut Wire, last: usize) -> Vec<(u64, usize)> {
    let (mut account, mut missed) = (Vec::new(), 0);
    while account.last().is_none_or(|(_, number)| *number != last) {
        let frame = wire.frame().await.expect("the connection goes on");
        let frame: Value = serde_json::from_slice(&frame.payload).unwrap_or_default();
        match frame["type"].as_str() {
            Some("gap") => missed += frame["missed"].as_u64().unwrap(),
            Some("comments") => {
                for text in texts_of(&frame["comments"]) {
                    account.push((std::mem::take(&mut missed), number(&text)));
                }
            }
            _ => {}
        }
    }
    account
}

#[tokio::test]
async fn who_stops_reading_costs_no_memory_and_is_told_exactly_what_it_missed() {
    const COUNT: usize = 600;
    const SLOW: usize = 30;
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(LARGE).run();
    let mut reader = Viewer::join(server.address, "r1", "").await;
    // The store's own memory is there before the measurement.
    say(&server, &mut reader, COUNT / 2).await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        slow.push(Wire::join_narrow(server.address, "r1").await);
    }
    let before = server.memory_kib();
    say(&server, &mut reader, COUNT).await;
    let grown = server.memory_kib().saturating_sub(before);
    // Queues of their own would hold 30 times 6 MB.
    assert!(grown < 60 * 1024, "{grown} KiB for {SLOW} viewers that do not read");
    for wire in &mut slow[..5] {
        let account = account(wire, COUNT - 1).await;
        let mut next = 0;
        for (missed, number) in &account {
            assert_eq!(next + usize::try_from(*missed).unwrap(), *number, "{account:?}");
            next = number + 1;
        }
        assert!(account.iter().any(|(missed, _)| *missed > 0), "it read slowly enough to miss something");
    }
    drop(slow);
    until("they are counted as gone", async || server.metric("danmaku_viewers").await == 1).await;
    server.is_well().await;
}

#[tokio::test]
async fn who_takes_nothing_for_too_long_is_let_go_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{LARGE}\nstall_limit = \"300ms\"");
    let server = Start::in_folder(folder.path()).config(&config).run();
    let mut reader = Viewer::join(server.address, "r1", "").await;
    let join = || Wire::join_with_buffer(server.address, "r1", 32 * 1024);
    let stalled = [join().await, join().await];
    let idle = Viewer::join(server.address, "r2", "").await;
    let [mut first, mut second] = stalled;
    let read_on = async {
        until("both are let go", async || server.metric("danmaku_viewers").await <= 3).await;
        tokio::join!(first.rest(), second.rest())
    };
    // Those who read on in the last moment still learn why they are let go.
    let ((), (first, second)) = tokio::join!(say(&server, &mut reader, 600), read_on);
    for frames in [first, second] {
        assert_eq!(frames.last().and_then(Frame::code), Some(4002), "{} frames", frames.len());
    }
    let counted = "danmaku_sessions_ended_total{code=\"slow_consumer\"}";
    until("both are counted", async || server.sum("danmaku_sessions_ended_total").await == 2 + 1).await;
    assert_eq!(server.metric(counted).await, 2, "and nobody else is");
    drop(idle);
    server.is_well().await;
}

#[tokio::test]
async fn who_asks_and_never_reads_the_answers_still_gets_its_close() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[server]\nmax_frames_per_sec = 100000\nstall_limit = \"20s\"";
    let server = Start::in_folder(folder.path()).config(config).run();
    let mut wire = Wire::join_narrow(server.address, "r1").await;
    let pings = frame(PING, &[b'x'; 125]).repeat(100);
    let over = async || server.metric("danmaku_viewers").await == 0;
    while !over().await {
        wire.write(&pings).await;
    }
    let frames = wire.rest().await;
    assert_eq!(frames.last().and_then(Frame::code), Some(4002), "after {} pongs", frames.len());
    server.is_well().await;
}

const HASTY_PINGS: &str = "ping_interval = \"1s\"\nping_timeout = \"500ms\"";

#[tokio::test]
async fn a_dead_viewer_is_noticed_though_its_socket_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&format!("{LARGE}\n{HASTY_PINGS}")).run();
    let mut reader = Viewer::join(server.address, "r1", "").await;
    let _dead = [Wire::join_narrow(server.address, "r1").await, Wire::join_narrow(server.address, "r1").await];
    until("both are given up", async || {
        server.post("r1", "", &json!({"text": large(0)})).await;
        reader.texts(1).await;
        server.metric("danmaku_viewers").await == 1
    })
    .await;
    let counted = "danmaku_sessions_ended_total{code=\"ping_timeout\"}";
    until("and counted", async || server.metric(counted).await == 2).await;
}

#[tokio::test]
async fn a_slow_viewer_that_reads_on_is_not_taken_for_dead_though_its_ping_waits() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&format!("{LARGE}\n{HASTY_PINGS}")).run();
    let mut slow = Wire::join_narrow(server.address, "r1").await;
    assert!(takes_and_stays(&server, &mut slow, 1000).await > 100_000);
    assert_eq!(server.metric("danmaku_viewers").await, 1, "it has never answered a ping, for none has come through");
}

/// Reads at most so many bytes each 10 ms for three times as long as a silent viewer may live, while the room says a
/// megabyte a second; gives how many bytes it had.
async fn takes_and_stays(server: &Server, slow: &mut Wire, bytes: usize) -> usize {
    let reads = async {
        let begun = Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let (mut part, mut taken) = (vec![0; bytes], 0);
        while begun.elapsed() < Duration::from_millis(4500) {
            ticks.tick().await;
            let read = timeout(Duration::from_secs(1), slow.stream.read(&mut part)).await.expect("more waits");
            taken += read.expect("the connection goes on");
        }
        taken
    };
    let says = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        loop {
            ticks.tick().await;
            server.post("r1", "", &json!({"text": large(0)})).await;
        }
    };
    tokio::select! {
        taken = reads => taken,
        () = says => 0,
    }
}

#[tokio::test]
async fn after_a_crowd_has_come_and_gone_the_count_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).run();
    let (address, mut crowd) = (server.address, tokio::task::JoinSet::new());
    for guest in 0..200 {
        crowd.spawn(async move {
            let room = format!("r{}", guest % 7);
            match guest % 8 {
                0 => drop(Wire::connect(address).await),
                1 => Wire::connect(address).await.write(b"GET /ws/r0 HT").await,
                2 => drop(Wire::upgrade(address, &room).await),
                3 => drop(Wire::join(address, &room).await),
                4 => {
                    // Reset instead of closed.
                    let wire = Wire::join(address, &room).await;
                    socket2::SockRef::from(&wire.stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
                5 => {
                    let mut wire = Wire::join(address, &room).await;
                    wire.write(&frame(CLOSE, &1000_u16.to_be_bytes())).await;
                    wire.rest().await;
                }
                6 => Wire::join(address, &room).await.write(b"\x81\xfe").await,
                _ => return Some(Viewer::join(address, &room, "").await),
            }
            None
        });
    }
    let mut stay: Vec<_> = crowd.join_all().await.into_iter().flatten().collect();
    assert_eq!(stay.len(), 25);
    until("those who stay are counted", async || server.metric("danmaku_viewers").await == 25).await;
    let begun = server.metric("danmaku_sessions_begun_total").await;
    assert_eq!(begun - server.sum("danmaku_sessions_ended_total").await, 25);
    let newcomer = Viewer::join(address, "r0", "").await;
    let in_room = stay.iter().filter(|viewer| viewer.hello["room"] == "r0").count() + 1;
    assert_eq!(newcomer.hello["online"], json!(in_room));
    stay.push(newcomer);
    // Half of them take their leave, half of them vanish.
    for (place, mut viewer) in stay.into_iter().enumerate() {
        if place % 2 == 0 {
            viewer.socket.close(None).await.unwrap();
            let closed = timeout(Duration::from_secs(10), viewer.closed()).await.unwrap();
            assert_eq!(closed.0, Some(1000));
        }
    }
    until("nobody is left", async || server.metric("danmaku_viewers").await == 0).await;
    let begun = server.metric("danmaku_sessions_begun_total").await;
    until("each session has ended", async || server.sum("danmaku_sessions_ended_total").await == begun).await;
    server.is_well().await;
    // The connection that asks is the only one.
    until("each connection has ended", async || {
        let taken = server.metric("danmaku_connections_accepted_total").await;
        taken - server.metric("danmaku_connections_closed_total").await <= 2
    })
    .await;
}
