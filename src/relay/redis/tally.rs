//! What the relay counts by reason or outcome, and the words for them.

use redis::RedisError;

use super::entry::Bridge;
use crate::metrics::Metrics;

/// What becomes of a gap.
const OUTCOMES: [&str; 3] = ["bridged", "too_long", "unknown"];

/// Why a message is not published.
const NOT_PUBLISHED: [&str; 4] = ["unreachable", "read_only", "out_of_memory", "refused"];

/// Why a subscription ends.
const DISCONNECTED: [&str; 5] = ["closed", "failed", "no_answer", "probe_missed", "moved"];

/// Has every counter shown from the start, also on a node without others.
pub(in crate::relay) fn declare(metrics: &Metrics) {
    let (gaps, failed, lost) = (&metrics.relay_gaps, &metrics.relay_publish_failed, &metrics.relay_disconnects);
    OUTCOMES.iter().for_each(|outcome| drop(gaps.get_or_create(&[("outcome", outcome)])));
    NOT_PUBLISHED.iter().for_each(|reason| drop(failed.get_or_create(&[("reason", reason)])));
    DISCONNECTED.iter().for_each(|reason| drop(lost.get_or_create(&[("reason", reason)])));
}

/// Counts what a stream had, and how it joined what was heard before.
pub(super) fn count_read(metrics: &Metrics, bridge: Bridge, comments: usize) {
    metrics.relay_read.inc_by(comments as u64);
    let outcome = match bridge {
        Bridge::New => return,
        Bridge::Whole => "bridged",
        Bridge::Short(_) => "too_long",
        Bridge::Unknown => "unknown",
    };
    metrics.relay_gaps.get_or_create(&[("outcome", outcome)]).inc();
}

/// Counts a message that was not published.
pub(super) fn count_failed(metrics: &Metrics, error: &RedisError) {
    let reason = match error.code() {
        Some("OOM") => "out_of_memory",
        Some("READONLY") => "read_only",
        Some(_) => "refused",
        None => "unreachable",
    };
    metrics.relay_publish_failed.get_or_create(&[("reason", reason)]).inc();
}
