//! What all connections of a run share: the rooms, who takes part, and what is measured.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batches::{Batches, Cast};
use super::figures::Figures;
use super::sent::{Sent, State};
use super::tracker::{Missing, Tracker, Until};
use crate::load::outcome::{Fault, FaultExample};
use crate::load::plan::Plan;
use crate::model::RoomId;

/// The name that all connections are shown by.
pub(super) const NAME: &str = "load";

/// One room.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) name: RoomId,
    pub(super) sent: Sent,
    pub(super) batches: Batches,
    /// The connections that send.
    pub(super) senders: Vec<u32>,
    /// Whose turn it is.
    pub(super) turn: usize,
    /// Comments whose senders lost their connections before there was an answer, other than by the test: number, and when due.
    pub(super) given_up: Vec<(u32, u64)>,
    /// When those were due that nobody was there to send.
    pub(super) unsent: Vec<u64>,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Hall {
    pub(super) plan: Arc<Plan>,
    pub(super) rooms: Vec<Room>,
    pub(super) cast: Cast,
    pub(super) figures: Figures,
    /// Viewers whom the test has cut off, and who are not back.
    pub(super) cut: HashSet<u32>,
    /// By viewer: when the test had it come back, 0 for never. For its absence until then the server can do nothing.
    pub(super) back: Vec<u64>,
    begun: Instant,
}

impl Hall {
    /// With rooms that nobody is in. `run` tells this run's comments and guests from those of others.
    pub(super) fn new(plan: Arc<Plan>, run: u32) -> Self {
        let prefix = room_prefix(&plan, run);
        let room = |index| Room {
            name: room_name(&prefix, index),
            sent: Sent::default(),
            batches: Batches::default(),
            senders: Vec::new(),
            turn: 0,
            given_up: Vec::new(),
            unsent: Vec::new(),
        };
        let rooms = (0..plan.seating.rooms.len()).map(room).collect();
        let cast = Cast { run, name: NAME.to_owned(), uids: HashMap::new() };
        let (cut, back) = (HashSet::new(), vec![0; plan.seating.viewers() as usize]);
        Self { plan, rooms, cast, figures: Figures::default(), cut, back, begun: Instant::now() }
    }

    /// Microseconds since the run began.
    pub(super) fn now(&self) -> u64 {
        micros(self.begun.elapsed())
    }

    /// A comment was acknowledged.
    pub(super) fn acknowledge(&mut self, nonce: &str, is_stored: bool, now: u64) {
        let Some((room, number)) = parse_nonce(nonce) else { return self.figures.error("unknown_nonce") };
        let room = self.rooms.get_mut(room);
        let Some(due) = room.and_then(|room| room.sent.settle(number, State::Acknowledged)) else {
            return self.figures.error("answered_twice");
        };
        self.figures.counts.accepted += 1;
        if is_stored {
            self.figures.counts.stored += 1;
            self.figures.stored.record(due, now);
        } else {
            self.figures.accepted.record(due, now);
        }
    }

    /// A comment was refused, or something that is no comment was.
    pub(super) fn refuse(&mut self, nonce: Option<&str>, code: &str) {
        // Of what was set aside viewers may have had something, for it was accepted.
        let state = if code == "set_aside" { State::Unknown } else { State::Refused };
        match nonce.and_then(parse_nonce) {
            Some((room, number)) => {
                let room = self.rooms.get_mut(room);
                match room.and_then(|room| room.sent.settle(number, state)) {
                    Some(_) => self.figures.refuse(code),
                    None => self.figures.error("answered_twice"),
                }
            }
            None => self.figures.error(code),
        }
    }

    /// Counts a fault of a viewer.
    pub(super) fn fault(&mut self, fault: Fault, times: u64, viewer: u32, room: u32, (id, detail): (&str, &str)) {
        let rooms = &self.rooms;
        self.figures.fault(fault, times, || FaultExample {
            viewer: viewer.into(),
            room: rooms.get(room as usize).map_or_else(String::new, |room| room.name.to_string()),
            id: id.to_owned(),
            detail: detail.to_owned(),
            ..FaultExample::default()
        });
    }

    /// Judges what a viewer had in the end.
    pub(super) fn finish(&mut self, viewer: u32, room: u32, tracker: &mut Tracker, until: Until) {
        let Some(there) = self.rooms.get(room as usize) else { return };
        let Missing { lost, untold, example } = tracker.finish(until, &there.sent);
        let due = example.and_then(|number| there.sent.get(number)).map(|info| info.due);
        let detail = format!(
            "comment {} of its room, due at {:.3} s, was acknowledged and did not come",
            example.unwrap_or(0),
            due.unwrap_or(0) as f64 / 1e6
        );
        self.fault(Fault::Lost, lost, viewer, room, ("", &detail));
        self.fault(Fault::GapUntold, untold, viewer, room, ("", &detail));
    }
}

/// What the names of a run's rooms begin with.
pub(super) fn room_prefix(plan: &Plan, run: u32) -> String {
    plan.room.clone().unwrap_or_else(|| format!("load-{run:08x}"))
}

/// A room's name.
pub(super) fn room_name(prefix: &str, index: usize) -> RoomId {
    // The plan has seen to it that such names are right.
    RoomId::parse(&format!("{prefix}-{index}")).expect("the prefix is the beginning of a room's name")
}

/// Microseconds in a time.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The mark by which the answer to a comment is known.
pub(super) fn nonce(room: usize, number: u32) -> String {
    format!("{room}-{number}")
}

fn parse_nonce(nonce: &str) -> Option<(usize, u32)> {
    let (room, number) = nonce.split_once('-')?;
    Some((room.parse().ok()?, number.parse().ok()?))
}
