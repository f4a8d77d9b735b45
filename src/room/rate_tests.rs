//! Viewers who ask for fewer comments, in a room: what they get, what they are told, and what they share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use proptest::prelude::*;

use super::testing::{BEGUN, FakeSocket, config, made, registry, room_id, say};
use super::*;
use crate::model::{BatchEncoder, Format, FrameHead, Position, Tier, test_comment};

/// What a viewer with a rate was told, frame by frame.
#[derive(Debug, PartialEq)]
enum Told {
    Comments { times: Vec<i64>, places: Vec<u64>, left_out: u64 },
    Gap(u64),
}

#[derive(Debug, Default)]
struct TimedEncoder {
    format: Format,
    encoded: AtomicUsize,
}

impl BatchEncoder for TimedEncoder {
    fn format(&self) -> Format {
        self.format
    }

    fn comments(&self, head: &FrameHead, comments: &[&Arc<Posted>]) -> Bytes {
        self.encoded.fetch_add(1, Ordering::SeqCst);
        let mut frame = BytesMut::new();
        frame.put_u64(comments.len() as u64);
        frame.put_u64(head.left_out.unwrap_or(u64::MAX));
        for posted in comments {
            frame.put_i64(posted.comment.ts.millis());
            frame.put_u64(posted.seq.0);
        }
        frame.freeze()
    }

    fn gap(&self, missed: u64) -> Bytes {
        let mut frame = BytesMut::new();
        frame.put_u64(0);
        frame.put_u64(missed);
        frame.freeze()
    }
}

fn told(socket: &FakeSocket) -> Vec<Told> {
    let received = socket.received();
    let mut numbers = received.chunks(8).map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
    let mut told = Vec::new();
    while let Some(count) = numbers.next() {
        let number = numbers.next().unwrap();
        if count == 0 {
            told.push(Told::Gap(number));
            continue;
        }
        let (mut times, mut places) = (Vec::new(), Vec::new());
        for _ in 0..count {
            times.push(numbers.next().unwrap().cast_signed());
            places.push(numbers.next().unwrap());
        }
        told.push(Told::Comments { times, places, left_out: number });
    }
    told
}

/// How many a viewer got, and was told of as left out and as missed.
fn account(socket: &FakeSocket) -> [u64; 3] {
    let mut sums = [0; 3];
    for told in told(socket) {
        match told {
            Told::Comments { places, left_out, .. } => {
                sums[0] += places.len() as u64;
                sums[1] += left_out;
            }
            Told::Gap(missed) => sums[2] += missed,
        }
    }
    sums
}

fn times(socket: &FakeSocket) -> Vec<i64> {
    let times = |told| if let Told::Comments { times, .. } = told { times } else { Vec::new() };
    told(socket).into_iter().flat_map(times).collect()
}

fn most_in_a_second(times: &[i64]) -> usize {
    let within = |from: &i64| times.iter().filter(|ts| (*from..from + 1_000).contains(ts)).count();
    times.iter().map(within).max().unwrap_or_default()
}

/// A room that the test ticks.
fn quiet_room(ring: usize) -> Arc<Room> {
    let room = registry(config(ring)).0.get_or_make(&room_id()).unwrap();
    room.audience.begin_ticking(Seq::default());
    room
}

struct Tick {
    shown: Seq,
    delivered: Delivered,
}

impl Tick {
    fn new(room: &Room) -> Self {
        Self { shown: room.lock().ring.next(), delivered: Delivered::default() }
    }

    fn run(&mut self, room: &Room) {
        let fresh = room.cut_after(&mut self.shown);
        for viewer in room.audience.all() {
            self.delivered.add(viewer.offer(room, None, &fresh));
        }
    }
}

fn speak(room: &Arc<Room>, ts: i64, role: Role) {
    let sender = Sender { role, mark: None };
    room.publish(Timestamp::from_millis(ts), &sender, made, |_| Ok::<_, ()>(())).unwrap().unwrap();
}

fn enter(room: &Arc<Room>, socket: &Arc<FakeSocket>, rate: u32, begin: Begin) -> Joined {
    let taste = Taste { encoder: Arc::new(TimedEncoder::default()), tier: Tier::at_most(rate) };
    let joined = room.join(Arc::clone(socket) as Arc<dyn Socket>, taste, begin).unwrap();
    joined.seat.open();
    joined
}

