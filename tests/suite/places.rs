//! Places: how many connections there may be, who loses its place, and what those are told for whom there is none.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, interval, timeout};

use super::support::server::{Server, Start, until};
use super::support::viewer::Viewer;
use super::support::wire::{Wire, handshake};

/// Long beside the request timeout of [`impatient`], short beside for ever.
const SOON: Duration = Duration::from_secs(8);

/// With so many places for handshakes, and with little time for them.
fn impatient(max_handshakes: u32) -> String {
    format!(
        "[server]\nrequest_timeout = \"1s\"\nmax_handshakes = {max_handshakes}\n[store]\nread_patience = \"500ms\"\n"
    )
}

/// A connection from another of this machine's addresses.
async fn from(address: [u8; 4], server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((address, 0))).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// The next answer on a connection: its head, in lower case, and its body.
async fn answer(wire: &mut Wire) -> (String, String) {
    let head = wire.head().await.to_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()).unwrap_or("0");
    let body = wire.take(length.parse().unwrap()).await;
    (head, String::from_utf8(body).unwrap())
}

/// Asks on an open connection, and leaves it open.
async fn ask(wire: &mut Wire, path: &str) -> (String, String) {
    wire.write(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
    answer(wire).await
}

/// Reads a metric on an open connection; `None` when there was no place for the question.
async fn metric(wire: &mut Wire, name: &str) -> Option<i64> {
    let (head, body) = ask(wire, "/metrics").await;
    let value = body.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    head.starts_with("http/1.1 200").then(|| value.unwrap_or_else(|| panic!("no {name} in\n{body}")))
}

/// Fails unless this is the refusal with this code, and says when to come back.
fn assert_refused((head, body): &(String, String), code: &str) {
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["code"], code);
    let wait = body["retryAfterMs"].as_u64().unwrap().div_ceil(1000);
    assert!(head.contains(&format!("\r\nretry-after: {wait}\r\n")), "{head} {body}");
}

/// Asks on a connection of its own; false when it was refused for want of a place for handshakes.
async fn is_served(server: &Server) -> bool {
    let mut wire = Wire::connect(server.address).await;
    let given = ask(&mut wire, "/healthz").await;
    let is_served = given.0.starts_with("http/1.1 200");
    if !is_served {
        assert_refused(&given, "too_many_handshakes");
    }
    is_served
}

async fn is_soon_served(server: &Server, why: &str) {
    let served = timeout(SOON, until("there is a place", async || is_served(server).await)).await;
    assert!(served.is_ok(), "nobody else gets in: {why}");
}

/// A request that is being handled, and holds the place of one, until its body comes.
async fn unfinished(server: &Server) -> Wire {
    let head = "POST /api/rooms/r1/comments HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n";
    loop {
        let mut wire = Wire::connect(server.address).await;
        wire.write(head.as_bytes()).await;
        if wire.head().await.starts_with("HTTP/1.1 100") {
            return wire;
        }
    }
}

#[tokio::test]
async fn from_one_address_come_only_so_many_and_others_still_get_in() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config("[server]\nmax_per_address = 2").run();
    let first = Viewer::join(server.address, "r1", "").await;
    let _second = Viewer::join(server.address, "r1", "").await;
    let mut third = Wire::connect(server.address).await;
    assert_refused(&answer(&mut third).await, "too_many_from_address");
    assert!(third.ends_within(SOON).await);
    let mut other = from([127, 0, 0, 2], &server).await;
    other.write_all(handshake("r1").as_bytes()).await.unwrap();
    let mut head = [0; 12];
    other.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 101");
    drop(first);
    until("there is a place again", async || Viewer::try_join(server.address, "r1", "").await.is_ok()).await;
    let refused = "danmaku_connections_refused_total{code=\"too_many_from_address\"}";
    until("it can be asked", async || {
        let mut wire = Wire::connect(server.address).await;
        metric(&mut wire, refused).await.is_some_and(|refused| refused >= 1)
    })
    .await;
}

#[tokio::test]
async fn a_handshake_that_does_not_come_loses_its_place_within_the_request_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&impatient(1)).run();
    let mut silent = Wire::connect(server.address).await;
    until("the only place is taken", async || {
        if is_served(&server).await {
            silent = Wire::connect(server.address).await;
            return false;
        }
        true
    })
    .await;
    let begun = Instant::now();
    is_soon_served(&server, "a connection that says nothing").await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(silent.ends_within(SOON).await);
}

