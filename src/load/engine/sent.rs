//! What was sent to one room, as far back as it matters.

use std::collections::VecDeque;

/// Comments of a room that are remembered. Viewers are at most [`WINDOW`](super::tracker::WINDOW) comments behind before what
/// they lack is judged; so is a comment that is still unanswered then.
const REMEMBERED: usize = 65_536;

/// What became of a comment, as its sender was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No answer yet.
    Waiting,
    /// Acknowledged, at whatever level.
    Acknowledged,
    /// Refused: nobody may see it.
    Refused,
    /// Its sender is gone: nobody knows.
    Unknown,
}

/// One comment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Info {
    /// When it was to be sent, in microseconds since the run began.
    pub(super) due: u64,
    /// The connection that sent it.
    pub(super) sender: u32,
    pub(super) state: State,
    /// Its node's number in this room, once a viewer has had it.
    pub(super) node: Option<u8>,
    /// Its place in that node's order; see [`place`](super::decode::place).
    pub(super) place: u64,
}

/// All of a room.
#[derive(Debug, Default)]
pub(super) struct Sent {
    first: u32,
    infos: VecDeque<Info>,
    waiting: u64,
    /// The processes that took comments here, by node number.
    nodes: Vec<u64>,
}

impl Sent {
    /// The number that the next comment gets.
    pub(super) fn next(&self) -> u32 {
        self.first.saturating_add(u32::try_from(self.infos.len()).unwrap_or(u32::MAX))
    }

    /// Notes that a comment is sent; gives its number.
    pub(super) fn push(&mut self, due: u64, sender: u32) -> u32 {
        let number = self.next();
        if self.infos.len() >= REMEMBERED {
            let old = self.infos.pop_front();
            self.waiting -= u64::from(old.is_some_and(|old| old.state == State::Waiting));
            self.first += 1;
        }
        self.waiting += 1;
        self.infos.push_back(Info { due, sender, state: State::Waiting, node: None, place: 0 });
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&Info> {
        self.infos.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Info> {
        self.infos.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Notes the answer to a comment; gives when it was to be sent, unless it has an answer or is forgotten.
    pub(super) fn settle(&mut self, number: u32, state: State) -> Option<u64> {
        let info = self.get_mut(number).filter(|info| info.state == State::Waiting)?;
        info.state = state;
        let due = info.due;
        self.waiting -= 1;
        Some(due)
    }

    /// Comments without an answer that may still have one.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The lowest number from which on answers may still come; what is below is answered or given up.
    pub(super) fn oldest_waiting(&self) -> u32 {
        let index = self.infos.iter().position(|info| info.state == State::Waiting);
        index.map_or_else(|| self.next(), |index| self.first.saturating_add(u32::try_from(index).unwrap_or(0)))
    }

    /// The number of the node with this process; none for the 256th and later ones, whose order is not looked at.
    pub(super) fn node(&mut self, process: u64) -> Option<u8> {
        let known = self.nodes.iter().position(|known| *known == process);
        let index = known.unwrap_or_else(|| {
            self.nodes.push(process);
            self.nodes.len() - 1
        });
        self.nodes.truncate(256);
        u8::try_from(index).ok()
    }

    /// The sender's connection is gone: what it has no answer to will have none. Gives how many those are.
    pub(super) fn give_up(&mut self, sender: u32) -> u64 {
        let before = self.waiting;
        let open = self.infos.iter_mut().filter(|info| info.sender == sender && info.state == State::Waiting);
        for info in open {
            info.state = State::Unknown;
            self.waiting -= 1;
        }
        before - self.waiting
    }
}
