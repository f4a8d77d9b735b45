//! One WebSocket connection, one task.
//!
//! The task reads what the client sends, answers it, and looks after the connection; the room's tick writes comments to
//! the socket without waking it. It wakes for its own viewer only when the socket was found full.

use std::net::Shutdown as Half;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tracing::debug;

use super::{Doors, cut_at};
use super::duplex::Duplex;
use crate::hub::{Entrance, Missed, acknowledged};
use crate::model::{AckLevel, BatchEncoder as _, Cursor, Identity, Nonce, Posted, RoomId};
use crate::room::{Flow, Joined, Seat};
use crate::wire::{
    ClientFrame, CloseReason, ErrorView, FragmentMeter, FrameError, Hello, JsonEncoder, Limits, PING, TooManyFragments,
    ack, bye, close_frame, error, gap_unknown, pong,
};

/// How long a client may take to close its side after ours.
const LINGER: Duration = Duration::from_secs(2);

/// When the server stops, the time in which comments that were just accepted still go out.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Over how much time the rate of a client's frames is averaged.
const FLOOD_WINDOW_SECS: u32 = 10;

/// Most acknowledgements of one connection that wait for the store. With more, the next send is answered `busy`.
const MAX_WAITING_ACKS: usize = 4096;

/// The word for an end without a close.
pub(super) const GONE: &str = "gone";

/// What a client said when it connected.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) room: RoomId,
    pub(super) identity: Identity,
    pub(super) since: Option<Cursor>,
}

/// The connection as the handshake left it.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) early: Bytes,
}

type WaitingAck = std::pin::Pin<Box<dyn Future<Output = Bytes> + Send>>;

/// A session: what its task knows.
struct Session {
    doors: Doors,
    opening: Opening,
    stream: Arc<TcpStream>,
    seat: Arc<Seat>,
    socket: WebSocketStream<Duplex>,
    acks: FuturesUnordered<WaitingAck>,
    /// Frames the client may still send at once.
    allowance: Allowance,
    pulse: Pulse,
}

/// Runs a connection until it ends. Every end is counted once, by its reason.
pub(super) async fn run(doors: Doors, opening: Opening, connection: Connection) {
    let metrics = Arc::clone(&doors.metrics);
    metrics.sessions_begun.inc();
    let reason = match Session::begin(doors, opening, connection).await {
        Ok(mut session) => {
            let end = session.run().await;
            session.finish(&end).await;
            end.map_or(GONE, CloseReason::word)
        }
        Err(word) => word,
    };
    metrics.sessions_ended.get_or_create(&[("code", reason)]).inc();
    debug!(reason, "session ended");
}

/// How a session ends: with a reason that the client is told, or because the socket is gone.
type End = Option<CloseReason>;

