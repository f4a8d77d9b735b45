//! What has not happened by the end: it took at least until then, and counts as that. Times of what happened alone would be the
//! better the less a server does.

use super::conn::{Manner, Stage};
use super::figures::Figures;
use super::hall::{Hall, Room};
use super::sent::State;
use super::worker::Worker;
use crate::load::plan::Plan;
use crate::model::AckLevel;

impl Worker {
    /// Counts answers, deliveries and viewers that did not come until now.
    pub(super) fn count_absent(&mut self) {
        let end = self.hall.now();
        let Hall { plan, rooms, figures, back, .. } = &mut self.hall;
        for room in rooms.iter() {
            count_unanswered(room, plan, figures, end);
        }
        for conn in &self.conns {
            let (Manner::Good, true, Some(room)) = (conn.manner, conn.is_sampled, rooms.get(conn.room as usize)) else {
                continue;
            };
            if conn.is_tiered || !conn.has_joined || conn.stage == Stage::Gone {
                continue;
            }
            let dues = conn.tracker.lacking(&room.sent).filter_map(|number| room.sent.get(number)).map(|info| info.due);
            let given_up = room.given_up.iter().filter(|(number, _)| conn.tracker.lacks(*number)).map(|(_, due)| *due);
            let since = back.get(conn.index as usize).copied().unwrap_or(0);
            for due in dues.chain(given_up).chain(room.unsent.iter().copied()) {
                figures.delivery.record(due.max(since), end);
            }
        }
        self.count_never_came(end);
    }

    fn count_never_came(&mut self, end: u64) {
        let figures = &mut self.hall.figures;
        for conn in self.conns.iter().filter(|conn| !matches!(conn.manner, Manner::Rude(_))) {
            let is_trying = match conn.stage {
                Stage::Connecting | Stage::Shaking | Stage::Greeting => true,
                Stage::Away => conn.tries > 0,
                Stage::Open | Stage::Gone => false,
            };
            if is_trying {
                figures.join.record(conn.due, end);
                // One that comes back for the first time at this moment is only on its way.
                figures.counts.never_came += u64::from(!conn.has_joined || conn.tries > 0);
            }
        }
    }
}

/// Counts a room's comments without an answer, and those that nobody could send.
fn count_unanswered(room: &Room, plan: &Plan, figures: &mut Figures, end: u64) {
    let oldest = room.sent.oldest_waiting();
    let open = (oldest..room.sent.next()).filter_map(|number| Some((number, room.sent.get(number)?)));
    let open = open.filter(|(_, info)| info.state == State::Waiting).map(|(number, info)| (number, info.due));
    let unsent = (0..).zip(room.unsent.iter().copied());
    for (number, due) in open.chain(room.given_up.iter().copied()).chain(unsent) {
        match plan.ack.level(number) {
            AckLevel::Accepted => figures.accepted.record(due, end),
            AckLevel::Stored => figures.stored.record(due, end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use tokio::sync::mpsc;

    use super::*;
    use crate::load::plan::tests::plan;
    use crate::shutdown::Shutdown;

    /// Two viewers in a room, both of whom send and neither of whom has come.
    fn worker() -> Worker {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
        let plan = Arc::new(plan("viewers = 2\nsenders = 2\nack = 'accepted'"));
        Worker::new(plan, 7, (vec![address], Vec::new()), (Shutdown::default(), mpsc::channel(1).0)).unwrap()
    }

    fn join(worker: &mut Worker, index: usize) {
        let conn = &mut worker.conns[index];
        (conn.stage, conn.has_joined) = (Stage::Open, true);
        conn.tracker.join([], &worker.hall.rooms[0].sent);
    }

    #[test]
    fn what_never_came_takes_until_the_end() {
        let mut worker = worker();
        (0..2).for_each(|index| join(&mut worker, index));
        let room = &mut worker.hall.rooms[0];
        // One is delivered to nobody, one has no answer, one was given up with its connection, and one was never sent.
        for number in 0..3 {
            room.sent.push(0, number % 2);
        }
        room.sent.settle(0, State::Acknowledged);
        room.sent.settle(2, State::Unknown);
        room.given_up.push((2, 0));
        room.unsent.push(0);
        worker.count_absent();
        let figures = &worker.hall.figures;
        assert_eq!(figures.accepted.percentiles().unwrap().count, 3);
        assert_eq!(figures.delivery.percentiles().unwrap().count, 2 * 4);
        assert_eq!((figures.counts.never_came, figures.join.percentiles()), (0, None));
    }

    #[test]
    fn a_refused_comment_and_one_that_the_test_cut_off_are_owed_to_nobody() {
        let mut worker = worker();
        (0..2).for_each(|index| join(&mut worker, index));
        let room = &mut worker.hall.rooms[0];
        for state in [State::Refused, State::Unknown] {
            let number = room.sent.push(0, 0);
            room.sent.settle(number, state);
        }
        worker.count_absent();
        let figures = &worker.hall.figures;
        assert_eq!((figures.accepted.percentiles(), figures.delivery.percentiles()), (None, None));
    }

    #[test]
    fn viewers_who_never_came_waited_until_the_end() {
        let mut worker = worker();
        worker.conns[0].stage = Stage::Greeting;
        worker.conns[1].tries = 3;
        worker.count_absent();
        let figures = &worker.hall.figures;
        assert_eq!((figures.counts.never_came, figures.join.percentiles().unwrap().count), (2, 2));
    }
}
