use std::io::{self, IoSlice};

use super::*;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::model::{RoomId, Socket, Timestamp};
use crate::room::{Begin, Registry, RoomConfig, Taste};
use crate::wire::JsonEncoder;

/// Counts the pings it takes.
#[derive(Default)]
struct Counter(AtomicU64);

impl Socket for Counter {
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let pings = parts.iter().filter(|part| ***part == PING[..]).count();
        self.0.fetch_add(pings as u64, Ordering::Relaxed);
        Ok(parts.iter().map(|part| part.len()).sum())
    }
}

fn link(wheel: &Wheel) -> (Arc<Link>, Arc<Counter>) {
    let config = RoomConfig {
        ring: 10,
        recent: 1,
        max_window: Duration::from_millis(100),
        evict_after: Duration::ZERO,
        max_rooms: 1,
    };
    let clock = Clock::manual(Timestamp::from_millis(1));
    let rooms = Registry::new(config, clock, Arc::new(Metrics::default()), None);
    let room = rooms.get_or_make(&RoomId::parse("r").unwrap()).unwrap();
    let socket = Arc::new(Counter::default());
    let joined = room.join(Arc::clone(&socket) as _, Taste::all(Arc::new(JsonEncoder)), Begin::Newest).unwrap();
    (wheel.take_on(joined.seat), socket)
}

fn pings(socket: &Counter) -> u64 {
    socket.0.load(Ordering::Relaxed)
}

async fn turn(wheel: &Wheel, notches: usize) {
    for _ in 0..notches {
        wheel.turn_once().await;
    }
}

#[tokio::test]
async fn clients_that_came_together_are_asked_apart_in_every_round() {
    let wheel = Wheel::new(Duration::from_secs(50), Duration::from_secs(10));
    let links: Vec<_> = (0..300).map(|_| link(&wheel)).collect();
    let asked = || links.iter().map(|(_, socket)| pings(socket)).sum::<u64>();
    for round in 1..=3 {
        let mut at_once = Vec::new();
        while asked() < round * 300 {
            let before = asked();
            wheel.turn_once().await;
            at_once.push(asked() - before);
            links
                .iter()
                .filter(|(link, _)| link.asked.load(Ordering::Relaxed) > 0)
                .for_each(|(link, _)| wheel.heard(link));
        }
        assert!(at_once.iter().all(|asked| *asked <= 150), "round {round}: {at_once:?}");
    }
}

#[tokio::test]
async fn a_silent_client_is_asked_once_and_given_up_after_the_timeout() {
    let wheel = Wheel::new(Duration::from_secs(50), Duration::from_secs(10));
    let (link, socket) = link(&wheel);
    turn(&wheel, 44).await;
    assert_eq!((pings(&socket), link.is_lost()), (0, false), "not before nine tenths of the interval");
    turn(&wheel, 6).await;
    assert_eq!((pings(&socket), link.is_lost()), (1, false));
    turn(&wheel, 10).await;
    assert!(link.is_lost());
    link.seat.viewer().blocked().await;
}

#[tokio::test]
async fn a_client_that_answers_is_asked_again_and_stays() {
    let wheel = Wheel::new(Duration::from_secs(50), Duration::from_secs(10));
    let (link, socket) = link(&wheel);
    for _ in 0..1000 {
        let before = pings(&socket);
        wheel.turn_once().await;
        if pings(&socket) > before {
            wheel.heard(&link);
        }
    }
    assert!(!link.is_lost());
    assert!((18..=23).contains(&pings(&socket)), "{}", pings(&socket));
}

#[tokio::test]
async fn a_timeout_longer_than_the_interval_delays_neither_pings_nor_the_end() {
    let wheel = Wheel::new(Duration::from_secs(50), Duration::from_secs(200));
    let (link, socket) = link(&wheel);
    for round in 1..=5 {
        for _ in 0..50 {
            wheel.turn_once().await;
            if pings(&socket) == round {
                wheel.heard(&link);
            }
        }
        assert_eq!(pings(&socket), round, "one in each interval");
    }
    // It answered the last one and is gone.
    turn(&wheel, 50 + 200).await;
    assert!(link.is_lost());
}

#[tokio::test]
async fn who_talks_is_never_asked_and_who_leaves_is_forgotten() {
    let wheel = Wheel::new(Duration::from_secs(50), Duration::from_secs(10));
    let (link, socket) = link(&wheel);
    for _ in 0..500 {
        wheel.heard(&link);
        wheel.turn_once().await;
    }
    assert_eq!(pings(&socket), 0);
    drop(link);
    turn(&wheel, 100).await;
    assert!(wheel.inner.slots.iter().all(|slot| slot.lock().unwrap().is_empty()));
}

#[test]
fn a_long_timeout_does_not_make_a_huge_wheel() {
    let wheel = Wheel::new(Duration::from_secs(1), Duration::from_secs(24 * 3600));
    assert!(wheel.inner.slots.len() <= MOST_SLOTS as usize + 2, "{}", wheel.inner.slots.len());
}
