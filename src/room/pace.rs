//! How long a room gathers comments before it writes them to its viewers.
//!
//! A write costs the same for one comment as for fifty, so a busy room gathers; but a quiet one must not wait. The
//! window follows from what is measured: the rate at which comments come, and how long a tick's writes take.

use std::time::Duration;

use tokio::time::Instant;

/// Within this window a room that is merely busy delivers; people do not notice it.
const BUSY: Duration = Duration::from_millis(20);

/// Below this many comments a second a busy window would mostly hold a single one.
const BUSY_RATE: f64 = 20.0;

/// The writes of a room may take one part in this many of its time, so that a huge room leaves the core to others.
const SHARE: u32 = 4;

/// Over how much time the rate is averaged.
const MEMORY: Duration = Duration::from_secs(1);

/// The pace of one room's ticks.
#[derive(Debug)]
pub struct Pace {
    max_window: Duration,
    /// Comments a second, averaged over [`MEMORY`].
    rate: f64,
    /// How long the writes of a tick take, averaged over the last few.
    cost: Duration,
    last: Instant,
}

impl Pace {
    /// The pace of a quiet room that has not ticked yet.
    #[must_use]
    pub fn new(max_window: Duration, now: Instant) -> Self {
        Self { max_window, rate: 0.0, cost: Duration::ZERO, last: now - MEMORY }
    }

    /// When the comments that have begun to gather should go out: at once in a quiet room.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.last + self.window()
    }

    /// The window now.
    #[must_use]
    pub fn window(&self) -> Duration {
        let busy = if self.rate < BUSY_RATE { Duration::ZERO } else { BUSY };
        busy.max(self.cost * SHARE).min(self.max_window)
    }

    /// Takes note of a tick that began at `now`, wrote `comments` comments and took `cost`.
    pub fn ticked(&mut self, now: Instant, comments: usize, cost: Duration) {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        let keep = (-passed / MEMORY.as_secs_f64()).exp();
        self.rate = self.rate * keep + comments as f64 / MEMORY.as_secs_f64();
        self.cost = (self.cost * 3 + cost) / 4;
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(100);

    /// Ticks once each `every`, with one comment and writes that take `cost`, for three seconds.
    fn after(every: Duration, cost: Duration) -> (Pace, Instant) {
        let mut now = Instant::now();
        let mut pace = Pace::new(MAX, now);
        for _ in 0..(3000 / every.as_millis()) {
            pace.ticked(now, 1, cost);
            now += every;
        }
        (pace, now)
    }

    #[tokio::test]
    async fn a_quiet_room_delivers_at_once() {
        let now = Instant::now();
        assert!(Pace::new(MAX, now).due() <= now);
        let (pace, now) = after(Duration::from_millis(200), Duration::from_micros(100));
        assert!(pace.due() <= now);
    }

    #[tokio::test]
    async fn a_busy_small_room_gathers_for_at_most_20_ms() {
        let (pace, _) = after(Duration::from_millis(10), Duration::from_micros(100));
        assert_eq!(pace.window(), BUSY);
    }

    #[tokio::test]
    async fn a_huge_room_takes_a_share_of_the_core_up_to_the_maximum() {
        let (pace, _) = after(Duration::from_millis(20), Duration::from_millis(10));
        assert!(pace.window() > BUSY * 3 / 2 && pace.window() <= MAX, "{:?}", pace.window());
        let (pace, _) = after(Duration::from_millis(20), Duration::from_millis(80));
        assert_eq!(pace.window(), MAX);
    }

    #[tokio::test]
    async fn a_room_that_turns_quiet_forgets_its_rate() {
        let (mut pace, mut now) = after(Duration::from_millis(10), Duration::from_micros(100));
        for _ in 0..3 {
            now += MEMORY * 2;
            pace.ticked(now, 1, Duration::from_micros(100));
        }
        assert_eq!(pace.window(), Duration::ZERO.max(pace.cost * SHARE));
        assert!(pace.window() < Duration::from_millis(1));
    }
}
