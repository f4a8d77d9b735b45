//! Fewer comments for viewers who ask for fewer: a few tiers that they share.
//!
//! Which comments a tier gets is settled once, as they come in, and is the same for all of its viewers whenever they read
//! them, live or catching up. In no [`STRETCH`] a tier gets more than its rate, beside the comments of hosts and
//! moderators, which are never left out; and what it gets is spread by a budget that comes in as time goes on.

use tokio::time::Instant;

use crate::model::{Posted, Tier, Timestamp};

/// What a tier's rate is held over: a second, and the longest time comments are gathered by default beside it, for those
/// go out together. So no second of a viewer has more than the rate, by the comments' times or by their arrival.
pub(super) const STRETCH: std::time::Duration = std::time::Duration::from_millis(STRETCH_MS);
const STRETCH_MS: u64 = 1_100;

/// The highest credits of a stretch are remembered by quarters of it, and one more, so that they cover the whole of it.
const TURN_MS: u64 = STRETCH_MS / 4;
const PEAKS: usize = 5;

/// A comment's price. Large, so that what rounds away in a millisecond (less than 1) is nothing.
const PRICE: u64 = 1_000_000;

/// Own time takes over from the comments' when these fall so far behind. More than the two differ by as comments wait for
/// the room's lock; less than would be seen as a pause.
const BEHIND_MS: i64 = 100;

const TIERS: usize = Tier::RATES.len();

/// What the tiers get of a batch.
#[derive(Debug)]
pub(super) struct Shares {
    /// For each comment the tiers that get it, a bit each.
    takers: Box<[u16]>,
    /// How many comments a tier gets.
    counts: [u16; TIERS],
    carried: [u32; TIERS],
}

impl Shares {
    /// Whether the tier gets the comment at this place of the batch.
    pub(super) fn has(&self, tier: Tier, place: usize) -> bool {
        self.takers.get(place).is_some_and(|takers| takers & bit(tier.index()) != 0)
    }

    /// How many comments of the batch the tier gets.
    pub(super) fn count(&self, tier: Tier) -> u64 {
        self.counts.get(tier.index()).copied().unwrap_or_default().into()
    }

    /// How many comments stand right before the batch in batches of which the tier gets nothing. No frame has told of
    /// them, so the next one does.
    pub(super) fn carried(&self, tier: Tier) -> u64 {
        self.carried.get(tier.index()).copied().unwrap_or_default().into()
    }
}

fn bit(tier: usize) -> u16 {
    const { assert!(TIERS <= u16::BITS as usize) };
    1 << tier
}

/// Settles what each tier gets.
#[derive(Debug)]
pub(super) struct Thinner {
    time: Option<Time>,
    /// When the current turn began.
    turned: i64,
    budgets: [Budget; TIERS],
    carried: [u32; TIERS],
    takers: Vec<u16>,
    /// What is later than this is left out.
    until: Timestamp,
}

impl Thinner {
    /// A thinner that has kept nothing yet.
    pub(super) fn new() -> Self {
        let budgets = Tier::RATES.map(Budget::full);
        Self { time: None, turned: 0, budgets, carried: [0; TIERS], takers: Vec::new(), until: Timestamp::MAX }
    }

    /// The same for comments that stand before one of this time which is thinned already. Near it nothing more is kept,
    /// for together that could be more than the rate.
    pub(super) fn before(first: Timestamp) -> Self {
        Self { until: first.minus(STRETCH), ..Self::new() }
    }

    /// Settles who gets the next comment, which came in at `at`; of one that came in before anybody asked for less, only
    /// its own time counts.
    pub(super) fn take(&mut self, posted: &Posted, at: Option<Instant>) {
        let elapsed = self.pass(posted.comment.ts, at);
        let (is_spared, is_open) = (posted.is_spared(), posted.comment.ts <= self.until);
        let mut takers = 0;
        for (tier, budget) in self.budgets.iter_mut().enumerate() {
            budget.earn(elapsed);
            if is_spared || is_open && budget.try_spend() {
                takers |= bit(tier);
            }
        }
        self.takers.push(takers);
    }

