//! What an objective can be about, and where the figure is found.

use crate::load::outcome::{Fault, Latencies, Outcome, Percentiles};
use crate::load::units;

/// Over how many seconds in a row the server's processor time is taken: a single second swings with the clock ticks
/// that the kernel counts in, and with where a second happens to be cut.
const CPU_WINDOW: usize = 5;

/// What an objective is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A latency, in milliseconds.
    Latency(Path, Rank),
    /// Faults of one kind.
    Fault(Fault),
    /// Comments that viewers missed, told or untold, unless they read slowly on purpose.
    Gaps,
    /// Faults of all kinds.
    Faults,
    /// Errors, failed connections and unanswered comments; their share is of comments sent and connections tried.
    Errors,
    /// Refused comments; their share is of those sent.
    Refused,
    /// The most cores that the servers used over five seconds.
    Cpu,
    /// The most memory that the servers held, in bytes.
    Rss,
    /// How late 99 of 100 comments were sent, in milliseconds.
    Lateness,
}

/// Which way a latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Until a viewer has the comment.
    Delivery,
    /// Until the hello.
    Join,
    /// Until the acknowledgement `accepted`.
    Accepted,
    /// Until the acknowledgement `stored`.
    Stored,
    /// Until the answer to a 60-second query.
    Query,
}

/// Which of the times in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The median.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
    /// The longest.
    Max,
}

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Millis,
    Count,
    CountOrShare,
    Cores,
    Bytes,
}

impl Unit {
    pub(super) fn told(self, value: f64) -> String {
        match self {
            Self::Millis => units::millis(value),
            Self::Count | Self::CountOrShare => units::count(value as u64),
            Self::Cores => format!("{value:.2} cores"),
            Self::Bytes => units::bytes(value as u64),
        }
    }

    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Millis => "duration like 200ms or 1s",
            Self::Count => "count like 0 or 10",
            Self::CountOrShare => "count like 10 or share like 0.1%",
            Self::Cores => "number of cores like 0.8 or 80%",
            Self::Bytes => "size like 512MiB or 2GB",
        }
    }
}

const PATHS: [(Path, &str); 5] = [
    (Path::Delivery, ""),
    (Path::Join, "join_"),
    (Path::Accepted, "accepted_"),
    (Path::Stored, "stored_"),
    (Path::Query, "query_"),
];

const RANKS: [(Rank, &str); 5] =
    [(Rank::P50, "p50"), (Rank::P90, "p90"), (Rank::P99, "p99"), (Rank::P999, "p999"), (Rank::Max, "max")];

const OTHERS: [(Measure, &str); 12] = [
    (Measure::Fault(Fault::Lost), "lost"),
    (Measure::Fault(Fault::Doubled), "doubled"),
    (Measure::Fault(Fault::OutOfOrder), "out_of_order"),
    (Measure::Fault(Fault::WrongRoom), "wrong_room"),
    (Measure::Fault(Fault::Damaged), "damaged"),
    (Measure::Gaps, "gaps"),
    (Measure::Faults, "faults"),
    (Measure::Errors, "errors"),
    (Measure::Refused, "refused"),
    (Measure::Cpu, "cpu"),
    (Measure::Rss, "rss"),
    (Measure::Lateness, "lateness"),
];

fn all() -> impl Iterator<Item = (Measure, String)> {
    let latencies = PATHS.into_iter().flat_map(|(path, prefix)| {
        RANKS.into_iter().map(move |(rank, name)| (Measure::Latency(path, rank), format!("{prefix}{name}")))
    });
    latencies.chain(OTHERS.into_iter().map(|(measure, name)| (measure, name.to_owned())))
}

impl Measure {
    /// Every name, the latencies first.
    #[must_use]
    pub fn names() -> Vec<String> {
        all().map(|(_, name)| name).collect()
    }

    /// What has this name. `delivery_p99` and the like are the same as `p99`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let wanted = name.strip_prefix("delivery_").filter(|rank| RANKS.iter().any(|(_, known)| known == rank));
        let wanted = wanted.unwrap_or(name);
        all().find(|(_, known)| known == wanted).map(|(measure, _)| measure)
    }

    /// Its name, as it is written in an objective.
    #[must_use]
    pub fn name(self) -> String {
        all().find(|(measure, _)| *measure == self).map(|(_, name)| name).unwrap_or_default()
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Latency(..) | Self::Lateness => Unit::Millis,
            Self::Fault(_) | Self::Gaps | Self::Faults => Unit::Count,
            Self::Errors | Self::Refused => Unit::CountOrShare,
            Self::Cpu => Unit::Cores,
            Self::Rss => Unit::Bytes,
        }
    }

    /// What was measured; none if it was not.
    pub(super) fn value(self, outcome: &Outcome) -> Option<f64> {
        let faults = &outcome.faults;
        Some(match self {
            Self::Latency(path, rank) => rank.of(path.of(&outcome.latency).filter(|figures| figures.count > 0)?),
            Self::Fault(fault) => faults.count(fault) as f64,
            Self::Gaps => faults.gaps_told.saturating_add(faults.gaps_untold) as f64,
            Self::Faults => faults.total() as f64,
            Self::Errors => outcome.counts.troubles() as f64,
            Self::Refused => outcome.counts.refusals() as f64,
            Self::Cpu => busiest_cpu(outcome)?,
            Self::Rss => outcome.server.as_ref().filter(|server| server.max_rss_bytes > 0)?.max_rss_bytes as f64,
            Self::Lateness => (outcome.counts.sent > 0).then_some(outcome.client.lateness_p99_ms)?,
        })
    }

    /// What was measured, of as many as could have been; none if there could have been none.
    pub(super) fn share(self, outcome: &Outcome) -> Option<f64> {
        let counts = &outcome.counts;
        let possible = match self {
            Self::Errors => counts.sent + counts.connected + counts.connects_failed,
            Self::Refused => counts.sent,
            _ => return None,
        };
        (possible > 0).then_some(self.value(outcome)? / possible as f64)
    }
}

impl Path {
    fn of(self, latency: &Latencies) -> Option<&Percentiles> {
        match self {
            Self::Delivery => latency.delivery.as_ref(),
            Self::Join => latency.join.as_ref(),
            Self::Accepted => latency.accepted.as_ref(),
            Self::Stored => latency.stored.as_ref(),
            Self::Query => latency.query.as_ref(),
        }
    }
}

impl Rank {
    fn of(self, figures: &Percentiles) -> f64 {
        match self {
            Self::P50 => figures.p50_ms,
            Self::P90 => figures.p90_ms,
            Self::P99 => figures.p99_ms,
            Self::P999 => figures.p999_ms,
            Self::Max => figures.max_ms,
        }
    }
}

/// The highest mean over [`CPU_WINDOW`] seconds in a row, or over all there are if they are fewer.
fn busiest_cpu(outcome: &Outcome) -> Option<f64> {
    let told: Vec<f64> = outcome.series.iter().filter_map(|moment| Some(moment.server.as_ref()?.cpu)).collect();
    let window = CPU_WINDOW.min(told.len());
    told.windows(window.max(1)).map(|seconds| seconds.iter().sum::<f64>() / seconds.len() as f64).reduce(f64::max)
}
