//! How clients come, are lost, come back and leave.

use std::sync::Arc;

use mio::{Interest, Token};

use super::conn::{Conn, End, Manner, Stage};
use super::hall::{NAME, Room, micros};
use super::sent::{Info, State};
use super::socket::{dial, request};
use super::worker::{Job, Phase, Worker};
use crate::load::client::{Guest, Target};
use crate::load::plan::{Plan, is_of_share};
use crate::model::RoomId;

/// Within this time a connection has to stand, the `hello` included.
const JOIN_WITHIN: u64 = 10_000_000;

/// The first wait after a failure, in microseconds; it doubles, up to [`LONGEST_WAIT`].
const FIRST_WAIT: u64 = 500_000;
const LONGEST_WAIT: u64 = 10_000_000;

/// How often a slow viewer reads.
const SLOW_EVERY: u64 = 100_000;

impl Worker {
    /// Connects a client whose time was `due`.
    pub(super) fn join(&mut self, index: u32, due: u64) {
        let plan = Arc::clone(&self.hall.plan);
        let pick = |len: usize| index as usize % len.max(1);
        let address = self.addresses.get(pick(self.addresses.len())).copied();
        let source = self.sources.get(pick(self.sources.len())).copied();
        let Some(conn) = self.conns.get_mut(index as usize).filter(|conn| conn.stage == Stage::Away) else { return };
        let Some(address) = address else { return };
        if conn.tries == 0 {
            // Over all attempts until a hello came: each for itself would be quick where none succeeds.
            conn.due = due;
        }
        if let (true, Some(back)) = (self.hall.cut.contains(&index), self.hall.back.get_mut(index as usize)) {
            *back = conn.due;
        }
        let dialed = dial(address, source, conn.manner == Manner::Slow).and_then(|mut stream| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, Token(index as usize), interest)?;
            Ok(stream)
        });
        match dialed {
            Ok(stream) => {
                (conn.stream, conn.stage) = (Some(stream), Stage::Connecting);
                let target = plan.targets.get(pick(plan.targets.len()));
                let room = self.hall.rooms.get(conn.room as usize);
                if let (Some(target), Some(room)) = (target, room) {
                    conn.unsent = greeting(conn, &plan, target, (&room.name, self.hall.cast.run));
                }
                let generation = conn.generation;
                let by = self.hall.now() + JOIN_WITHIN;
                self.later(by, Job::GiveUp(index, generation));
            }
            Err(error) => self.has_failed(index, &kind_of(&error)),
        }
    }

    /// The connection should stand by now.
    pub(super) fn give_up(&mut self, index: u32, generation: u32) {
        let Some(conn) = self.conns.get(index as usize) else { return };
        let is_on_its_way = matches!(conn.stage, Stage::Connecting | Stage::Shaking | Stage::Greeting);
        if conn.generation == generation && is_on_its_way {
            self.has_failed(index, "join_timeout");
        }
    }

    /// A connection did not come about; it is tried again.
    pub(super) fn has_failed(&mut self, index: u32, kind: &str) {
        let Some(conn) = self.conns.get_mut(index as usize) else { return };
        let figures = &mut self.hall.figures;
        if matches!(conn.manner, Manner::Rude(_)) {
            figures.misbehaved(kind);
        } else {
            figures.counts.connects_failed += 1;
            figures.counts.connects_failed_in_storms += u64::from(self.hall.cut.contains(&index));
            *figures.connect_failures.entry(kind.to_owned()).or_default() += 1;
        }
        conn.drop_stream();
        conn.stage = Stage::Away;
        conn.tries += 1;
        let wait = (FIRST_WAIT << conn.tries.min(6)).min(LONGEST_WAIT);
        let wait = wait / 2 + self.rng.u64(..wait);
        self.come_back(index, wait);
    }

    /// The client connects again after so many microseconds, unless the end has come.
    fn come_back(&mut self, index: u32, wait: u64) {
        if !matches!(self.phase, Phase::Draining(_) | Phase::Over) {
            let at = self.hall.now() + wait;
            self.later(at, Job::Join(index));
        }
    }

    /// The other side ended a connection, or broke it.
    pub(super) fn has_ended(&mut self, index: u32, end: Option<End>) {
        let Some(conn) = self.conns.get(index as usize) else { return };
        let (stage, manner) = (conn.stage, conn.manner);
        if let (Some(End::Closed(code)), Stage::Greeting | Stage::Open) = (&end, stage) {
            match manner {
                Manner::Rude(_) => self.hall.figures.misbehaved(&code.to_string()),
                Manner::Good | Manner::Slow => self.hall.figures.close(*code),
            }
        }
        if stage != Stage::Open {
            let kind = match end {
                Some(End::Refused(status)) => format!("http_{status}"),
                Some(End::Closed(code)) => format!("closed_{code}"),
                Some(End::Broken) => "no_websocket".to_owned(),
                None => "reset".to_owned(),
            };
            return self.has_failed(index, &kind);
        }
        match (manner, &end) {
            // They asked for it, or the server stops in good order, or it has had enough of their slowness.
            (Manner::Rude(_), _) | (_, Some(End::Closed(1001))) | (Manner::Slow, _) => {}
            (_, Some(End::Closed(code))) => self.hall.figures.error(&format!("closed_{code}")),
            (_, Some(End::Broken)) => self.hall.figures.error("broken_frame"),
            (_, _) => self.hall.figures.error("connection_lost"),
        }
        let wait = match (manner, conn_back_after(self.conns.get(index as usize))) {
            (Manner::Rude(_), _) => 1_000_000 + self.rng.u64(..1_000_000),
            (_, Some(ms)) => ms.saturating_mul(1000),
            (_, None) => FIRST_WAIT + self.rng.u64(..FIRST_WAIT),
        };
        self.note_unanswered(index);
        self.hang_up(index, Stage::Away);
        self.come_back(index, wait);
    }

    /// A sender's connection is lost: what has no answer will have none.
    fn note_unanswered(&mut self, index: u32) {
        let Some(conn) = self.conns.get(index as usize).filter(|conn| conn.is_sender) else { return };
        let Some(Room { sent, given_up, .. }) = self.hall.rooms.get_mut(conn.room as usize) else { return };
        for number in sent.oldest_waiting()..sent.next() {
            let is_open = |info: &&Info| info.sender == index && info.state == State::Waiting;
            given_up.extend(sent.get(number).filter(is_open).map(|info| (number, info.due)));
        }
    }

    /// Ends a connection that stands, from this side and without a word. Gives how many comments lose their answers by it.
    fn hang_up(&mut self, index: u32, stage: Stage) -> u64 {
        let Some(conn) = self.conns.get_mut(index as usize) else { return 0 };
        self.hall.figures.open -= u64::from(conn.stage == Stage::Open);
        conn.drop_stream();
        conn.back_after_ms = None;
        conn.stage = stage;
        match self.hall.rooms.get_mut(conn.room as usize) {
            Some(room) if conn.is_sender => room.sent.give_up(index),
            _ => 0,
        }
    }

    /// The client has what it needs to go on: it is there.
    pub(super) fn has_come(&mut self, index: u32) {
        self.hall.cut.remove(&index);
        let Some(conn) = self.conns.get(index as usize) else { return };
        let job = match conn.manner {
            Manner::Good => return,
            Manner::Slow => Job::SlowRead(index, conn.generation),
            Manner::Rude(_) => Job::Misbehave(index, conn.generation),
        };
        let at = self.hall.now() + SLOW_EVERY;
        self.later(at, job);
    }

    /// Reads a slow viewer's share, and again after a while.
    pub(super) fn read_slowly(&mut self, index: u32, generation: u32) {
        let is_it = |conn: &Conn| conn.generation == generation && conn.stage == Stage::Open;
        if !self.conns.get(index as usize).is_some_and(is_it) {
            return;
        }
        let share = u64::from(self.hall.plan.slow.bytes_per_sec) * SLOW_EVERY / 1_000_000;
        self.read_upto(index, usize::try_from(share).unwrap_or(1).max(1));
        let at = self.hall.now() + SLOW_EVERY;
        self.later(at, Job::SlowRead(index, generation));
    }

    /// Many viewers lose their connections.
    pub(super) fn storm(&mut self, at: u64) {
        let plan = Arc::clone(&self.hall.plan);
        let (Some(storm), Phase::Sending(origin)) = (plan.storm, self.phase) else { return };
        let offset = self.rng.u32(..1_000_000);
        let viewers = plan.seating.viewers();
        for index in (0..viewers).filter(|index| is_of_share(storm.share, index.wrapping_add(offset))) {
            if self.conns.get(index as usize).is_some_and(|conn| conn.stage == Stage::Open) {
                self.hall.figures.counts.cut_off += self.hang_up(index, Stage::Away);
                self.hall.cut.insert(index);
                let wait = self.rng.u64(..=micros(storm.within));
                self.come_back(index, wait);
            }
        }
        let next = at + micros(storm.every);
        // One that would not be over before the end is none.
        if next + micros(storm.within) < origin + micros(plan.duration) {
            self.later(next, Job::Storm);
        }
    }

    /// Whether every room has somebody who can send.
    pub(super) fn has_senders(&self) -> bool {
        let is_open = |index: &u32| self.conns.get(*index as usize).is_some_and(|conn| conn.stage == Stage::Open);
        self.hall.rooms.iter().all(|room| room.senders.iter().any(is_open))
    }

    /// All who are to come first have come: sending begins, and with it the time of storms and leaving.
    pub(super) fn begin_sending(&mut self, now: u64, plan: &Plan) {
        self.phase = Phase::Sending(now);
        if let Some(storm) = plan.storm {
            self.later(now + micros(storm.every), Job::Storm);
        }
        if plan.leave.is_zero() {
            return;
        }
        // Senders stay, so that there is somebody to the end.
        let is_leaver = |conn: &&Conn| !conn.is_sender && !matches!(conn.manner, Manner::Rude(_));
        let mut leavers: Vec<u32> = self.conns.iter().filter(is_leaver).map(|conn| conn.index).collect();
        self.rng.shuffle(&mut leavers);
        let (begin, span) = (now + micros(plan.duration.saturating_sub(plan.leave)), micros(plan.leave));
        for (nth, index) in leavers.iter().enumerate() {
            self.later(begin + span * nth as u64 / leavers.len() as u64, Job::Leave(*index));
        }
    }

    /// A viewer leaves for good.
    pub(super) fn leave(&mut self, index: u32) {
        self.hang_up(index, Stage::Gone);
    }
}

