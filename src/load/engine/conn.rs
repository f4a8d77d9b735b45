//! One connection: what it has had, has still to send, and what becomes of the bytes that come.

use std::sync::Arc;

use mio::net::TcpStream;

use super::decode::{self, Raw};
use super::frame::{self, Kind, MAX_FRAME, Next};
use super::hall::Hall;
use super::socket::{Answer, answer};
use super::tracker::{Seen, Tracker};
use crate::load::outcome::Fault;
use crate::wire::Compression;

/// How every frame of comments begins.
const COMMENTS: &[u8] = b"{\"type\":\"comments\"";

/// How a connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// A viewer who reads as fast as it can.
    Good,
    /// A viewer on a bad line.
    Slow,
    /// One that breaks rules; the number tells which.
    Rude(u32),
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none, but there will be.
    Away,
    /// The network is asked.
    Connecting,
    /// The server is asked for a WebSocket.
    Shaking,
    /// The `hello` is to come.
    Greeting,
    /// It stands.
    Open,
    /// It is over for good.
    Gone,
}

/// Why a connection is to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server said so, with this code.
    Closed(u16),
    /// The handshake was answered with this status.
    Refused(u16),
    /// What came is no WebSocket.
    Broken,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) index: u32,
    pub(super) room: u32,
    pub(super) manner: Manner,
    pub(super) is_sender: bool,
    pub(super) compression: Option<Compression>,
    pub(super) is_tiered: bool,
    /// Whether the times of its deliveries are recorded.
    pub(super) is_sampled: bool,
    pub(super) stage: Stage,
    pub(super) stream: Option<TcpStream>,
    /// The beginning of a frame whose rest is to come.
    pub(super) partial: Vec<u8>,
    pub(super) unsent: Vec<u8>,
    /// A message's fragments so far.
    fragments: Option<Box<(Kind, Vec<u8>)>>,
    pub(super) cursor: Option<Arc<str>>,
    pub(super) tracker: Tracker,
    /// When it was to connect, in microseconds since the run began.
    pub(super) due: u64,
    /// Attempts in a row that failed.
    pub(super) tries: u32,
    /// Which connection it is of all that this viewer has had.
    pub(super) generation: u32,
    pub(super) has_joined: bool,
    /// When the server wants it back.
    pub(super) back_after_ms: Option<u64>,
}

impl Conn {
    /// One that is to come.
    pub(super) fn new(index: u32, room: u32, manner: Manner) -> Self {
        Self {
            index,
            room,
            manner,
            is_sender: false,
            compression: None,
            is_tiered: false,
            is_sampled: false,
            stage: Stage::Away,
            stream: None,
            partial: Vec::new(),
            unsent: Vec::new(),
            fragments: None,
            cursor: None,
            tracker: Tracker::default(),
            due: 0,
            tries: 0,
            generation: 0,
            has_joined: false,
            back_after_ms: None,
        }
    }

    /// The connection is no more.
    pub(super) fn drop_stream(&mut self) {
        self.stream = None;
        (self.partial, self.unsent, self.fragments) = (Vec::new(), Vec::new(), None);
        self.generation += 1;
        if self.has_joined {
            self.tracker.open_seam();
        }
    }

    /// Takes the bytes that came, behind those that were left over; gives how many it has no more need of.
    pub(super) fn take(&mut self, bytes: &[u8], hall: &mut Hall) -> Result<usize, End> {
        let mut at = 0;
        if self.stage == Stage::Shaking {
            match answer(bytes) {
                Answer::Partial => return Ok(0),
                Answer::Refused(status) => return Err(End::Refused(status)),
                Answer::Open(end) => (self.stage, at) = (Stage::Greeting, end),
            }
        }
        let now = hall.now();
        loop {
            match frame::next(bytes, at) {
                Next::Partial => return Ok(at),
                Next::Broken => return Err(End::Broken),
                Next::Frame(frame) => {
                    at = frame.payload.end;
                    let payload = bytes.get(frame.payload).unwrap_or_default();
                    self.take_frame(frame.kind, frame.is_final, payload, (hall, now))?;
                }
            }
        }
    }