#[derive(Clone, Debug)]
enum Op {
    /// So many comments at once, so long after the ones before, the first perhaps of a host.
    Publish(usize, i64, bool),
    Tick,
    Join(prop::sample::Index, u32),
    /// Joins at one of the places in the ring, in the middle of a batch or not.
    JoinAt(prop::sample::Index, u32),
    /// Comments that are lost to this node.
    Skip(usize),
    Allow(prop::sample::Index, usize),
    Advance(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let (index, rate) = (any::<prop::sample::Index>, prop::sample::select(vec![1, 2, 5, 20, 1000]));
    prop_oneof![
        8 => (1usize..20, 0i64..300, prop::bool::weighted(0.1)).prop_map(|(n, by, host)| Op::Publish(n, by, host)),
        8 => Just(Op::Tick),
        1 => (index(), rate.clone()).prop_map(|(at, rate)| Op::Join(at, rate)),
        2 => (index(), rate).prop_map(|(at, rate)| Op::JoinAt(at, rate)),
        1 => (0usize..20).prop_map(Op::Skip),
        4 => (index(), 0usize..600).prop_map(|(who, more)| Op::Allow(who, more)),
        2 => index().prop_map(Op::Advance),
    ]
}

proptest! {
    #[test]
    fn what_a_viewer_got_was_left_out_and_missed_is_all_there_was_since_it_joined(
        ring in 1usize..200,
        ops in prop::collection::vec(op(), 1..100),
    ) {
        let room = quiet_room(ring);
        let (mut tick, mut now) = (Tick::new(&room), BEGUN);
        let mut viewers = Vec::new();
        for op in ops {
            match op {
                Op::Publish(n, by, is_host) => {
                    now += by;
                    speak(&room, now, if is_host { Role::Host } else { Role::Viewer });
                    (1..n).for_each(|_| speak(&room, now, Role::Viewer));
                }
                Op::Tick => tick.run(&room),
                Op::Join(allowed, rate) => {
                    let socket = FakeSocket::stalled(allowed.index(4_000), usize::MAX);
                    let begin = room.lock().ring.cut_end();
                    viewers.push((begin, enter(&room, &socket, rate, Begin::Newest), socket));
                }
                Op::JoinAt(at, rate) => {
                    let mut state = room.lock();
                    state.ring.cut();
                    let (start, end) = (state.ring.start(), state.ring.cut_end());
                    drop(state);
                    let begin = start.plus(at.index(usize::try_from(end.since(start)).unwrap() + 1));
                    let socket = FakeSocket::open();
                    viewers.push((begin, enter(&room, &socket, rate, Begin::From(begin, None)), socket));
                }
                Op::Skip(n) => room.lock().ring.skip(&vec![Position::START; n]),
                Op::Allow(..) | Op::Advance(_) if viewers.is_empty() => {}
                Op::Allow(who, more) => viewers[who.index(viewers.len())].2.allow(more),
                Op::Advance(who) => {
                    viewers[who.index(viewers.len())].1.seat.advance();
                }
            }
        }
        for (_, joined, socket) in &viewers {
            socket.allow(usize::MAX);
            joined.seat.advance();
        }
        // Everybody gets this, and with it is told of what is still untold.
        speak(&room, now, Role::Host);
        tick.run(&room);
        let (mut sums, end) = ([0; 3], room.lock().ring.next());
        for (begin, joined, socket) in &viewers {
            joined.seat.advance();
            let own = account(socket);
            prop_assert_eq!(own.iter().sum::<u64>(), end.since(*begin), "{:?}", told(socket));
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let (metrics, ticked) = (&room.metrics, &tick.delivered);
        prop_assert_eq!(metrics.deliveries.get() + ticked.comments, sums[0]);
        prop_assert_eq!(metrics.left_out.get() + ticked.left_out, sums[1]);
        prop_assert_eq!(metrics.missed.get() + ticked.missed, sums[2]);
    }
}

#[test]
fn a_newcomer_is_not_told_of_what_was_left_out_before_it_came() {
    let room = quiet_room(1_000);
    let (mut tick, early, late) = (Tick::new(&room), FakeSocket::open(), FakeSocket::open());
    let _early = enter(&room, &early, 1, Begin::Newest);
    for _ in 0..50 {
        say(&room, BEGUN);
        tick.run(&room);
    }
    let _late = enter(&room, &late, 1, Begin::Newest);
    for _ in 0..3 {
        say(&room, BEGUN);
        tick.run(&room);
    }
    speak(&room, BEGUN, Role::Host);
    tick.run(&room);
    assert_eq!((account(&early), account(&late)), ([2, 52, 0], [1, 3, 0]));
}

#[test]
fn what_is_told_as_a_gap_is_not_told_as_left_out_as_well() {
    let room = quiet_room(50);
    let (mut tick, socket) = (Tick::new(&room), FakeSocket::stalled(30, usize::MAX));
    let joined = enter(&room, &socket, 20, Begin::Newest);
    for n in 0..300 {
        say(&room, BEGUN + n * 10);
        tick.run(&room);
    }
    socket.allow(usize::MAX);
    joined.seat.advance();
    speak(&room, BEGUN + 3_000, Role::Host);
    tick.run(&room);
    let [got, left_out, missed] = account(&socket);
    assert!(missed > 200 && left_out > 0, "{got} {left_out} {missed}");
    assert_eq!(got + left_out + missed, 301);
}

#[test]
fn the_first_viewer_with_a_rate_is_held_to_it_when_it_catches_up_too() {
    let room = quiet_room(1_000);
    let (mut tick, before) = (Tick::new(&room), room.newest_cursor());
    for n in 0..400 {
        say(&room, BEGUN + n * 10);
        if n % 7 == 0 {
            tick.run(&room);
        }
    }
    let socket = FakeSocket::open();
    let _joined = enter(&room, &socket, 5, Begin::After(before));
    tick.run(&room);
    speak(&room, BEGUN + 9_000, Role::Host);
    tick.run(&room);
    let [got, left_out, missed] = account(&socket);
    assert!(most_in_a_second(&times(&socket)) <= 5, "{:?}", times(&socket));
    assert!((15..=21).contains(&got), "{got} in four seconds");
    assert_eq!((got + left_out, missed), (401, 0));
}

#[test]
fn who_comes_back_after_a_restart_is_held_to_its_rate_also_where_old_and_new_meet() {
    for is_thinned_first in [false, true] {
        let room = quiet_room(1_000);
        let (mut tick, first) = (Tick::new(&room), FakeSocket::open());
        let _first = is_thinned_first.then(|| enter(&room, &first, 5, Begin::Newest));
        (0..100).for_each(|n| drop(say(&room, BEGUN + n * 10)));
        let older: Vec<_> = (0..400).map(|n| test_comment("r", BEGUN - 4_000 + n * 10, 7, "x")).collect();
        let cursor = Cursor { epoch: Epoch(1), seq: Seq(1), position: older[9].position(), given: None };
        assert!(room.prepend(older, true));
        let socket = FakeSocket::open();
        let joined = enter(&room, &socket, 5, Begin::After(cursor));
        assert!(joined.is_resumed);
        tick.run(&room);
        speak(&room, BEGUN + 9_000, Role::Host);
        tick.run(&room);
        let [got, left_out, missed] = account(&socket);
        assert!(most_in_a_second(&times(&socket)) <= 5, "{:?}", times(&socket));
        assert!(got >= 15, "{got} in five seconds");
        assert_eq!((got + left_out, missed), (390 + 101, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_starves_no_viewer() {
    let (rooms, clock) = registry(config(1_000));
    let room = rooms.get_or_make(&room_id()).unwrap();
    room.audience.begin_ticking(Seq::default());
    let (mut tick, socket) = (Tick::new(&room), FakeSocket::open());
    let _joined = enter(&room, &socket, 20, Begin::Newest);
    clock.set(Timestamp::from_millis(BEGUN));
    say(&room, clock.now().millis());
    clock.set(Timestamp::from_millis(BEGUN - 3_600_000));
    for _ in 0..500 {
        tokio::time::advance(Duration::from_millis(10)).await;
        clock.set(clock.now().plus(Duration::from_millis(10)));
        say(&room, clock.now().millis());
        tick.run(&room);
    }
    let times = times(&socket);
    assert!(times.iter().all(|ts| *ts == BEGUN), "the room's time stands still");
    assert!((80..=100).contains(&times.len()), "{} in five seconds", times.len());
}

#[test]
fn what_a_host_says_is_never_thinned_whether_here_or_on_another_node() {
    let room = quiet_room(1_000);
    let (mut tick, socket) = (Tick::new(&room), FakeSocket::open());
    let _joined = enter(&room, &socket, 1, Begin::Newest);
    (0..50).for_each(|_| drop(say(&room, BEGUN)));
    (0..10).for_each(|_| speak(&room, BEGUN, Role::Host));
    let relayed = |n| Relayed { comment: test_comment("r", BEGUN, n, "x"), sender: Role::Moderator };
    room.deliver((0..10).map(relayed).collect()).unwrap();
    room.deliver((10..20).map(|n| test_comment("r", BEGUN, n, "x").into()).collect()).unwrap();
    tick.run(&room);
    assert_eq!(account(&socket), [21, 59, 0]);
}

#[test]
fn frames_of_every_kind_are_encoded_once_and_shared() {
    let room = quiet_room(1_000);
    let (mut tick, mut now) = (Tick::new(&room), BEGUN);
    for format in Format::ALL {
        for rate in [0, 20] {
            now += 10_000;
            let encoder = Arc::new(TimedEncoder { format, ..TimedEncoder::default() });
            let taste = Taste { encoder: Arc::clone(&encoder) as _, tier: Tier::at_most(rate) };
            let join = |begin| room.join(FakeSocket::open(), taste.clone(), begin).unwrap();
            let viewers: Vec<_> = (0..5).map(|_| join(Begin::Newest)).collect();
            (0..6).for_each(|_| drop(say(&room, now)));
            tick.run(&room);
            assert!(viewers.iter().all(|viewer| viewer.seat.open() == Flow::Done));
            assert_eq!(encoder.encoded.load(Ordering::SeqCst), 1, "{format:?} at {rate}");
            // A crowd that comes back with one cursor, in the middle of the batch.
            let middle = room.lock().ring.cut_end().0 - 5;
            let back: Vec<_> = (0..5).map(|_| join(Begin::From(Seq(middle), None))).collect();
            assert!(back.iter().all(|viewer| viewer.seat.open() == Flow::Done));
            assert_eq!(encoder.encoded.load(Ordering::SeqCst), 2, "{format:?} at {rate}");
        }
    }
}

#[test]
fn who_tries_out_cursors_fills_no_memory() {
    let room = quiet_room(1_000);
    let mut tick = Tick::new(&room);
    (0..100).for_each(|_| drop(say(&room, BEGUN)));
    tick.run(&room);
    let encoder = Arc::new(TimedEncoder::default());
    let start = room.lock().ring.start();
    for turn in 1..=2 {
        for place in 1..100 {
            let taste = Taste::all(Arc::clone(&encoder) as _);
            let socket = FakeSocket::open();
            let joined = room.join(Arc::clone(&socket) as _, taste, Begin::From(start.plus(place), None)).unwrap();
            joined.seat.open();
            assert_eq!(told(&socket).len(), 1);
        }
        // Of the second turn four are still there.
        assert_eq!(encoder.encoded.load(Ordering::SeqCst), turn * 99 - (turn - 1) * 4);
    }
}

#[test]
fn a_forged_place_below_all_there_ever_were_is_told_as_nothing_missed() {
    let room = quiet_room(10);
    (0..5).for_each(|_| drop(say(&room, BEGUN)));
    room.lock().ring.cut();
    for seq in [0, 1, (1 << 32) - 2] {
        let forged = Cursor { seq: Seq(seq), position: Position::START, ..room.newest_cursor() };
        assert!(matches!(room.reach(&forged), Reach::Before { .. }), "as if it were of another life");
        let socket = FakeSocket::open();
        let _joined = enter(&room, &socket, 1000, Begin::After(forged));
        assert_eq!(account(&socket), [5, 0, 0], "{seq}");
    }
    let real = Cursor { seq: Seq((1 << 32) - 1), position: Position::START, ..room.newest_cursor() };
    assert_eq!(room.reach(&real), Reach::Ring);
}

#[test]
fn what_is_left_out_of_comments_put_in_front_is_told_with_the_live_ones() {
    let room = quiet_room(1_000);
    let mut tick = Tick::new(&room);
    // Settled live, with nothing before them.
    let _first = enter(&room, &FakeSocket::open(), 1, Begin::Newest);
    (0..3).for_each(|_| drop(say(&room, BEGUN)));
    tick.run(&room);
    // So near to the live ones that this tier gets none of them.
    let older = (0..7).map(|n| test_comment("r", BEGUN - 100, n, "x")).collect();
    assert!(room.prepend(older, true));
    let socket = FakeSocket::open();
    let start = room.lock().ring.start();
    let _joined = enter(&room, &socket, 1, Begin::From(start, None));
    assert_eq!(account(&socket), [1, 9, 0]);
    assert_eq!(room.metrics.left_out.get(), 9, "and counted the same");
}
