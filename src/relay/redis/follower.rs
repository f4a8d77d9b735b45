//! How far this node has followed one room's stream: what of the messages that come is to be given on, and whether any are
//! missing. Pure: it is fed what the channel brings and what was read from the stream.
//!
//! Live messages are given on while each begins where the one before ended. When one does not, or nothing was heard for a
//! while, the follower holds them back until it has been given what the stream has from its last place on. The read begins
//! *with* that place: where another message stands there by now, the stream is that of a replica which was promoted
//! without the newest entries, and all of it is looked through. It never shows what was lost with the old server, so
//! nothing is sure that was read from another server than the time before. Nor is anything if that place is gone with its
//! stream, be it that somebody deleted it, unless it had expired while everything was heard still.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{Bridge, Entry, Filled, Life, Mark, Read, Step};
use super::stream::{EXPIRES_AFTER, EXPIRES_WITHIN};
use crate::relay::codec::{Body, EntryId, Message, NodeId};

/// Most live messages held back while the stream is read; those on top are read from the stream as well.
const MAX_HELD: usize = 256;

/// Most nodes whose last message in the room is remembered, the newest.
const MAX_NODES: usize = 64;

/// For the way there and back.
const TO_SPARE: Duration = Duration::from_secs(20);

/// What was published so lately is in its stream still.
const RECENT: Duration = EXPIRES_AFTER.checked_sub(TO_SPARE).expect("a stream expires later");

/// The stream of a message that came so long ago has expired, if none came after it.
const EXPIRED: Duration = EXPIRES_WITHIN.saturating_add(TO_SPARE);

#[derive(Debug)]
pub(super) struct Follower {
    own: NodeId,
    is_new: bool,
    last: Option<Mark>,
    /// The last message of each node, to know again what is published again or stands in another stream as well.
    seen: Vec<(NodeId, u64)>,
    /// Live messages that wait until the stream has been read; `None` while none have to.
    held: Option<Vec<Entry>>,
    /// Where the stream was read last.
    life: Option<Arc<Life>>,
    /// Until when everything is known to have been heard.
    heard_until: Option<Instant>,
    /// A message was held back again after a read, which ended before it. If the next does as well, it is in no stream.
    is_stuck: bool,
    /// More came than can be held.
    is_overfull: bool,
    /// A message was missed that stands in no stream, or may have been lost with one.
    is_unsure: bool,
}

impl Follower {
    /// One that has had nothing yet, and holds back what comes until the stream is read.
    pub(super) fn new(own: NodeId) -> Self {
        Self {
            own,
            is_new: true,
            last: None,
            seen: Vec::new(),
            held: Some(Vec::new()),
            life: None,
            heard_until: None,
            is_stuck: false,
            is_overfull: false,
            is_unsure: false,
        }
    }

    /// Notes that messages may have been missed from this moment on: what comes is held back until the stream is read.
    pub(super) fn hold(&mut self, heard_until: Option<Instant>) {
        if self.held.is_none() {
            self.held = Some(Vec::new());
            self.heard_until = self.heard_until.max(heard_until);
        }
    }

    /// Notes that this message was missed.
    pub(super) fn miss(&mut self, missed: &Entry) {
        self.is_unsure |= missed.id.is_none() && missed.message.node != self.own;
        self.hold(None);
    }

    /// From where on the stream is to be read; `None` for all of it.
    pub(super) fn place(&self) -> Option<EntryId> {
        self.last.map(|last| last.id)
    }

    /// Takes what the channel brought.
    pub(super) fn take(&mut self, entry: Entry) -> Step {
        match &mut self.held {
            Some(held) if held.len() < MAX_HELD => {
                held.push(entry);
                Step::Nothing
            }
            Some(_) => {
                self.is_overfull = true;
                self.miss(&entry);
                Step::Nothing
            }
            None => self.follow(entry),
        }
    }

    fn follow(&mut self, entry: Entry) -> Step {
        let is_known = self.is_known(&entry.message);
        match (entry.id, self.last) {
            (None, _) if is_known => Step::Nothing,
            (None, _) => self.give(entry.message),
            (Some(id), last) if entry.follows(id, last) => {
                self.last = Some(Mark::of(id, &entry));
                self.give(entry.message)
            }
            (Some(id), Some(last)) if id.epoch == last.id.epoch && id.seq <= last.id.seq => {
                if is_known {
                    return Step::Nothing;
                }
                // The stream has lost its newest entries, with a server, and goes on from an earlier place.
                self.leave(last);
                self.held = Some(vec![entry]);
                Step::Read
            }
            (Some(_), _) => {
                self.held = Some(vec![entry]);
                Step::Read
            }
        }
    }

    fn give(&mut self, message: Message) -> Step {
        self.note(&message);
        match message.body {
            _ if message.node == self.own => Step::Nothing,
            Body::Comments(comments) => Step::Give(comments),
            Body::Lost { since, .. } => Step::Lost(since),
        }
    }

