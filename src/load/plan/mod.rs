//! What a load test is to do: from what was typed ([`Knobs`], in a profile and as flags) to a valid [`Plan`].
//!
//! Pure but for reading the profile and the trace. Which room has how many viewers and senders is a [`Seating`]; when which
//! room gets a comment is a [`Schedule`], which follows from plan and seed alone and never from the server.

mod judge;
mod knobs;
mod schedule;
mod seating;
mod shipped;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

pub use judge::{Asking, Scaled};
pub use knobs::Knobs;
pub use schedule::{Due, Schedule};
pub use seating::{Seat, Seating};
pub use shipped::PROFILES;

#[cfg(test)]
pub(in crate::load) use judge::tests;

use super::client::Target;
use super::trace::{Line, TraceError};
use crate::model::AckLevel;
use crate::wire::Compression;

/// Why there is no plan: bad usage, told in one line with the place, the key and what would be right.
#[derive(Debug, Error)]
pub enum PlanError {
    /// Neither a shipped profile nor a file that can be read.
    #[error("{name} is neither a shipped profile ({shipped}) nor a file that can be read")]
    Profile {
        /// As it was given.
        name: String,
        /// What there is.
        shipped: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The file is no profile.
    #[error("{}, line {line}: {problem}", file.display())]
    Toml {
        /// Which.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What the parser says.
        problem: String,
    },
    /// A knob has a value that makes no sense.
    #[error("{place}: {problem}")]
    Knob {
        /// The flag, or the profile and its key.
        place: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The trace cannot be read.
    #[error("{place}")]
    Trace {
        /// The flag, or the profile and its key.
        place: String,
        /// Why.
        #[source]
        source: TraceError,
    },
}

/// What a load test is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The profile's name or file; empty if none was given.
    pub profile: String,
    /// The folder of its files.
    folder: PathBuf,
    /// The knobs as they came out, to be told in the report.
    pub knobs: Knobs,
    /// The servers, at least one; connections are spread over them in turn.
    pub targets: Vec<Target>,
    /// Tokens, given to connections in turn.
    pub tokens: Vec<String>,
    /// Addresses to connect from, in turn; empty for whatever the system takes.
    pub sources: Vec<IpAddr>,
    /// What the rooms' names begin with; none for a name that no other run has.
    pub room: Option<String>,
    /// Who sits where.
    pub seating: Seating,
    /// What is sent when.
    pub sending: Sending,
    /// Over how long the viewers come.
    pub ramp: Duration,
    /// Whether sending does not wait for them.
    pub sends_in_ramp: bool,
    /// Over how long they leave, before the end.
    pub leave: Duration,
    /// How long to send.
    pub duration: Duration,
    /// Which acknowledgements to ask for.
    pub ack: Asked,
    /// What viewers ask to get.
    pub taste: Taste,
    /// Those on bad lines.
    pub slow: Slow,
    /// Lost connections; none for none.
    pub storm: Option<Storm>,
    /// How many connections misbehave.
    pub misbehaving: u32,
    /// 60-second queries a second.
    pub query_rate: f64,
    /// How long to wait for what is missing at the end.
    pub patience: Duration,
    /// What chance begins with.
    pub seed: u64,
}

impl Plan {
    /// Connections at the most.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.seating.viewers().saturating_add(self.misbehaving)
    }
}

/// What is sent.
#[derive(Clone, Debug)]
pub enum Sending {
    /// Comments at a rate.
    Rate(Rate),
    /// A recorded stream.
    Trace {
        /// In order of their times.
        lines: Arc<Vec<Line>>,
        /// How many times faster than recorded.
        speed: f64,
        /// Where to begin.
        from: Duration,
    },
}

/// How often, and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Comments a second outside of bursts.
    pub mean: f64,
    /// As many times as many within bursts.
    pub burst: f64,
    /// How long a burst lasts.
    pub burst_for: Duration,
    /// From burst to burst.
    pub burst_every: Duration,
    /// Whether comments come as by chance, or evenly.
    pub is_poisson: bool,
    /// Characters in a text.
    pub chars: RangeInclusive<usize>,
}

/// Which acknowledgement to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Asked {
    /// Always the same.
    One(AckLevelName),
    /// Both in turn.
    Both,
}

/// [`AckLevel`] with a name that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AckLevelName {
    /// Queued and on its way to the viewers.
    Accepted,
    /// In the store.
    Stored,
}

impl Asked {
    /// The level to ask for with the comment of this number.
    #[must_use]
    pub fn level(self, number: u32) -> AckLevel {
        match self {
            Self::One(AckLevelName::Accepted) => AckLevel::Accepted,
            Self::One(AckLevelName::Stored) => AckLevel::Stored,
            Self::Both if number.is_multiple_of(2) => AckLevel::Accepted,
            Self::Both => AckLevel::Stored,
        }
    }
}

/// What viewers ask for in the query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taste {
    /// A compression, and the part of the viewers that ask for it.
    pub compression: Option<Compression>,
    /// See there.
    pub compress_share: f64,
    /// Comments a second at most; 0 for all.
    pub tier: u32,
    /// The part of the viewers that ask for that.
    pub tier_share: f64,
}

/// Viewers on bad lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// Part of the viewers, 0 to 1.
    pub share: f64,
    /// What each reads a second.
    pub bytes_per_sec: u32,
}

/// Connections that are lost, many at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storm {
    /// How often.
    pub every: Duration,
    /// Part of the viewers, 0 to 1.
    pub share: f64,
    /// Within how long they are back.
    pub within: Duration,
}

/// Whether the n-th of many belongs to a part of them that is spread evenly over all.
#[must_use]
pub fn is_of_share(share: f64, n: u32) -> bool {
    let below = |n: u32| (f64::from(n) * share).floor();
    below(n.saturating_add(1)) > below(n)
}

impl fmt::Display for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(Rate { mean, .. }) => write!(f, "{mean} comments/s"),
            Self::Trace { lines, speed, .. } => write!(f, "{} recorded comments × {speed}", lines.len()),
        }
    }
}
