//! From what was measured to an [`Outcome`], and to what a person should know beside it.

use std::collections::BTreeMap;

use super::Run;
use super::figures::{Figures, Times};
use super::machine::{machine, peak_memory};
use super::query::Asked;
use super::watch::Told;
use super::worker::{Finished, Tick};
use crate::load::outcome::{Client, Latencies, Load, Moment, Outcome, Server, VERSION};
use crate::load::plan::Plan;

/// A thread that uses more of its core than this has no room left.
const FULL: f64 = 0.95;

/// One second in so many may be full.
const MAY_BE_FULL: usize = 10;

/// Comments that leave later than this, in milliseconds, are late because of the load test.
const LATE_MS: f64 = 20.0;

/// One comment in so many may be late, and so many of them whatever their part: of a few comments a single hiccup of the
/// machine would be one in a hundred.
const MAY_BE_LATE: u64 = 100;
const LATE_ENOUGH: u64 = 10;

/// The moments of a run.
#[derive(Debug, Default)]
pub(super) struct Series {
    moments: Vec<Moment>,
    full: usize,
    peak: f64,
}

impl Series {
    /// Adds a second.
    pub(super) fn add(&mut self, tick: &Tick, told: &Told) {
        self.full += usize::from(tick.thread_cpu > FULL);
        self.peak = self.peak.max(tick.thread_cpu);
        self.moments.push(Moment {
            at_secs: tick.at_secs,
            connections: tick.connections,
            sent: tick.sent,
            accepted: tick.accepted,
            delivered: tick.delivered,
            errors: tick.errors,
            p50_ms: tick.p50_ms,
            p99_ms: tick.p99_ms,
            client_cpu: tick.thread_cpu,
            server: told.moment.clone(),
        });
    }

    /// Whether the load test was at its limit, and why.
    fn limit(&self, lateness: &Times) -> Option<String> {
        if self.full * MAY_BE_FULL > self.moments.len() && self.full > 1 {
            let (full, all) = (self.full, self.moments.len());
            return Some(format!("its thread had no more of its core to use in {full} of {all} seconds"));
        }
        let (late, all) = (lateness.longer_than(LATE_MS), lateness.count());
        let is_limit = late >= LATE_ENOUGH && late * MAY_BE_LATE >= all;
        is_limit.then(|| format!("{late} of {all} comments left more than {LATE_MS} ms late"))
    }
}

/// Puts it all together.
pub(super) fn outcome(
    plan: &Plan,
    Finished { figures, took, has_been_stopped }: Finished,
    series: Series,
    (asked, server): (Asked, Option<Server>),
    (started_ms, cpu_seconds): (u64, f64),
) -> Run {
    let mut counts = figures.counts.clone();
    counts.queries = asked.answered;
    if asked.failed > 0 {
        counts.errors.insert("query_failed".to_owned(), asked.failed);
    }
    let lateness_p99_ms = figures.lateness.ms(0.99).unwrap_or(0.0);
    let why = series.limit(&figures.lateness);
    let hints = hints(&figures);
    let outcome = Outcome {
        version: VERSION,
        danmakud: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms,
        took_secs: took.as_secs_f64(),
        plan: serde_json::to_value(&plan.knobs).unwrap_or_default(),
        summary: summary(plan),
        machine: Some(machine()),
        latency: Latencies {
            join: figures.join.percentiles(),
            accepted: figures.accepted.percentiles(),
            stored: figures.stored.percentiles(),
            delivery: figures.delivery.percentiles(),
            query: asked.times.percentiles(),
        },
        counts,
        faults: figures.faults,
        client: Client {
            cpu_seconds,
            peak_cores: series.peak,
            max_rss_bytes: peak_memory(),
            lateness_p99_ms,
            is_limit: why.is_some(),
            why,
        },
        series: series.moments,
        has_been_stopped,
        server,
        ..Outcome::default()
    };
    Run { outcome, hints }
}

fn summary(plan: &Plan) -> Load {
    Load {
        rooms: plan.seating.rooms.len() as u64,
        viewers: plan.seating.viewers().into(),
        senders: plan.seating.senders().into(),
        rate: plan.mean_rate(),
        targets: plan.targets.iter().map(|target| target.shown().to_owned()).collect(),
        profile: if plan.profile.is_empty() { "custom".to_owned() } else { plan.profile.clone() },
        duration_secs: plan.duration.as_secs_f64(),
    }
}

/// `a 3, b 1`.
fn told(counts: &BTreeMap<String, u64>) -> String {
    let all: Vec<_> = counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    all.join(", ")
}

/// What a person should know, beside what the summary says.
fn hints(figures: &Figures) -> Vec<String> {
    let mut hints = Vec::new();
    let refused = |code: &str| figures.counts.refused.get(code).copied().unwrap_or(0);
    if refused("rate_limited") > 0 {
        hints.push(format!(
            "{} comments were refused as rate_limited: have more --senders, or set limits.min_interval of the server lower",
            refused("rate_limited")
        ));
    }
    if refused("busy") > 0 {
        hints.push(format!("{} comments were refused as busy: the store does not keep up", refused("busy")));
    }
    if figures.counts.errors.contains_key("closed_4001") {
        hints
            .push("senders were cut off as floods: have more --senders, or raise server.max_frames_per_sec".to_owned());
    }
    if !figures.connect_failures.is_empty() {
        hints.push(format!("connections that did not come about: {}", told(&figures.connect_failures)));
    }
    if figures.connect_failures.contains_key("no_port_left") {
        hints.push("the ports of this machine's address are used up: name further ones with --source".to_owned());
    }
    if figures.connect_failures.contains_key("http_401") {
        hints.push("the server refused tokens (401): see --token, --tokens".to_owned());
    }
    if figures.connect_failures.contains_key("http_503") {
        hints.push("the server takes no more connections: see server.max_connections, max_per_address".to_owned());
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(busy: usize, all: usize) -> Series {
        let mut series = Series::default();
        for nth in 0..all {
            let thread_cpu = if nth < busy { 0.99 } else { 0.3 };
            series.add(&Tick { thread_cpu, ..Tick::default() }, &Told::default());
        }
        series
    }

    /// So many comments on time, and so many 150 ms late.
    fn lateness(prompt: u64, late: u64) -> Times {
        let mut times = Times::default();
        (0..prompt).for_each(|_| times.record(0, 5_000));
        (0..late).for_each(|_| times.record(0, 150_000));
        times
    }

    #[test]
    fn a_load_test_at_its_limit_says_so() {
        assert_eq!(series(1, 60).limit(&lateness(5_000, 0)), None);
        assert!(series(20, 60).limit(&lateness(5_000, 0)).unwrap().contains("20 of 60 seconds"));
        let late = series(0, 60).limit(&lateness(4_950, 50));
        assert_eq!(late.unwrap(), "50 of 5000 comments left more than 20 ms late");
        assert_eq!(series(0, 60).limit(&lateness(4_951, 49)), None, "less than one in a hundred");
    }

    #[test]
    fn a_hiccup_among_a_few_comments_is_no_limit() {
        assert_eq!(series(0, 60).limit(&lateness(50, 9)), None);
        assert!(series(0, 60).limit(&lateness(50, 10)).is_some());
    }

    #[test]
    fn what_was_refused_comes_with_advice() {
        let mut figures = Figures::default();
        figures.refuse("rate_limited");
        figures.connect_failures.insert("no_port_left".to_owned(), 3);
        let hints = hints(&figures).join("\n");
        assert!(hints.contains("limits.min_interval") && hints.contains("--source"), "{hints}");
    }
}
