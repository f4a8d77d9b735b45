//! What one connection has to send and what it still waits for: plain data, no I/O.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::trace::Line;

/// One comment with its time in this replay.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// When, after the replay's start.
    pub(super) due: Duration,
    /// What.
    pub(super) line: Line,
}

/// Names a comment within its lane.
pub(super) type Index = usize;

/// Why a comment is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its time has come.
    Due {
        /// By how much that time has passed.
        late: Duration,
    },
    /// It was refused before and may be tried again.
    Retry,
    /// The connection was lost before its answer came.
    Resend,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Send this one now.
    Send(Index, Cause),
    /// Nothing before this moment, unless something changes.
    Wait(Instant),
    /// Everything has been sent and answered.
    Done,
    /// Everything has been sent, and answers have failed to come for too long.
    GiveUp,
}

/// The comments of one connection on their way. The schedule is absolute, so that a delay does not push later
/// comments back: what is late goes at once.
#[derive(Debug)]
pub(super) struct Lane {
    planned: Vec<Planned>,
    start: Instant,
    patience: Duration,
    next: Index,
    /// Sent, answer awaited; in the order of sending by the trace.
    unanswered: BTreeSet<Index>,
    resend: VecDeque<Index>,
    retries: BTreeSet<(Instant, Index)>,
    /// The last first send or answer. Resends do not count, else a server that never answers would keep us for ever.
    active: Instant,
    is_stopped: bool,
}

impl Lane {
    /// A lane that begins at `start`; `planned` is in the order of its times.
    pub(super) fn new(planned: Vec<Planned>, start: Instant, patience: Duration) -> Self {
        Self {
            planned,
            start,
            patience,
            next: 0,
            unanswered: BTreeSet::new(),
            resend: VecDeque::new(),
            retries: BTreeSet::new(),
            active: start,
            is_stopped: false,
        }
    }

    /// What to do at `now`. A comment given out for sending counts as unanswered from then on: whether it left is
    /// not known when the connection breaks.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        while let Some(index) = self.resend.pop_front() {
            if self.unanswered.contains(&index) {
                return Next::Send(index, Cause::Resend);
            }
        }
        let retry = self.retries.first().copied();
        let planned = self.planned.get(self.next).filter(|_| !self.is_stopped).map(|planned| self.start + planned.due);
        match (retry, planned) {
            (Some((at, index)), _) if at <= now => {
                self.retries.pop_first();
                self.unanswered.insert(index);
                self.active = now;
                Next::Send(index, Cause::Retry)
            }
            (_, Some(due)) if due <= now => {
                let index = self.next;
                self.next += 1;
                self.unanswered.insert(index);
                self.active = now;
                Next::Send(index, Cause::Due { late: now - due })
            }
            (Some((at, _)), Some(due)) => Next::Wait(at.min(due)),
            (Some((at, _)), None) => Next::Wait(at),
            (None, Some(due)) => Next::Wait(due),
            (None, None) if self.unanswered.is_empty() => Next::Done,
            (None, None) if self.active + self.patience <= now => Next::GiveUp,
            (None, None) => Next::Wait(self.active + self.patience),
        }
    }

    /// The comment of that index.
    pub(super) fn line(&self, index: Index) -> Option<&Line> {
        self.planned.get(index).map(|planned| &planned.line)
    }

    /// Notes an answer; false when none was awaited (a second answer to a resent comment).
    pub(super) fn answered(&mut self, index: Index, now: Instant) -> bool {
        let was_awaited = self.unanswered.remove(&index);
        if was_awaited {
            self.active = now;
        }
        was_awaited
    }

    /// Plans to send a refused comment again.
    pub(super) fn retry(&mut self, index: Index, at: Instant) {
        if !self.is_stopped {
            self.retries.insert((at, index));
        }
    }

    /// The connection is new: what is unanswered goes first, in its old order.
    pub(super) fn reconnected(&mut self) {
        self.resend = self.unanswered.iter().copied().collect();
    }

    /// Nothing more is sent for the first time; answers are still awaited.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.retries.clear();
    }

    /// Whether there is nothing left to send or to wait for.
    pub(super) fn is_done(&self) -> bool {
        let is_sent = self.is_stopped || self.next == self.planned.len();
        is_sent && self.unanswered.is_empty() && self.retries.is_empty()
    }

    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    pub(super) fn unsent(&self) -> usize {
        self.planned.len() - self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(dues: &[u64]) -> (Lane, Instant) {
        let start = Instant::now();
        let line = Line { at: Duration::ZERO, user: 0, text: "x".into(), mode: None, size: None, color: None };
        let planned = dues.iter().map(|&ms| Planned { due: Duration::from_millis(ms), line: line.clone() });
        (Lane::new(planned.collect(), start, Duration::from_secs(30)), start)
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn late_comments_go_at_once_and_the_schedule_does_not_drift() {
        let (mut lane, start) = lane(&[0, 10, 500]);
        assert_eq!(lane.next(start + ms(100)), Next::Send(0, Cause::Due { late: ms(100) }));
        assert_eq!(lane.next(start + ms(100)), Next::Send(1, Cause::Due { late: ms(90) }));
        assert_eq!(lane.next(start + ms(100)), Next::Wait(start + ms(500)));
    }

    #[test]
    fn after_a_reconnect_the_unanswered_go_first_and_in_order() {
        let (mut lane, start) = lane(&[0, 0, 0, 0]);
        for index in 0..3 {
            assert!(matches!(lane.next(start), Next::Send(i, Cause::Due { .. }) if i == index));
        }
        assert!(lane.answered(1, start));
        lane.reconnected();
        assert_eq!(lane.next(start), Next::Send(0, Cause::Resend));
        assert!(lane.answered(2, start), "the answer came late");
        assert!(matches!(lane.next(start), Next::Send(3, Cause::Due { .. })));
        assert!(!lane.answered(2, start), "a second answer counts for nothing");
    }

    #[test]
    fn a_silent_server_is_given_up_even_when_it_lets_us_reconnect() {
        let (mut lane, start) = lane(&[0]);
        lane.next(start);
        lane.reconnected();
        assert_eq!(lane.next(start + ms(29_000)), Next::Send(0, Cause::Resend));
        assert_eq!(lane.next(start + ms(29_000)), Next::Wait(start + ms(30_000)));
        assert_eq!(lane.next(start + ms(30_000)), Next::GiveUp);
    }

    #[test]
    fn a_stopped_lane_waits_for_answers_only() {
        let (mut lane, start) = lane(&[0, 10]);
        lane.next(start);
        lane.retry(0, start + ms(5));
        lane.stop();
        assert_eq!((lane.is_done(), lane.unsent(), lane.unanswered()), (false, 1, 1));
        lane.answered(0, start);
        assert_eq!((lane.is_done(), lane.next(start + ms(20))), (true, Next::Done));
    }
}
