//! One viewer under random trouble: whatever its socket does, the bytes it took are whole frames in order.

use proptest::prelude::*;

use super::*;
use crate::model::Timestamp;
use crate::room::outgoing::MAX_OWN_BYTES;
use crate::room::testing::{
    BEGUN, FakeSocket, Frame, PlainEncoder, by, config, enter, made, own_frame, registry, room_id,
};
use crate::room::{Begin, Joined};

#[derive(Clone, Debug)]
enum Op {
    Publish(usize),
    /// Cuts, and offers the viewer what is new.
    Tick,
    Send(usize),
    Queue(usize),
    Flush,
    Announce,
    Allow(usize),
    AllowACall(usize),
    Advance,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1usize..5).prop_map(Op::Publish),
        4 => Just(Op::Tick),
        2 => (0usize..40).prop_map(Op::Send),
        2 => (0usize..40).prop_map(Op::Queue),
        1 => Just(Op::Flush),
        1 => Just(Op::Announce),
        4 => (1usize..200).prop_map(Op::Allow),
        1 => (1usize..60).prop_map(Op::AllowACall),
        3 => Just(Op::Advance),
    ]
}

struct Scene {
    room: Arc<Room>,
    socket: Arc<FakeSocket>,
    joined: Joined,
    shown: Seq,
    owns: Vec<Frame>,
    delivered: Delivered,
    /// What the next tick tells.
    news: Option<Bytes>,
}

impl Scene {
    fn new(ring: usize, socket: Arc<FakeSocket>) -> Self {
        let room = registry(config(ring)).0.get_or_make(&room_id()).unwrap();
        // The scene ticks itself.
        room.audience.begin_ticking(Seq::default());
        let joined = enter(&room, &socket, Begin::Newest);
        let shown = room.lock().ring.next();
        Self { room, socket, joined, shown, owns: Vec::new(), delivered: Delivered::default(), news: None }
    }

    fn publish(&self, n: usize) {
        for _ in 0..n {
            self.room.publish(Timestamp::from_millis(BEGUN), &by(None), made, |_| Ok::<_, ()>(())).unwrap().unwrap();
        }
    }

    fn tick(&mut self) {
        let fresh = self.room.cut_after(&mut self.shown);
        let news = self.news.take();
        self.delivered.add(self.joined.seat.viewer().offer(&self.room, news.as_ref(), &fresh));
    }

    fn send(&mut self, padding: usize) -> bool {
        let is_queued = self.queue(padding);
        self.joined.seat.flush();
        is_queued
    }

    fn queue(&mut self, padding: usize) -> bool {
        let n = u32::try_from(self.owns.len()).unwrap();
        let is_queued = self.joined.seat.queue(own_frame(n, padding));
        if is_queued {
            self.owns.push(Frame::Own(n));
        }
        is_queued
    }

    /// Tells it with a tick.
    fn announce(&mut self) {
        let n = u32::try_from(self.owns.len()).unwrap();
        self.news = Some(own_frame(n, 3));
        self.owns.push(Frame::Own(n));
        self.tick();
    }

    /// What the session does once its socket has room again.
    fn recover(&self) -> Flow {
        self.socket.allow_a_call(usize::MAX);
        self.socket.allow(usize::MAX);
        self.joined.seat.advance()
    }

    /// Every comment from the first to the last was had or told as missed, in order; gives (had, missed).
    fn account(&self) -> (u64, u64) {
        let mut next = self.joined.cursor.seq.0 + 1;
        let (mut had, mut missed, mut owns) = (0, 0, Vec::new());
        for frame in self.socket.frames() {
            match frame {
                Frame::Comments(places) => places.into_iter().for_each(|place| {
                    assert_eq!(place, next, "doubled, skipped or out of order");
                    (next, had) = (next + 1, had + 1);
                }),
                Frame::Gap(n) => {
                    assert!(n > 0);
                    (next, missed) = (next + n, missed + n);
                }
                own @ Frame::Own(_) => owns.push(own),
            }
        }
        assert_eq!(Seq(next), self.room.lock().ring.next(), "not all of it has come");
        assert_eq!(owns, self.owns);
        (had, missed)
    }
}

