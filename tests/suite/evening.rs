//! One real evening of danmaku through the real binary: 60 times its speed, 50 viewers, a stop in the middle of the
//! peak, a restart, the rest of it. Once with MongoDB and once with the embedded store.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use danmakud::load::replay::{Progress, ReplayConfig, run};
use danmakud::load::{Report, trace};
use danmakud::model::{AckLevel, RoomId, Text, TextLimits};
use danmakud::shutdown::Shutdown;
use futures_util::future::join_all;
use mongodb::bson::doc;
use tokio::sync::OnceCell;

use super::support::follower::Follower;
use super::support::mongod::{ReplicaSet, until};
use super::support::server::{LastLine, NO_LIMITS, Server, Start};

pub const ROOM: &str = "evening";
const VIEWERS: usize = 50;

/// At this speed thousands of comments come while viewers and senders are on their way back. With a ring that holds
/// them nobody has to miss one, so that a miss would be a fault of ours. Senders are sixteen for all the evening.
const CONFIG: &str = "[room]\nring = 32768\n[shutdown]\nreconnect_after = \"200ms\"\nclose_spread = \"1s\"\n";

/// The trace, and where its busiest second lies.
struct Evening {
    file: PathBuf,
    /// Texts the server takes, with how often each comes.
    texts: HashMap<String, u64>,
    taken: u64,
    refused: u64,
    /// How many comments come before the middle of the busiest second.
    peak: usize,
}

impl Evening {
    fn load() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/live-trace-a.csv");
        let lines = trace::load(&file).unwrap();
        let mut seconds: HashMap<u64, u64> = HashMap::new();
        for line in &lines {
            *seconds.entry(line.at.as_secs()).or_default() += 1;
        }
        let (busiest, count) = seconds.into_iter().max_by_key(|(_, count)| *count).unwrap();
        let before = lines.iter().filter(|line| line.at.as_secs() < busiest).count();
        let limits = TextLimits { max_chars: 100, max_bytes: 1024, max_combining: 6 };
        let mut texts: HashMap<String, u64> = HashMap::new();
        for line in &lines {
            if let Ok(text) = Text::parse(&line.text, &limits) {
                *texts.entry(text.as_str().to_owned()).or_default() += 1;
            }
        }
        let taken = texts.values().sum();
        let refused = lines.len() as u64 - taken;
        assert!(taken > 48_000 && count == 89, "the trace is not the one this test was written for");
        Self { file, texts, taken, refused, peak: before + count as usize / 2 }
    }
}

struct Silent;

impl Progress for Silent {
    fn show(&mut self, _: &Report) {}
}

async fn replay(file: PathBuf, address: SocketAddr) -> Report {
    replay_until(file, address, None).await
}

/// Sends what comes until then, 60 times as fast.
pub async fn replay_until(file: PathBuf, address: SocketAddr, until: Option<Duration>) -> Report {
    let config = ReplayConfig {
        file,
        target: danmakud::load::client::Target::parse(&format!("http://{address}")).unwrap(),
        room: RoomId::parse(ROOM).unwrap(),
        speed: 60.0,
        connections: 16,
        ack: AckLevel::Stored,
        from: None,
        until,
        is_retrying: true,
        patience: Duration::from_secs(60),
    };
    run(config, &Shutdown::default(), Silent).await.unwrap()
}

/// Starts the server again where it was. The port may be held for a moment by a connection of another test.
async fn restart(address: SocketAddr, data: &Path, flags: &[&str]) -> Server {
    until("the server starts again", async || {
        let listen = ["--listen", &address.to_string()];
        Start::in_folder(data).config(CONFIG).config(NO_LIMITS).args(flags).args(&listen).try_run().ok()
    })
    .await
}

