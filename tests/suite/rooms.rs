//! Rooms come and go: none stays in memory for nothing, and no comment is lost between two lives of a room.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use danmakud::admission::{Admission, AdmissionConfig};
use danmakud::auth::{Credentials, identify};
use danmakud::clock::Clock;
use danmakud::hub::{Housekeeper, Hub, HubConfig, HubParts, Missed};
use danmakud::metrics::Metrics;
use danmakud::model::{Comment, Cursor, Draft, Identity, Position, RoomId, Socket, TextLimits, Timestamp};
use danmakud::relay::Loopback;
use danmakud::room::RoomConfig;
use danmakud::room::Taste;
use danmakud::store::{
    AsideFile, CommentStore, Flusher, FlusherConfig, FlusherParts, Page, Record, StoreError, WriteQueue, WriteReport,
};
use danmakud::wire::JsonEncoder;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::support::server::{NO_LIMITS, PATIENCE, Start, until};
use super::support::viewer::{Viewer, texts_of};

/// A store in memory that keeps every write, so that a second one shows.
#[derive(Default)]
struct Kept {
    rooms: Mutex<HashMap<RoomId, Vec<Comment>>>,
}

impl Kept {
    fn texts(&self, room: &RoomId) -> Vec<String> {
        let rooms = self.rooms.lock().unwrap();
        rooms.get(room).into_iter().flatten().map(|comment| comment.text.as_str().to_owned()).collect()
    }

    fn newest(&self, room: &RoomId, limit: usize, is_wanted: impl Fn(&Comment) -> bool) -> Page {
        let rooms = self.rooms.lock().unwrap();
        let mut comments: Vec<_> = rooms.get(room).into_iter().flatten().filter(|c| is_wanted(c)).cloned().collect();
        comments.sort_by_key(|comment| std::cmp::Reverse(comment.position()));
        let has_more = comments.len() > limit;
        comments.truncate(limit);
        Page { comments, has_more }
    }
}

#[async_trait]
impl CommentStore for Kept {
    fn encode(&self, _: &Comment) -> Bytes {
        Bytes::new()
    }

    async fn write(&self, batch: &[Record]) -> Result<WriteReport, StoreError> {
        let mut rooms = self.rooms.lock().unwrap();
        for record in batch {
            let comment = &record.posted.comment;
            rooms.entry(comment.room.clone()).or_default().push(comment.clone());
        }
        Ok(WriteReport::default())
    }

    async fn load_recent(&self, room: &RoomId, from: Timestamp, limit: usize) -> Result<Page, StoreError> {
        Ok(self.newest(room, limit, |comment| comment.ts >= from))
    }

    async fn load_before(&self, room: &RoomId, before: Position, limit: usize) -> Result<Page, StoreError> {
        Ok(self.newest(room, limit, |comment| comment.position() < before))
    }

