//! The long form: all faults in a random order, and a table of what each showed.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use tokio::time::Instant;

use super::{Force, Health, LONG, PAUSE, Told, chaos, ends, full, mongodb};

type Run = fn(Force) -> LocalBoxFuture<'static, Told>;

const FAULTS: &[(&str, Run)] = &[
    ("primaries killed", |force| mongodb::primaries_killed(force).boxed_local()),
    ("stepped down", |force| mongodb::stepped_down(force).boxed_local()),
    ("majority stalled", |force| mongodb::majority_stalled(force).boxed_local()),
    ("frozen", |force| mongodb::frozen(force).boxed_local()),
    ("network cut", |force| mongodb::network_cut(force).boxed_local()),
    ("disk full", |force| mongodb::disk_full(force).boxed_local()),
    ("password changed", |force| mongodb::password_changed(force).boxed_local()),
    ("stopped, MongoDB well", |force| ends::stopped(force, Health::Well).boxed_local()),
    ("stopped, MongoDB slow", |force| ends::stopped(force, Health::Slow).boxed_local()),
    ("stopped, MongoDB frozen", |force| ends::stopped(force, Health::Frozen).boxed_local()),
    ("stopped, MongoDB away", |force| ends::stopped(force, Health::Away).boxed_local()),
    ("stopped twice", |force| ends::stopped_twice(force).boxed_local()),
    ("killed, memory", |force| ends::killed(force, "memory").map(|(_, told)| told).boxed_local()),
    ("killed, disk", |force| killed_with_disk(force).boxed_local()),
    ("killed while replaying", |force| ends::killed_while_replaying(force).boxed_local()),
    ("outbox full", |force| full::outbox_full(force).boxed_local()),
    ("all at once", |force| chaos::all_at_once(force).boxed_local()),
];

/// What a figure should not be above. On a machine that is busy with other work the clock says little, so nothing fails
/// for it.
const GOALS: &[(&str, u64)] = &[(PAUSE, 100)];

async fn killed_with_disk(force: Force) -> Told {
    let (lost, told) = ends::killed(force, "disk").await;
    assert_eq!(lost, 0, "{told}");
    told
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half an hour; see the head of this folder"]
async fn soak() {
    let (minutes, runs) = (number("SOAK_MINUTES").unwrap_or(30), number("SOAK_RUNS"));
    let seed = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..));
    let only = std::env::var("SOAK_ONLY").unwrap_or_default();
    let is_wanted = |name: &str| only.split(',').any(|begin| name.starts_with(begin));
    let wanted: Vec<_> = FAULTS.iter().filter(|(name, _)| is_wanted(name)).collect();
    assert!(!wanted.is_empty(), "SOAK_ONLY names no fault");
    // What is random within a fault comes from the same seed: all of it is decided in this thread.
    fastrand::seed(seed);
    println!("soak: {} kinds of faults, seed {seed}", wanted.len());
    let (mut random, end) = (Rng::with_seed(seed), Instant::now() + Duration::from_secs(60 * minutes));
    let mut told: BTreeMap<&str, Vec<Told>> = BTreeMap::new();
    let mut round = 0;
    while runs.map_or_else(|| Instant::now() < end, |runs| round < runs) {
        round += 1;
        let mut order = wanted.clone();
        random.shuffle(&mut order);
        for (name, run) in order {
            if runs.is_none() && Instant::now() >= end {
                break;
            }
            let one = run(LONG).await;
            println!("soak {round}: {name}: {one}");
            told.entry(name).or_default().push(one);
        }
    }
    for (name, runs) in told {
        println!("{name}, {} runs (least, median, most)", runs.len());
        for (number, (figure, _)) in runs[0].0.iter().enumerate() {
            let mut values: Vec<_> = runs.iter().map(|told| told.0[number].1).collect();
            values.sort_unstable();
            let [least, median, most] = [0, values.len() / 2, values.len() - 1].map(|n| values[n]);
            let goal = GOALS.iter().find(|(name, _)| name == figure).map(|(_, goal)| {
                let met = values.iter().filter(|value| *value <= goal).count();
                format!("; goal {goal}: met in {met}")
            });
            println!("    {figure}: {least}, {median}, {most}{}", goal.unwrap_or_default());
        }
    }
}
