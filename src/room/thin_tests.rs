//! What a tier gets: never more than its rate, as much of it as can be, and at an even pace.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::{Role, Seq, test_comment};

fn posted(ts: i64, sender: Role) -> Posted {
    Posted::pending(test_comment("r", ts, 1, "x"), Seq(1), Arc::default()).sent_by(sender)
}

/// The times of those that the tier gets of comments with these times, which come in as they were made.
fn kept_of(times: impl IntoIterator<Item = i64>, rate: u32) -> Vec<i64> {
    let (mut thinner, began, mut first) = (Thinner::new(), Instant::now(), None);
    let tier = Tier::at_most(rate).unwrap();
    let mut kept = Vec::new();
    for ts in times {
        let since = u64::try_from(ts - *first.get_or_insert(ts)).unwrap();
        thinner.take(&posted(ts, Role::Viewer), Some(began + Duration::from_millis(since)));
        if thinner.cut().has(tier, 0) {
            kept.push(ts);
        }
    }
    kept
}

/// The most that lie within a stretch of so many milliseconds.
fn most_within(times: &[i64], stretch: i64) -> usize {
    let within = |from: &i64| times.iter().filter(|ts| (*from..from + stretch).contains(ts)).count();
    times.iter().map(within).max().unwrap_or_default()
}

proptest! {
    #[test]
    fn no_stretch_has_more_than_the_rate(
        bursts in prop::collection::vec((0i64..1_500, 1usize..60, 0i64..30), 1..60),
        rate in prop::sample::select(&Tier::RATES[..]),
    ) {
        let (mut now, mut times) = (0, Vec::new());
        for (pause, count, apart) in bursts {
            now += pause;
            for _ in 0..count {
                times.push(now);
                now += apart;
            }
        }
        let kept = kept_of(times, rate);
        let most = most_within(&kept, i64::try_from(STRETCH_MS).unwrap());
        prop_assert!(most <= rate as usize, "{most} of {rate}");
    }

    #[test]
    fn every_comment_is_got_or_carried_to_the_next_batch_that_has_one(
        batches in prop::collection::vec((0i64..400, 1usize..20), 1..60),
        rate in prop::sample::select(&Tier::RATES[..]),
    ) {
        let tier = Tier::at_most(rate).unwrap();
        let (mut thinner, at, mut now, mut untold) = (Thinner::new(), Some(Instant::now()), 0, 0);
        for (pause, len) in batches {
            now += pause;
            (0..len).for_each(|_| thinner.take(&posted(now, Role::Viewer), at));
            let shares = thinner.cut();
            prop_assert_eq!(shares.carried(tier), untold);
            prop_assert_eq!(shares.count(tier), (0..len).filter(|place| shares.has(tier, *place)).count() as u64);
            untold = if shares.count(tier) == 0 { untold + len as u64 } else { 0 };
        }
    }
}

#[test]
fn a_steady_stream_is_thinned_evenly_from_the_start() {
    for (rate, longest_pause, fewest) in [(5, 500, 38), (20, 120, 165), (100, 30, 870)] {
        // 500 a second for ten seconds.
        let kept = kept_of((0..5_000).map(|n| n * 2), rate);
        let pause = kept.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(pause <= longest_pause, "at {rate}/s there was a pause of {pause} ms");
        assert!(kept.len() >= fewest, "at {rate}/s only {} came in ten seconds", kept.len());
    }
}

#[test]
fn of_two_thirds_of_the_rate_or_half_of_it_at_once_nothing_is_left_out() {
    for rate in Tier::RATES {
        let even = |n: i64| n * 3_000 / (2 * i64::from(rate));
        assert_eq!(kept_of((0..200).map(even), rate).len(), 200, "{rate}");
        // Half of it at once, now and then.
        let at_once = (rate / 2).max(1) as usize;
        let bursts: Vec<_> = (0..20).flat_map(|n| std::iter::repeat_n(n * 1_500, at_once)).collect();
        assert_eq!(kept_of(bursts.clone(), rate), bursts, "{rate}");
    }
}

#[test]
fn while_the_clock_is_set_back_tiers_get_no_less() {
    let (mut thinner, tier) = (Thinner::new(), Tier::at_most(20).unwrap());
    let began = Instant::now();
    let mut kept = Vec::new();
    for n in 0..1_000u64 {
        // After a second the clock goes back an hour, so the room's time stands still.
        let ts = i64::try_from(n * 10).unwrap().min(1_000);
        thinner.take(&posted(ts, Role::Viewer), Some(began + Duration::from_millis(n * 10)));
        if thinner.cut().has(tier, 0) {
            kept.push(i64::try_from(n * 10).unwrap());
        }
    }
    assert!(kept.len() >= 160, "only {} came in ten seconds", kept.len());
    assert!(most_within(&kept, 1_000) <= 20);
}

#[test]
fn comments_of_hosts_and_moderators_reach_every_tier_and_cost_nothing() {
    let (mut thinner, at) = (Thinner::new(), Some(Instant::now()));
    for _ in 0..50 {
        thinner.take(&posted(1, Role::Host), at);
        thinner.take(&posted(1, Role::Moderator), at);
    }
    thinner.take(&posted(1, Role::Viewer), at);
    let shares = thinner.cut();
    assert!(Tier::RATES.iter().all(|rate| shares.count(Tier::at_most(*rate).unwrap()) == 101));
}

#[test]
fn a_viewer_gets_the_largest_tier_that_is_not_more_than_it_asked_for() {
    assert_eq!(Tier::at_most(0), None);
    for (asked, rate) in [(1, 1), (4, 2), (20, 20), (99, 50), (5000, 1000)] {
        assert_eq!(Tier::RATES[Tier::at_most(asked).unwrap().index()], rate);
    }
}
