//! What one viewer has had of its room, and what is wrong with that: pure, and bounded whatever happens.
//!
//! Comments have numbers in their room, in the order in which they were sent. A viewer's order is the server's, which is nearly
//! the same; what it has had is all numbers below `next` and some ahead of it, in a bit set. A number is judged as missing when
//! [`WINDOW`] later ones have come, or at the end. Whether the order is right is told by the comments' places in the order of
//! the node that took them, which have to go up.

use std::collections::VecDeque;

use super::sent::{Info, Sent, State};

mod lacking;

/// How many numbers may have come after one that did not before that counts as missing.
pub(super) const WINDOW: u32 = 16_384;

/// Numbers judged as missing that are remembered, in case they come after all.
const LATE: usize = 64;

/// Stretches about which the server spoke that are remembered; older ones are joined.
const SEAMS: usize = 16;

/// By how much the order of numbers and the server's order may differ around a gap.
const SLACK: u32 = 64;

/// What a viewer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A comment that it had not had.
    New,
    /// One that others come after, and that it should have had before them.
    OutOfOrder,
    /// One that it had.
    Doubled,
    /// One from before it came, about which nothing is known.
    Before,
}

/// What is missing, untold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Comments missing while the connection stood and the server said nothing.
    pub(super) lost: u64,
    /// Comments missing where the viewer came back, or was told a smaller number.
    pub(super) untold: u64,
    /// The first of them.
    pub(super) example: Option<u32>,
}

/// Whom a missing comment is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The viewer was there until the end: it should have had everything.
    TheEnd,
    /// It was not, or is slow: it should have had what comes before what it has had.
    ItsLast,
}

/// One viewer's account.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracker {
    /// Below this nothing is known.
    base: u32,
    /// From this on everything that is acknowledged is owed; below, what is placed after `joined`.
    owed_from: u32,
    next: u32,
    /// One more than the highest number that it has had.
    high: u32,
    /// Bits of the numbers from `next` rounded down to 64; bits below `next` mean nothing.
    ahead: VecDeque<u64>,
    /// By node: the highest place that it has had.
    last: Vec<u64>,
    /// By node: the highest place when it came.
    joined: Vec<u64>,
    late: VecDeque<(u32, Verdict)>,
    seams: VecDeque<(u32, u32)>,
    open_seam: Option<u32>,
    missing_in_seams: u64,
    missing: u64,
    told: u64,
    left_out: u64,
    is_told_vaguely: bool,
    example: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    NotOwed,
    Missing,
    MissingInSeam,
}

impl Tracker {
    /// The viewer has come: these comments it was given as the newest, oldest first, and everything after them is owed.
    pub(super) fn join(&mut self, recent: impl IntoIterator<Item = u32> + Clone, sent: &Sent) {
        let oldest = recent.clone().into_iter().min();
        self.base = oldest.unwrap_or_else(|| sent.oldest_waiting());
        (self.next, self.high, self.owed_from) = (self.base, self.base, sent.next());
        for number in recent {
            let _known = self.take(number, sent);
        }
        self.joined.clone_from(&self.last);
    }

    /// The viewer has come back and could not go on where it was: these it was given as the newest.
    pub(super) fn rejoin(&mut self, recent: impl IntoIterator<Item = u32>, sent: &Sent) {
        self.open_seam();
        for number in recent {
            if !self.has(number) {
                let _new = self.take(number, sent);
            }
        }
    }

    /// Notes a comment.
    pub(super) fn take(&mut self, number: u32, sent: &Sent) -> Seen {
        if number < self.base {
            return Seen::Before;
        }
        if number < self.next {
            return self.take_late(number);
        }
        if self.has(number) {
            return Seen::Doubled;
        }
        self.set(number, sent);
        let Some(&Info { node: Some(node), place, .. }) = sent.get(number) else { return Seen::New };
        let node = usize::from(node);
        if self.last.len() <= node {
            self.last.resize(node + 1, 0);
        }
        match self.last.get_mut(node) {
            Some(last) if place < *last => Seen::OutOfOrder,
            Some(last) => {
                *last = place;
                Seen::New
            }
            None => Seen::New,
        }
    }

    /// A number that was judged already, or had.
    fn take_late(&mut self, number: u32) -> Seen {
        let Some(index) = self.late.iter().position(|(late, _)| *late == number) else { return Seen::Doubled };
        match self.late.remove(index) {
            Some((_, Verdict::Missing)) => self.missing = self.missing.saturating_sub(1),
            Some((_, Verdict::MissingInSeam)) => self.missing_in_seams = self.missing_in_seams.saturating_sub(1),
            _ => return Seen::New,
        }
        Seen::OutOfOrder
    }