    /// Sums up what was taken since the last time: a batch.
    pub(super) fn cut(&mut self) -> Box<Shares> {
        let takers = std::mem::take(&mut self.takers).into_boxed_slice();
        let len = u32::try_from(takers.len()).unwrap_or(u32::MAX);
        let (mut counts, carried) = ([0; TIERS], self.carried);
        for (tier, (count, carried)) in counts.iter_mut().zip(&mut self.carried).enumerate() {
            let getting = takers.iter().filter(|takers| **takers & bit(tier) != 0).count();
            // A batch has at most 256.
            *count = u16::try_from(getting).unwrap_or(u16::MAX);
            *carried = if getting == 0 { carried.saturating_add(len) } else { 0 };
        }
        Box::new(Shares { takers, counts, carried })
    }

    /// The milliseconds since the comment before this one.
    fn pass(&mut self, ts: Timestamp, at: Option<Instant>) -> u64 {
        let time = self.time.get_or_insert_with(|| {
            self.turned = ts.millis();
            Time { now: ts.millis(), own: None }
        });
        let elapsed = time.pass(ts, at);
        let in_turn = time.now.abs_diff(self.turned);
        if in_turn >= TURN_MS {
            self.turned = time.now.saturating_sub_unsigned(in_turn % TURN_MS);
            for _ in 0..(in_turn / TURN_MS).min(PEAKS as u64) {
                self.budgets.iter_mut().for_each(Budget::turn);
            }
        }
        elapsed
    }
}

/// Time as comments come in, in milliseconds: their own, which other readers see and a restart keeps. While the clock is
/// set back all comments of a room have the same time; then it goes on by the monotonic clock, or tiers would starve.
#[derive(Debug)]
struct Time {
    now: i64,
    /// A moment of the monotonic clock, and the latest time that comments can be taken to have had then.
    own: Option<(Instant, i64)>,
}

impl Time {
    fn pass(&mut self, ts: Timestamp, at: Option<Instant>) -> u64 {
        let before = self.now;
        self.now = before.max(ts.millis());
        if let Some(at) = at {
            let (began, was) = *self.own.get_or_insert((at, ts.millis()));
            let since = i64::try_from(at.duration_since(began).as_millis()).unwrap_or(i64::MAX);
            let was = was.max(ts.millis().saturating_sub(since));
            self.own = Some((began, was));
            self.now = self.now.max(was.saturating_add(since).saturating_sub(BEHIND_MS));
        }
        self.now.abs_diff(before)
    }
}

/// What a tier may spend on comments. It comes in at such a pace that what there was at any moment of the last stretch
/// and what comes in within a stretch from then are together never more than the rate.
#[derive(Clone, Copy, Debug)]
struct Budget {
    rate: u32,
    credit: u64,
    /// The most credit there was in this turn and in those before it.
    peaks: [u64; PEAKS],
}

impl Budget {
    fn full(rate: u32) -> Self {
        let credit = Self::most(rate);
        Self { rate, credit, peaks: [credit; PEAKS] }
    }

    /// What can be saved up. Half the rate, so that a few who speak at once in a quiet room are all heard, and after it
    /// there is something left to spread over the stretch.
    fn most(rate: u32) -> u64 {
        (u64::from(rate) * PRICE / 2).max(PRICE)
    }

    fn earn(&mut self, elapsed: u64) {
        // Just less than one comment above the rate, for only whole ones are bought.
        let in_stretch = (u64::from(self.rate) + 1) * PRICE - 1;
        let [peak, a, b, c, d] = self.peaks;
        let highest = peak.max(a).max(b).max(c).max(d);
        // After four stretches every budget is full.
        let earned = elapsed.min(4 * STRETCH_MS) * (in_stretch - highest) / STRETCH_MS;
        self.credit = (self.credit + earned).min(Self::most(self.rate));
        self.peaks = [peak.max(self.credit), a, b, c, d];
    }

    fn turn(&mut self) {
        let [peak, a, b, c, _] = self.peaks;
        self.peaks = [self.credit, peak, a, b, c];
    }

    fn try_spend(&mut self) -> bool {
        let left = self.credit.checked_sub(PRICE);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }
}

#[cfg(test)]
#[path = "thin_tests.rs"]
mod tests;
