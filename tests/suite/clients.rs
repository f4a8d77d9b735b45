//! Viewers that share no code with the server read it in every encoding: `tests/clients/check.py`, with the WebSocket
//! and decompression libraries of Python.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::support::server::{NO_LIMITS, PATIENCE, Start};
use super::support::viewer::Viewer;

/// Bursts of these sizes, one every [`PAUSE`]: single comments, which no encoding shrinks, and heaps.
const BURSTS: [usize; 12] = [1, 40, 1, 60, 1, 1, 80, 30, 1, 50, 70, 1];
const PAUSE: std::time::Duration = std::time::Duration::from_millis(250);

/// The last comment; whoever sees it leaves.
const LAST: &str = "that is all";

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn python() -> PathBuf {
    let python = root().join(".services/venv/bin/python");
    assert!(python.exists(), "{} is missing; run tests/services.sh, which makes it", python.display());
    python
}

/// A Python viewer, from its first frame on; killed when it is dropped.
struct Client {
    encoding: &'static str,
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    seen: Vec<Value>,
}

impl Client {
    async fn join(address: SocketAddr, encoding: &'static str, query: &str) -> Self {
        let url = format!("ws://{address}/ws/r1?{query}");
        let mut child = Command::new(python())
            .arg(root().join("tests/clients/check.py"))
            .args([&url, encoding, LAST])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python starts");
        let stdout = BufReader::new(child.stdout.take().expect("it was asked for"));
        // The test bounds how much the client says.
        let (said, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let _test_is_over = said.send(line.expect("it is text"));
            }
        });
        let mut client = Self { encoding, child, lines, seen: Vec::new() };
        assert_eq!(client.next().await.expect("a first frame")["frame"]["type"], "hello");
        client
    }

    async fn next(&mut self) -> Option<Value> {
        let line = timeout(PATIENCE, self.lines.recv()).await.expect("the client goes on");
        if let Some(line) = line {
            return Some(serde_json::from_str(&line).expect("it is JSON"));
        }
        let mut told = String::new();
        self.child.stderr.take().expect("it was asked for").read_to_string(&mut told).expect("it is text");
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "the {} client failed: {told}", self.encoding);
        None
    }

    /// Reads on until the client has left.
    async fn finish(mut self) -> Self {
        while let Some(line) = self.next().await {
            if line["frame"]["type"] == "comments" {
                self.seen.push(line);
            }
        }
        self
    }

    fn frames_of(&self, kind: &str) -> usize {
        self.seen.iter().filter(|line| line["kind"] == kind).count()
    }

    fn comments(&self) -> impl Iterator<Item = &Value> {
        self.seen.iter().flat_map(|line| line["frame"]["comments"].as_array().expect("a list"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _may_have_ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Says all the bursts, and gives the texts in their order.
async fn speak(address: SocketAddr) -> Vec<String> {
    let mut speaker = Viewer::join(address, "r1", "name=Ann").await;
    let begun = Instant::now();
    let mut texts = Vec::new();
    for (turn, size) in BURSTS.into_iter().enumerate() {
        sleep_until(begun + PAUSE * u32::try_from(turn).expect("there are few")).await;
        for _ in 0..size {
            let text = format!("comment {} 哈哈哈 <b>\"&\\</b>", texts.len());
            speaker.send(&json!({"type": "send", "nonce": format!("n{}", texts.len()), "text": text})).await;
            texts.push(text);
        }
    }
    texts
}

#[tokio::test]
async fn independent_clients_see_every_comment_once_and_in_order_in_every_encoding() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    let mut clients = Vec::new();
    for (encoding, query) in
        [("plain", ""), ("zstd", "compress=zstd"), ("br", "compress=br"), ("deflate", "compress=deflate")]
    {
        clients.push(Client::join(server.address, encoding, query).await);
    }
    let mut sent = speak(server.address).await;
    sent.push(LAST.to_owned());
    Viewer::join(server.address, "r1", "name=Bob").await.say("last", LAST, "accepted").await;
    for client in clients {
        let client = client.finish().await;
        let texts: Vec<_> = client.comments().map(|comment| comment["text"].as_str().unwrap()).collect();
        assert_eq!(texts, sent, "{}", client.encoding);
        let ids: std::collections::HashSet<_> = client.comments().map(|comment| comment["id"].to_string()).collect();
        assert_eq!(ids.len(), sent.len(), "{}", client.encoding);
        let (text, binary) = (client.frames_of("text"), client.frames_of("binary"));
        assert!(text > 0 && (binary > 0) == (client.encoding != "plain"), "{}: {text} {binary}", client.encoding);
    }
}

#[tokio::test]
async fn an_independent_client_that_asks_for_five_a_second_gets_no_more_and_is_told_of_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).run();
    for (encoding, query) in [("plain", "rate=5"), ("zstd", "rate=5&compress=zstd")] {
        let client = Client::join(server.address, encoding, query).await;
        let mut sent = speak(server.address).await.len();
        // A second after the rest there is room for the last one in its tier.
        sleep_until(Instant::now() + PAUSE * 5).await;
        Viewer::join(server.address, "r1", "name=Bob").await.say("last", LAST, "accepted").await;
        sent += 1;
        let client = client.finish().await;
        let times: Vec<_> = client.comments().map(|comment| comment["ts"].as_i64().unwrap()).collect();
        for from in &times {
            let in_second = times.iter().filter(|ts| (*from..from + 1000).contains(ts)).count();
            assert!(in_second <= 5, "{in_second} within a second from {from}: {times:?}");
        }
        let left_out: u64 = client.seen.iter().filter_map(|line| line["frame"]["leftOut"].as_u64()).sum();
        assert!(times.len() > 5 && left_out > 0, "{times:?} {left_out}");
        assert_eq!(times.len() as u64 + left_out, sent as u64, "{encoding}");
    }
}