#[tokio::test]
async fn who_keeps_its_connection_for_later_holds_no_place() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&impatient(3)).run();
    let mut pollers = Vec::new();
    for _ in 0..3 {
        pollers.push(Wire::connect(server.address).await);
    }
    let polling = until("somebody else gets in", async || {
        for poller in &mut pollers {
            ask(poller, "/healthz").await;
        }
        is_served(&server).await
    });
    assert!(timeout(SOON, polling).await.is_ok(), "three who ask now and then keep all others out");
    Viewer::join(server.address, "r1", "").await;
    for poller in &mut pollers {
        assert!(poller.ends_within(SOON).await, "it is not kept open for ever either");
    }
}

#[tokio::test]
async fn a_request_without_a_place_is_refused_and_its_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    // With time enough that nothing here ends by itself.
    let config = "[server]\nrequest_timeout = \"60s\"\nmax_handshakes = 1";
    let server = Start::in_folder(folder.path()).config(config).run();
    let mut patient = Wire::connect(server.address).await;
    assert!(ask(&mut patient, "/healthz").await.0.starts_with("http/1.1 200"));
    let mut busy = unfinished(&server).await;
    for _ in 0..3 {
        assert_refused(&ask(&mut patient, "/healthz").await, "too_many_handshakes");
    }
    patient.write(handshake("r1").as_bytes()).await;
    assert_refused(&answer(&mut patient).await, "too_many_handshakes");
    let mut late = Wire::connect(server.address).await;
    assert_refused(&answer(&mut late).await, "too_many_handshakes");
    busy.write(json!({"text": "x"}).to_string().as_bytes()).await;
    assert!(answer(&mut busy).await.0.starts_with("http/1.1 201"));
    let refused = "danmaku_connections_refused_total{code=\"too_many_handshakes\"}";
    until("the place is free", async || metric(&mut patient, refused).await.is_some_and(|refused| refused >= 5)).await;
}

/// Asks for much more than the buffers between here and the server take, and reads none of it.
async fn ask_for_much(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let requests = b"GET /assets/app.js HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1500);
    stream.write_all(&requests).await.unwrap();
    stream
}

#[tokio::test]
async fn who_takes_nothing_of_its_answers_loses_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&impatient(3)).run();
    let mut deaf = Vec::new();
    for _ in 0..3 {
        deaf.push(ask_for_much(&server).await);
    }
    let are_closed = async || {
        let mut wire = Wire::connect(server.address).await;
        let Some(accepted) = metric(&mut wire, "danmaku_connections_accepted_total").await else { return false };
        let closed = metric(&mut wire, "danmaku_connections_closed_total").await;
        // All but the one that asks.
        closed.is_some_and(|closed| accepted - closed == 1)
    };
    let closed = timeout(SOON, until("they are closed", are_closed)).await;
    assert!(closed.is_ok(), "three who take nothing of their answers stay");
    Viewer::join(server.address, "r1", "").await;
    drop(deaf);
}

#[tokio::test]
async fn who_takes_its_answers_slowly_gets_them_but_holds_no_place_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(&impatient(1)).run();
    let mut slow = ask_for_much(&server).await;
    let read_on = async {
        let (mut ticks, mut some) = (interval(Duration::from_millis(50)), vec![0; 16 * 1024]);
        let mut taken = 0;
        loop {
            ticks.tick().await;
            match timeout(SOON, slow.read(&mut some)).await {
                Ok(Ok(read @ 1..)) => taken += read,
                end => panic!("it was cut off after {taken} bytes: {end:?}"),
            }
        }
    };
    let others = async {
        for _ in 0..3 {
            is_soon_served(&server, "one takes its answers slowly").await;
        }
        // Several times as long as one who takes nothing would have.
        let (mut ticks, begun) = (interval(Duration::from_millis(200)), Instant::now());
        while begun.elapsed() < Duration::from_secs(5) {
            ticks.tick().await;
        }
    };
    tokio::select! {
        never = read_on => never,
        () = others => {}
    }
}

#[tokio::test]
async fn who_is_refused_hears_it_and_is_not_reset() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config("[server]\nmax_connections = 1").run();
    let _only = Viewer::join(server.address, "r1", "").await;
    let refuse = async || {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(handshake("r1").as_bytes()).await.unwrap();
        let mut answer = String::new();
        let end = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{end:?} after {answer:?}");
        end.is_ok()
    };
    let mut clean = 0;
    for _ in 0..300 {
        clean += u32::from(timeout(SOON, refuse()).await.expect("it is told at once"));
    }
    assert_eq!(clean, 300, "the others were reset");
}