/// Plays the evening; `ids` gives what the store holds afterwards, in its order.
async fn play(flags: &[&str], ids: impl AsyncFnOnce(&Server) -> Vec<(String, String)>) {
    let evening = Evening::load();
    let data = tempfile::tempdir().unwrap();
    let first = Start::in_folder(data.path()).config(CONFIG).config(NO_LIMITS).args(flags).run();
    let address = first.address;
    let last = Arc::new(OnceCell::new());
    let followers: Vec<_> = (0..VIEWERS).map(|_| Follower::start(address, ROOM, Arc::clone(&last))).collect();
    let followers = join_all(followers).await;

    let sending = tokio::spawn(replay(evening.file.clone(), address));
    until("the peak is reached", async || (followers[0].seen.load(Ordering::Acquire) >= evening.peak).then_some(()))
        .await;
    let end = first.stop().await;
    let before = end.ledger();
    assert_eq!((end.code, before.not_stored, before.set_aside), (Some(0), 0, 0), "{end:?}");
    assert!(before.accepted >= evening.peak as u64, "{before:?}");

    let second = restart(address, data.path(), flags).await;
    let report = sending.await.unwrap();
    assert_eq!(report.accepted, evening.taken, "{report}");
    assert_eq!((report.stored, report.unanswered, report.unsent), (Some(evening.taken), 0, 0), "{report}");
    assert_eq!(report.refused.get("text_blank"), Some(&evening.refused), "{report}");

    let stored = ids(&second).await;
    last.set(stored.last().unwrap().0.clone()).unwrap();
    for follower in followers {
        let diary = follower.end().await;
        assert_eq!((diary.missed, diary.byes, diary.cut), (0, 1, 0));
        let is_same = diary.ids.iter().eq(stored.iter().map(|(id, _)| id));
        assert!(is_same, "saw {} comments, not the {} that are stored in their order", diary.ids.len(), stored.len());
    }
    let end = second.stop().await;
    let after = end.ledger();
    assert_eq!((end.code, after.not_stored, after.set_aside), (Some(0), 0, 0), "{end:?}");
    check(&evening, &stored, &before, &after);
}

/// Every accepted comment is there exactly once.
fn check(evening: &Evening, stored: &[(String, String)], before: &LastLine, after: &LastLine) {
    let mut texts: HashMap<String, u64> = HashMap::new();
    for (_, text) in stored {
        *texts.entry(text.clone()).or_default() += 1;
    }
    assert_eq!(before.accepted + after.accepted, evening.taken, "{before:?} {after:?}");
    assert_eq!(before.stored + after.stored, evening.taken, "{before:?} {after:?}");
    assert_eq!(stored.len() as u64, evening.taken);
    assert!(texts == evening.texts, "the texts that are stored are not those that were sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evening_goes_into_mongodb_without_losing_a_comment() {
    let set = ReplicaSet::shared().await;
    let uri = set.uri(None);
    let flags = ["--mongodb", &uri];
    play(&flags, async |_| {
        let comments = set.client().await.database("danmakud").collection::<bson::Document>("danmaku");
        let found = comments.find(doc! { "roomId": ROOM }).sort(doc! { "ts": 1, "_id": 1 });
        let mut found = found.await.unwrap();
        let mut stored = Vec::new();
        while found.advance().await.unwrap() {
            let document = found.deserialize_current().unwrap();
            let id = document.get_object_id("_id").unwrap().to_hex();
            stored.push((id, document.get_str("content").unwrap().to_owned()));
        }
        stored
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evening_goes_into_the_embedded_store_without_losing_a_comment() {
    play(&[], async |server| {
        let (mut stored, mut before) = (Vec::new(), String::new());
        loop {
            let path = format!("/api/rooms/{ROOM}/comments?limit=1000{before}");
            let (status, page) = server.get(&path).await;
            assert_eq!((status, &page["complete"]), (200, &true.into()));
            stored.extend(page["comments"].as_array().unwrap().iter().map(|comment| {
                (comment["id"].as_str().unwrap().to_owned(), comment["text"].as_str().unwrap().to_owned())
            }));
            let Some(next) = page["next"].as_str() else { break };
            before = format!("&before={next}");
        }
        stored.reverse();
        stored
    })
    .await;
}