    fn take_frame(
        &mut self,
        kind: Kind,
        is_final: bool,
        payload: &[u8],
        (hall, now): (&mut Hall, u64),
    ) -> Result<(), End> {
        match (kind, is_final) {
            (Kind::Ping, _) => frame::push(&mut self.unsent, Kind::Pong, payload),
            (Kind::Pong, _) => {}
            (Kind::Close, _) => {
                let code = payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code));
                return Err(End::Closed(code));
            }
            (Kind::Text | Kind::Binary, true) => self.take_message(kind, payload, hall, now),
            (Kind::Text | Kind::Binary, false) => self.fragments = Some(Box::new((kind, payload.to_vec()))),
            (Kind::Continuation, is_final) => {
                let Some(mut message) = self.fragments.take() else { return Err(End::Broken) };
                message.1.extend_from_slice(payload);
                if message.1.len() > MAX_FRAME {
                    return Err(End::Broken);
                }
                if is_final {
                    self.take_message(message.0, &message.1, hall, now);
                } else {
                    self.fragments = Some(message);
                }
            }
        }
        Ok(())
    }

    fn take_message(&mut self, kind: Kind, payload: &[u8], hall: &mut Hall, now: u64) {
        let is_batch = kind == Kind::Binary || payload.starts_with(COMMENTS);
        match (self.manner, is_batch) {
            // What these are shown is not looked at, but for answers.
            (Manner::Rude(_), true) => {}
            (_, true) => self.take_batch(kind, payload, hall, now),
            (_, false) => match decode::read(payload) {
                Some(raw) => self.take_other(&raw, hall, now),
                None => {
                    hall.figures.error("unreadable_frame");
                    let detail = String::from_utf8_lossy(payload.get(..80).unwrap_or(payload)).into_owned();
                    hall.fault(Fault::Damaged, 1, self.index, self.room, ("", &detail));
                }
            },
        }
    }

    fn take_batch(&mut self, kind: Kind, payload: &[u8], hall: &mut Hall, now: u64) {
        let Some(room) = hall.rooms.get_mut(self.room as usize) else { return };
        let packed = if kind == Kind::Binary { self.compression } else { None };
        let Some(batch) = room.batches.get(payload, packed, (self.room, &mut room.sent, &hall.cast)) else {
            hall.figures.error("unreadable_frame");
            return hall.fault(Fault::Damaged, 1, self.index, self.room, ("", "a frame of comments cannot be read"));
        };
        let (mut doubled, mut late) = (0, 0);
        let back = hall.back.get(self.index as usize).copied().unwrap_or(0);
        for item in &batch.items {
            match self.tracker.take(item.number, &room.sent) {
                Seen::New | Seen::Before => {}
                Seen::OutOfOrder => late += 1,
                Seen::Doubled => doubled += 1,
            }
            if let (Some(due), true) = (item.due, self.is_sampled) {
                hall.figures.delivery.record(due.max(back), now);
                hall.figures.this_second.record(due.max(back), now);
            }
        }
        self.tracker.end_batch();
        // Which comment a damaged one was is not known: it came, and is not missing as well.
        let damaged = batch.wrong.iter().filter(|wrong| wrong.fault == Fault::Damaged).count();
        self.tracker.tell_left_out(batch.left_out + damaged as u64);
        hall.figures.counts.deliveries += batch.items.len() as u64;
        hall.figures.counts.left_out += batch.left_out;
        if let Some(cursor) = &batch.cursor {
            self.cursor = Some(Arc::clone(cursor));
        }
        let first = batch.items.first().map_or(0, |item| item.number);
        let detail = || format!("in the frame that begins with comment {first} of its room");
        if doubled > 0 {
            hall.fault(Fault::Doubled, doubled, self.index, self.room, ("", &detail()));
        }
        if late > 0 {
            hall.fault(Fault::OutOfOrder, late, self.index, self.room, ("", &detail()));
        }
        for wrong in &batch.wrong {
            hall.fault(wrong.fault, 1, self.index, self.room, (&wrong.id, &wrong.detail));
        }
    }

    fn take_other(&mut self, raw: &Raw<'_>, hall: &mut Hall, now: u64) {
        match (&*raw.r#type, self.manner) {
            ("hello", _) => self.greet(raw, hall, now),
            ("error", Manner::Rude(_)) => {
                hall.figures.misbehaved(raw.code.as_deref().unwrap_or("none"));
            }
            ("error", _) => hall.refuse(raw.nonce.as_deref(), raw.code.as_deref().unwrap_or("none")),
            ("bye", _) => self.back_after_ms = raw.reconnect_after_ms,
            (_, Manner::Rude(_)) => {}
            ("ack", _) => {
                let is_stored = raw.level.as_deref() == Some("stored");
                hall.acknowledge(raw.nonce.as_deref().unwrap_or_default(), is_stored, now);
            }
            ("gap", manner) => {
                let missed = raw.missed.unwrap_or(0);
                self.tracker.tell_gap(missed, raw.exact.unwrap_or(true));
                hall.figures.counts.gaps_told += missed;
                if manner == Manner::Good {
                    hall.fault(
                        Fault::GapTold,
                        missed,
                        self.index,
                        self.room,
                        ("", "told while reading as fast as it can"),
                    );
                }
            }
            _ => {}
        }
    }

    fn greet(&mut self, raw: &Raw<'_>, hall: &mut Hall, now: u64) {
        if self.stage != Stage::Greeting {
            return hall.figures.error("second_hello");
        }
        (self.stage, self.tries) = (Stage::Open, 0);
        hall.figures.open += 1;
        hall.figures.counts.connected += 1;
        if matches!(self.manner, Manner::Rude(_)) {
            return;
        }
        hall.figures.join.record(self.due, now);
        if let (Some(me), true) = (&raw.me, self.is_sender) {
            hall.cast.uids.insert((&*me.uid).into(), self.index);
        }
        if let Some(cursor) = &raw.cursor {
            self.cursor = Some(Arc::from(&**cursor));
        }
        self.take_recent(raw, hall);
        hall.figures.counts.reconnects += u64::from(self.has_joined);
        self.has_joined = true;
    }

    fn take_recent(&mut self, raw: &Raw<'_>, hall: &mut Hall) {
        let Some(room) = hall.rooms.get_mut(self.room as usize) else { return };
        let wrong_room = raw.room.as_deref().filter(|name| *name != room.name.as_str());
        let wrong_room = wrong_room.map(|name| format!("the hello is of {name}"));
        let (items, wrong) = super::batches::sort(&raw.recent, (self.room, &mut room.sent, &hall.cast));
        let numbers = items.iter().map(|item| item.number);
        match (self.has_joined, raw.resumed) {
            (false, _) => self.tracker.join(numbers, &room.sent),
            // What it missed comes as comments.
            (true, Some(true)) => {}
            (true, _) => self.tracker.rejoin(numbers, &room.sent),
        }
        if let Some(detail) = wrong_room {
            hall.fault(Fault::WrongRoom, 1, self.index, self.room, ("", &detail));
        }
        for wrong in wrong {
            hall.fault(wrong.fault, 1, self.index, self.room, (&wrong.id, &wrong.detail));
        }
    }
}
