//! How many viewers a room has: here, which is known, and on other nodes, which is told now and then and soon outdated.

use tokio::time::Instant;

use super::Room;

/// How many viewers a room has on other nodes, as last told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elsewhere {
    viewers: usize,
    /// From then on it says nothing; never told, it says nothing either.
    until: Option<Instant>,
}

impl Elsewhere {
    pub(super) fn known(&self) -> Option<usize> {
        self.until.filter(|until| Instant::now() < *until).map(|_| self.viewers)
    }
}

impl Room {
    /// Viewers in the room on this node.
    #[must_use]
    pub fn online(&self) -> usize {
        self.audience.len()
    }

    /// Viewers in the room on all nodes, as far as it is known.
    #[must_use]
    pub fn online_everywhere(&self) -> usize {
        self.audience.everywhere()
    }

    /// Viewers in the room on other nodes, if it is known.
    #[must_use]
    pub fn online_elsewhere(&self) -> Option<usize> {
        self.audience.elsewhere()
    }

    /// Notes how many viewers the room has on other nodes; it counts until this moment.
    pub fn note_elsewhere(&self, viewers: usize, until: Instant) {
        self.audience.note_elsewhere(Elsewhere { viewers, until: Some(until) });
    }
}
