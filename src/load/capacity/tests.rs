use std::convert::Infallible;

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::*;
use crate::load::objective::{judge, parse};
use crate::load::outcome::Percentiles;

/// What a server measures at a multiple of a plan of 1,000 viewers and 10 comments/s, when it carries `capacity`.
fn measured(scale: f64, capacity: f64) -> Outcome {
    let mut outcome = Outcome::default();
    let load = &mut outcome.summary;
    (load.rooms, load.viewers, load.rate, load.duration_secs) = (1, (1_000.0 * scale) as u64, 10.0, 60.0);
    let counts = &mut outcome.counts;
    (counts.connected, counts.deliveries) = (load.viewers, load.viewers * 600);
    (counts.scheduled, counts.sent, counts.accepted) = (600, 600, 600);
    let p99_ms = if scale > capacity { 900.0 } else { 50.0 };
    outcome.latency.delivery = Some(Percentiles { count: 1, p99_ms, ..Percentiles::default() });
    judge(&mut outcome, &parse("p99=200ms").unwrap());
    outcome
}

fn find_with(config: &CapacityConfig, mut measure: impl FnMut(f64) -> Outcome) -> Capacity {
    let run = async |scale| Ok::<_, Infallible>(measure(scale));
    find(config, run).now_or_never().expect("nothing to wait for").unwrap()
}

fn scales(capacity: &Capacity) -> Vec<f64> {
    capacity.tried.iter().map(|tried| (tried.scale * 100.0).round() / 100.0).collect()
}

#[test]
fn the_load_is_doubled_then_closed_in_on_and_confirmed() {
    let found = find_with(&CapacityConfig::default(), |scale| measured(scale, 3.0));
    // Each that broke is tried twice, and the highest that held as well.
    assert_eq!(scales(&found), [1.0, 2.0, 4.0, 4.0, 2.83, 3.36, 3.36, 3.08, 3.08, 2.83]);
    assert_eq!(found.end, End::Found);
    assert_eq!(
        found.to_string(),
        "\
× plan  viewers  comments/s  deliveries/s      p99
     1    1,000          10          10 k  50.0 ms  held
     2    2,000          10          20 k  50.0 ms  held
     4    4,000          10          40 k   900 ms  broke: p99=200ms (900 ms)
     4    4,000          10          40 k   900 ms  broke: p99=200ms (900 ms)
  2.83    2,828          10        28.3 k  50.0 ms  held
  3.36    3,363          10        33.6 k   900 ms  broke: p99=200ms (900 ms)
  3.36    3,363          10        33.6 k   900 ms  broke: p99=200ms (900 ms)
  3.08    3,084          10        30.8 k   900 ms  broke: p99=200ms (900 ms)
  3.08    3,084          10        30.8 k   900 ms  broke: p99=200ms (900 ms)
  2.83    2,828          10        28.3 k  50.0 ms  held

highest load that held: 2.83 × the plan
measured: 2,828 viewers × 10 accepted comments/s = 28.3 k deliveries/s in one room
gave way first, at 3.08 × the plan: p99=200ms (900 ms)"
    );
}

#[test]
fn a_plan_that_is_too_much_is_halved_first() {
    let found = find_with(&CapacityConfig::default(), |scale| measured(scale, 0.3));
    assert_eq!(scales(&found)[..5], [1.0, 1.0, 0.5, 0.5, 0.25]);
    let (held, broke) = (found.held.unwrap().0, found.broke.unwrap().0);
    assert!(held <= 0.3 && broke > 0.3 && broke <= held * 1.1, "{held} {broke}");
}

#[test]
fn the_ends_of_the_range_are_told_as_such() {
    let found = find_with(&CapacityConfig::default(), |scale| measured(scale, 1e9));
    assert_eq!((found.end, found.held.as_ref().unwrap().0), (End::MostHeld, 1_024.0));
    assert!(found.to_string().ends_with("nothing gave way up to the most that was to be tried"), "{found}");

    let found = find_with(&CapacityConfig::default(), |scale| measured(scale, 0.0));
    assert_eq!((found.end, &found.held, found.broke.as_ref().unwrap().0), (End::LeastBroke, &None, 1.0 / 64.0));
    let text = found.to_string();
    assert!(text.contains("\nno load held\ngave way first, at 0.02 × the plan: p99=200ms (900 ms)"), "{text}");

    let config = CapacityConfig { max_runs: 3, ..CapacityConfig::default() };
    let found = find_with(&config, |scale| measured(scale, 3.0));
    assert_eq!((found.end, found.tried.len(), found.held.as_ref().unwrap().0), (End::OutOfRuns, 3, 2.0));
    assert!(found.to_string().contains("ended after 3 load tests, before the limit was certain"));
}

#[test]
fn one_slow_moment_does_not_decide() {
    let mut runs = 0;
    let found = find_with(&CapacityConfig { most: 2.0, ..CapacityConfig::default() }, |scale| {
        runs += 1;
        // The second load test meets a hiccup of the machine.
        measured(scale, if runs == 2 { 0.0 } else { 1e9 })
    });
    assert_eq!(scales(&found), [1.0, 2.0, 2.0, 2.0]);
    assert_eq!(found.end, End::MostHeld);
}

#[test]
fn a_load_that_held_by_luck_gives_way_to_one_that_holds_twice() {
    let mut runs = 0;
    let found = find_with(&CapacityConfig::default(), |scale| {
        runs += 1;
        // The first load test at twice the plan holds by luck.
        measured(scale, if runs == 2 { 2.1 } else { 1.5 })
    });
    let held = found.held.as_ref().unwrap().0;
    assert!((1.5 / 1.1..=1.5).contains(&held), "{found}");
    assert_eq!(found.end, End::Found);
}

