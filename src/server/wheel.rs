//! The wheel that notices peers that are gone: one task for all connections, so that an idle one has no timer.
//!
//! A connection from which nothing came for the ping interval is sent a ping; one that does not answer within the
//! timeout is given up. Both are noticed at most one turn of a notch late.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::room::Seat;
use crate::shutdown::Shutdown;
use crate::wire::PING;

/// Notches in the ping interval: how finely connections are told apart.
const NOTCHES: u32 = 50;

/// Most notches in the timeout: a bound on the wheel's size where the timeout is far longer than the interval.
const MOST_SLOTS: u32 = 4096;

/// After so many links the wheel lets other tasks of its core run, for each may be a write.
const YIELD_EVERY: usize = 128;

/// A session's viewer, and when its client was last heard.
pub(super) struct Link {
    pub(super) seat: Seat,
    /// Notches since the wheel began, at the last sign of life.
    heard: AtomicU64,
    /// By so many notches the next ping comes before the interval is over.
    early: AtomicU64,
    /// The notch in which it was sent a ping that is not answered yet; 0 for none.
    asked: AtomicU64,
    is_lost: AtomicBool,
}

impl Link {
    /// Whether the client did not answer in time.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
}

/// The wheel. Clones share it.
#[derive(Clone)]
pub struct Wheel {
    inner: Arc<Inner>,
}

struct Inner {
    notch: Duration,
    interval: u64,
    timeout: u64,
    now: AtomicU64,
    /// Who is looked at in which notch; notch n is slot n modulo their number.
    slots: Vec<Mutex<Vec<Weak<Link>>>>,
}

impl Wheel {
    /// A wheel that does not turn yet.
    #[must_use]
    pub fn new(ping_interval: Duration, ping_timeout: Duration) -> Self {
        let notch = (ping_interval / NOTCHES).max(ping_timeout / MOST_SLOTS).max(Duration::from_millis(1));
        // Rounded up: a client has at least the time that it was promised.
        let notches = |time: Duration| u64::try_from(time.as_nanos().div_ceil(notch.as_nanos())).unwrap_or(u64::MAX);
        let (interval, timeout) = (notches(ping_interval), notches(ping_timeout));
        let slots = interval.max(timeout).saturating_add(2);
        let slots = (0..slots).map(|_| Mutex::default()).collect();
        Self { inner: Arc::new(Inner { notch, interval, timeout, now: AtomicU64::new(0), slots }) }
    }

    /// Takes on a viewer that was heard just now.
    pub(super) fn take_on(&self, seat: Seat) -> Arc<Link> {
        let inner = &*self.inner;
        let now = inner.now.load(Ordering::Acquire);
        let (heard, early, asked) = (AtomicU64::new(now), AtomicU64::new(inner.jitter()), AtomicU64::new(0));
        let link = Arc::new(Link { seat, heard, early, asked, is_lost: AtomicBool::new(false) });
        inner.put(inner.silent_until(&link).max(now + 1), Arc::downgrade(&link));
        link
    }

    /// Notes a sign of life.
    pub(super) fn heard(&self, link: &Link) {
        link.heard.store(self.inner.now.load(Ordering::Acquire), Ordering::Release);
        link.asked.store(0, Ordering::Release);
        link.is_lost.store(false, Ordering::Release);
    }

    /// Turns until the shutdown begins.
    pub(super) async fn turn(self, shutdown: Shutdown) {
        let mut ticks = interval(self.inner.notch);
        // After the machine was busy for a while, nobody is given up for notches that passed in one go.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                biased; // a stop goes before work
                _ = shutdown.begun() => return,
                _ = ticks.tick() => self.turn_once().await,
            }
        }
    }

    /// Moves on by one notch: asks who was silent, gives up who did not answer.
    pub(super) async fn turn_once(&self) {
        let inner = &*self.inner;
        let now = inner.now.fetch_add(1, Ordering::AcqRel) + 1;
        let due = std::mem::take(&mut *inner.slot(now));
        for (i, weak) in due.into_iter().enumerate() {
            if i % YIELD_EVERY == YIELD_EVERY - 1 {
                tokio::task::yield_now().await;
            }
            let Some(link) = weak.upgrade() else { continue };
            let next = inner.look(&link, now);
            // Not later than that with a longer timeout either: who answers at once and then goes silent is asked in time.
            inner.put(next.clamp(now + 1, now + inner.interval.max(1)), weak);
        }
    }
}

impl Inner {
    /// Asks it if it was silent, gives it up if it did not answer; gives the notch in which there is something to do again.
    fn look(&self, link: &Link, now: u64) -> u64 {
        let asked = link.asked.load(Ordering::Acquire);
        let (silent_until, lost_at) = (self.silent_until(link), asked.saturating_add(self.timeout));
        if asked == 0 && silent_until > now {
            return silent_until;
        }
        if asked == 0 {
            link.early.store(self.jitter(), Ordering::Release);
            link.asked.store(now, Ordering::Release);
            let _too_full_anyway = link.seat.send(PING);
            return now + self.timeout;
        }
        if lost_at <= now {
            // Its session ends it, unless it finds that the client has taken something meanwhile.
            link.is_lost.store(true, Ordering::Release);
            link.seat.viewer().rouse();
        }
        lost_at
    }

    /// Up to a tenth of the interval, so that connections that began together do not ping together.
    fn jitter(&self) -> u64 {
        fastrand::u64(0..=self.interval / 10)
    }

    /// The notch in which a link that says nothing is asked.
    fn silent_until(&self, link: &Link) -> u64 {
        let wait = self.interval.saturating_sub(link.early.load(Ordering::Acquire));
        link.heard.load(Ordering::Acquire).saturating_add(wait)
    }

    fn put(&self, notch: u64, link: Weak<Link>) {
        self.slot(notch).push(link);
    }

    fn slot(&self, notch: u64) -> MutexGuard<'_, Vec<Weak<Link>>> {
        let slot = usize::try_from(notch % self.slots.len() as u64).unwrap_or(0);
        let slot = self.slots.get(slot).expect("there is a slot for every remainder");
        slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