proptest! {
    #[test]
    fn every_comment_is_had_once_or_told_as_missed(
        ring in 1usize..30,
        allowed in 0usize..300,
        open_after in 0usize..6,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut scene = Scene::new(ring, FakeSocket::stalled(allowed, usize::MAX));
        scene.send(20);
        for (i, op) in ops.into_iter().enumerate() {
            if i == open_after {
                scene.joined.seat.open();
            }
            match op {
                Op::Publish(n) => scene.publish(n),
                Op::Tick => scene.tick(),
                Op::Send(padding) => prop_assert!(scene.send(padding)),
                Op::Queue(padding) => prop_assert!(scene.queue(padding)),
                Op::Flush => scene.joined.seat.flush(),
                Op::Announce if i >= open_after => scene.announce(),
                Op::Announce => {}
                Op::Allow(more) => scene.socket.allow(more),
                Op::AllowACall(most) => scene.socket.allow_a_call(most),
                Op::Advance => {
                    scene.joined.seat.advance();
                }
            }
        }
        scene.joined.seat.open();
        scene.recover();
        scene.tick();
        prop_assert_eq!(scene.joined.seat.advance(), Flow::Done);
        let (had, missed) = scene.account();
        let metrics = &scene.room.metrics;
        prop_assert_eq!(metrics.deliveries.get() + scene.delivered.comments, had);
        prop_assert_eq!(metrics.missed.get() + scene.delivered.missed, missed);
    }
}

#[tokio::test]
async fn a_blocked_viewer_is_told_so_and_gets_the_rest_when_there_is_room() {
    let mut scene = Scene::new(100, FakeSocket::stalled(7, usize::MAX));
    scene.joined.seat.open();
    scene.publish(3);
    scene.tick();
    assert!(scene.joined.seat.viewer().progress().0);
    tokio::time::timeout(std::time::Duration::from_secs(5), scene.joined.seat.viewer().blocked()).await.unwrap();
    let calls = scene.socket.calls();
    scene.publish(2);
    scene.tick();
    assert_eq!(scene.socket.calls(), calls, "the tick leaves a full socket alone");
    assert_eq!(scene.recover(), Flow::Done);
    assert_eq!(scene.account(), (5, 0));
}

#[test]
fn answers_that_are_queued_together_share_a_write() {
    let mut scene = Scene::new(10, FakeSocket::open());
    scene.joined.seat.open();
    let calls = scene.socket.calls();
    for _ in 0..PARTS {
        assert!(scene.queue(0));
    }
    assert_eq!(scene.socket.calls(), calls, "they wait for the flush");
    scene.joined.seat.flush();
    scene.joined.seat.flush();
    assert_eq!(scene.socket.calls(), calls + 1);
    assert_eq!(scene.account(), (0, 0));
}

#[test]
fn more_answers_than_may_wait_go_out_on_the_way() {
    let mut scene = Scene::new(10, FakeSocket::open());
    scene.joined.seat.open();
    for _ in 0..4 * MAX_OWN_BYTES / 1_000 {
        assert!(scene.queue(1_000), "the socket takes everything");
    }
    scene.joined.seat.flush();
    assert_eq!(scene.account(), (0, 0));
}

#[test]
fn a_stream_longer_than_one_vectored_write_arrives_whole() {
    let mut scene = Scene::new(1000, FakeSocket::stalled(0, usize::MAX));
    scene.joined.seat.open();
    for _ in 0..PARTS * 2 + 3 {
        scene.publish(1);
        scene.tick();
        assert!(scene.send(0));
    }
    assert_eq!(scene.recover(), Flow::Done);
    assert_eq!(scene.account(), (PARTS as u64 * 2 + 3, 0));
}

#[test]
fn what_a_viewer_may_have_waiting_of_its_own_is_bounded() {
    let mut scene = Scene::new(10, FakeSocket::stalled(0, usize::MAX));
    let mut waiting = 0;
    while scene.send(10_000) {
        waiting += 10_009;
        assert!(waiting <= MAX_OWN_BYTES + 10_009);
    }
    assert!(waiting > MAX_OWN_BYTES);
    scene.recover();
    assert!(scene.send(0), "once it has had them there is room again");
    assert_eq!(scene.account(), (0, 0));
}

