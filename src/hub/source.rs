//! What answers reads of a room's comments: the measure of how much the rooms' memory spares the store.

use super::Hub;
use crate::metrics::Metrics;

/// What a read was answered from, the farthest of all that it needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Memory alone, which has also what the other nodes' streams brought.
    Memory,
    /// The store as well.
    Store,
    /// The store was needed and did not answer, or lacked what waits in the outbox.
    Neither,
}

impl Source {
    const ALL: [Self; 3] = [Self::Memory, Self::Store, Self::Neither];

    fn label(self) -> [(&'static str, &'static str); 1] {
        let word = match self {
            Self::Memory => "memory",
            Self::Store => "store",
            Self::Neither => "neither",
        };
        [("source", word)]
    }

    /// Has each shown from the start.
    pub(super) fn declare(metrics: &Metrics) {
        Self::ALL.iter().for_each(|source| drop(metrics.reads.get_or_create(&source.label())));
    }
}

impl Hub {
    pub(super) fn count_read(&self, source: Source) {
        self.inner.parts.metrics.reads.get_or_create(&source.label()).inc();
    }
}
