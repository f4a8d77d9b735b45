//! How long things took.

use serde::{Deserialize, Serialize};

/// The latencies of a load test, all in milliseconds; what was not measured is none.
///
/// Those of comments count from the time a comment was scheduled for, not from the time it was sent: a sender that was
/// held up would otherwise leave out the very comments that waited (coordinated omission).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Latencies {
    /// From the start of a connection until the hello.
    pub join: Option<Percentiles>,
    /// Until the acknowledgement `accepted`.
    pub accepted: Option<Percentiles>,
    /// Until the acknowledgement `stored`.
    pub stored: Option<Percentiles>,
    /// Until a viewer had the comment.
    pub delivery: Option<Percentiles>,
    /// From asking for the last 60 seconds until the whole answer was there.
    pub query: Option<Percentiles>,
}

impl Latencies {
    /// All of them with their names for people.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, Option<&Percentiles>)> {
        [
            ("delivery", &self.delivery),
            ("accepted", &self.accepted),
            ("stored", &self.stored),
            ("join", &self.join),
            ("query", &self.query),
        ]
        .into_iter()
        .map(|(name, figures)| (name, figures.as_ref()))
    }
}

/// Of fewer times than this the 99th percentile is the longest, or next to it.
pub const ENOUGH: u64 = 100;

impl Percentiles {
    /// Whether there are fewer than [`ENOUGH`], so that the 99th percentile says little.
    #[must_use]
    pub fn is_thin(&self) -> bool {
        (1..ENOUGH).contains(&self.count)
    }
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// The mean.
    pub mean_ms: f64,
    /// The least.
    pub min_ms: f64,
    /// Half took at most this.
    pub p50_ms: f64,
    /// 90 of 100 took at most this.
    pub p90_ms: f64,
    /// 99 of 100 took at most this.
    pub p99_ms: f64,
    /// 999 of 1,000 took at most this.
    pub p999_ms: f64,
    /// The most.
    pub max_ms: f64,
    /// The whole distribution: (quantile from 0 to 1, milliseconds), both rising; more points towards the tail.
    pub curve: Vec<(f64, f64)>,
}
