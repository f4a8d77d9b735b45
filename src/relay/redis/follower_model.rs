//! Followers against a small model of Redis: whatever is cut off, dropped, trimmed, deleted, refused, published again or
//! lost with its server, each comment is given once and in order, or its lack is told.

use proptest::prelude::*;

use super::tests::{OWN, Stream, fill_at, message};
use super::*;
use crate::model::Relayed;

/// What may happen.
#[derive(Clone, Debug)]
enum Event {
    /// A node says something; whether it comes through, and how often.
    Say {
        node: u8,
        comments: u32,
        times: usize,
    },
    /// A node says something that Redis lets be published and not be appended.
    Refuse {
        node: u8,
        comments: u32,
    },
    Cut,
    Read,
    /// So many seconds pass, over which a stream may expire.
    Wait(u64),
    /// A replica is promoted without so many of the newest entries, and the connection is lost with the old master.
    FailOver(usize),
    /// While the node is cut off Redis evicts the stream.
    Evict,
    /// While the node is cut off somebody takes all but so many of the newest entries out of the stream.
    Trim(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0u8..3, 1u32..4, prop_oneof![1 => Just(0usize), 6 => Just(1), 1 => Just(2)])
            .prop_map(|(node, comments, times)| Event::Say { node, comments, times }),
        1 => (0u8..3, 1u32..4).prop_map(|(node, comments)| Event::Refuse { node, comments }),
        1 => Just(Event::Cut),
        3 => Just(Event::Read),
        1 => prop_oneof![Just(1), Just(70), Just(130), Just(250)].prop_map(Event::Wait),
        1 => (1usize..4).prop_map(Event::FailOver),
        1 => Just(Event::Evict),
        1 => (0usize..3).prop_map(Event::Trim),
    ]
}

/// A stream, its follower, and what both are held to.
struct Scene {
    stream: Stream,
    follower: Follower,
    is_cut: bool,
    seq: u64,
    /// By others, as far as it is not told that it is lacking.
    said: Vec<Relayed>,
    had: Vec<Relayed>,
}

impl Scene {
    fn new() -> Self {
        let (stream, follower) = (Stream::new(1, 12), Follower::new(OWN));
        Self { stream, follower, is_cut: false, seq: 0, said: Vec::new(), had: Vec::new() }
    }

    fn cut(&mut self) {
        if !self.is_cut {
            // What was said last has come by then.
            self.read();
            self.follower.hold(Some(self.stream.now));
            self.is_cut = true;
        }
    }

    fn read(&mut self) {
        self.is_cut = false;
        self.follower.hold(None);
        let filled = fill_at(&mut self.follower, &self.stream, self.stream.now);
        self.had.extend(filled.comments);
        if filled.bridge != Bridge::Whole {
            self.said.retain(|said| self.had.contains(said));
        }
        let ids = |comments: &[Relayed]| comments.iter().map(|relayed| relayed.comment.id).collect::<Vec<_>>();
        assert_eq!(ids(&self.had), ids(&self.said), "lacks some without a word, or has them twice or out of order");
        assert!(!filled.is_due);
    }

    fn say(&mut self, node: u8, comments: u32) -> Message {
        self.seq += 1;
        let message = message([node; 8], self.seq, comments);
        if let (true, Body::Comments(comments)) = (node != 0, &message.body) {
            self.said.extend(comments.clone());
        }
        message
    }

    fn take(&mut self, entry: Entry) {
        match self.follower.take(entry) {
            Step::Give(comments) => self.had.extend(comments),
            Step::Read => self.read(),
            Step::Nothing | Step::Lost(_) => {}
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Say { node, comments, times } => {
                let message = self.say(node, comments);
                let entry = self.stream.append(message);
                for _ in 0..if self.is_cut { 0 } else { times } {
                    self.take(entry.clone());
                }
            }
            Event::Refuse { node, comments } => {
                if !self.is_cut {
                    self.read();
                }
                self.stream.life.1 += 1;
                let message = self.say(node, comments);
                if !self.is_cut {
                    self.take(Entry { id: None, at: self.stream.now, message });
                }
            }
            Event::Cut => self.cut(),
            Event::Read => self.read(),
            Event::Wait(seconds) => {
                if !self.is_cut {
                    self.read();
                }
                self.stream.pass(Duration::from_secs(seconds));
            }
            Event::FailOver(lacks) => {
                for _ in 0..lacks.min(self.stream.entries.len().saturating_sub(1)) {
                    let last = self.stream.entries.pop().unwrap();
                    self.stream.seq -= last.message.count();
                }
                self.stream.life.0 += 1;
                self.cut_off();
            }
            Event::Evict => {
                self.cut();
                self.stream.life.2 += u64::from(!self.stream.entries.is_empty());
                self.stream.begin_anew();
            }
            Event::Trim(keeps) => {
                self.cut();
                let is_known = self.follower.place().is_some_and(|place| place.epoch == self.stream.epoch);
                let entries = &mut self.stream.entries;
                if keeps > 0 {
                    entries.drain(..entries.len().saturating_sub(keeps));
                } else if is_known {
                    // One that somebody empties between its first message and the node's return nobody knows of.
                    self.stream.begin_anew();
                }
            }
        }
    }

    /// The same without having heard what was said last.
    fn cut_off(&mut self) {
        self.is_cut = true;
        self.follower.hold(None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn each_comment_is_given_once_and_in_order_or_its_lack_is_told(events in prop::collection::vec(event(), 1..60)) {
        let mut scene = Scene::new();
        scene.read();
        events.into_iter().for_each(|event| scene.happen(event));
        scene.read();
    }
}
