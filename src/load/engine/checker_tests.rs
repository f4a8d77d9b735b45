//! Whole viewers against a server made up here: what they are given is right, or wrong in one known way.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::conn::{Conn, Manner, Stage};
use super::hall::{Hall, NAME, nonce};
use super::mark::Mark;
use super::tracker::Until;
use crate::load::outcome::Faults;
use crate::load::plan::{Asking, Knobs, Plan};
use crate::wire::text_frame;

const RUN: u32 = 0x1234_5678;
const SENDER: &str = "g-sender";

/// A room on a server: comments in the server's order, and viewers.
struct FakeRoom {
    hall: Hall,
    /// In the server's order.
    comments: Vec<Value>,
}

impl FakeRoom {
    fn new() -> Self {
        let plan = Plan::new(Asking { flags: Knobs { viewers: Some(3), ..Knobs::default() }, ..Asking::default() });
        let mut hall = Hall::new(Arc::new(plan.unwrap()), RUN);
        hall.cast.uids.insert(SENDER.into(), 0);
        Self { hall, comments: Vec::new() }
    }

    /// Sends so many; the server takes them in this order, those that are not in it are refused.
    fn send(&mut self, count: usize, order: &[usize]) {
        let numbers: Vec<u32> = (0..count).map(|_| self.hall.rooms[0].sent.push(0, 0)).collect();
        for &index in order {
            let place = self.comments.len() as u64;
            self.comments.push(comment(Mark { room: 0, number: numbers[index] }, place));
            self.hall.acknowledge(&nonce(0, numbers[index]), false, 0);
        }
        for (_, number) in numbers.iter().enumerate().filter(|(index, _)| !order.contains(index)) {
            self.hall.refuse(Some(&nonce(0, *number)), "busy");
        }
    }

    /// A viewer who comes when `recent` of the comments are there.
    fn join(&mut self, recent: &[Value]) -> Conn {
        let mut viewer = Conn::new(1, 0, Manner::Good);
        viewer.stage = Stage::Greeting;
        let room = self.hall.rooms[0].name.to_string();
        let hello = json!({"type": "hello", "room": room, "cursor": "c0", "self": {"uid": "g-1"}, "recent": recent});
        self.give(&mut viewer, &[text_frame(hello.to_string().as_bytes()).to_vec()], usize::MAX);
        assert_eq!(viewer.stage, Stage::Open);
        viewer
    }

    /// Gives bytes to a viewer, in pieces of at most so many.
    fn give(&mut self, viewer: &mut Conn, frames: &[Vec<u8>], piece: usize) {
        let bytes = frames.concat();
        let mut held = Vec::new();
        for piece in bytes.chunks(piece.min(bytes.len()).max(1)) {
            held.extend_from_slice(piece);
            let taken = viewer.take(&held, &mut self.hall).unwrap();
            held.drain(..taken);
        }
        assert!(held.is_empty());
    }

    fn faults(mut self, mut viewer: Conn) -> Faults {
        let mut tracker = std::mem::take(&mut viewer.tracker);
        self.hall.finish(1, 0, &mut tracker, Until::TheEnd);
        assert!(self.hall.figures.counts.errors.is_empty(), "{:?}", self.hall.figures.counts.errors);
        Faults { examples: Vec::new(), ..self.hall.figures.faults }
    }
}

fn comment(mark: Mark, place: u64) -> Value {
    let id = format!("{:08x}0102030405{:06x}", 1, place % (1 << 24));
    json!({"id": id, "uid": SENDER, "name": NAME, "text": mark.text(RUN, 12, 40), "mode": 1, "color": 1, "size": 25,
        "ts": 1_700_000_000_000_u64 + place / 7})
}

/// The server's frames: one for each of these lengths, and one for the rest.
fn frames(comments: &[Value], lengths: &[usize]) -> Vec<Vec<Value>> {
    let (mut frames, mut rest) = (Vec::new(), comments);
    for length in lengths {
        let (frame, more) = rest.split_at((*length).clamp(1, rest.len().max(1)).min(rest.len()));
        rest = more;
        frames.push(frame.to_vec());
    }
    frames.push(rest.to_vec());
    frames.retain(|frame| !frame.is_empty());
    frames
}

