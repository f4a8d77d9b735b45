//! What the store has said of a batch, brought to all who wait for it: the senders, the ledger, the file of what was
//! refused.

use std::sync::Arc;

use bytes::Bytes;
use tracing::{error, warn};

use super::aside::AsideFile;
use super::contract::{Record, WriteReport};
use crate::metrics::{Metrics, Place, SET_ASIDE_REASONS};
use crate::model::Fate;

/// Brings fates home. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Settler {
    aside: AsideFile,
    metrics: Arc<Metrics>,
}

impl Settler {
    pub(super) fn new(aside: AsideFile, metrics: Arc<Metrics>) -> Self {
        Self { aside, metrics }
    }

    /// Settles every record of a batch that lay in `place`.
    pub(super) async fn settle(&self, records: &[Record], report: &WriteReport, place: Place) {
        // On the disk first: once the ledger says set aside, the comment can be found there, or is counted as lost.
        self.count_lost(self.aside.append(records, report).await);
        let mut refused = Vec::new();
        for aside in &report.set_aside {
            let reason = known(aside.reason);
            warn!(id = %aside.id, reason, detail = %aside.detail, "comment set aside");
            refused.push(reason);
        }
        let stored = records.len().saturating_sub(refused.len());
        self.metrics.account.settle(place, stored as u64, &refused);
        for record in records {
            let is_refused = report.set_aside.iter().any(|aside| aside.id == record.posted.comment.id);
            record.posted.settle(if is_refused { Fate::SetAside } else { Fate::Stored });
        }
    }

    fn count_lost(&self, comments: u64) {
        self.metrics.set_aside_lost.inc_by(comments);
    }

    /// Gives up comments of the outbox that the disk has lost, or that are none of this release, which are written down.
    pub(super) async fn give_up(&self, lost: u64, foreign: &[(&'static str, Bytes)]) {
        self.count_lost(self.aside.append_foreign(foreign).await);
        for (field, _) in foreign {
            error!(field, "a record on the disk is no comment that this release knows, it is set aside");
        }
        self.metrics.account.damage(lost + foreign.len() as u64);
    }
}

/// The reason, as the ledger knows it.
fn known(reason: &'static str) -> &'static str {
    if SET_ASIDE_REASONS.contains(&reason) { reason } else { "refused" }
}
