//! One WebSocket connection, one task.
//!
//! The task reads what the client sends, answers it, and looks after the connection; the room's tick writes comments to
//! the socket without waking it. It wakes for its own viewer only when the socket was found full.

use std::net::Shutdown as Half;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as ProtocolError};
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tracing::debug;

use super::access::Access;
use super::inbound::Inbound;
use super::pulse::{Allowance, Leave, Stall};
use super::wheel::Link;
use super::{Doors, cut_at};
use crate::auth::AuthError;
use crate::hub::{Entrance, Missed, acknowledged};
use crate::model::{AckLevel, BatchEncoder as _, Cursor, Identity, Nonce, Posted, Refusal, RoomId};
use crate::room::{Flow, Joined, Taste};
use crate::wire::{
    ClientFrame, CloseReason, ErrorView, Hello, JsonEncoder, Limits, TooManyFragments, ack, bye, close_frame, error,
    gap_at_least, pong,
};

/// How long a client may take to close its side after ours.
const LINGER: Duration = Duration::from_secs(2);

/// Most acknowledgements of one connection that wait for the store. With more, the next send whose acknowledgement would
/// have to wait as well is answered `busy`.
const MAX_WAITING_ACKS: usize = 4096;

/// Most bytes that the kernel takes for a viewer beyond what is on its way to it. The default would be up to 4 MB
/// (`net.ipv4.tcp_wmem`): memory, and comments that a slow viewer would read minutes late, with a ping behind them. So much
/// is gone within the usual ping timeout of 10 s at 3 KB/s, less than the comments of a busy room.
const MAX_UNSENT: u32 = 32 * 1024;

/// After so many messages from one client, others have their turn.
const MESSAGES_AT_ONCE: usize = 64;

/// The word for an end without a close.
pub(super) const GONE: &str = "gone";

/// What a client said when it connected.
pub(super) struct Opening {
    pub(super) room: RoomId,
    pub(super) identity: Identity,
    pub(super) access: Access,
    pub(super) since: Option<Cursor>,
    pub(super) taste: Taste,
}

/// The connection as the handshake left it.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) early: Bytes,
}

type WaitingAck = std::pin::Pin<Box<dyn Future<Output = Bytes> + Send>>;

/// A session: what its task knows. Kept small, for most viewers only watch.
pub(super) struct Session {
    doors: Arc<Doors>,
    room: RoomId,
    identity: Identity,
    access: Access,
    stream: Arc<TcpStream>,
    link: Arc<Link>,
    inbound: Inbound,
    /// Made with the first acknowledgement that has to wait.
    acks: Option<Box<FuturesUnordered<WaitingAck>>>,
    /// Frames the client may still send at once.
    allowance: Allowance,
}

/// How a session ends: with a reason that the client is told, or because the socket is gone.
type End = Option<CloseReason>;

