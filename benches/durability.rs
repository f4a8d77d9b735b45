//! What it costs to be told `accepted` only once the comment is on the disk, and how long `stored` takes, through the real
//! server, with a MongoDB of its own behind it.
//!
//! In each round the two kinds of durability take turns, on one mongod; senders, server and mongod share the machine.
//! Throughput: senders with a bounded number of unanswered comments each, as fast as the answers come. Delays: a steady
//! rate, half of the comments at each level of acknowledgement.
//!
//! ```text
//! cargo bench --profile release --bench durability                  5 rounds, a few minutes
//! cargo bench --profile release --bench durability -- --quick       a few seconds; its figures mean little
//! ```

#[allow(dead_code, reason = "tests need more of it")]
#[path = "../tests/suite/support/mongod/mod.rs"]
mod mongod;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser;
use futures_util::{SinkExt as _, StreamExt as _};
use hdrhistogram::Histogram;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

/// Senders of the throughput, each in a room of its own.
const SENDERS: usize = 8;
/// Most unanswered comments of each; the server allows 4,096.
const WINDOW: usize = 512;

/// Comments a second of the steady rate, and the connections that share it.
const RATE: u32 = 5_000;
const STEADY: u32 = 50;

/// Before this the steady rate is not measured: the database may still be writing what came before.
const WARM_UP: Duration = Duration::from_secs(2);

/// What `disk` must reach of the throughput of `memory`.
const LEAST_OF_MEMORY: f64 = 0.60;
/// What the slowest hundredth of the `stored` may take, in ms.
const MOST_STORED: f64 = 250.0;

/// Compares the two kinds of durability.
#[derive(Parser)]
struct Args {
    /// Measurements of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// One short round.
    #[arg(long, alias = "test")]
    quick: bool,
    /// Given by `cargo bench`; without it the run is quick.
    #[arg(long, hide = true)]
    bench: bool,
    /// Runs only if this is a part of its name.
    #[arg(hide = true)]
    filter: Option<String>,
}

