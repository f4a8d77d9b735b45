//! Many senders at once who remember what they were promised, and a viewer who minds every pause.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use super::viewer::{Seen, Viewer, texts_of};

/// Comments a second of each connection, about: few enough that through a long outage no connection has more
/// acknowledgements open than one may, which is 4,096.
const EACH_PER_SEC: u32 = 100;

/// The room of it all.
pub const ROOM: &str = "storm";

/// After the last send, how long an answer may take.
const LAST_ANSWERS: Duration = Duration::from_secs(60);

/// What the server has promised, by text.
#[derive(Debug, Default)]
pub struct Promised {
    /// Sent, whatever became of it.
    pub sent: u64,
    /// Acknowledged as `accepted`.
    pub accepted: HashSet<String>,
    /// Acknowledged as `stored`.
    pub stored: HashSet<String>,
    /// Refused, by code.
    pub refused: Vec<String>,
}

impl Promised {
    pub fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.accepted.extend(other.accepted);
        self.stored.extend(other.stored);
        self.refused.extend(other.refused);
    }

    /// All that was acknowledged, at either level.
    pub fn acknowledged(&self) -> impl Iterator<Item = &String> {
        self.accepted.iter().chain(&self.stored)
    }
}

/// Senders at work, half of what they send with each level of acknowledgement.
pub struct Storm {
    is_over: watch::Sender<bool>,
    senders: Vec<JoinHandle<Promised>>,
    watcher: JoinHandle<Duration>,
}

impl Storm {
    /// Sends so many comments a second, each with a text of its own that begins with `name`.
    pub async fn begin(address: SocketAddr, name: &str, per_sec: u32) -> Self {
        let is_over = watch::Sender::new(false);
        let watcher = Viewer::join(address, ROOM, "").await;
        let watcher = tokio::spawn(watch_for_pauses(watcher, is_over.subscribe()));
        let count = per_sec.div_ceil(EACH_PER_SEC);
        let every = Duration::from_secs(1) * count / per_sec;
        let sender = |n| tokio::spawn(send(address, format!("{name}-{n}"), every, is_over.subscribe()));
        let senders = (0..count).map(sender).collect();
        Self { is_over, senders, watcher }
    }

    /// Ends the sending; what was sent may still be answered.
    pub fn hush(&self) {
        self.is_over.send_replace(true);
    }

    /// Ends the sending, waits for the last answers, and gives what was promised and the longest time in which the
    /// viewer got nothing. Senders whose connection has gone give what they had heard until then.
    pub async fn end(self) -> (Promised, Duration) {
        self.hush();
        let mut promised = Promised::default();
        for sender in self.senders {
            promised.add(sender.await.expect("a sender does not panic"));
        }
        (promised, self.watcher.await.expect("the watcher does not panic"))
    }
}

async fn send(address: SocketAddr, name: String, every: Duration, mut is_over: watch::Receiver<bool>) -> Promised {
    let (socket, _) =
        connect_async(format!("ws://{address}/ws/{ROOM}")).await.expect("the server takes the connection");
    let (mut out, mut answers) = socket.split();
    let mut promised = Promised::default();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut open = 0_u64;
    loop {
        tokio::select! {
            biased; // an answer that is here is heard
            answer = answers.next() => match answer {
                Some(Ok(Message::Text(text))) => open -= u64::from(promised.hear(&text)),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return promised,
                Some(Ok(_)) => {}
            },
            () = over(&mut is_over) => break,
            _ = ticks.tick() => {
                let text = format!("{name}-{}", promised.sent);
                let ack = if promised.sent % 2 == 0 { "accepted" } else { "stored" };
                let frame = json!({"type": "send", "nonce": text, "text": text, "ack": ack});
                if out.send(Message::text(frame.to_string())).await.is_err() {
                    return promised;
                }
                promised.sent += 1;
                open += 1;
            }
        }
    }
    let rest = async {
        while open > 0 {
            match answers.next().await {
                Some(Ok(Message::Text(text))) => open -= u64::from(promised.hear(&text)),
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            }
        }
    };
    timeout(LAST_ANSWERS, rest).await.expect("every send is answered, however late");
    promised
}

async fn over(is_over: &mut watch::Receiver<bool>) {
    // An error is the end as well: the storm is gone.
    let _over = is_over.wait_for(|is_over| *is_over).await.map(|_| ());
}

impl Promised {
    /// Takes an answer; whether it was one.
    fn hear(&mut self, text: &str) -> bool {
        // Most frames are the room's comments.
        if !text.starts_with("{\"type\":\"ack\"") && !text.starts_with("{\"type\":\"error\"") {
            return false;
        }
        let frame: Value = serde_json::from_str(text).expect("the server sends JSON");
        let nonce = frame["nonce"].as_str().expect("it is of a comment").to_owned();
        let is_new = match (frame["type"].as_str(), frame["level"].as_str()) {
            (Some("ack"), Some("accepted")) => self.accepted.insert(nonce),
            (Some("ack"), Some("stored")) => self.stored.insert(nonce),
            _ => {
                self.refused.push(frame["code"].as_str().unwrap_or_default().to_owned());
                true
            }
        };
        assert!(is_new, "answered twice: {frame}");
        true
    }
}

/// Gives the longest time between two frames of comments.
async fn watch_for_pauses(mut viewer: Viewer, mut is_over: watch::Receiver<bool>) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, None::<Instant>);
    loop {
        let seen = tokio::select! {
            () = over(&mut is_over) => return longest,
            seen = viewer.see() => seen,
        };
        match seen {
            Seen::Frame(frame) if frame["type"] == "comments" && !texts_of(&frame["comments"]).is_empty() => {
                let now = Instant::now();
                longest = longest.max(last.map_or(Duration::ZERO, |last| now - last));
                last = Some(now);
            }
            Seen::Frame(_) => {}
            Seen::Close(_) | Seen::Gone => return longest,
        }
    }
}