impl Session {
    /// Joins the room and greets the client. Every session that begins must be [run](Session::run); one that does not
    /// begin is counted here.
    pub(super) async fn begin(doors: Arc<Doors>, opening: Opening, connection: Connection) -> Option<Self> {
        doors.metrics.sessions_begun.inc();
        let Connection { stream, early } = connection;
        // Frames are gathered by the room; the kernel should not gather them once more.
        let _best_effort = stream.set_nodelay(true);
        let _best_effort = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT);
        let stream = Arc::new(stream);
        let socket = Arc::clone(&stream);
        let entrance = doors.hub.join(&opening.room, socket, opening.taste.clone(), opening.since).await;
        let Entrance { joined, missed } = match entrance {
            Ok(entrance) => entrance,
            Err(refusal) => {
                let told = error(None, ErrorView::new(refusal.code(), &refusal, refusal.retry_after()));
                let _best_effort = stream.try_write(&[told, close_frame(CloseReason::Busy)].concat());
                doors.metrics.sessions_ended.get_or_create(&[("code", CloseReason::Busy.word())]).inc();
                return None;
            }
        };
        greet(&doors, &opening, &joined, missed);
        joined.seat.open();
        let link = doors.wheel.take_on(joined.seat);
        let inbound = Inbound::new(early, doors.config.max_message, doors.config.max_fragments);
        let allowance = Allowance::new(doors.config.max_frames_per_sec);
        let Opening { room, identity, access, .. } = opening;
        Some(Self { doors, room, identity, access, stream, link, inbound, acks: None, allowance })
    }

    /// Runs until the connection ends. Every end is counted once, by its reason. Borrows the session, which as an
    /// argument of its own would take its room twice.
    pub(super) async fn run(&mut self) {
        let end = self.serve().await;
        // Boxed, so that its room is not kept for all the time that the session runs.
        Box::pin(self.finish(&end)).await;
        let reason = end.map_or(GONE, CloseReason::word);
        self.doors.metrics.sessions_ended.get_or_create(&[("code", reason)]).inc();
        debug!(reason, "session ended");
    }

    async fn serve(&mut self) -> End {
        let shutdown = self.doors.shutdown.clone();
        let mut begun = std::pin::pin!(shutdown.begun());
        let mut stall: Option<Stall> = None;
        let mut leave: Option<Leave> = None;
        let mut has_more = self.inbound.has_early();
        loop {
            let is_quit = self.acks.is_none();
            if leave.as_ref().is_some_and(|leave| leave.is_over(is_quit)) {
                return self.say_goodbye();
            }
            // One timer at most, and none while all is well with a guest.
            let alarm = [stall.as_ref().map(|stall| stall.until), leave.as_ref().map(Leave::next), self.access.until];
            let alarm = alarm.into_iter().flatten().min();
            tokio::select! {
                biased; // what was promised to the client goes before what it wants, and both after a stop
                deadline = &mut begun, if leave.is_none() => {
                    leave = Some(Leave::new(self.doors.config.close_spread, cut_at(deadline)));
                }
                Some(ack) = next_ack(&mut self.acks), if !is_quit => {
                    if !self.acknowledge(ack) {
                        return Some(CloseReason::SlowConsumer);
                    }
                }
                // Acknowledgements that are still owed would never come.
                () = self.doors.hub.settled(), if leave.is_some() && !is_quit => self.acks = None,
                () = self.link.seat.viewer().blocked() => {
                    if self.link.is_lost() && !self.still_takes_something() {
                        return Some(CloseReason::PingTimeout);
                    }
                    if stall.is_none() {
                        if self.link.seat.advance() == Flow::Gone {
                            return None;
                        }
                        stall = self.stall_now();
                    }
                }
                ready = self.stream.writable(), if stall.is_some() => {
                    if ready.is_err() || self.link.seat.advance() == Flow::Gone {
                        return None;
                    }
                    stall = stall.and_then(|before| self.stall_after(before));
                }
                () = until(alarm), if alarm.is_some() => {
                    if self.access.is_over() {
                        return self.say_expired();
                    }
                    if stall.as_ref().is_some_and(|stall| stall.until <= Instant::now()) {
                        if !self.still_takes_something() {
                            return Some(CloseReason::SlowConsumer);
                        }
                        stall = self.stall_now();
                    }
                }
                ready = readable(&self.stream, has_more) => {
                    if ready.is_err() {
                        return None;
                    }
                    match self.take_what_came() {
                        Ok(more) => has_more = more,
                        Err(end) => return end,
                    }
                }
            }
        }
    }

    /// Takes messages while there are some, but not for ever, and writes all answers at once; true when there may be more.
    fn take_what_came(&mut self) -> Result<bool, End> {
        self.doors.wheel.heard(&self.link);
        let mut has_more = true;
        for _ in 0..MESSAGES_AT_ONCE {
            match self.inbound.next(&self.stream, &self.link.seat) {
                Ok(Some(message)) => self.take(message).map_or(Ok(()), Err)?,
                Ok(None) => {
                    has_more = false;
                    break;
                }
                Err(error) => return Err(reason_of(&error)),
            }
        }
        self.link.seat.flush();
        Ok(has_more)
    }

    /// Writes an acknowledgement that has waited for the store, and with it those that were waiting for the same bulk;
    /// false when too much waits for the client already.
    fn acknowledge(&mut self, ack: Bytes) -> bool {
        let mut next = Some(ack);
        while let Some(ack) = next {
            if !self.link.seat.queue(ack) {
                return false;
            }
            next = next_ack(&mut self.acks).now_or_never().flatten();
        }
        self.link.seat.flush();
        true
    }

    /// Whether the viewer is stalled, from now on.
    fn stall_now(&self) -> Option<Stall> {
        let (is_blocked, written) = self.link.seat.viewer().progress();
        is_blocked.then(|| Stall { written, until: Instant::now() + self.doors.config.stall_limit })
    }

    /// How a stall goes on once the socket had room. That it took bytes is a sign of life: a ping may wait behind them.
    fn stall_after(&self, before: Stall) -> Option<Stall> {
        if self.link.seat.viewer().progress().1 != before.written {
            self.doors.wheel.heard(&self.link);
        }
        self.stall_now().map(|now| before.or(now))
    }

    /// Whether a viewer that seemed to take nothing took a little all the same, now that it is asked; then it lives.
    fn still_takes_something(&self) -> bool {
        let is_so = self.link.seat.prod();
        if is_so {
            self.doors.wheel.heard(&self.link);
        }
        is_so
    }

    /// Takes a message; `Some` ends the session.
    fn take(&mut self, message: Message) -> Option<End> {
        if !self.allowance.take() {
            return Some(Some(CloseReason::Flood));
        }
        match message {
            Message::Text(text) => self.answer(&text).then_some(Some(CloseReason::SlowConsumer)),
            Message::Binary(_) => Some(Some(CloseReason::Binary)),
            // The library gives this code for those that no endpoint may send, too.
            Message::Close(Some(close)) if close.code == CloseCode::Protocol => Some(Some(CloseReason::Protocol)),
            Message::Close(_) => Some(Some(CloseReason::Normal)),
            // The library has answered a ping already; a pong has done its work by coming.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => None,
        }
    }

    /// Answers a text; true when too much waits for the client already.
    fn answer(&mut self, text: &str) -> bool {
        let answer = match ClientFrame::parse(text) {
            Ok(ClientFrame::Ping) => Some(pong()),
            Ok(ClientFrame::Send(draft)) if !self.access.may_send => {
                let denied = AuthError::TokenRequired;
                self.doors.count_refused(denied.code());
                Some(error(draft.nonce.as_ref(), ErrorView::new(denied.code(), &denied, None)))
            }
            Ok(ClientFrame::Send(draft)) if self.doors.hub.has_to_wait(draft.ack) && self.has_enough_waiting() => {
                Some(self.refuse(draft.nonce.as_ref(), &self.doors.hub.busy()))
            }
            Ok(ClientFrame::Send(draft)) => match self.doors.hub.publish(&self.identity, &self.room, &draft) {
                Ok(published) => self.promise(published.posted(), draft.nonce, draft.ack),
                Err(refusal) => Some(self.refuse(draft.nonce.as_ref(), &refusal)),
            },
            Err(bad) => {
                self.doors.count_refused(bad.code());
                Some(error(bad.nonce(), ErrorView::new(bad.code(), &bad, None)))
            }
        };
        answer.is_some_and(|answer| !self.link.seat.queue(answer))
    }

    /// Whether no more acknowledgements may wait.
    fn has_enough_waiting(&self) -> bool {
        self.acks.as_ref().is_some_and(|acks| acks.len() >= MAX_WAITING_ACKS)
    }

    fn refuse(&self, nonce: Option<&Nonce>, refusal: &Refusal) -> Bytes {
        self.doors.count_refused(refusal.code());
        error(nonce, ErrorView::new(refusal.code(), refusal, refusal.retry_after()))
    }

    /// Acknowledges now, or once the comment has reached the level that was asked for.
    fn promise(&mut self, posted: &Arc<Posted>, nonce: Option<Nonce>, level: AckLevel) -> Option<Bytes> {
        if level == AckLevel::Accepted && posted.is_kept() {
            return Some(ack(nonce.as_ref(), posted.comment.id, level));
        }
        let posted = Arc::clone(posted);
        self.acks.get_or_insert_default().push(Box::pin(async move {
            match acknowledged(&posted, level).await {
                Some(level) => ack(nonce.as_ref(), posted.comment.id, level),
                None => error(nonce.as_ref(), ErrorView::new("set_aside", &"the store refused this comment", None)),
            }
        }));
        None
    }

    /// Tells the client that the server stops and when to come back.
    fn say_goodbye(&self) -> End {
        let reconnect_after = self.doors.config.reconnect_after.mul_f64(1.0 + fastrand::f64());
        self.link.seat.leave(bye(CloseReason::GoingAway, reconnect_after));
        Some(CloseReason::GoingAway)
    }

    /// Tells the client that it has to come back with a new token.
    fn say_expired(&self) -> End {
        let expired = AuthError::Expired;
        self.link.seat.leave(error(None, ErrorView::new(expired.code(), &expired, None)));
        Some(CloseReason::TokenExpired)
    }

    /// Tells the client the reason, if it can still be told, and lets go of the socket.
    async fn finish(&mut self, end: &End) {
        let Some(reason) = end else { return };
        self.link.seat.leave(close_frame(*reason));
        let cut = self.doors.shutdown.deadline().map(cut_at);
        let deadline = Instant::now() + LINGER;
        let deadline = cut.map_or(deadline, |cut| deadline.min(cut));
        while self.link.seat.viewer().progress().0 {
            let ready = timeout_at(deadline, self.stream.writable()).await;
            if !matches!(ready, Ok(Ok(()))) || self.link.seat.advance() == Flow::Gone {
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

/// The next acknowledgement that has waited long enough; lets go of the list once it is empty.
async fn next_ack(acks: &mut Option<Box<FuturesUnordered<WaitingAck>>>) -> Option<Bytes> {
    let ack = acks.as_mut()?.next().await;
    if acks.as_ref().is_some_and(|acks| acks.is_empty()) {
        *acks = None;
    }
    ack
}

async fn until(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => sleep_until(alarm).await,
        None => std::future::pending().await,
    }
}

/// Waits until something can be read; not at all when there is something already, but others have their turn first.
async fn readable(stream: &TcpStream, has_more: bool) -> std::io::Result<()> {
    if has_more {
        tokio::task::yield_now().await;
        return Ok(());
    }
    stream.readable().await
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
        Missed::AtLeast(missed) => joined.seat.send(gap_at_least(missed)),
    };
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