    /// A batch has been taken to its end: a stretch about which the server spoke ends with it.
    pub(super) fn end_batch(&mut self) {
        let Some(from) = self.open_seam.take() else { return };
        let to = self.high.saturating_add(SLACK);
        let is_full = self.seams.len() >= SEAMS;
        match self.seams.back_mut() {
            Some(last) if last.1 >= from || is_full => last.1 = to,
            _ => self.seams.push_back((from, to)),
        }
    }

    /// The connection was lost: what comes next follows a seam.
    pub(super) fn open_seam(&mut self) {
        self.open_seam.get_or_insert(self.next.saturating_sub(SLACK));
    }

    /// The viewer was told that it missed so many.
    pub(super) fn tell_gap(&mut self, missed: u64, is_exact: bool) {
        self.told += missed;
        self.is_told_vaguely |= !is_exact;
        self.open_seam();
    }

    /// The viewer was told that so many were left out for it.
    pub(super) fn tell_left_out(&mut self, count: u64) {
        self.left_out += count;
    }

    fn word(&self, number: u32) -> usize {
        (number / 64).saturating_sub(self.next / 64) as usize
    }

    fn has(&self, number: u32) -> bool {
        let is_set = |word: &u64| word >> (number % 64) & 1 == 1;
        number < self.high && (number < self.next || self.ahead.get(self.word(number)).is_some_and(is_set))
    }

    fn set(&mut self, number: u32, sent: &Sent) {
        self.high = self.high.max(number.saturating_add(1));
        if number == self.next && self.ahead.is_empty() {
            self.next += 1;
            return;
        }
        while number - self.next > WINDOW {
            if !self.has(self.next) {
                self.judge(self.next, sent);
            }
            self.step();
        }
        let word = self.word(number);
        if self.ahead.len() <= word {
            self.ahead.resize(word + 1, 0);
        }
        if let Some(word) = self.ahead.get_mut(word) {
            *word |= 1 << (number % 64);
        }
        let is_refused = |number| sent.get(number).is_some_and(|info| info.state == State::Refused);
        while self.next < self.high {
            if !self.has(self.next) && !is_refused(self.next) {
                return;
            }
            self.step();
        }
        self.ahead = VecDeque::new();
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next.is_multiple_of(64) {
            self.ahead.pop_front();
        }
    }

    /// Judges a number that did not come.
    fn judge(&mut self, number: u32, sent: &Sent) {
        let is_owed =
            sent.get(number).is_some_and(|info| info.state == State::Acknowledged && self.is_owed(number, info));
        let is_in_seam = self.open_seam.is_some_and(|from| number >= from)
            || self.seams.iter().any(|(from, to)| (*from..*to).contains(&number));
        let verdict = match (is_owed, is_in_seam) {
            (false, _) => Verdict::NotOwed,
            (true, true) => Verdict::MissingInSeam,
            (true, false) => Verdict::Missing,
        };
        self.missing_in_seams += u64::from(verdict == Verdict::MissingInSeam);
        self.missing += u64::from(verdict == Verdict::Missing);
        if is_owed {
            self.example.get_or_insert(number);
        }
        if self.late.len() >= LATE {
            self.late.pop_front();
        }
        self.late.push_back((number, verdict));
    }

    fn is_owed(&self, number: u32, info: &Info) -> bool {
        let joined = |node: u8| self.joined.get(usize::from(node)).copied();
        number >= self.owed_from || info.node.is_some_and(|node| joined(node).is_some_and(|joined| info.place > joined))
    }

    /// Whether nothing is owed any more.
    pub(super) fn is_whole(&self, sent: &Sent) -> bool {
        (self.next..sent.next()).all(|number| {
            self.has(number)
                || sent.get(number).is_none_or(|info| info.state != State::Acknowledged || !self.is_owed(number, info))
        })
    }

    /// Judges all that did not come, and says what is missing untold.
    pub(super) fn finish(&mut self, until: Until, sent: &Sent) -> Missing {
        for number in self.next..sent.next() {
            let is_due = until == Until::TheEnd
                || sent.get(number).is_some_and(|info| {
                    let last = info.node.and_then(|node| self.last.get(usize::from(node)));
                    last.is_some_and(|last| info.place < *last)
                });
            if is_due && !self.has(number) {
                self.judge(number, sent);
            }
        }
        // What was told beyond what is missing in seams may be missing beside one: a seam is not cut to the comment.
        let spare = self.told.saturating_sub(self.missing_in_seams);
        let is_vague = |count: u64| if self.is_told_vaguely { 0 } else { count };
        let untold = is_vague(self.missing_in_seams.saturating_sub(self.told));
        let lost = self.missing.saturating_sub(self.left_out).saturating_sub(spare);
        Missing { lost, untold, example: self.example }
    }
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