    async fn count_between(&self, room: &RoomId, a: Position, b: Position, limit: u64) -> Result<u64, StoreError> {
        let all = self.newest(room, usize::MAX, |comment| comment.position() > a && comment.position() < b);
        Ok(limit.min(all.comments.len() as u64))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// A hub whose rooms are over as soon as nobody is in them, and what keeps it tidy without a pause.
struct House {
    hub: Hub,
    store: Arc<Kept>,
    metrics: Arc<Metrics>,
}

impl House {
    fn new() -> Self {
        let (store, metrics) = (Arc::new(Kept::default()), Arc::new(Metrics::default()));
        let queue = WriteQueue::new(65_536, 1000, Arc::clone(&metrics));
        let flushing = FlusherConfig {
            interval: Duration::from_millis(2),
            batch: 1000,
            in_flight: 4,
            backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(1),
            patience: Duration::ZERO,
        };
        let aside = AsideFile::new(std::env::temp_dir().join("never-written"));
        let flusher = Flusher::new(
            flushing,
            FlusherParts::new(queue.clone(), Arc::clone(&store) as _, aside, Arc::clone(&metrics)),
        );
        let _runs_as_long_as_the_test = flusher.spawn();
        let room = RoomConfig {
            ring: 64,
            recent: 20,
            max_window: Duration::from_millis(5),
            evict_after: Duration::ZERO,
            max_rooms: 100_000,
        };
        let config = HubConfig {
            room,
            retention: Duration::from_secs(3600),
            read_patience: Duration::from_secs(5),
            write_patience: Duration::from_secs(5),
            retry_after: Duration::from_secs(1),
        };
        let text = TextLimits { max_chars: 100, max_bytes: 1024, max_combining: 6 };
        let admission = AdmissionConfig { text, min_interval: Duration::ZERO, burst: NonZeroU32::MIN };
        let parts = HubParts {
            admission: Admission::new(admission),
            queue,
            store: Arc::clone(&store) as _,
            relay: Arc::new(Loopback),
            clock: Clock::system(),
            metrics: Arc::clone(&metrics),
        };
        Self { hub: Hub::new(config, parts), store, metrics }
    }

    /// Drops rooms that are over, again and again, as long as the task is there.
    fn sweep(&self) -> tokio::task::JoinHandle<()> {
        let housekeeper = Housekeeper::new(self.hub.clone(), PATIENCE);
        tokio::spawn(async move {
            loop {
                housekeeper.run_once();
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        })
    }

    fn say(&self, who: &Identity, room: &RoomId, text: &str) {
        let draft = Draft { text: text.to_owned(), ..Draft::default() };
        self.hub.publish(who, room, &draft).unwrap_or_else(|refusal| panic!("{refusal}"));
    }
}

/// The other end of a viewer's connection.
#[derive(Default)]
struct Screen {
    bytes: Mutex<Vec<u8>>,
    news: Notify,
}

impl Socket for Screen {
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        self.news.notify_one();
        Ok(parts.iter().map(|part| part.len()).sum())
    }
}

impl Screen {
    /// The texts of all comments so far.
    fn texts(&self) -> Vec<String> {
        self.frames().iter().flat_map(|frame| texts_of(&frame["comments"])).collect()
    }

    /// All frames with comments so far; fails when one tells of a gap.
    fn frames(&self) -> Vec<Value> {
        let bytes = self.bytes.lock().unwrap();
        let (mut rest, mut frames) = (bytes.as_slice(), Vec::new());
        while let [_, second, body @ ..] = rest {
            let (length, body) = match second {
                126 => (usize::from(u16::from_be_bytes([body[0], body[1]])), &body[2..]),
                127 => panic!("no frame is that large"),
                short => (usize::from(*short), body),
            };
            let frame: Value = serde_json::from_slice(&body[..length]).unwrap();
            assert_ne!(frame["type"], "gap", "{frame}");
            if frame["type"] == "comments" {
                frames.push(frame);
            }
            rest = &body[length..];
        }
        frames
    }
}

fn guest() -> Identity {
    identify(&Credentials::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_rooms_leave_no_room_and_every_comment_behind() {
    const ROOMS: usize = 100_000;
    let house = Arc::new(House::new());
    let sweeping = house.sweep();
    let mut visitors = tokio::task::JoinSet::new();
    for visitor in 0..4 {
        let house = Arc::clone(&house);
        visitors.spawn(async move {
            let (who, mut rooms) = (guest(), Vec::new());
            for number in 0..ROOMS / 4 {
                let room = RoomId::parse(&format!("{visitor}-{:016x}", fastrand::u64(..))).unwrap();
                // Every other one is looked into as well.
                let seat = if number % 2 == 0 {
                    let screen = Arc::new(Screen::default());
                    Some(house.hub.join(&room, screen, Taste::all(Arc::new(JsonEncoder)), None).await.unwrap())
                } else {
                    None
                };
                house.say(&who, &room, "hi");
                drop(seat);
                rooms.push(room);
                tokio::task::yield_now().await;
            }
            rooms
        });
    }
    let visited: HashSet<_> = visitors.join_all().await.into_iter().flatten().collect();
    assert_eq!(visited.len(), ROOMS);
    until("every room is over", async || house.metrics.rooms.get() == 0).await;
    sweeping.abort();
    assert!(house.metrics.rooms_evicted.get() >= ROOMS as u64);
    assert_eq!((house.metrics.viewers.get(), house.hub.ledger().unsettled()), (0, 0));
    let rooms = house.store.rooms.lock().unwrap();
    let kept: HashSet<_> = rooms.iter().filter(|(_, comments)| comments.len() == 1).map(|(id, _)| id.clone()).collect();
    assert!(kept == visited, "every comment once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_as_the_last_leaves_and_the_first_joins() {
    let house = Arc::new(House::new());
    let sweeping = house.sweep();
    let rooms = ["a", "b"].map(|id| RoomId::parse(id).unwrap());
    let ends = Instant::now() + Duration::from_secs(3);
    let mut visitors = tokio::task::JoinSet::new();
    for visitor in 0..4 {
        let (house, room) = (Arc::clone(&house), rooms[visitor % 2].clone());
        visitors.spawn(async move {
            let (who, mut said) = (guest(), Vec::new());
            while Instant::now() < ends {
                let text = format!("{visitor}-{}", said.len());
                let screen = Arc::new(Screen::default());
                let socket = Arc::clone(&screen) as Arc<dyn Socket>;
                let entrance = house.hub.join(&room, socket, Taste::all(Arc::new(JsonEncoder)), None).await.unwrap();
                entrance.joined.seat.open();
                house.say(&who, &room, &text);
                let arrival = async {
                    while !screen.texts().contains(&text) {
                        screen.news.notified().await;
                    }
                };
                assert!(timeout(PATIENCE, arrival).await.is_ok(), "{text} did not reach its sender");
                let recent = entrance.joined.recent.iter().map(|posted| posted.comment.text.as_str().to_owned());
                let seen: Vec<_> = recent.chain(screen.texts()).collect();
                let unique: HashSet<_> = seen.iter().collect();
                assert_eq!(unique.len(), seen.len(), "{seen:?}");
                // Every other one leaves without having been the last, and speaks once more from outside.
                drop(entrance);
                said.push(text);
                if said.len() % 2 == 0 {
                    let text = format!("{visitor}-{}", said.len());
                    house.say(&who, &room, &text);
                    said.push(text);
                }
                // Now and then long enough that the room is over, mostly about as long as that takes.
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..8000))).await;
            }
            said
        });
    }
    let all = visitors.join_all().await;
    until("both rooms are over", async || house.metrics.rooms.get() == 0).await;
    sweeping.abort();
    assert!(house.metrics.rooms_evicted.get() > 20, "rooms did come and go: {}", house.metrics.rooms_evicted.get());
    let mut kept: Vec<_> = rooms.iter().flat_map(|room| house.store.texts(room)).collect();
    let mut said: Vec<_> = all.into_iter().flatten().collect();
    kept.sort();
    said.sort();
    assert!(kept == said, "{} kept of {}", kept.len(), said.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_gets_exactly_what_it_missed_however_often_the_room_was_over() {
    let house = Arc::new(House::new());
    let sweeping = house.sweep();
    let room = RoomId::parse("a").unwrap();
    let ends = Instant::now() + Duration::from_secs(3);
    let talking = async {
        let (who, mut count) = (guest(), 0);
        while Instant::now() < ends {
            house.say(&who, &room, &count.to_string());
            count += 1;
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..12_000))).await;
        }
        count
    };
    let mut visitors = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (house, room) = (Arc::clone(&house), room.clone());
        visitors.spawn(async move {
            let (mut since, mut next, mut visits) = (None, 0_usize, 0);
            while Instant::now() < ends {
                let screen = Arc::new(Screen::default());
                let socket = Arc::clone(&screen) as Arc<dyn Socket>;
                let entrance = house.hub.join(&room, socket, Taste::all(Arc::new(JsonEncoder)), since).await.unwrap();
                assert_eq!(entrance.missed, Missed::Exactly(0), "the ring has room for all of it");
                entrance.joined.seat.open();
                let _may_be_quiet = timeout(Duration::from_micros(fastrand::u64(..4000)), screen.news.notified()).await;
                let recent = entrance.joined.recent.iter().map(|posted| posted.comment.text.as_str().to_owned());
                let cursor = entrance.joined.cursor;
                drop(entrance.joined.seat);
                // A tick that is under way may still write: what counts is what is there now.
                let frames = screen.frames();
                for text in recent.chain(frames.iter().flat_map(|frame| texts_of(&frame["comments"]))) {
                    let number: usize = text.parse().unwrap();
                    assert!(since.is_none() || number == next, "{number} came where {next} was due");
                    next = number + 1;
                }
                let newest = frames.last().map(|frame| Cursor::parse(frame["cursor"].as_str().unwrap()).unwrap());
                since = Some(newest.unwrap_or(cursor));
                visits += 1;
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..8000))).await;
            }
            visits
        });
    }
    let count = talking.await;
    let visits: usize = visitors.join_all().await.into_iter().sum();
    sweeping.abort();
    let evicted = house.metrics.rooms_evicted.get();
    assert!(count > 100 && visits > 100 && evicted > 20, "{count} {visits} {evicted}");
}

