//! Fewer comments for viewers who ask for fewer: a few tiers that they share.
//!
//! What a tier gets is settled once, when a batch is cut, and is the same for all of its viewers. Within any second a
//! tier gets at most its rate, by the comments' own times; comments of hosts and moderators are never left out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Posted, Tier, Timestamp};

const SECOND: Duration = Duration::from_secs(1);
const TIERS: usize = Tier::RATES.len();

/// How much of a batch a tier gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// How many of the comments that may be left out are kept.
    kept: u32,
    /// How many comments the tier gets of this batch, those that are never left out included.
    pub(super) total: u32,
    /// How many were left out in this batch and in those right before it of which the tier got nothing.
    pub(super) left_out: u32,
}

/// The shares of a batch, by tier.
pub(super) type Shares = [Share; TIERS];

/// Settles what each tier gets.
#[derive(Debug, Default)]
pub(super) struct Thinner {
    tiers: [Kept; TIERS],
}

/// What a tier got lately.
#[derive(Debug, Default)]
struct Kept {
    /// When, and how many, within the last second.
    lately: VecDeque<(Timestamp, u32)>,
    in_second: u32,
    /// Left out since the tier last got something.
    carried: u32,
}

impl Thinner {
    /// Settles what each tier gets of the next batch.
    pub(super) fn cut(&mut self, batch: &[Arc<Posted>]) -> Shares {
        let mut shares = Shares::default();
        let ts = |posted: &Arc<Posted>| posted.comment.ts;
        let (Some(first), Some(last)) = (batch.first().map(ts), batch.last().map(ts)) else { return shares };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let spared = count(batch.iter().filter(|posted| posted.is_spared()).count());
        let thinnable = count(batch.len()) - spared;
        for ((share, tier), rate) in shares.iter_mut().zip(&mut self.tiers).zip(Tier::RATES) {
            *share = tier.cut((first, last), thinnable, spared, rate);
        }
        shares
    }
}

impl Kept {
    fn cut(&mut self, (first, last): (Timestamp, Timestamp), thinnable: u32, spared: u32, rate: u32) -> Share {
        // A batch has a length: what came before is within a second of its first comment when it is of no other.
        while let Some((at, count)) = self.lately.front().copied()
            && at <= first.minus(SECOND)
        {
            self.lately.pop_front();
            self.in_second -= count;
        }
        let kept = thinnable.min(rate.saturating_sub(self.in_second));
        if kept > 0 {
            self.lately.push_back((last, kept));
            self.in_second += kept;
        }
        self.carried = self.carried.saturating_add(thinnable - kept);
        let total = kept + spared;
        let left_out = if total == 0 { 0 } else { std::mem::take(&mut self.carried) };
        Share { kept, total, left_out }
    }
}

/// Picks a share out of its batch: those that are never left out, and the kept ones of the others, evenly spread.
pub(super) fn pick(batch: &[Arc<Posted>], share: Share) -> Vec<&Arc<Posted>> {
    let thinnable = batch.iter().filter(|posted| !posted.is_spared()).count() as u64;
    let kept = u64::from(share.kept);
    let mut place = 0;
    let is_picked = |posted: &&Arc<Posted>| {
        if posted.is_spared() {
            return true;
        }
        // The whole part of place × kept ÷ thinnable steps up `kept` times over all places.
        let before = place * kept / thinnable;
        place += 1;
        place * kept / thinnable > before
    };
    batch.iter().filter(is_picked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Seq, test_comment};
    use proptest::prelude::*;

    fn batch(times: &[i64]) -> Vec<Arc<Posted>> {
        let make =
            |(n, ts): (usize, &i64)| Arc::new(Posted::stored(test_comment("r", *ts, n as u32, "x"), Seq(n as u64)));
        times.iter().enumerate().map(make).collect()
    }

    proptest! {
        #[test]
        fn no_second_has_more_than_the_rate_and_every_comment_is_kept_or_told(
            batches in prop::collection::vec((0i64..700, 1usize..60, 0i64..3), 1..60),
            rate in prop::sample::select(&Tier::RATES[..]),
        ) {
            let tier = Tier::at_most(rate).unwrap();
            let (mut thinner, mut now) = (Thinner::default(), 0);
            let (mut kept, mut told, mut all, mut pending) = (Vec::new(), 0, 0, 0);
            for (pause, count, apart) in batches {
                now += pause;
                let times: Vec<_> = (0..count as i64).map(|n| now + n * apart).collect();
                now = times.last().copied().unwrap_or(now);
                let batch = batch(&times);
                let share = thinner.cut(&batch)[tier.index()];
                let picked = pick(&batch, share);
                prop_assert_eq!(picked.len(), share.total as usize);
                kept.extend(picked.iter().map(|posted| posted.comment.ts.millis()));
                all += count;
                pending += count - picked.len();
                if share.total > 0 {
                    prop_assert_eq!(share.left_out as usize, pending);
                    told += std::mem::take(&mut pending);
                }
            }
            prop_assert_eq!(kept.len() + told + pending, all);
            for from in &kept {
                let in_second = kept.iter().filter(|ts| **ts >= *from && **ts < from + 1000).count();
                prop_assert!(in_second <= rate as usize);
            }
        }

        #[test]
        fn a_share_is_spread_evenly(count in 1usize..200, kept in 0u32..200) {
            let kept = kept.min(count as u32);
            let batch = batch(&vec![1; count]);
            let picked = pick(&batch, Share { kept, ..Share::default() });
            prop_assert_eq!(picked.len(), kept as usize);
            let places: Vec<_> = picked.iter().map(|posted| posted.seq.0).collect();
            for pair in places.windows(2) {
                prop_assert!((pair[1] - pair[0]) <= (count as u64).div_ceil(u64::from(kept)));
            }
        }
    }

    #[test]
    fn a_viewer_gets_the_largest_tier_that_is_not_more_than_it_asked_for() {
        assert_eq!(Tier::at_most(0), None);
        for (asked, rate) in [(1, 1), (4, 2), (20, 20), (99, 50), (5000, 1000)] {
            assert_eq!(Tier::RATES[Tier::at_most(asked).unwrap().index()], rate);
        }
    }
}
