//! What a viewer lacks at the end, so that its times can count what never came.

use super::Tracker;
use crate::load::engine::sent::{Sent, State};

impl Tracker {
    /// The comments that it should have by now and has not, without those that may yet be refused.
    ///
    /// Nothing for a viewer for whom comments were left out: which those were the server does not say.
    pub(in crate::load::engine) fn lacking<'a>(&'a self, sent: &'a Sent) -> impl Iterator<Item = u32> + 'a {
        let end = if self.left_out > 0 { self.next } else { sent.next() };
        (self.next..end).filter(|number| {
            let is_owed = |info: &super::Info| match info.state {
                State::Acknowledged => self.is_owed(*number, info),
                // No answer: it was sent while this viewer was there, and to it that is the same.
                State::Waiting => *number >= self.owed_from,
                State::Refused | State::Unknown => false,
            };
            !self.has(*number) && sent.get(*number).is_some_and(is_owed)
        })
    }

    /// Whether it lacks a comment that was sent while it was there.
    pub(in crate::load::engine) fn lacks(&self, number: u32) -> bool {
        self.left_out == 0 && number >= self.owed_from && !self.has(number)
    }
}