impl Session {
    async fn begin(doors: Doors, opening: Opening, connection: Connection) -> Result<Self, &'static str> {
        let Connection { stream, early } = connection;
        // Frames are gathered by the room; the kernel should not gather them once more.
        let _best_effort = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        let socket = Arc::clone(&stream);
        let entrance = doors.hub.join(&opening.room, socket, Arc::new(JsonEncoder), opening.since).await;
        let Entrance { joined, missed } = match entrance {
            Ok(entrance) => entrance,
            Err(refusal) => {
                let told = error(None, ErrorView::new(refusal.code(), &refusal, refusal.retry_after()));
                let _best_effort = stream.try_write(&[told, close_frame(CloseReason::GoingAway)].concat());
                return Err(refusal.code());
            }
        };
        greet(&doors, &opening, &joined, missed);
        let seat = Arc::new(joined.seat);
        seat.open();
        let meter = FragmentMeter::new(doors.config.max_fragments);
        let duplex = Duplex::new(Arc::clone(&stream), early, meter, Arc::clone(&seat));
        let limits = WebSocketConfig::default()
            .read_buffer_size(512)
            .write_buffer_size(0)
            .max_message_size(Some(doors.config.max_message))
            .max_frame_size(Some(doors.config.max_message));
        let socket = WebSocketStream::from_raw_socket(duplex, Role::Server, Some(limits)).await;
        let allowance = Allowance::new(doors.config.max_frames_per_sec);
        let pulse = Pulse::new(doors.config.ping_interval, doors.config.ping_timeout);
        Ok(Self { doors, opening, stream, seat, socket, acks: FuturesUnordered::new(), allowance, pulse })
    }

    async fn run(&mut self) -> End {
        let shutdown = self.doors.shutdown.clone();
        let mut begun = std::pin::pin!(shutdown.begun());
        let mut stall: Option<Stall> = None;
        let mut leave: Option<Leave> = None;
        loop {
            if leave.as_ref().is_some_and(|leave| leave.is_over(self.acks.is_empty())) {
                return self.say_goodbye();
            }
            let pulse = self.pulse.due();
            let stalled = stall.as_ref().map_or(pulse, |stall| stall.until);
            let leaving = leave.as_ref().map_or(pulse, Leave::next);
            tokio::select! {
                biased; // what was promised to the client goes before what it wants, and both after a stop
                deadline = &mut begun, if leave.is_none() => {
                    leave = Some(Leave::new(self.doors.config.close_spread, cut_at(deadline)));
                }
                Some(ack) = self.acks.next(), if !self.acks.is_empty() => {
                    if !self.seat.send(ack) {
                        return Some(CloseReason::SlowConsumer);
                    }
                }
                () = self.seat.viewer().blocked(), if stall.is_none() => {
                    if self.seat.advance() == Flow::Gone {
                        return None;
                    }
                    stall = self.stall_now();
                }
                ready = self.stream.writable(), if stall.is_some() => {
                    if ready.is_err() || self.seat.advance() == Flow::Gone {
                        return None;
                    }
                    stall = self.stall_now().zip(stall).map(|(now, before)| before.or(now));
                }
                () = sleep_until(stalled), if stall.is_some() => return Some(CloseReason::SlowConsumer),
                () = sleep_until(leaving), if leave.is_some() => {}
                message = self.socket.next() => {
                    self.pulse.beat();
                    if let Some(end) = self.take(message) {
                        return end;
                    }
                }
                () = sleep_until(pulse) => {
                    if !self.pulse.ping() {
                        return Some(CloseReason::PingTimeout);
                    }
                    let _too_full_anyway = self.seat.send(PING);
                }
            }
        }
    }

    /// Whether the viewer is stalled, from now on.
    fn stall_now(&self) -> Option<Stall> {
        let (is_blocked, written) = self.seat.viewer().progress();
        is_blocked.then(|| Stall { written, until: Instant::now() + self.doors.config.stall_limit })
    }

    /// Takes a message; `Some` ends the session.
    fn take(&mut self, message: Option<Result<Message, ProtocolError>>) -> Option<End> {
        if !self.allowance.take() {
            return Some(Some(CloseReason::Flood));
        }
        match message {
            Some(Ok(Message::Text(text))) => self.answer(&text).then_some(Some(CloseReason::SlowConsumer)),
            Some(Ok(Message::Binary(_))) => Some(Some(CloseReason::Binary)),
            // The library gives this code for those that no endpoint may send, too.
            Some(Ok(Message::Close(Some(close)))) if close.code == CloseCode::Protocol => {
                Some(Some(CloseReason::Protocol))
            }
            Some(Ok(Message::Close(_))) => Some(Some(CloseReason::Normal)),
            // The library has answered a ping already; a pong has done its work by coming.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => None,
            Some(Err(error)) => Some(reason_of(&error)),
            None => Some(None),
        }
    }

    /// Answers a text; true when too much waits for the client already.
    fn answer(&mut self, text: &str) -> bool {
        let answer = match ClientFrame::parse(text) {
            Ok(ClientFrame::Ping) => Some(pong()),
            Ok(ClientFrame::Send(draft)) if self.acks.len() >= MAX_WAITING_ACKS => {
                let refusal = self.doors.hub.busy();
                Some(error(draft.nonce.as_ref(), ErrorView::new(refusal.code(), &refusal, refusal.retry_after())))
            }
            Ok(ClientFrame::Send(draft)) => {
                match self.doors.hub.publish(&self.opening.identity, &self.opening.room, &draft) {
                    Ok(published) => self.promise(published.posted(), draft.nonce, draft.ack),
                    Err(refusal) => {
                        let view = ErrorView::new(refusal.code(), &refusal, refusal.retry_after());
                        Some(error(draft.nonce.as_ref(), view))
                    }
                }
            }
            Err(bad) => Some(refuse(&bad)),
        };
        answer.is_some_and(|answer| !self.seat.send(answer))
    }

    /// Acknowledges now, or once the comment has reached the level that was asked for.
    fn promise(&mut self, posted: &Arc<Posted>, nonce: Option<Nonce>, level: AckLevel) -> Option<Bytes> {
        if level == AckLevel::Accepted {
            return Some(ack(nonce.as_ref(), posted.comment.id, level));
        }
        let posted = Arc::clone(posted);
        self.acks.push(Box::pin(async move {
            match acknowledged(&posted, level).await {
                Some(level) => ack(nonce.as_ref(), posted.comment.id, level),
                None => error(nonce.as_ref(), ErrorView::new("set_aside", &"the store refused this comment", None)),
            }
        }));
        None
    }

    /// Tells the client that the server stops and when to come back.
    fn say_goodbye(&self) -> End {
        self.seat.viewer().leave();
        let reconnect_after = self.doors.config.reconnect_after.mul_f64(1.0 + fastrand::f64());
        let _too_full_anyway = self.seat.send(bye(CloseReason::GoingAway, reconnect_after));
        Some(CloseReason::GoingAway)
    }

    /// Tells the client the reason, if it can still be told, and lets go of the socket.
    async fn finish(self, end: &End) {
        let Some(reason) = end else { return };
        self.seat.viewer().leave();
        let _too_full_anyway = self.seat.send(close_frame(*reason));
        let cut = self.doors.shutdown.deadline().map(cut_at);
        let deadline = Instant::now() + LINGER;
        let deadline = cut.map_or(deadline, |cut| deadline.min(cut));
        while self.seat.viewer().progress().0 {
            let ready = timeout_at(deadline, self.stream.writable()).await;
            if !matches!(ready, Ok(Ok(()))) || self.seat.advance() == Flow::Gone {
                return;
            }
        }
        // With unread bytes left, closing would reset the connection and could take the close frame with it.
        let _best_effort = SockRef::from(&*self.stream).shutdown(Half::Write);
        let mut rest = [0; 512];
        loop {
            match timeout_at(deadline, self.stream.readable()).await {
                Ok(Ok(())) => match self.stream.try_read(&mut rest) {
                    Ok(0) => return,
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                    _ => {}
                },
                _ => return,
            }
        }
    }
}

