//! One connection of a replay: sends what its lane holds, reads what the server says, and comes back when it is lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use url::Url;

use super::client::{Dial, Frame, Guest, connect, send_frame};
use super::lane::{Cause, Lane, Next};
use super::replay::ReplayConfig;
use super::report::{Lateness, Report};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every section below leaves the data whole, so a panic elsewhere says nothing against it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Tally {
    pub(super) report: Report,
    pub(super) lateness: Vec<Duration>,
}

/// What all connections of a replay share.
pub(super) struct Shared<D> {
    pub(super) config: ReplayConfig,
    pub(super) dial: D,
    pub(super) run_id: String,
    pub(super) tally: Mutex<Tally>,
}

impl<D: Dial> Shared<D> {
    pub(super) fn guest(&self, index: usize) -> Guest {
        Guest { key: format!("replay-{}-{index}", self.run_id), name: format!("replay {index}") }
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Report)) {
        count(&mut lock(&self.tally).report);
    }

    pub(super) fn finish(&self, all: &[Arc<Connection<D>>], duration: Duration) -> Report {
        let mut tally = lock(&self.tally);
        let lateness = std::mem::take(&mut tally.lateness);
        let mut report = Report { lateness: Lateness::of(lateness), duration, ..tally.report.clone() };
        for connection in all {
            let lane = lock(&connection.lane);
            report.unanswered += lane.unanswered() as u64;
            report.unsent += lane.unsent() as u64;
        }
        report
    }
}

/// How a session on one socket ended.
enum Ended {
    /// All is sent and answered.
    Done,
    /// Answers failed to come for too long.
    GaveUp,
    /// The socket is of no more use; come back now if the server said when, else after a while.
    Lost { detail: String, was_told: bool },
}

/// Where a connection stands with its server.
#[derive(Default)]
struct Standing {
    cursor: Option<String>,
    /// After `bye`: nothing more is sent here, and this is when to come back.
    reconnect_at: Option<Instant>,
}

pub(super) struct Connection<D> {
    index: usize,
    guest: Guest,
    lane: Mutex<Lane>,
    standing: Mutex<Standing>,
    /// Wakes the writing side: an answer, a retry, a stop, a `bye`.
    changed: Notify,
    shared: Arc<Shared<D>>,
}

impl<D: Dial> Connection<D> {
    pub(super) fn new(index: usize, guest: Guest, lane: Lane, shared: Arc<Shared<D>>) -> Self {
        Self { index, guest, lane: Mutex::new(lane), standing: Mutex::default(), changed: Notify::new(), shared }
    }

    /// Sends no more for the first time; ends once the answers are in.
    pub(super) fn stop(&self) {
        lock(&self.lane).stop();
        self.changed.notify_one();
    }

    /// Sends and reads until all is answered or the connection is given up, beginning on an open socket.
    pub(super) async fn run(&self, socket: WebSocketStream<D::Stream>) {
        let mut socket = socket;
        loop {
            let opened = Instant::now();
            let (sink, stream) = socket.split();
            lock(&self.standing).reconnect_at = None;
            // Both in one task and neither waiting for the other: reading goes on while a send is stuck.
            let ended = tokio::select! {
                biased; // Answers first: they may spare a send.
                ended = self.read(stream) => ended,
                ended = self.write(sink) => ended,
            };
            let (detail, was_told) = match ended {
                Ended::Done => return,
                Ended::GaveUp => return self.give_up("no answer for too long"),
                Ended::Lost { detail, was_told } => (detail, was_told),
            };
            // A connection that broke at once is not a recovery: the next attempt waits longer.
            let attempt = u32::from(!was_told && opened.elapsed() < Duration::from_secs(1));
            match self.reconnect(detail, attempt, was_told).await {
                Some(reopened) => socket = reopened,
                None => return,
            }
        }
    }

    async fn reconnect(&self, lost: String, mut attempt: u32, was_told: bool) -> Option<WebSocketStream<D::Stream>> {
        let config = &self.shared.config;
        let give_up_at = Instant::now() + config.patience;
        let mut trouble = lost;
        // Told to come back now, the first attempt needs no wait: the server has spread its clients already.
        let mut wait = if was_told { Duration::ZERO } else { backoff(attempt) };
        loop {
            if lock(&self.lane).is_done() {
                return None;
            }
            if Instant::now() + wait >= give_up_at {
                self.give_up(&trouble);
                return None;
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = self.changed.notified() => continue,
            }
            let url = self.url();
            match connect(&self.shared.dial, &config.target, &url).await {
                Ok(socket) => {
                    lock(&self.lane).reconnected();
                    self.shared.count(|report| report.reconnects += 1);
                    return Some(socket);
                }
                Err(error) => trouble = error.with_cause(),
            }
            attempt += 1;
            wait = backoff(attempt);
        }
    }

    fn url(&self) -> Url {
        let config = &self.shared.config;
        config.target.room_url(&config.room, &self.guest, lock(&self.standing).cursor.as_deref())
    }

    fn give_up(&self, trouble: &str) {
        self.shared.count(|report| report.given_up.push(format!("connection {}: {trouble}", self.index)));
    }