fn encode(frames: &[Vec<Value>]) -> Vec<Vec<u8>> {
    let frame = |comments: &Vec<Value>| {
        text_frame(format!(r#"{{"type":"comments","cursor":"c","comments":{}}}"#, json!(comments)).as_bytes()).to_vec()
    };
    frames.iter().map(frame).collect()
}

#[derive(Clone, Copy, Debug)]
enum Injected {
    Nothing,
    DropsComment,
    DropsFrame,
    DoublesFrame,
    DoublesComment,
    SwapsFrames,
    SwapsComments,
    Damages,
    Strays,
}

/// Does it to the frames from the `at`-th on; gives what has to be found.
fn inject(what: Injected, frames: &mut Vec<Vec<Value>>, at: usize) -> Faults {
    let mut found = Faults::default();
    let at = at % (frames.len() - 1);
    match what {
        Injected::Nothing => {}
        Injected::DropsComment => {
            frames[at].pop();
            found.lost = 1;
        }
        Injected::DropsFrame => found.lost = frames.remove(at).len() as u64,
        Injected::DoublesFrame => {
            found.doubled = frames[at].len() as u64;
            frames.insert(at, frames[at].clone());
        }
        Injected::DoublesComment => {
            let last = frames[at].last().unwrap().clone();
            frames[at].push(last);
            found.doubled = 1;
        }
        Injected::SwapsFrames => {
            found.out_of_order = frames[at].len() as u64;
            frames.swap(at, at + 1);
        }
        Injected::SwapsComments => {
            let last = frames[at].pop().unwrap();
            frames[at + 1].insert(1, last);
            found.out_of_order = 1;
        }
        Injected::Damages => {
            let text = frames[at][0]["text"].as_str().unwrap().to_owned();
            frames[at][0]["text"] = json!(text.chars().rev().collect::<String>());
            found.damaged = 1;
        }
        Injected::Strays => {
            frames[at].push(comment(Mark { room: 1, number: 0 }, 1));
            found.wrong_room = 1;
        }
    }
    found
}

fn injected() -> impl Strategy<Value = Injected> {
    use Injected::*;
    prop::sample::select(vec![
        Nothing,
        DropsComment,
        DropsFrame,
        DoublesFrame,
        DoublesComment,
        SwapsFrames,
        SwapsComments,
        Damages,
        Strays,
    ])
}

/// So many comments, and the order in which the server takes most of them: nearly that in which they were sent.
fn order() -> impl Strategy<Value = (usize, Vec<usize>)> {
    (8..150usize).prop_flat_map(|count| {
        prop::collection::vec((0..12usize, 0..10u8), count).prop_map(move |noise| {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by_key(|index| index + noise[*index].0);
            order.retain(|index| *index < 4 || noise[*index].1 > 0);
            (count, order)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_wrong_is_named_and_counted_and_nothing_else_is(
        (count, order) in order(), lengths in prop::collection::vec(1..9usize, 3..20), what in injected(), at: prop::sample::Index,
        piece in 1..3000usize
    ) {
        let mut server = FakeRoom::new();
        let mut viewer = server.join(&[]);
        server.send(count, &order);
        let mut frames = frames(&server.comments, &lengths);
        prop_assume!(frames.len() > 1);
        let found = inject(what, &mut frames, at.index(1000));
        server.give(&mut viewer, &encode(&frames), piece);
        prop_assert_eq!(server.faults(viewer), found);
    }

    #[test]
    fn who_comes_in_the_middle_is_owed_what_follows_and_no_more(
        (count, order) in order(), middle: prop::sample::Index, known in 0..60usize, is_dropped: bool
    ) {
        let mut server = FakeRoom::new();
        server.send(count, &order);
        let middle = middle.index(order.len() - 1);
        let mut before = server.comments.clone();
        let mut after = before.split_off(middle);
        let recent = before[before.len() - known.min(before.len())..].to_vec();
        let number = |comment: &Value| Mark::read(RUN, comment["text"].as_str().unwrap()).unwrap().number;
        // Another viewer has had everything, so that the order is known.
        let mut other = server.join(&[]);
        server.give(&mut other, &encode(&[before, after.clone()]), 1000);
        let mut viewer = server.join(&recent);
        let lost = if is_dropped { Some(number(&after.remove(0))) } else { None };
        let is_owed = recent.iter().map(number).min().is_some_and(|first| lost.is_some_and(|lost| lost > first));
        server.give(&mut viewer, &encode(&frames(&after, &[3])), 1000);
        let faults = server.faults(viewer);
        // What was in flight as it came, and is placed behind what it was given, is owed as well.
        prop_assert_eq!((faults.lost, faults.total() - faults.lost), (u64::from(is_owed), 0));
    }
}

#[test]
fn every_copy_of_a_frame_is_held_to_the_same_as_the_first() {
    let mut server = FakeRoom::new();
    let (mut first, mut second) = (server.join(&[]), server.join(&[]));
    server.send(20, &(0..20).collect::<Vec<_>>());
    let frames = encode(&frames(&server.comments, &[5, 5, 5]));
    server.give(&mut first, &frames, 100);
    server.give(&mut second, &[&frames[..1], &frames[2..]].concat(), 100);
    assert_eq!(server.hall.figures.counts.deliveries, 35);
    let mut tracker = std::mem::take(&mut first.tracker);
    server.hall.finish(1, 0, &mut tracker, Until::TheEnd);
    assert_eq!(server.hall.figures.faults.total(), 0);
    assert_eq!(server.faults(second).lost, 5);
}

#[test]
fn comments_of_others_in_the_room_are_left_alone() {
    let mut server = FakeRoom::new();
    let mut viewer = server.join(&[json!({"id": "x", "uid": "u", "name": "n", "text": "hello", "ts": 1})]);
    server.send(3, &[0, 1, 2]);
    let stranger =
        json!({"id": "000000000000000000000001", "uid": "g-9", "name": "Ann", "text": "哈哈哈哈哈哈哈哈", "ts": 5});
    let mut comments = server.comments.clone();
    comments.insert(1, stranger);
    server.give(&mut viewer, &encode(&[comments]), 100);
    assert_eq!(server.hall.figures.counts.deliveries, 3);
    assert_eq!(server.faults(viewer).total(), 0);
}

#[test]
fn a_frame_that_cannot_be_read_is_damaged() {
    let mut server = FakeRoom::new();
    let mut viewer = server.join(&[]);
    server.give(&mut viewer, &[text_frame(b"{\"type\":\"comments\",\"cursor\":\"c\",\"comm").to_vec()], 100);
    server.hall.figures.counts.errors.clear();
    assert_eq!(server.faults(viewer).damaged, 1);
}