    /// Takes what the stream has from [`Follower::place`] on. `None` when it is another stream than that of the place: all
    /// of it is to be read.
    pub(super) fn fill(&mut self, read: Read) -> Option<Filled> {
        let Read { mut entries, life, at } = read;
        if let Some(last) = self.last {
            let first = entries.first().and_then(|first| Some((first.id?, first)));
            let is_last = first.is_some_and(|(id, first)| last.is_of(id, &first.message));
            let goes_on = |(id, first): (EntryId, &Entry)| id.epoch == last.id.epoch && first.start(id) >= last.id.seq;
            if is_last {
                entries.remove(0);
            } else if !first.is_some_and(goes_on) {
                self.leave(last);
                return None;
            }
        }
        let bridge = if self.is_new {
            Bridge::New
        } else if self.is_sure(life.as_deref(), at) {
            Bridge::Whole
        } else {
            Bridge::Unknown
        };
        (self.life, self.heard_until) = (life, Some(at));
        let mut filled = Filled { comments: Vec::new(), bridge, lost_since: None, is_due: false };
        self.walk(entries, &mut filled);
        self.release(&mut filled);
        Some(filled)
    }

    /// Notes that the stream with this place is gone: what was said there after everything was heard is lost with it, and
    /// something may have been, unless it had expired by then.
    fn leave(&mut self, last: Mark) {
        self.last = None;
        self.is_unsure |= self.heard_until.is_none_or(|until| until.duration_since(last.at) < EXPIRED);
    }

    /// Whether nothing is missing if the stream, read there, has no gap.
    fn is_sure(&self, life: Option<&Life>, at: Instant) -> bool {
        let (Some(before), Some(now)) = (self.life.as_deref(), life) else { return false };
        // What was refused was published without the stream, and may have been missed.
        let is_as_before = (&before.run, before.refused) == (&now.run, now.refused);
        // A stream that is new or absent had nothing before, if it can neither have expired nor been evicted.
        let had_nothing =
            before.evicted == now.evicted && self.heard_until.is_some_and(|until| at.duration_since(until) < RECENT);
        is_as_before && !self.is_unsure && (self.last.is_some() || had_nothing)
    }

    /// Goes on without the stream, as it cannot be read.
    pub(super) fn go_on(&mut self) -> Filled {
        let bridge = if self.is_new { Bridge::New } else { Bridge::Unknown };
        let mut filled = Filled { comments: Vec::new(), bridge, lost_since: None, is_due: false };
        for entry in self.held.take().unwrap_or_default() {
            filled.take(self.accept(entry));
        }
        (self.is_new, self.is_unsure, self.is_overfull) = (false, false, false);
        filled
    }

    fn walk(&mut self, read: Vec<Entry>, filled: &mut Filled) {
        // Of a stream that is read whole some may have been had: from another one, or from the channel alone.
        let had = if self.last.is_none() { self.seen.clone() } else { Vec::new() };
        for entry in read {
            let Some(id) = entry.id else { continue };
            if !entry.follows(id, self.last) {
                filled.bridge =
                    filled.bridge.and_gap(self.last.filter(|last| last.id.epoch == id.epoch), entry.start(id));
            }
            self.last = Some(Mark::of(id, &entry));
            if !is_in(&had, &entry.message) {
                let step = self.give(entry.message);
                filled.take(step);
            }
        }
    }

    /// Lets live messages through again, those that were held back first.
    fn release(&mut self, filled: &mut Filled) {
        let mut held = self.held.take().unwrap_or_default().into_iter();
        let was_stuck = std::mem::take(&mut self.is_stuck);
        while let Some(entry) = held.next() {
            match self.follow(entry) {
                Step::Read if was_stuck => {
                    filled.bridge = filled.bridge.and_gap(None, 0);
                    self.held.take().into_iter().flatten().for_each(|entry| filled.take(self.accept(entry)));
                }
                Step::Read => {
                    self.held.get_or_insert_default().extend(held.by_ref());
                    (self.is_stuck, filled.is_due) = (true, true);
                }
                step => filled.take(step),
            }
        }
        if std::mem::take(&mut self.is_overfull) {
            self.hold(None);
            filled.is_due = true;
        } else {
            self.is_unsure = false;
        }
        self.is_new = false;
    }

    /// Takes a message though some are missing before it.
    fn accept(&mut self, entry: Entry) -> Step {
        self.last = entry.id.map(|id| Mark::of(id, &entry)).or(self.last);
        if self.is_known(&entry.message) { Step::Nothing } else { self.give(entry.message) }
    }

    fn is_known(&self, message: &Message) -> bool {
        is_in(&self.seen, message)
    }

    fn note(&mut self, message: &Message) {
        let newest = match self.seen.iter().position(|(node, _)| *node == message.node) {
            Some(place) => self.seen.remove(place).1.max(message.seq),
            None => message.seq,
        };
        if self.seen.len() >= MAX_NODES {
            self.seen.remove(0);
        }
        self.seen.push((message.node, newest));
    }
}

fn is_in(seen: &[(NodeId, u64)], message: &Message) -> bool {
    seen.iter().any(|(node, newest)| *node == message.node && message.seq <= *newest)
}

#[cfg(test)]
#[path = "follower_model.rs"]
mod model;
#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;
