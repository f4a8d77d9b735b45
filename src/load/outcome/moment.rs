//! How it went, second by second.

use serde::{Deserialize, Serialize};

/// One second of a load test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Moment {
    /// The end of this second, in seconds from the start.
    pub at_secs: f64,
    /// Connections open at that time.
    pub connections: u64,
    /// Comments sent in this second.
    pub sent: u64,
    /// Comments acknowledged in this second, at whatever level was asked for.
    pub accepted: u64,
    /// Comments received in this second, each counted once per viewer.
    pub delivered: u64,
    /// Errors, refusals and failed connections in this second.
    pub errors: u64,
    /// Median of the delivery latency in this second, in milliseconds; none if nothing was delivered.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the delivery latency in this second, in milliseconds; none if nothing was delivered.
    pub p99_ms: Option<f64>,
    /// Cores that the load's side used in this second.
    pub client_cpu: f64,
    /// What the servers told at that time, if they did.
    pub server: Option<ServerMoment>,
}

/// What the servers told, all targets together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServerMoment {
    /// Cores used since the moment before.
    pub cpu: f64,
    /// Memory held, in bytes.
    pub rss_bytes: u64,
    /// Comments in the write queue.
    pub queue: u64,
    /// Comments in the outbox on disk.
    pub outbox: u64,
}
