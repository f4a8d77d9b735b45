//! The thread that plays all clients: one loop over timers, sends and whatever the network has.
//!
//! Sends go before reading, and little is read at a time, so that comments leave on time while much comes in. How late they
//! leave all the same is measured, and told when it is the load test that is at its limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::iter::Peekable;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use mio::{Events, Poll};
use tokio::sync::mpsc;

use super::conn::{Conn, Manner, Stage};
use super::figures::Figures;
use super::hall::{Hall, micros};
use super::machine::thread_cpu;
use super::tracker::Until;
use crate::load::plan::{Plan, Schedule, is_of_share};
use crate::shutdown::Shutdown;

/// Events taken at a time.
const EVENTS: usize = 64;

/// The loop looks at everything this often at least.
const AWAKE: Duration = Duration::from_millis(50);

/// Sending waits this long beyond the ramp for viewers who have not come about.
const LATE_JOINS: u64 = 10_000_000;

/// When a stop ends the sending, answers that are on their way may take so long.
const ANSWERS: Duration = Duration::from_secs(1);

/// In the end, when nothing came for so long, nothing more comes.
const QUIET: u64 = 3_000_000;

/// Viewers whose deliveries' times are recorded, at most, spread evenly over all.
const SAMPLED: u32 = 2000;

const SECOND: u64 = 1_000_000;

const MILLISECOND: Duration = Duration::from_millis(1);

/// The longest that nothing is read while a comment is about to leave.
const NAP: Duration = Duration::from_micros(200);

/// Something to be done at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    Join(u32),
    /// This generation of the connection has to stand by now.
    GiveUp(u32, u32),
    SlowRead(u32, u32),
    Misbehave(u32, u32),
    Storm,
    Leave(u32),
}

/// What the run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Joining,
    /// Since this time.
    Sending(u64),
    /// Until this time at most.
    Draining(u64),
    Over,
}

/// One second of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tick {
    pub(crate) at_secs: f64,
    pub(crate) phase: &'static str,
    pub(crate) connections: u64,
    pub(crate) sent: u64,
    pub(crate) accepted: u64,
    pub(crate) delivered: u64,
    pub(crate) errors: u64,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Cores that the thread used: 1 is all there is.
    pub(crate) thread_cpu: f64,
    /// Faults and errors so far.
    pub(crate) faults: u64,
    pub(crate) all_errors: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Before {
    at: u64,
    sent: u64,
    accepted: u64,
    delivered: u64,
    errors: u64,
    cpu: f64,
}

/// What the thread gives back.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) figures: Figures,
    pub(super) took: Duration,
    pub(super) has_been_stopped: bool,
}

/// All clients.
pub(super) struct Worker {
    pub(super) hall: Hall,
    pub(super) conns: Vec<Conn>,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) sources: Vec<IpAddr>,
    pub(super) poll: Poll,
    pub(super) jobs: BinaryHeap<Reverse<(u64, Job)>>,
    pub(super) schedule: Peekable<Schedule>,
    pub(super) phase: Phase,
    pub(super) rng: Rng,
    pub(super) buffer: Vec<u8>,
    /// Connections that had more than was read.
    pub(super) again: Vec<u32>,
    stop: Shutdown,
    /// Whether it was the stop that ended the sending.
    is_cut_short: bool,
    ticks: mpsc::Sender<Tick>,
    before: Before,
    quiet_since: (u64, u64),
}

impl Worker {
    /// Seats all clients; nobody connects yet.
    ///
    /// # Errors
    /// When the system has no more to poll with.
    pub(super) fn new(
        plan: Arc<Plan>,
        run: u32,
        (addresses, sources): (Vec<SocketAddr>, Vec<IpAddr>),
        (stop, ticks): (Shutdown, mpsc::Sender<Tick>),
    ) -> io::Result<Self> {
        let (schedule, rng) = (Schedule::new(&plan).peekable(), Rng::with_seed(plan.seed));
        let mut worker = Self {
            hall: Hall::new(plan, run),
            conns: Vec::new(),
            addresses,
            sources,
            poll: Poll::new()?,
            jobs: BinaryHeap::new(),
            schedule,
            phase: Phase::Joining,
            rng,
            buffer: Vec::new(),
            again: Vec::new(),
            stop,
            is_cut_short: false,
            ticks,
            before: Before::default(),
            quiet_since: (0, 0),
        };
        worker.seat();
        Ok(worker)
    }

