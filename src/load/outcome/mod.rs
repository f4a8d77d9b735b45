//! What became of a load test: the contents of `report.json`, and nothing else is needed to show, judge or compare it.
//!
//! Plain data. The engine fills it, [`judge`](super::objective::judge) adds the verdict, the page, the table and the
//! comparison read it. Every field has a default and unknown fields are ignored, so that reports stay readable when
//! fields are added; [`VERSION`] goes up only when the meaning of one changes. [`read()`] and [`write()`] are its files.
//! Floats are finite: JSON has no others.

mod counts;
mod faults;
mod file;
mod latency;
mod moment;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
mod verdict;

use serde::{Deserialize, Serialize};

pub use counts::{Counts, NOBODY_TO_SEND};
pub use faults::{Fault, FaultExample, Faults, MAX_EXAMPLES};
pub use file::{FileError, read, write};
pub(super) use file::{prepare, replace};
pub use latency::{ENOUGH, Latencies, Percentiles};
pub use moment::{Moment, ServerMoment};
pub use verdict::Breach;

/// The version of the format that is written, and the highest that is read.
pub const VERSION: u32 = 1;

/// One load test, whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Outcome {
    /// The version of this format: [`VERSION`].
    pub version: u32,
    /// The version of the program that ran the test.
    pub danmakud: String,
    /// When the first connection was opened, in milliseconds since 1970 (UTC).
    pub started_ms: u64,
    /// From then until the last answer was in or given up, in seconds.
    pub took_secs: f64,
    /// The command that repeats it, word by word, tokens masked. Empty if unknown.
    pub command: Vec<String>,
    /// The effective plan, every knob with its value, as the engine echoes it.
    pub plan: serde_json::Value,
    /// What the plan comes to.
    pub summary: Load,
    /// The machine of the load's side.
    pub machine: Option<Machine>,
    /// How long things took.
    pub latency: Latencies,
    /// How often things happened.
    pub counts: Counts,
    /// What was wrong with what viewers received.
    pub faults: Faults,
    /// How it went, a moment a second, in order of time.
    pub series: Vec<Moment>,
    /// What the load's side itself used.
    pub client: Client,
    /// What the servers used, all of them together, if they told.
    pub server: Option<Server>,
    /// The objectives and what was measured.
    pub objectives: Vec<Judged>,
    /// Whether a signal ended it early: then there is no verdict.
    pub has_been_stopped: bool,
    /// The verdict: ran to its end, nothing broke it, and every objective held.
    pub has_held: bool,
    /// What a search for the highest load found, if this is the load test at its end.
    pub capacity: Option<Found>,
}

/// What a search for the highest load found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Found {
    /// For people: the highest load that held, what it means, and what gave way first. One sentence each.
    pub says: Vec<String>,
    /// Every load test of the search, in the order they ran.
    pub tried: Vec<Tried>,
}

/// One load test of a search for the highest load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tried {
    /// The multiple of the plan.
    pub scale: f64,
    /// Viewers at the peak.
    pub viewers: u64,
    /// Comments scheduled a second.
    pub rate: f64,
    /// Deliveries measured a second.
    pub deliveries: f64,
    /// The 99th percentile of the delivery latency, in milliseconds, if any was measured.
    pub p99_ms: Option<f64>,
    /// What gave way, the first what explains the others; nothing if it held.
    pub gave_way: Vec<String>,
}

/// What was to be carried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Load {
    /// Rooms, all targets together.
    pub rooms: u64,
    /// Viewers at the peak, all rooms together.
    pub viewers: u64,
    /// Those that send, all rooms together.
    pub senders: u64,
    /// Comments scheduled a second, all rooms together, as a mean over the sending.
    pub rate: f64,
    /// The servers' addresses.
    pub targets: Vec<String>,
    /// The profile's name or file; empty if there was none.
    pub profile: String,
    /// How long sending was to last, in seconds.
    pub duration_secs: f64,
}

impl Load {
    /// What it is called: after its profile, if it has one.
    #[must_use]
    pub fn name(&self) -> &str {
        if self.profile.is_empty() { "without a profile" } else { &self.profile }
    }
}

/// The machine that a test ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Machine {
    /// Cores that the process may use.
    pub cores: u64,
    /// The processor's model.
    pub cpu: String,
    /// The operating system and its version.
    pub kernel: String,
    /// Main memory, in bytes.
    pub memory_bytes: u64,
}

/// What the load's side used, so that a test that measured itself is told from one that measured the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Client {
    /// Processor time, in seconds.
    pub cpu_seconds: f64,
    /// The most cores it used over one second.
    pub peak_cores: f64,
    /// The most memory it held, in bytes.
    pub max_rss_bytes: u64,
    /// 99 of 100 comments were sent at most this long after their scheduled time, in milliseconds.
    pub lateness_p99_ms: f64,
    /// Whether it, not the server, set the limit.
    pub is_limit: bool,
    /// Why it did, for people.
    pub why: Option<String>,
}

/// What the servers used, all targets together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Server {
    /// The server's version, if it tells.
    pub version: Option<String>,
    /// Processor time during the test, in seconds.
    pub cpu_seconds: f64,
    /// The most memory held, in bytes.
    pub max_rss_bytes: u64,
    /// Whether the ledger balanced at the end, if it could be read.
    pub ledger_balances: Option<bool>,
    /// Comments that the ledger says were accepted and not stored.
    pub not_stored: u64,
}

/// One objective, judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Judged {
    /// What was asked, as it was asked.
    pub objective: String,
    /// What was measured, in the same unit.
    pub measured: String,
    /// Whether it held.
    pub is_held: bool,
}