fn conn_back_after(conn: Option<&Conn>) -> Option<u64> {
    conn.and_then(|conn| conn.back_after_ms)
}

/// The request with which a client opens its WebSocket.
fn greeting(conn: &Conn, plan: &Plan, target: &Target, (room, run): (&RoomId, u32)) -> Vec<u8> {
    let guest = Guest { key: format!("load-{run:08x}-{:08}", conn.index), name: NAME.to_owned() };
    let mut url = target.room_url(room, &guest, conn.cursor.as_deref());
    let mut query = url.query_pairs_mut();
    if let Some(compression) = conn.compression {
        query.append_pair("compress", compression.word());
    }
    if conn.is_tiered {
        query.append_pair("rate", &plan.taste.tier.to_string());
    }
    if let Some(token) = plan.tokens.get(conn.index as usize % plan.tokens.len().max(1)) {
        query.append_pair("token", token);
    }
    drop(query);
    request(&url, &target.socket())
}

/// A system's error in a word.
pub(super) fn kind_of(error: &std::io::Error) -> String {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, ConnectionRefused, ConnectionReset, TimedOut};
    match error.kind() {
        ConnectionRefused => "refused".to_owned(),
        ConnectionReset => "reset".to_owned(),
        TimedOut => "timed_out".to_owned(),
        AddrNotAvailable | AddrInUse => "no_port_left".to_owned(),
        _ => match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::MFILE.raw_os_error() => "too_many_open_files".to_owned(),
            _ => "failed".to_owned(),
        },
    }
}