    /// Gives every client its place and the time to come.
    fn seat(&mut self) {
        let plan = Arc::clone(&self.hall.plan);
        let mut order = Vec::new();
        for (room, seat) in plan.seating.rooms.iter().enumerate() {
            for place in 0..seat.viewers {
                let index = order.len() as u32;
                let is_sender = place < seat.senders;
                if let (true, Some(room)) = (is_sender, self.hall.rooms.get_mut(room)) {
                    room.senders.push(index);
                }
                order.push((index, room as u32, is_sender));
            }
        }
        let viewers = order.len() as u32;
        let sampled = (f64::from(SAMPLED) / f64::from(viewers.max(1))).min(1.0);
        for &(index, room, is_sender) in &order {
            let is_slow = !is_sender && is_of_share(plan.slow.share, index);
            let mut conn = Conn::new(index, room, if is_slow { Manner::Slow } else { Manner::Good });
            conn.is_sender = is_sender;
            conn.is_sampled = !is_slow && is_of_share(sampled, index);
            conn.compression = plan.taste.compression.filter(|_| is_of_share(plan.taste.compress_share, index));
            conn.is_tiered = plan.taste.tier > 0 && is_of_share(plan.taste.tier_share, index);
            self.conns.push(conn);
        }
        for nth in 0..plan.misbehaving {
            let room = nth % self.hall.rooms.len().max(1) as u32;
            self.conns.push(Conn::new(viewers + nth, room, Manner::Rude(nth)));
        }
        self.rng.shuffle(&mut order);
        // Senders first: while few are there, those would have to speak for all.
        order.sort_by_key(|(.., is_sender)| !is_sender);
        let all = (order.len() + plan.misbehaving as usize).max(1) as u64;
        let indices = order.iter().map(|(index, ..)| *index).chain(viewers..viewers + plan.misbehaving);
        for (nth, index) in indices.enumerate() {
            let due = micros(plan.ramp) * nth as u64 / all;
            self.jobs.push(Reverse((due, Job::Join(index))));
        }
    }

