//! How often things happened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The kind of error for comments whose time had come when none of their room's senders was connected.
pub const NOBODY_TO_SEND: &str = "nobody_to_send";

/// The counts of a load test.
///
/// At its end scheduled = sent + what the stop of the test left unsent, and sent = accepted + refused + unanswered +
/// cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Counts {
    /// Comments whose time to be sent had come.
    pub scheduled: u64,
    /// Comments sent.
    pub sent: u64,
    /// Comments acknowledged, at whatever level was asked for.
    pub accepted: u64,
    /// Comments acknowledged as stored.
    pub stored: u64,
    /// Comments sent and neither acknowledged nor refused.
    pub unanswered: u64,
    /// Comments whose sender's connection the test itself cut before there was an answer, as storms do.
    pub cut_off: u64,
    /// Refusals by the server's code.
    pub refused: BTreeMap<String, u64>,
    /// Errors by kind: what should not happen at all (a frame that is none, a connection that broke, …).
    pub errors: BTreeMap<String, u64>,
    /// Connections that the server closed, by close code.
    pub closes: BTreeMap<String, u64>,
    /// What clients that misbehave on purpose were answered, by the code of the refusal or the close.
    pub misbehaved: BTreeMap<String, u64>,
    /// Connections that came about, the ones after a loss included.
    pub connected: u64,
    /// Connections that did not come about.
    pub connects_failed: u64,
    /// Those of them that were to bring back viewers whom the test itself had cut off.
    pub connects_failed_in_storms: u64,
    /// Viewers that had not come, or not come back, by the end.
    pub never_came: u64,
    /// Connections opened again after a loss.
    pub reconnects: u64,
    /// Comments received, each counted once per viewer.
    pub deliveries: u64,
    /// Comments that the server left out for viewers of a room that is too fast for people, and said so.
    pub left_out: u64,
    /// Comments that viewers were told they had missed, those that read slowly on purpose included.
    pub gaps_told: u64,
    /// 60-second queries answered.
    pub queries: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

impl Counts {
    /// Refusals of all codes.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Connections that did not come about, but for those that the test's own storms brought on.
    #[must_use]
    pub fn failed_connects(&self) -> u64 {
        self.connects_failed.saturating_sub(self.connects_failed_in_storms)
    }

    /// Errors of all kinds, [failed connections](Self::failed_connects) and unanswered comments among them.
    #[must_use]
    pub fn troubles(&self) -> u64 {
        self.errors.values().sum::<u64>() + self.failed_connects() + self.unanswered
    }
}
