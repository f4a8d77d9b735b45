//! Rooms and their registry: order, joining, retiring, and the tick.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;

use bytes::Bytes;
use tokio::time::{advance, timeout};

use super::testing::{BEGUN, FakeSocket, Frame, PlainEncoder, by, config, enter, made, registry, room_id, say};
use super::*;
use crate::model::{BatchEncoder, Fate, Format, FrameHead, test_comment};

fn at(ts: i64) -> Timestamp {
    Timestamp::from_millis(ts)
}

fn room() -> Arc<Room> {
    registry(config(1000)).0.get_or_make(&room_id()).unwrap()
}

fn all(room: &Room) -> Vec<Arc<Posted>> {
    room.snapshot(Timestamp::MIN).comments
}

/// Waits, in real time, until the socket has had so many comments.
async fn until_had(socket: &FakeSocket, n: usize) {
    #[expect(clippy::disallowed_methods, reason = "a deadline in real time, also while tokio's time is paused")]
    let begun = std::time::Instant::now();
    while socket.places().len() < n {
        assert!(begun.elapsed() < Duration::from_secs(10), "had only {:?} of {n}", socket.frames());
        tokio::task::yield_now().await;
    }
}

#[test]
fn the_ring_has_the_order_in_which_comments_were_kept() {
    let (registry, clock) = registry(config(10_000));
    let room = registry.get_or_make(&room_id()).unwrap();
    let kept = Mutex::new(Vec::new());
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for i in 0..4 {
            let (room, kept, clock, barrier) = (&room, &kept, &clock, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for n in 0..500 {
                    // One thread sets the clock forth and back by five minutes.
                    if i == 0 {
                        clock.set(at(BEGUN + i64::from(n % 3) * 300_000 - i64::from(n) * 10));
                    }
                    let keep = |posted: Arc<Posted>| {
                        kept.lock().unwrap().push(posted.seq);
                        Ok::<_, ()>(())
                    };
                    room.publish(clock.now(), &by(None), made, keep).unwrap().unwrap();
                }
            });
        }
    });
    let all = all(&room);
    assert_eq!(all.iter().map(|posted| posted.seq).collect::<Vec<_>>(), kept.into_inner().unwrap());
    assert_eq!(all.len(), 2000);
    assert!(all.windows(2).all(|two| two[0].comment.position() < two[1].comment.position()));
    assert!(all.windows(2).all(|two| two[0].comment.ts <= two[1].comment.ts));
}

#[test]
fn time_never_goes_back_and_ids_rise_when_their_counter_comes_round() {
    let (registry, _) = registry(config(1000));
    registry.ids.start_counting_at(0x00FF_FFFD);
    let room = registry.get_or_make(&room_id()).unwrap();
    let said: Vec<_> = [0, 0, 0, 0, 0, -300_000, 1].map(|by| say(&room, BEGUN + by)).into();
    assert!(said.windows(2).all(|two| two[0].comment.position() < two[1].comment.position()));
    assert!(said.iter().all(|posted| (BEGUN..=BEGUN + 1).contains(&posted.comment.ts.millis())), "{said:?}");
}

#[test]
fn time_goes_on_from_what_the_store_has_even_if_the_clock_was_set_back() {
    let room = room();
    let stored = test_comment("r", BEGUN + 300_000, 5, "from before");
    room.prepend(vec![stored.clone()], true);
    assert!(say(&room, BEGUN).comment.position() > stored.position());
}

#[test]
fn a_comment_that_was_not_kept_leaves_no_trace() {
    let room = room();
    let (uid, nonce) = (UserId::new("u"), Nonce::parse("n").unwrap());
    let refused = room.publish(at(BEGUN + 50), &by(Some((&uid, &nonce))), made, |_| Err("full"));
    assert_eq!(refused.unwrap().unwrap_err(), "full");
    assert!(all(&room).is_empty() && room.find_resent(&uid, &nonce).is_none());
    let next = room.lock().ring.next();
    let published = room.publish(at(BEGUN), &by(Some((&uid, &nonce))), made, |_| Ok::<_, ()>(())).unwrap().unwrap();
    assert!(matches!(&published, Published::Accepted(posted) if posted.seq == next && posted.comment.ts == at(BEGUN)));
}

