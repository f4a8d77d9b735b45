//! The times of a connection: how long it may stall, how fast it may send, when it goes at the end.

use std::time::Duration;

use tokio::time::Instant;

/// When the server stops, the time in which comments that were just accepted still go out.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Over how much time the rate of a client's frames is averaged.
const FLOOD_WINDOW_SECS: u32 = 10;

/// A viewer whose socket takes nothing.
#[derive(Clone, Debug)]
pub(super) struct Stall {
    pub(super) written: u64,
    pub(super) until: Instant,
}

impl Stall {
    /// Goes on as it was when nothing was written since.
    pub(super) fn or(self, now: Self) -> Self {
        if now.written == self.written { self } else { now }
    }
}

/// The server stops: when this connection goes.
pub(super) struct Leave {
    /// Its place in the spread window.
    at: Instant,
    /// Then even acknowledgements that are still owed are given up.
    deadline: Instant,
}

impl Leave {
    /// Some place in the window, but not before the room's last comments had time to go out.
    pub(super) fn new(spread: Duration, deadline: Instant) -> Self {
        let at = Instant::now() + LAST_WORDS + spread.mul_f64(fastrand::f64());
        Self { at: at.min(deadline), deadline }
    }

    pub(super) fn next(&self) -> Instant {
        if Instant::now() < self.at { self.at } else { self.deadline }
    }

    pub(super) fn is_over(&self, is_quit: bool) -> bool {
        let now = Instant::now();
        now >= self.deadline || (now >= self.at && is_quit)
    }
}

/// How many frames a client may send: a bucket that holds ten seconds' worth.
pub(super) struct Allowance {
    per_sec: u32,
    left: f64,
    at: Instant,
}

impl Allowance {
    pub(super) fn new(per_sec: u32) -> Self {
        Self { per_sec, left: f64::from(per_sec * FLOOD_WINDOW_SECS), at: Instant::now() }
    }

    pub(super) fn take(&mut self) -> bool {
        let now = Instant::now();
        let gained = now.duration_since(self.at).as_secs_f64() * f64::from(self.per_sec);
        self.left = (self.left + gained).min(f64::from(self.per_sec * FLOOD_WINDOW_SECS)) - 1.0;
        self.at = now;
        self.left >= 0.0
    }
}