    /// Runs until all is over, or the stop begins.
    pub(super) fn run(mut self) -> Finished {
        let mut events = Events::with_capacity(EVENTS);
        while self.phase != Phase::Over {
            self.run_jobs();
            self.send_due();
            self.move_on();
            self.tick();
            let wait = self.wait();
            // The system waits in whole milliseconds, rounded up; comments leave more exactly than that.
            if !wait.is_zero() && wait < MILLISECOND {
                std::thread::sleep(wait.min(NAP));
            }
            let whole = Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(0));
            // An interrupted wait is one that has ended.
            let _interrupted = self.poll.poll(&mut events, Some(whole.saturating_sub(MILLISECOND)));
            for event in &events {
                self.take_event(event);
            }
            for index in std::mem::take(&mut self.again) {
                self.read(index);
            }
        }
        self.finish()
    }

    /// How long nothing has to be done by the clock.
    fn wait(&mut self) -> Duration {
        if !self.again.is_empty() {
            return Duration::ZERO;
        }
        let now = self.hall.now();
        let job = self.jobs.peek().map(|Reverse((at, _))| *at);
        let send = match self.phase {
            Phase::Sending(origin) => self.schedule.peek().map(|due| origin + micros(due.at)),
            _ => None,
        };
        let next = job.into_iter().chain(send).min().unwrap_or(u64::MAX);
        AWAKE.min(Duration::from_micros(next.saturating_sub(now)))
    }

    fn run_jobs(&mut self) {
        let now = self.hall.now();
        while let Some(&Reverse((at, job))) = self.jobs.peek() {
            if at > now {
                return;
            }
            self.jobs.pop();
            match job {
                Job::Join(index) => self.join(index, at),
                Job::GiveUp(index, generation) => self.give_up(index, generation),
                Job::SlowRead(index, generation) => self.read_slowly(index, generation),
                Job::Misbehave(index, generation) => self.misbehave(index, generation),
                Job::Storm => self.storm(at),
                Job::Leave(index) => self.leave(index),
            }
        }
    }

    /// Does a thing at its time.
    pub(super) fn later(&mut self, at: u64, job: Job) {
        self.jobs.push(Reverse((at, job)));
    }

    fn move_on(&mut self) {
        let now = self.hall.now();
        let plan = Arc::clone(&self.hall.plan);
        let is_stopped = self.stop.has_begun();
        match self.phase {
            Phase::Joining if is_stopped => self.phase = Phase::Over,
            Phase::Joining => {
                let is_open = |conn: &Conn| conn.stage == Stage::Open;
                let ramp = micros(plan.ramp);
                let have_come = || now >= ramp && self.conns.iter().all(is_open);
                let can_begin = if plan.sends_in_ramp { self.has_senders() } else { have_come() };
                if can_begin || now >= ramp + LATE_JOINS {
                    self.begin_sending(now, &plan);
                }
            }
            Phase::Sending(origin) => {
                let is_over = now >= origin + micros(plan.duration);
                if is_stopped || is_over {
                    self.is_cut_short = is_stopped;
                    let patience = if is_stopped { plan.patience.min(ANSWERS) } else { plan.patience };
                    self.phase = Phase::Draining(now + micros(patience));
                    self.quiet_since = (now, self.hall.figures.counts.deliveries);
                }
            }
            Phase::Draining(until) => {
                let has_had_enough = is_stopped && !self.is_cut_short;
                if now >= until || has_had_enough || self.is_settled(now) {
                    self.phase = Phase::Over;
                }
            }
            Phase::Over => {}
        }
    }

    /// Whether nothing is missing any more, or nothing comes any more.
    fn is_settled(&mut self, now: u64) -> bool {
        let deliveries = self.hall.figures.counts.deliveries;
        if self.quiet_since.1 != deliveries {
            self.quiet_since = (now, deliveries);
        }
        let rooms = &self.hall.rooms;
        let waiting: u64 = rooms.iter().map(|room| room.sent.waiting()).sum();
        let is_whole = |conn: &Conn| {
            let is_owed = conn.stage == Stage::Open && conn.manner == Manner::Good && !conn.is_tiered;
            let room = rooms.get(conn.room as usize);
            !is_owed || room.is_none_or(|room| conn.tracker.is_whole(&room.sent))
        };
        waiting == 0 && (now >= self.quiet_since.0 + QUIET || self.conns.iter().all(is_whole))
    }

    /// Tells once a second how it goes.
    fn tick(&mut self) {
        let now = self.hall.now();
        if now < self.before.at + SECOND && self.phase != Phase::Over {
            return;
        }
        let figures = &mut self.hall.figures;
        let counts = &figures.counts;
        let errors = counts.errors.values().sum::<u64>() + counts.connects_failed + counts.refusals();
        let span = now.saturating_sub(self.before.at).max(1) as f64 / 1e6;
        let here = Before {
            at: now,
            sent: counts.sent,
            accepted: counts.accepted,
            delivered: counts.deliveries,
            errors,
            cpu: thread_cpu(),
        };
        let before = std::mem::replace(&mut self.before, here);
        let tick = Tick {
            at_secs: now as f64 / 1e6,
            phase: match self.phase {
                Phase::Joining => "joining",
                Phase::Sending(_) => "sending",
                Phase::Draining(_) | Phase::Over => "waiting for the last",
            },
            connections: figures.open,
            sent: here.sent - before.sent,
            accepted: here.accepted - before.accepted,
            delivered: here.delivered - before.delivered,
            errors: here.errors - before.errors,
            p50_ms: figures.this_second.ms(0.5),
            p99_ms: figures.this_second.ms(0.99),
            thread_cpu: (here.cpu - before.cpu) / span,
            faults: figures.faults.total(),
            all_errors: errors,
        };
        figures.this_second.clear();
        // A reader that is seconds behind misses a second of the curve, not of the figures.
        let _full = self.ticks.try_send(tick);
    }

    fn finish(mut self) -> Finished {
        let took = Duration::from_micros(self.hall.now());
        self.count_absent();
        for conn in &mut self.conns {
            if matches!(conn.manner, Manner::Rude(_)) || !conn.has_joined {
                continue;
            }
            let is_there = conn.stage == Stage::Open && conn.manner == Manner::Good && !conn.is_tiered;
            let until = if is_there { Until::TheEnd } else { Until::ItsLast };
            self.hall.finish(conn.index, conn.room, &mut conn.tracker, until);
        }
        let counts = &mut self.hall.figures.counts;
        let answered = counts.accepted + counts.refusals();
        counts.unanswered = counts.sent.saturating_sub(answered + counts.cut_off);
        Finished { took, has_been_stopped: self.stop.has_begun(), figures: self.hall.figures }
    }
}