fn greet(doors: &Doors, opening: &Opening, joined: &Joined, missed: Missed) {
    let (text, min_interval) = doors.hub.limits();
    let session = format!("{:016x}", fastrand::u64(..));
    let hello = Hello {
        room: &opening.room,
        session: &session,
        cursor: &joined.cursor,
        online: joined.online,
        identity: &opening.identity,
        limits: Limits {
            max_chars: text.max_chars,
            min_interval_ms: u64::try_from(min_interval.as_millis()).unwrap_or(u64::MAX),
        },
        is_resumed: joined.is_resumed,
        recent: &joined.recent,
    };
    let _first_frame = joined.seat.send(hello.to_bytes());
    let _second_frame = match missed {
        Missed::Exactly(0) => true,
        Missed::Exactly(missed) => joined.seat.send(JsonEncoder.gap(missed)),
        Missed::Unknown => joined.seat.send(gap_unknown()),
    };
}

fn refuse(bad: &FrameError) -> Bytes {
    error(bad.nonce(), ErrorView::new(bad.code(), bad, None))
}

/// The close that RFC 6455 has for what went wrong; `None` when the connection itself is gone.
fn reason_of(error: &ProtocolError) -> End {
    match error {
        ProtocolError::Utf8(_) => Some(CloseReason::Utf8),
        ProtocolError::Capacity(CapacityError::MessageTooLong { .. }) => Some(CloseReason::TooBig),
        ProtocolError::Protocol(tokio_tungstenite::tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => {
            None
        }
        ProtocolError::Protocol(_) | ProtocolError::Capacity(_) => Some(CloseReason::Protocol),
        ProtocolError::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<TooManyFragments>()) => {
            Some(CloseReason::Fragments)
        }
        ProtocolError::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => Some(CloseReason::SlowConsumer),
        _ => None,
    }
}

/// A viewer whose socket takes nothing.
#[derive(Clone, Debug)]
struct Stall {
    written: u64,
    until: Instant,
}

impl Stall {
    /// Goes on as it was when nothing was written since.
    fn or(self, now: Self) -> Self {
        if now.written == self.written { self } else { now }
    }
}

/// The server stops: when this connection goes.
struct Leave {
    /// Its place in the spread window.
    at: Instant,
    /// Then even acknowledgements that are still owed are given up.
    deadline: Instant,
}

impl Leave {
    /// Some place in the window, but not before the room's last comments had time to go out.
    fn new(spread: Duration, deadline: Instant) -> Self {
        let at = Instant::now() + LAST_WORDS + spread.mul_f64(fastrand::f64());
        Self { at: at.min(deadline), deadline }
    }

    fn next(&self) -> Instant {
        if Instant::now() < self.at { self.at } else { self.deadline }
    }

    fn is_over(&self, is_quit: bool) -> bool {
        let now = Instant::now();
        now >= self.deadline || (now >= self.at && is_quit)
    }
}

/// How many frames a client may send: a bucket that holds ten seconds' worth.
struct Allowance {
    per_sec: u32,
    left: f64,
    at: Instant,
}

impl Allowance {
    fn new(per_sec: u32) -> Self {
        Self { per_sec, left: f64::from(per_sec * FLOOD_WINDOW_SECS), at: Instant::now() }
    }

    fn take(&mut self) -> bool {
        let now = Instant::now();
        let gained = now.duration_since(self.at).as_secs_f64() * f64::from(self.per_sec);
        self.left = (self.left + gained).min(f64::from(self.per_sec * FLOOD_WINDOW_SECS)) - 1.0;
        self.at = now;
        self.left >= 0.0
    }
}

/// When a silent client is asked whether it is there.
struct Pulse {
    interval: Duration,
    timeout: Duration,
    last: Instant,
    is_asked: bool,
}

impl Pulse {
    fn new(interval: Duration, timeout: Duration) -> Self {
        // Up to a tenth less, so that connections that began together do not ping together.
        let interval = interval.mul_f64(1.0 - fastrand::f64() / 10.0);
        Self { interval, timeout, last: Instant::now(), is_asked: false }
    }

    fn beat(&mut self) {
        self.last = Instant::now();
        self.is_asked = false;
    }

    fn due(&self) -> Instant {
        self.last + self.interval + if self.is_asked { self.timeout } else { Duration::ZERO }
    }

    /// Whether to ask; false when it was asked already and did not answer.
    fn ping(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked, true)
    }
}