#[test]
fn no_comment_follows_once_a_viewer_leaves_but_its_goodbye_does() {
    let mut scene = Scene::new(100, FakeSocket::stalled(7, usize::MAX));
    scene.joined.seat.open();
    scene.publish(1);
    scene.tick();
    while scene.send(10_000) {}
    scene.joined.seat.leave(own_frame(98, 5));
    scene.news = Some(own_frame(99, 0));
    scene.publish(1);
    scene.tick();
    scene.joined.seat.open();
    scene.recover();
    let first = scene.joined.cursor.seq.0 + 1;
    let frames = scene.socket.frames();
    assert_eq!(frames.first(), Some(&Frame::Comments(vec![first])));
    assert_eq!(frames.last(), Some(&Frame::Own(98)), "however much waits before it");
    assert_eq!(frames.len(), scene.owns.len() + 2);
    assert_eq!(scene.room.online(), 0, "who leaves counts no more, though its last frames still go out");
}

#[test]
fn nothing_goes_before_the_hello_and_of_earlier_news_the_latest_follows_it() {
    let mut scene = Scene::new(100, FakeSocket::open());
    scene.news = Some(own_frame(8, 0));
    scene.tick();
    scene.news = Some(own_frame(9, 0));
    scene.publish(1);
    scene.tick();
    assert!(scene.send(0));
    scene.joined.seat.open();
    let first = scene.joined.cursor.seq.0 + 1;
    assert_eq!(scene.socket.frames(), [Frame::Own(0), Frame::Own(9), Frame::Comments(vec![first])]);
}

#[test]
fn a_viewer_that_is_gone_stays_gone() {
    let mut scene = Scene::new(100, FakeSocket::stalled(7, usize::MAX));
    scene.joined.seat.open();
    scene.publish(1);
    scene.tick();
    scene.socket.die();
    assert_eq!(scene.joined.seat.advance(), Flow::Gone);
    scene.socket.revive();
    scene.socket.allow(usize::MAX);
    let received = scene.socket.received();
    assert_eq!(scene.joined.seat.open(), Flow::Gone);
    scene.joined.seat.leave(own_frame(1, 0));
    let _either_way = scene.send(0);
    scene.publish(1);
    scene.tick();
    assert_eq!(scene.joined.seat.advance(), Flow::Gone);
    assert_eq!(scene.socket.received(), received, "half a frame was out: nothing may follow it");
}

#[test]
fn the_socket_of_one_who_left_is_let_go_of_though_the_room_remembers_it() {
    let scene = Scene::new(100, FakeSocket::open());
    scene.joined.seat.open();
    let remembered = scene.room.audience.all();
    assert_eq!(Arc::strong_count(&scene.socket), 2);
    drop(scene.joined);
    assert_eq!((remembered.len(), Arc::strong_count(&scene.socket)), (1, 1));
}

#[test]
fn who_begins_in_the_middle_of_a_batch_gets_the_rest_of_it() {
    let mut scene = Scene::new(100, FakeSocket::open());
    scene.publish(4);
    scene.tick();
    let socket = FakeSocket::open();
    let start = scene.room.lock().ring.start();
    let joined = enter(&scene.room, &socket, Begin::From(start.plus(2), None));
    assert_eq!(joined.cursor.seq, start.plus(1));
    joined.seat.open();
    assert_eq!(socket.places(), [start.0 + 2, start.0 + 3]);
}

#[test]
fn viewers_of_one_format_share_the_encoded_bytes() {
    let mut scene = Scene::new(100, FakeSocket::open());
    let encoder = Arc::new(PlainEncoder::default());
    let join = || scene.room.join(FakeSocket::open(), Taste::all(Arc::clone(&encoder) as _), Begin::Newest);
    let others: Vec<_> = (0..5).map(|_| join().unwrap()).collect();
    scene.publish(3);
    scene.tick();
    assert!(others.iter().all(|other| other.seat.open() == Flow::Done));
    assert_eq!(encoder.encoded.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn who_comes_back_when_all_has_expired_is_told_at_once() {
    let mut scene = Scene::new(100, FakeSocket::open());
    let cursor = scene.room.lock().ring.cursor();
    scene.publish(3);
    scene.tick();
    scene.room.drop_expired(Timestamp::from_millis(i64::MAX));
    let socket = FakeSocket::open();
    let joined = enter(&scene.room, &socket, Begin::After(cursor));
    joined.seat.open();
    assert_eq!(socket.frames(), [Frame::Gap(3)]);
}