#[test]
fn a_fault_decides_at_once() {
    let found = find_with(&CapacityConfig::default(), |scale| {
        let mut outcome = measured(scale, 1e9);
        outcome.faults.lost = u64::from(scale > 1.5);
        judge(&mut outcome, &[]);
        outcome
    });
    assert_eq!(scales(&found)[..3], [1.0, 2.0, 1.41]);
    let text = found.to_string();
    assert!(text.contains("gave way first, at 1.54 × the plan: 1 lost"), "{text}");
}

#[test]
fn a_client_that_gives_way_is_not_taken_for_the_server() {
    let found = find_with(&CapacityConfig::default(), |scale| {
        let mut outcome = measured(scale, 3.0);
        outcome.client.is_limit = scale > 3.0;
        outcome.client.why = Some("its core was full\n".to_owned());
        outcome
    });
    assert!(found.is_clients);
    let text = found.to_string();
    assert!(
        text.ends_with(
            "the plan: the client itself (its core was full\u{fffd}); p99=200ms (900 ms)\n\
             the client gave way, not the server: the server carries at least this much"
        ),
        "{text}"
    );
    assert!(!find_with(&CapacityConfig::default(), |scale| measured(scale, 3.0)).is_clients);
}

#[test]
fn a_client_that_gave_way_once_alone_is_no_limit() {
    let mut runs = 0;
    let found = find_with(&CapacityConfig { most: 2.0, ..CapacityConfig::default() }, |scale| {
        runs += 1;
        let mut outcome = measured(scale, 1.0);
        outcome.client.is_limit = scale > 1.0 && runs % 2 == 1;
        outcome
    });
    let text = found.to_string();
    assert!(!found.is_clients && !text.contains("the client gave way"), "{text}");
}

#[test]
fn what_is_refused_or_never_comes_breaks_a_load_as_it_breaks_a_test() {
    let find_when = |change: fn(&mut Outcome)| {
        find_with(&CapacityConfig::default(), |scale| {
            let mut outcome = measured(scale, 1e9);
            if scale > 3.0 {
                change(&mut outcome);
            }
            judge(&mut outcome, &parse("p99=200ms").unwrap());
            outcome
        })
    };
    let full = find_when(|outcome| outcome.counts.never_came = 450);
    assert!((2.7..=3.0).contains(&full.held.as_ref().unwrap().0), "{full}");
    assert!(full.to_string().ends_with("the plan: 450 viewers never came"), "{full}");
    let limited = find_when(|outcome| outcome.counts.refused.extend([("rate_limited".to_owned(), 5)]));
    assert!(
        limited.says().last().unwrap().starts_with("the plan's senders were the limit, not the server"),
        "{limited}"
    );
    let busy = find_when(|outcome| outcome.counts.refused.extend([("busy".to_owned(), 5)]));
    assert!(busy.to_string().ends_with("the plan: 5 comments refused (busy: 5)"), "{busy}");
}

#[test]
fn the_report_is_that_of_the_highest_load_that_held() {
    let found = find_with(&CapacityConfig::default(), |scale| measured(scale, 3.0));
    let says = found.says();
    let outcome = found.into_outcome().unwrap();
    assert_eq!((outcome.summary.viewers, outcome.has_held), (2_828, true));
    let capacity = outcome.capacity.unwrap();
    assert_eq!((capacity.says, capacity.tried.len()), (says, 10));
    assert_eq!(capacity.tried[2].gave_way, ["p99=200ms (900 ms)"]);

    let found = find_with(&CapacityConfig::default(), |scale| measured(scale, 0.0));
    let outcome = found.into_outcome().unwrap();
    assert!(!outcome.has_held, "with none that held, it is that of the lowest that broke");
    assert_eq!(outcome.capacity.unwrap().says[0], "no load held");
}

#[test]
fn many_rooms_are_not_multiplied() {
    let found = find_with(&CapacityConfig { most: 1.0, ..CapacityConfig::default() }, |scale| {
        let mut outcome = measured(scale, 3.0);
        outcome.summary.rooms = 200;
        outcome
    });
    assert!(
        found
            .to_string()
            .contains("measured: 1,000 viewers in 200 rooms, 10 accepted comments/s in all = 10 k deliveries/s")
    );
}

#[test]
fn what_cannot_be_run_ends_the_search() {
    let mut runs = 0;
    let run = async |_| {
        runs += 1;
        if runs == 2 { Err("the server is gone") } else { Ok(measured(1.0, 9.0)) }
    };
    assert_eq!(find(&CapacityConfig::default(), run).now_or_never().unwrap(), Err("the server is gone"));
    assert_eq!(runs, 2);
}

proptest! {
    #[test]
    fn a_known_limit_is_found_through_the_noise(
        limit in 0.02f64..800.0, noise in 0.0f64..0.2, precision in 0.05f64..0.2, seed in any::<u64>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = CapacityConfig { precision, max_runs: 200, ..CapacityConfig::default() };
        let found = find_with(&config, |scale| measured(scale, limit * (1.0 + noise * (2.0 * random.f64() - 1.0))));
        prop_assert_eq!(found.end, End::Found);
        let held = found.held.as_ref().unwrap().0;
        let (least, most) = (limit * (1.0 - noise) / (1.0 + precision), limit * (1.0 + noise));
        prop_assert!(held >= least * (1.0 - 1e-9) && held <= most, "{} for a limit of {}\n{}", held, limit, found);
        // Ten doublings, each but the last once; then each halving of what lies between at most twice, and once more for
        // each load that had held by luck.
        prop_assert!(found.tried.len() <= 60, "{}", found);
        let twice = found.tried.iter().filter(|tried| tried.scale == held && tried.gave_way.is_empty()).count();
        prop_assert!(twice >= 2, "{}", found);
    }
}
