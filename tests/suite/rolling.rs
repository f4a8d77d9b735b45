//! Three nodes under load that are restarted one after the other, or killed: viewers that go on elsewhere get every
//! comment once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::support::fleet::{Addresses, Fleet, NODES};
use super::support::server::{PATIENCE, until};
use super::support::viewer::Seen;

const VIEWERS: usize = 12;
const SENDERS: usize = 9;

/// Between two comments of a sender: together they say 180 a second, so that a ring holds less than six seconds.
const EACH_EVERY: Duration = Duration::from_millis(50);

/// How long after the last comment everything must have come: strays are looked for every five seconds, until they are
/// ten seconds old.
const LATE: Duration = Duration::from_secs(25);

/// What a viewer has seen on all its nodes.
#[derive(Debug, Default)]
struct Diary {
    /// How often each text.
    texts: HashMap<String, u32>,
    /// What it was told to have missed.
    gaps: Vec<Value>,
    /// How often it went on elsewhere.
    moves: usize,
}

impl Diary {
    fn write_down(&mut self, comments: &Value) {
        for comment in comments.as_array().unwrap() {
            *self.texts.entry(comment["text"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
}

/// Watches from node to node, for ever.
async fn watch_on(addresses: Addresses, mut node: usize, diary: Arc<Mutex<Diary>>) {
    let mut viewer = addresses.next(&mut node, "").await;
    diary.lock().unwrap().write_down(&viewer.hello["recent"]);
    let mut wait = Duration::ZERO;
    loop {
        match viewer.see().await {
            Seen::Frame(frame) => match frame["type"].as_str() {
                Some("comments") => diary.lock().unwrap().write_down(&frame["comments"]),
                Some("gap") => diary.lock().unwrap().gaps.push(frame),
                Some("bye") => wait = Duration::from_millis(frame["reconnectAfterMs"].as_u64().unwrap()),
                _ => {}
            },
            Seen::Close(_) | Seen::Gone => {
                sleep(std::mem::take(&mut wait)).await;
                let cursor = viewer.cursor.clone();
                viewer = addresses.next(&mut node, &format!("since={cursor}")).await;
                assert_eq!(viewer.hello["resumed"], true);
                diary.lock().unwrap().moves += 1;
            }
        }
    }
}

/// What senders were told.
#[derive(Debug, Default)]
struct Promised {
    accepted: HashSet<String>,
    stored: HashSet<String>,
}

impl Promised {
    fn of(&mut self, level: &str) -> &mut HashSet<String> {
        if level == "stored" { &mut self.stored } else { &mut self.accepted }
    }
}

/// Says something now and then, on another node when the one before does not take it, until told to stop. What was not
/// answered is not said again.
async fn say_on(
    addresses: Addresses,
    name: usize,
    acks: Arc<Semaphore>,
    mut is_over: watch::Receiver<bool>,
) -> Promised {
    let (mut promised, mut node) = (Promised::default(), name);
    let mut viewer = addresses.next(&mut node, "").await;
    let mut ticks = interval(EACH_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_u32.. {
        tokio::select! {
            over = is_over.wait_for(|is_over| *is_over) => {
                drop(over);
                return promised;
            }
            _ = ticks.tick() => {}
        }
        let (text, level) = (format!("{name}-{number}"), if number % 2 == 0 { "accepted" } else { "stored" });
        let frame = json!({"type": "send", "nonce": text, "text": text, "ack": level});
        let _may_be_closed = futures_util::SinkExt::send(&mut viewer.socket, frame.to_string().into()).await;
        loop {
            match viewer.see().await {
                Seen::Frame(frame) if frame["nonce"] == json!(text) => {
                    if frame["type"] == "ack" {
                        promised.of(level).insert(text);
                        acks.add_permits(1);
                    } else {
                        assert_eq!(frame["code"], "going_away", "{frame}");
                    }
                    break;
                }
                Seen::Frame(_) => {}
                Seen::Close(_) | Seen::Gone => {
                    viewer = addresses.next(&mut node, "").await;
                    break;
                }
            }
        }
    }
    unreachable!("numbers do not end")
}

/// Viewers and senders on all nodes.
struct Load {
    diaries: Vec<Arc<Mutex<Diary>>>,
    /// Ends with the test.
    _viewers: JoinSet<()>,
    senders: JoinSet<Promised>,
    acks: Arc<Semaphore>,
    is_over: watch::Sender<bool>,
}

impl Load {
    async fn begin(addresses: &Addresses) -> Self {
        let (acks, is_over) = (Arc::new(Semaphore::new(0)), watch::Sender::new(false));
        let diaries: Vec<_> = (0..VIEWERS).map(|_| Arc::<Mutex<Diary>>::default()).collect();
        let watch_on = |(n, diary)| watch_on(addresses.clone(), n, Arc::clone(diary));
        let viewers = diaries.iter().enumerate().map(watch_on).collect();
        let say_on = |n| say_on(addresses.clone(), n, Arc::clone(&acks), is_over.subscribe());
        let load = Self { diaries, _viewers: viewers, senders: (0..SENDERS).map(say_on).collect(), acks, is_over };
        load.go_on(100).await;
        load
    }

    /// Waits until so many more comments are acknowledged.
    async fn go_on(&self, comments: u32) {
        timeout(PATIENCE, self.acks.acquire_many(comments)).await.expect("the senders go on").unwrap().forget();
    }

    /// Ends it; fails when a viewer has seen something twice, lacks something of what is picked of the promises, or was
    /// told that it missed something. Gives how often viewers went on elsewhere.
    async fn end(self, pick: impl Fn(Promised) -> HashSet<String>) -> usize {
        self.is_over.send_replace(true);
        let all: HashSet<_> = self.senders.join_all().await.into_iter().flat_map(pick).collect();
        let mut moves = 0;
        for (number, diary) in self.diaries.iter().enumerate() {
            let lacks = || {
                let diary = diary.lock().unwrap();
                all.iter().filter(|text| !diary.texts.contains_key(*text)).cloned().collect::<Vec<_>>()
            };
            let is_whole = timeout(LATE, until("it has all", async || lacks().is_empty())).await.is_ok();
            assert!(is_whole, "viewer {number} of {} comments lacks {:?}", all.len(), lacks());
            let diary = diary.lock().unwrap();
            let twice: Vec<_> = diary.texts.iter().filter(|(_, times)| **times > 1).collect();
            assert!(twice.is_empty(), "viewer {number} saw twice: {twice:?}");
            assert!(diary.gaps.is_empty(), "viewer {number}: {:?}", diary.gaps);
            moves += diary.moves;
        }
        moves
    }
}

#[tokio::test]
async fn a_rolling_restart_under_load_loses_and_doubles_nothing_for_who_follows_the_hint() {
    let mut fleet = Fleet::start("rolling_restart").await;
    let load = Load::begin(&fleet.addresses).await;
    for node in 0..NODES {
        fleet.restart(node).await;
        load.go_on(100).await;
    }
    let moves = load.end(|promised| promised.accepted.into_iter().chain(promised.stored).collect()).await;
    assert!(moves >= VIEWERS, "all had to go on elsewhere: {moves}");
}

#[tokio::test]
async fn a_node_killed_under_load_takes_nothing_stored_with_it_and_doubles_nothing() {
    let mut fleet = Fleet::start("rolling_kill").await;
    let load = Load::begin(&fleet.addresses).await;
    for node in 0..NODES - 1 {
        fleet.kill(node);
        load.go_on(300).await;
        fleet.begin(node).await;
        load.go_on(300).await;
    }
    let moves = load.end(|promised| promised.stored).await;
    assert!(moves >= VIEWERS / NODES, "some had to go on elsewhere: {moves}");
}

#[tokio::test]
async fn what_a_killed_node_had_stored_and_not_passed_on_reaches_the_viewers_of_the_others() {
    let mut fleet = Fleet::start("rolling_strays").await;
    let load = Load::begin(&fleet.addresses).await;
    // Twelve seconds: by then the others have heard each other for so long that they look into the store no more.
    load.go_on(2200).await;
    fleet.cable.cut();
    load.go_on(100).await;
    fleet.kill(0);
    load.go_on(100).await;
    load.end(|promised| promised.stored).await;
}
