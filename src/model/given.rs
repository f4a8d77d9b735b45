//! What a reader was given of a room in which several nodes speak.

use std::time::Duration;

use super::cursor::Position;
use super::ids::Timestamp;

/// So much older than the newest comment, every comment is taken to have been given. Nodes hear each other within
/// milliseconds; while they do not, what was missed comes out of the store at most 15 s later, 10 s for a relay that went
/// dead without a word and 5 s between two looks.
const WINDOW: Duration = Duration::from_secs(15);

/// Most processes that are told apart; with more that have spoken within the window, the ones that were silent the longest
/// are taken at their word: all up to their last comment counts as given, whoever said it.
pub(super) const MOST: usize = 8;

/// Which comments a reader was given, told exactly though the order of comments differs from node to node.
///
/// A node hears each other one in the order in which that one accepts, so the last comment had of each tells all that were
/// had of it. One position for all would not do: a comment of another node may come before it in the order of time and
/// after it in that of a ring, and be skipped or doubled by who goes on elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// Everything up to here counts as given.
    horizon: Timestamp,
    /// The last comment had of each process after the horizon, in no order.
    marks: [Position; MOST],
    len: u8,
    /// What may not have been given all the same.
    doubt: Option<Doubt>,
}

/// A stretch of time of which some comments may not have been given though they come before a [mark](Given::marks): the node
/// that gave did not hear the others then, does so again, and has yet to find in the store what it missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The first moment of it.
    pub from: Timestamp,
    /// The moment after it.
    pub until: Timestamp,
    /// The node's own process, whose comments were all given.
    pub except: [u8; 5],
}

impl Given {
    /// Everything up to this moment, and nothing after it.
    #[must_use]
    pub fn until(horizon: Timestamp) -> Self {
        Self { horizon, marks: [Position::START; MOST], len: 0, doubt: None }
    }

    /// Everything up to this moment, and of each process everything up to one comment.
    #[must_use]
    pub fn new(horizon: Timestamp, marks: impl IntoIterator<Item = Position>) -> Self {
        let mut given = Self::until(horizon);
        marks.into_iter().for_each(|mark| given.add(mark));
        given
    }

    /// Everything up to this moment counts as given.
    #[must_use]
    pub fn horizon(&self) -> Timestamp {
        self.horizon
    }

    /// The last comment had of each process that has spoken since.
    #[must_use]
    pub fn marks(&self) -> &[Position] {
        self.marks.get(..self.len.into()).unwrap_or_default()
    }

    /// What may not have been given all the same.
    #[must_use]
    pub fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// The same with this doubt, or without any.
    #[must_use]
    pub fn with_doubt(self, doubt: Option<Doubt>) -> Self {
        Self { doubt, ..self }
    }

    /// Whether a comment counts as given, and may not have been.
    #[must_use]
    pub fn is_in_doubt(&self, position: Position) -> bool {
        let is_doubted =
            |doubt: Doubt| (doubt.from..doubt.until).contains(&position.ts) && position.id.process() != doubt.except;
        self.doubt.is_some_and(is_doubted) && self.has(position)
    }

    /// Notes that one more comment was given.
    pub fn add(&mut self, position: Position) {
        self.raise(position.ts.minus(WINDOW));
        let marks = self.marks.get_mut(..self.len.into()).unwrap_or_default();
        match marks.iter_mut().find(|mark| mark.id.process() == position.id.process()) {
            Some(mark) => *mark = position.max(*mark),
            None => {
                let oldest = marks.iter().map(|mark| mark.ts).min();
                if let Some(oldest) = oldest.filter(|_| marks.len() == MOST) {
                    self.raise(oldest);
                }
                self.push(position);
            }
        }
    }

    /// Notes that what another reader was given was given as well.
    pub fn join(&mut self, other: &Self) {
        self.raise(other.horizon);
        other.marks().iter().for_each(|mark| self.add(*mark));
    }

    fn push(&mut self, mark: Position) {
        if mark.ts > self.horizon
            && let Some(free) = self.marks.get_mut(usize::from(self.len))
        {
            *free = mark;
            self.len += 1;
        }
    }

    /// Lets the horizon be here at least.
    fn raise(&mut self, horizon: Timestamp) {
        if horizon > self.horizon {
            let before = std::mem::replace(self, Self::until(horizon).with_doubt(self.doubt));
            before.marks().iter().for_each(|mark| self.push(*mark));
        }
    }

    /// Whether a comment is among those that were given.
    #[must_use]
    pub fn has(&self, position: Position) -> bool {
        let of_its_process = |mark: &&Position| mark.id.process() == position.id.process();
        position.ts <= self.horizon || self.marks().iter().find(of_its_process).is_some_and(|mark| position <= *mark)
    }

    /// Whether no comment from this moment on is among them, nor will anything older come any more.
    #[must_use]
    pub fn is_past(&self, moment: Timestamp) -> bool {
        let newest = self.marks().iter().map(|mark| mark.ts).max().unwrap_or(self.horizon);
        newest < moment.minus(WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CommentId;
    use proptest::prelude::*;

    fn at(ts: i64, process: u8, n: u32) -> Position {
        let ts = Timestamp::from_millis(ts);
        Position { ts, id: CommentId::from_parts(ts, [process; 5], n) }
    }

    #[test]
    fn of_each_process_everything_up_to_its_last_is_given_and_nothing_after_it() {
        let given = Given::new(Timestamp::from_millis(1000), [at(5000, 1, 1), at(2000, 2, 7), at(4000, 1, 0)]);
        for (position, is_given) in [
            (at(5000, 1, 1), true),
            (at(4500, 1, 9), true),
            (at(5000, 1, 2), false),
            (at(2000, 2, 7), true),
            (at(2000, 2, 8), false),
            (at(1000, 3, 0), true),
            (at(1001, 3, 0), false),
        ] {
            assert_eq!(given.has(position), is_given, "{position:?}");
        }
    }

    proptest! {
        /// Processes speak in the order of their own time and are heard late by up to a few seconds.
        #[test]
        fn what_was_given_is_told_exactly(said in prop::collection::vec((0_u8..8, 0_i64..400, 0_i64..3000), 0..300), cut: prop::sample::Index) {
            let (mut now, mut heard) = (0, Vec::new());
            let mut last = [0; 8];
            for (n, (process, pause, lag)) in (0..).zip(said) {
                now += pause;
                let at_least = &mut last[usize::from(process)];
                *at_least = (now + lag).max(*at_least);
                heard.push((*at_least, at(now, process, n)));
            }
            heard.sort_by_key(|(at, _)| *at);
            let cut = if heard.is_empty() { 0 } else { cut.index(heard.len()) };
            let mut given = Given::until(Timestamp::from_millis(-1));
            heard[..cut].iter().for_each(|(_, position)| given.add(*position));
            for (place, (_, position)) in heard.iter().enumerate() {
                prop_assert_eq!(given.has(*position), place < cut, "{}", place);
            }
        }
    }

    #[test]
    fn beyond_the_most_processes_all_up_to_the_most_silent_counts_as_given() {
        let last = |process| at(1000 + i64::from(process), process, 0);
        let given = Given::new(Timestamp::MIN, (0..9).map(last));
        assert_eq!((given.horizon(), given.marks().len()), (last(0).ts, MOST));
        assert!((0..9).all(|process| given.has(last(process))));
        assert!(!given.has(at(1001, 8, 0).max(at(1009, 8, 0))));
    }
}
