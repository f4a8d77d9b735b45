//! Followers against a small model of Redis: whatever is cut off, dropped, trimmed, published again or lost with its
//! server, each comment is given once and in order, or its lack is told.

use proptest::prelude::*;

use super::tests::{OWN, Stream, fill_soon, message};
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
    Cut,
    Read,
    Expire,
    /// A replica is promoted without so many of the newest entries, and the connection is lost with the old master.
    FailOver(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0u8..3, 1u32..4, prop_oneof![1 => Just(0usize), 6 => Just(1), 1 => Just(2)])
            .prop_map(|(node, comments, times)| Event::Say { node, comments, times }),
        1 => Just(Event::Cut),
        3 => Just(Event::Read),
        1 => Just(Event::Expire),
        1 => (1usize..4).prop_map(Event::FailOver),
    ]
}

proptest! {
    #[test]
    fn each_comment_is_given_once_and_in_order_or_its_lack_is_told(events in prop::collection::vec(event(), 1..60)) {
        let (mut follower, mut stream, mut seq) = (Follower::new(OWN), Stream::new(1, 12), 0);
        let (mut said, mut had, mut is_told) = (Vec::new(), Vec::new(), false);
        let mut read = |follower: &mut Follower, stream: &Stream, had: &mut Vec<Relayed>| {
            let filled = fill_soon(follower, stream);
            is_told |= filled.bridge != Bridge::Whole && filled.bridge != Bridge::New;
            had.extend(filled.comments);
            assert!(!filled.is_due);
        };
        read(&mut follower, &stream, &mut had);
        let mut is_cut = false;
        for event in events {
            match event {
                Event::Say { node, comments, times } => {
                    seq += 1;
                    let message = message([node; 8], seq, comments);
                    if let (true, Body::Comments(comments)) = (node != 0, &message.body) {
                        said.extend(comments.clone());
                    }
                    let entry = stream.append(message);
                    for _ in 0..if is_cut { 0 } else { times } {
                        match follower.take(entry.clone()) {
                            Step::Give(comments) => had.extend(comments),
                            Step::Read => read(&mut follower, &stream, &mut had),
                            Step::Nothing | Step::Lost(_) => {}
                        }
                    }
                }
                Event::Cut => {
                    is_cut = true;
                    follower.hold(None);
                }
                Event::Read => {
                    is_cut = false;
                    follower.hold(None);
                    read(&mut follower, &stream, &mut had);
                }
                // It is quiet until then: what was said last has come, or the connection was lost.
                Event::Expire => {
                    read(&mut follower, &stream, &mut had);
                    stream = Stream { life: stream.life, ..Stream::new(stream.epoch + 1, 12) };
                    is_cut = false;
                }
                Event::FailOver(lacks) => {
                    for _ in 0..lacks.min(stream.entries.len().saturating_sub(1)) {
                        let last = stream.entries.pop().unwrap();
                        stream.seq -= last.message.count();
                    }
                    stream.life.0 += 1;
                    is_cut = true;
                    follower.hold(None);
                }
            }
        }
        follower.hold(None);
        read(&mut follower, &stream, &mut had);
        let ids = |comments: &[Relayed]| comments.iter().map(|relayed| relayed.comment.id).collect::<Vec<_>>();
        let (said, had) = (ids(&said), ids(&had));
        let mut rest = said.iter();
        prop_assert!(had.iter().all(|id| rest.any(|other| other == id)), "twice or out of order: {had:?} of {said:?}");
        prop_assert!(is_told || had == said, "lacks some without a word: {had:?} of {said:?}");
    }
}