#[test]
fn a_comment_that_is_resent_is_one_comment() {
    let room = room();
    let (uid, nonce) = (UserId::new("u"), Nonce::parse("n").unwrap());
    let mark = Some((&uid, &nonce));
    let first = room.publish(at(BEGUN), &by(mark), made, |_| Ok::<_, ()>(())).unwrap().unwrap();
    let again =
        room.publish(at(BEGUN), &by(mark), made, |_| -> Result<(), ()> { panic!("kept twice") }).unwrap().unwrap();
    assert!(matches!(&again, Published::Resent(posted) if Arc::ptr_eq(posted, first.posted())));
    assert_eq!(all(&room).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_while_others_publish_has_no_gap_and_no_double() {
    let room = room();
    let (due, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let publishers: Vec<_> = (0..2)
        .map(|_| {
            let (room, due, is_over) = (Arc::clone(&room), Arc::clone(&due), Arc::clone(&is_over));
            thread::spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    if due.fetch_update(Ordering::AcqRel, Ordering::Acquire, |due| due.checked_sub(1)).is_ok() {
                        say(&room, BEGUN);
                    }
                }
            })
        })
        .collect();
    let mut viewers = Vec::new();
    for _ in 0..100 {
        // So many are published while this viewer joins.
        due.fetch_add(9, Ordering::AcqRel);
        let socket = FakeSocket::open();
        let joined = enter(&room, &socket, Begin::Newest);
        joined.seat.open();
        viewers.push((joined, socket));
        while due.load(Ordering::Acquire) > 4 {
            tokio::task::yield_now().await;
        }
    }
    is_over.store(true, Ordering::Release);
    publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    let end = room.lock().ring.next();
    for (joined, socket) in viewers {
        let begin = joined.cursor.seq.plus(1);
        until_had(&socket, usize::try_from(end.since(begin)).unwrap()).await;
        assert_eq!(socket.places(), (begin.0..end.0).collect::<Vec<_>>());
        let recent: Vec<_> = joined.recent.iter().map(|posted| posted.seq.0).collect();
        assert_eq!(recent, (begin.0 - recent.len() as u64..begin.0).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_its_first_frame_resumes_without_loss() {
    let room = room();
    say(&room, BEGUN);
    let lost = enter(&room, &FakeSocket::open(), Begin::Newest);
    assert!(lost.recent.is_empty());
    let socket = FakeSocket::open();
    let resumed = enter(&room, &socket, Begin::After(lost.cursor));
    resumed.seat.open();
    until_had(&socket, 1).await;

    let start = room.lock().ring.start();
    let lost = enter(&room, &FakeSocket::open(), Begin::From(start, None));
    let socket = FakeSocket::open();
    enter(&room, &socket, Begin::After(lost.cursor)).seat.open();
    assert_eq!(socket.places(), [start.0]);
}

#[tokio::test(start_paused = true)]
async fn a_room_retires_once_nobody_needs_it() {
    let (registry, _) = registry(RoomConfig { ring: 1, ..config(1) });
    let joined = enter(&registry.get_or_make(&room_id()).unwrap(), &FakeSocket::open(), Begin::Newest);
    let room = Arc::clone(joined.seat.room());
    let long = registry.config.evict_after + Duration::from_secs(1);
    let posted = [say(&room, BEGUN), say(&room, BEGUN)];
    room.lock().ring.cut();
    let newest = say(&room, BEGUN);
    assert_eq!(room.overhang.load(Ordering::SeqCst), 2);
    advance(long).await;
    assert_eq!(registry.sweep(), 0, "somebody is in it");
    drop(joined);
    advance(registry.config.evict_after - Duration::from_millis(1)).await;
    newest.settle(Fate::Stored);
    assert_eq!(registry.sweep(), 0, "it is not over for long enough, and two are on their way");
    advance(long).await;
    assert_eq!(registry.sweep(), 0, "two that left the ring are on their way to the store");
    posted.iter().for_each(|posted| posted.settle(Fate::Stored));
    assert_eq!((registry.sweep(), registry.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_room_stays_while_it_is_used_or_a_fate_is_open() {
    let (registry, _) = registry(config(10));
    let room = registry.get_or_make(&room_id()).unwrap();
    let posted = say(&room, BEGUN);
    advance(registry.config.evict_after).await;
    assert_eq!(registry.sweep(), 0, "its fate is open");
    posted.settle(Fate::SetAside);
    advance(Duration::from_secs(1)).await;
    say(&room, BEGUN).settle(Fate::Stored);
    advance(registry.config.evict_after - Duration::from_millis(1)).await;
    assert_eq!(registry.sweep(), 0, "it was used a moment ago");
    advance(Duration::from_millis(1)).await;
    assert_eq!(registry.sweep(), 1);
    let comments = vec![test_comment("r", BEGUN, 1, "x").into()];
    assert_eq!(room.deliver(comments), Err(Retired));
    let mut tried = Vec::new();
    let made_anew = registry.with(&room_id(), |found| {
        tried.push(found.epoch());
        if tried.len() == 1 { Err(Retired) } else { Ok(found.epoch()) }
    });
    assert!(made_anew.unwrap() != room.epoch() && tried.len() == 2);
}

#[test]
fn there_are_never_more_rooms_than_may_be() {
    let (registry, _) = registry(RoomConfig { max_rooms: 10, ..config(10) });
    let barrier = Barrier::new(8);
    let make = |i: usize| registry.get_or_make(&RoomId::parse(&format!("r{i}")).unwrap());
    thread::scope(|scope| {
        for i in 0..8 {
            let (barrier, make) = (&barrier, &make);
            scope.spawn(move || {
                barrier.wait();
                (0..50).for_each(|n| drop(make(i * 50 + n)));
            });
        }
    });
    assert_eq!((registry.len(), registry.rooms.len()), (10, 10));
    assert_eq!(make(1000).unwrap_err(), TooManyRooms(10));
    let known = registry.rooms.iter().next().unwrap().key().clone();
    registry.get_or_make(&known).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_comment_is_lost_as_the_last_leaves_and_the_first_joins() {
    let (registry, _) = registry(RoomConfig { evict_after: Duration::ZERO, ..config(1 << 20) });
    let (is_over, evicted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let sweeper = thread::spawn({
        let (registry, is_over, evicted) = (registry.clone(), Arc::clone(&is_over), Arc::clone(&evicted));
        move || {
            while !is_over.load(Ordering::Acquire) {
                evicted.fetch_add(registry.sweep(), Ordering::AcqRel);
            }
        }
    });
    let publisher = thread::spawn({
        let (registry, is_over) = (registry.clone(), Arc::clone(&is_over));
        move || {
            while !is_over.load(Ordering::Acquire) {
                let publish = |room: &Arc<Room>| room.publish(at(BEGUN), &by(None), made, |_| Ok::<_, ()>(()));
                let published = registry.with(&room_id(), publish).unwrap().unwrap();
                // Settled at once, so that rooms can be dropped in between.
                published.posted().settle(Fate::Stored);
                thread::yield_now();
            }
        }
    });
    let mut joins = 0;
    // However the threads are scheduled, some rooms must have been dropped in between.
    while joins < 100 || evicted.load(Ordering::Acquire) < 10 {
        joins += 1;
        assert!(joins < 100_000, "no room was dropped in between");
        let socket = FakeSocket::open();
        let joined = registry.with(&room_id(), |room| {
            room.join(
                Arc::clone(&socket) as Arc<dyn Socket>,
                Taste::all(Arc::new(PlainEncoder::default())),
                Begin::Newest,
            )
        });
        let joined = joined.unwrap();
        joined.seat.open();
        let own = say(joined.seat.room(), BEGUN);
        own.settle(Fate::Stored);
        until_had(&socket, usize::try_from(own.seq.since(joined.cursor.seq)).unwrap()).await;
        let had = socket.places();
        assert!(had.iter().zip(joined.cursor.seq.0 + 1..).all(|(had, place)| *had == place), "{had:?}");
        assert!(Arc::ptr_eq(&registry.get(&room_id()).unwrap(), joined.seat.room()), "dropped from under a viewer");
    }
    is_over.store(true, Ordering::Release);
    publisher.join().unwrap();
    sweeper.join().unwrap();
    registry.sweep();
    assert!(registry.is_empty() && registry.rooms.is_empty());
    assert_eq!(registry.metrics.viewers.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_room_delivers_at_once_and_a_busy_one_in_batches() {
    let room = room();
    let socket = FakeSocket::open();
    let joined = enter(&room, &socket, Begin::Newest);
    joined.seat.open();
    let begun = Instant::now();
    say(&room, BEGUN);
    until_had(&socket, 1).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    for _ in 0..100 {
        advance(Duration::from_millis(5)).await;
        say(&room, BEGUN);
        tokio::task::yield_now().await;
    }
    advance(room.config.max_window).await;
    until_had(&socket, 101).await;
    let frames = socket.frames().into_iter().filter(|frame| matches!(frame, Frame::Comments(_))).count();
    assert!((25..60).contains(&frames), "{frames} frames for 500 ms of a busy room");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_has_come_in_to_be_shown_waits_for_the_tick_and_not_without_one() {
    let room = room();
    room.shown().await;
    let socket = FakeSocket::open();
    let joined = enter(&room, &socket, Begin::Newest);
    joined.seat.open();
    room.shown().await;
    for n in 1..20 {
        say(&room, BEGUN);
        room.shown().await;
        assert_eq!(socket.places().len(), n);
    }
}

#[tokio::test(start_paused = true)]
async fn the_tick_ends_when_nobody_is_there_and_starts_again() {
    let room = room();
    for n in 1..4 {
        let socket = FakeSocket::open();
        let joined = enter(&room, &socket, Begin::Newest);
        joined.seat.open();
        say(&room, BEGUN);
        until_had(&socket, 1).await;
        assert!(room.audience.is_ticking());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(room.audience.is_ticking(), "somebody is there");
        drop(joined);
        let ended = async {
            while room.audience.is_ticking() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        timeout(Duration::from_secs(30), ended).await.unwrap();
        assert_eq!(all(&room).len(), n * 2 - 1);
        // Nobody cuts this one until the next viewer comes: it is in that one's frames.
        say(&room, BEGUN);
        let socket = FakeSocket::open();
        let next = enter(&room, &socket, Begin::Newest);
        next.seat.open();
        until_had(&socket, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_tick_of_a_quiet_room_lets_go_of_those_who_left() {
    let room = room();
    let (stays, leaves) = (FakeSocket::open(), FakeSocket::open());
    let stays = enter(&room, &stays, Begin::Newest);
    let leaves = enter(&room, &leaves, Begin::Newest);
    say(&room, BEGUN);
    room.dirty.notify_one();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let gone = Arc::downgrade(&room.audience.all()[1]);
    drop(leaves);
    assert!(gone.upgrade().is_some(), "the tick has it in its list");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(gone.upgrade().is_none());
    drop(stays);
}

/// Panics once, at the batch that has this place in it.
#[derive(Debug)]
struct Faulty(u64);

impl BatchEncoder for Faulty {
    fn format(&self) -> Format {
        Format::Zstd
    }

    fn comments(&self, head: &FrameHead, comments: &[&Arc<Posted>]) -> Bytes {
        assert!(comments.iter().all(|posted| posted.seq.0 != self.0), "a fault that should show in the log");
        PlainEncoder::default().comments(head, comments)
    }

    fn gap(&self, missed: u64) -> Bytes {
        PlainEncoder::default().gap(missed)
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_in_writing_to_one_viewer_is_felt_by_nobody_else() {
    let room = room();
    let sockets = [FakeSocket::open(), FakeSocket::open()];
    let before = enter(&room, &sockets[0], Begin::Newest);
    let bad = room.lock().ring.next();
    let faulty = room.join(FakeSocket::open(), Taste::all(Arc::new(Faulty(bad.0))), Begin::Newest).unwrap();
    let behind = enter(&room, &sockets[1], Begin::Newest);
    for joined in [&before, &faulty, &behind] {
        assert_eq!(joined.seat.open(), Flow::Done);
    }
    for count in 1..3 {
        say(&room, BEGUN);
        until_had(&sockets[0], count).await;
        until_had(&sockets[1], count).await;
    }
    timeout(Duration::from_secs(5), faulty.seat.viewer().blocked()).await.expect("its session is roused");
    assert_eq!(faulty.seat.advance(), Flow::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_room_that_is_spread_over_the_cores_leaves_nobody_out() {
    let room = room();
    let sockets: Vec<_> = (0..2000).map(|_| FakeSocket::open()).collect();
    let joined: Vec<_> = sockets.iter().map(|socket| enter(&room, socket, Begin::Newest)).collect();
    assert!(joined.iter().all(|joined| joined.seat.open() == Flow::Done));
    let first = room.lock().ring.next().0;
    for _ in 0..20 {
        say(&room, BEGUN);
        tokio::task::yield_now().await;
    }
    let expected: Vec<_> = (first..first + 20).collect();
    for socket in &sockets {
        until_had(socket, 20).await;
        assert_eq!(socket.places(), expected);
    }
}