fn main() {
    let mut args = Args::parse();
    if args.filter.as_ref().is_some_and(|filter| !"durability".contains(filter.as_str())) {
        return;
    }
    if args.quick || !args.bench {
        (args.seconds, args.rounds) = (2, 1);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    runtime.block_on(run(&args));
}

async fn run(args: &Args) {
    let span = Duration::from_secs(args.seconds);
    let set = mongod::ReplicaSet::start(1, mongod::Access::Open).await;
    let (mut ratios, mut slowest) = (Vec::new(), Vec::new());
    println!("durability  acks/s  refused | at {RATE}/s: accepted p50, p99 ms | stored p50, p99 ms");
    for _round in 0..args.rounds {
        let mut rates = Vec::new();
        for durability in ["memory", "disk"] {
            let server = Server::start(&set.uri(None), durability);
            let (acks, refused) = throughput(server.address, span).await;
            // What the first one still has in its queue would delay the steady ones.
            drop(server);
            let server = Server::start(&set.uri(None), durability);
            let [accepted, stored] = delays(server.address, WARM_UP + span).await;
            let rate = acks as f64 / span.as_secs_f64();
            println!("{durability:<11} {rate:6.0}  {refused:7} | {} | {}", shown(&accepted), shown(&stored));
            rates.push(rate);
            slowest.push(ms(&stored, 0.99));
        }
        ratios.push(rates[1] / rates[0]);
    }
    ratios.sort_by(f64::total_cmp);
    slowest.sort_by(f64::total_cmp);
    let (ratio, stored) = (ratios[ratios.len() / 2], slowest[slowest.len() / 2]);
    let verdict = |is_met| if is_met { "met" } else { "MISSED" };
    println!(
        "disk reaches {ratio:.2} of memory (median; {:.2} to {:.2}); goal {LEAST_OF_MEMORY}: {}",
        ratios[0],
        ratios[ratios.len() - 1],
        verdict(ratio >= LEAST_OF_MEMORY)
    );
    println!(
        "stored at {RATE}/s, p99: {stored:.0} ms (median of all; {:.0} to {:.0}); goal {MOST_STORED}: {}",
        slowest[0],
        slowest[slowest.len() - 1],
        verdict(stored <= MOST_STORED)
    );
}

fn ms(delays: &Histogram<u64>, quantile: f64) -> f64 {
    delays.value_at_quantile(quantile) as f64 / 1e3
}

fn shown(delays: &Histogram<u64>) -> String {
    format!("{:6.1}, {:6.1}", ms(delays, 0.5), ms(delays, 0.99))
}

/// The server, with its data on the disk that has the build.
struct Server {
    child: Child,
    _data: TempDir,
    address: SocketAddr,
}

impl Server {
    fn start(mongodb: &str, durability: &str) -> Self {
        let data = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
        let (file, dir) = (data.path().join("danmakud.toml"), data.path().join("data"));
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = {dir:?}\n[log]\nfilter = \"warn\"\n[limits]\nmin_interval = \"0s\"\n\
             [server]\nmax_frames_per_sec = 100000\n[store]\ndurability = {durability:?}\n[mongodb]\nuri = {mongodb:?}\n"
        );
        fs::write(&file, config).expect("the folder takes a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_danmakud"));
        let child = command.arg("--config").arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("the binary is built with the benchmarks");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("its output is text");
        let address = line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok());
        Self { child, _data: data, address: address.unwrap_or_else(|| panic!("it does not start: {line:?}")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}

fn send(nonce: u64, ack: &str) -> Message {
    let text = format!("来了来了，前方高能 {nonce}");
    Message::text(json!({"type": "send", "nonce": nonce.to_string(), "text": text, "ack": ack}).to_string())
}

/// The nonce and the type of an answer to a comment.
fn answer(message: &Message) -> Option<(u64, bool)> {
    let Message::Text(text) = message else { return None };
    let is_ack = text.starts_with("{\"type\":\"ack\"");
    if !is_ack && !text.starts_with("{\"type\":\"error\"") {
        return None;
    }
    let frame: serde_json::Value = serde_json::from_str(text).expect("the server sends JSON");
    Some((frame["nonce"].as_str()?.parse().expect("it was sent"), is_ack))
}

/// Answers within the span: acknowledgements, and refusals.
async fn throughput(server: SocketAddr, span: Duration) -> (u64, u64) {
    let mut senders = JoinSet::new();
    let end = Instant::now() + span;
    for n in 0..SENDERS {
        senders.spawn(async move {
            let url = format!("ws://{server}/ws/fast-{n}?rate=1");
            let (mut socket, _) = connect_async(url).await.expect("the server takes the connection");
            let (mut sent, mut acks, mut refused) = (0, 0, 0);
            while Instant::now() < end {
                while sent < acks + refused + WINDOW as u64 {
                    socket.feed(send(sent, "accepted")).await.expect("the server reads");
                    sent += 1;
                }
                socket.flush().await.expect("the server reads");
                let message = socket.next().await.expect("it stays open").expect("it stays open");
                if let Some((_, is_ack)) = answer(&message) {
                    acks += u64::from(is_ack);
                    refused += u64::from(!is_ack);
                }
            }
            (acks, refused)
        });
    }
    let all = senders.join_all().await;
    all.iter().fold((0, 0), |(acks, refused), (more, others)| (acks + more, refused + others))
}

/// Times from when a comment was due to its answer, in µs: of those that asked for `accepted`, and for `stored`.
async fn delays(server: SocketAddr, span: Duration) -> [Histogram<u64>; 2] {
    let mut senders = JoinSet::new();
    for n in 0..STEADY {
        senders.spawn(steady(server, n, span));
    }
    let mut all = [(); 2].map(|()| Histogram::new(3).expect("three digits"));
    for one in senders.join_all().await {
        for (all, one) in all.iter_mut().zip(one) {
            all.add(one).expect("they are of a kind");
        }
    }
    all
}

async fn steady(server: SocketAddr, n: u32, span: Duration) -> [Histogram<u64>; 2] {
    let (socket, _) = connect_async(format!("ws://{server}/ws/steady-{n}")).await.expect("the server listens");
    let (mut out, mut answers) = socket.split();
    let mut delays = [(); 2].map(|()| Histogram::new(3).expect("three digits"));
    let every = Duration::from_secs(1) * STEADY / RATE;
    // Not all in the same moment.
    tokio::time::sleep(every * n / STEADY).await;
    let begun = Instant::now();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let due = |nonce: u64| begun + every * u32::try_from(nonce).expect("few");
    let (mut sent, mut answered) = (0_u64, 0);
    while answered < sent || begun.elapsed() < span {
        tokio::select! {
            message = answers.next() => {
                let message = message.expect("it stays open").expect("it stays open");
                if let Some((nonce, is_ack)) = answer(&message) {
                    assert!(is_ack, "refused: {message}");
                    answered += 1;
                    let due = due(nonce);
                    if due >= begun + WARM_UP {
                        let delay = due.elapsed().as_micros().try_into().expect("few");
                        delays[usize::from(nonce % 2 == 1)].record(delay).expect("it is resized");
                    }
                }
            }
            _ = ticks.tick(), if begun.elapsed() < span => {
                let ack = if sent % 2 == 0 { "accepted" } else { "stored" };
                out.send(send(sent, ack)).await.expect("the server reads");
                sent += 1;
            }
        }
    }
    delays
}