    async fn write(&self, mut sink: SplitSink<WebSocketStream<D::Stream>, Message>) -> Ended {
        loop {
            let is_leaving = lock(&self.standing).reconnect_at.is_some() && !lock(&self.lane).is_done();
            let now = Instant::now();
            let next = if is_leaving { None } else { Some(lock(&self.lane).next(now)) };
            match next {
                None => self.changed.notified().await,
                Some(Next::Wait(until)) => tokio::select! {
                    () = sleep_until(until) => {}
                    () = self.changed.notified() => {}
                },
                Some(Next::Done) => {
                    // A courtesy; that it fails changes nothing any more.
                    let _closed = timeout(Duration::from_secs(1), sink.close()).await;
                    return Ended::Done;
                }
                Some(Next::GiveUp) => return Ended::GaveUp,
                Some(Next::Send(index, cause)) => {
                    let Some(frame) = self.prepare(index, cause) else { continue };
                    match timeout(self.shared.config.patience, sink.send(frame)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => return lost(&format!("sending failed: {error}")),
                        Err(_) => return lost("the server takes nothing"),
                    }
                }
            }
        }
    }

    fn prepare(&self, index: usize, cause: Cause) -> Option<Message> {
        let nonce = format!("{}{index}", self.nonce_prefix());
        let frame = send_frame(lock(&self.lane).line(index)?, &nonce, self.shared.config.ack);
        let mut tally = lock(&self.shared.tally);
        match cause {
            Cause::Due { late } => {
                tally.report.sent += 1;
                tally.lateness.push(late);
            }
            Cause::Retry => tally.report.retried += 1,
            Cause::Resend => tally.report.resent += 1,
        }
        Some(frame)
    }

    fn nonce_prefix(&self) -> String {
        format!("{}-{}-", self.shared.run_id, self.index)
    }

    async fn read(&self, mut stream: SplitStream<WebSocketStream<D::Stream>>) -> Ended {
        let patience = self.shared.config.patience;
        let mut quiet_until = Instant::now() + patience;
        loop {
            let reconnect_at = lock(&self.standing).reconnect_at;
            let message = match timeout_at(reconnect_at.unwrap_or(quiet_until), stream.next()).await {
                // After `bye` answers may still come; but by the time it named we are gone.
                Err(_) if reconnect_at.is_some() => return Ended::Lost { detail: "told to go".into(), was_told: true },
                // A dead peer looks just like a quiet room, unless it owes an answer.
                Err(_) if lock(&self.lane).unanswered() > 0 => return lost("the server is silent"),
                Err(_) => {
                    quiet_until = Instant::now() + patience;
                    continue;
                }
                Ok(message) => message,
            };
            let detail = match message {
                Some(Ok(Message::Text(text))) => {
                    self.take(&text);
                    quiet_until = Instant::now() + patience;
                    continue;
                }
                Some(Ok(Message::Close(Some(close)))) => {
                    format!("closed by the server: {} {}", close.code, close.reason)
                }
                Some(Ok(Message::Close(None))) | None => "closed by the server".to_owned(),
                Some(Ok(_)) => continue,
                Some(Err(error)) => format!("connection lost: {error}"),
            };
            let Some(at) = reconnect_at else { return lost(&detail) };
            sleep_until(at).await;
            return Ended::Lost { detail, was_told: true };
        }
    }

    /// Takes note of a frame.
    fn take(&self, text: &str) {
        let now = Instant::now();
        match Frame::parse(text) {
            Some(Frame::Stands { cursor }) => lock(&self.standing).cursor = Some(cursor),
            Some(Frame::Ack { nonce, is_stored }) => {
                if self.is_answer(&nonce, now).is_some() {
                    self.shared.count(|report| {
                        report.accepted += 1;
                        report.stored = report.stored.map(|stored| stored + u64::from(is_stored));
                    });
                }
            }
            Some(Frame::Error { nonce, code, retry_after }) => {
                let index = nonce.as_deref().map(|nonce| self.is_answer(nonce, now));
                match index {
                    Some(Some(index)) => self.refused(index, code, retry_after, now),
                    // A second answer to a comment that was sent again.
                    Some(None) => {}
                    None => self.shared.count(|report| *report.other_errors.entry(code).or_default() += 1),
                }
            }
            Some(Frame::Gap { missed }) => self.shared.count(|report| report.missed += missed),
            Some(Frame::Bye { reconnect_after }) => {
                let wait = reconnect_after.unwrap_or_else(|| backoff(0));
                lock(&self.standing).reconnect_at = Some(now + wait.min(self.shared.config.patience));
            }
            Some(Frame::Other) => return,
            None => self.shared.count(|report| *report.other_errors.entry("unreadable frame".into()).or_default() += 1),
        }
        self.changed.notify_one();
    }

    fn refused(&self, index: usize, code: String, retry_after: Option<Duration>, now: Instant) {
        let helps = matches!(code.as_str(), "rate_limited" | "busy" | "going_away");
        if self.shared.config.is_retrying && helps {
            lock(&self.lane).retry(index, now + retry_after.unwrap_or(Duration::from_secs(1)));
        }
        self.shared.count(|report| *report.refused.entry(code).or_default() += 1);
    }

    /// Finds the comment that an answer is for and notes it; none when no answer was awaited.
    fn is_answer(&self, nonce: &str, now: Instant) -> Option<usize> {
        let index = nonce.strip_prefix(&self.nonce_prefix())?.parse().ok()?;
        lock(&self.lane).answered(index, now).then_some(index)
    }
}

fn lost(detail: &str) -> Ended {
    Ended::Lost { detail: detail.to_owned(), was_told: false }
}

/// Half to all of 200 ms, 400 ms, … up to 5 s: the spread keeps clients that lost one server apart.
fn backoff(attempt: u32) -> Duration {
    let longest = Duration::from_millis(200).saturating_mul(1 << attempt.min(5)).min(Duration::from_secs(5));
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}