#[tokio::test]
async fn rooms_of_a_real_server_are_over_when_nobody_is_in_them() {
    const ROOMS: usize = 1500;
    let folder = tempfile::tempdir().unwrap();
    let config = "[room]\nevict_after = \"0s\"\n[shutdown]\nclose_spread = \"0s\"";
    let server = Start::in_folder(folder.path()).config(NO_LIMITS).config(config).run();
    let mut staying = Viewer::join(server.address, "staying", "").await;
    for number in 0..ROOMS {
        let room = format!("r{number}");
        if number % 10 == 0 {
            let mut viewer = Viewer::join(server.address, &room, "").await;
            assert_eq!(viewer.say("n", &room, "accepted").await["type"], "ack");
        } else {
            assert_eq!(server.post(&room, "", &json!({"text": room})).await.0, 201);
        }
    }
    until("one room is left", async || server.metric("danmaku_rooms").await == 1).await;
    for number in (0..ROOMS).step_by(50) {
        let (_, page) = server.get(&format!("/api/rooms/r{number}/comments")).await;
        assert_eq!(texts_of(&page["comments"]), [format!("r{number}")]);
    }
    staying.say("n", "still here", "accepted").await;
    assert_eq!(staying.texts_until("still here").await, ["still here"]);
    let end = server.stop().await;
    assert_eq!((end.code, end.ledger().stored), (Some(0), ROOMS as u64 + 1), "{end:?}");
}
