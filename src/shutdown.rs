//! How the server is told to stop, and how long it may take.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A handle that everything which runs until stopped holds a clone of.
#[derive(Clone, Debug)]
pub struct Shutdown {
    begun: watch::Sender<Option<Instant>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { begun: watch::Sender::new(None) }
    }
}

impl Shutdown {
    /// Begins the shutdown, to be over after `within`. Only the first call counts.
    pub fn begin(&self, within: Duration) {
        self.begun.send_if_modified(|deadline| {
            let is_first = deadline.is_none();
            deadline.get_or_insert(Instant::now() + within);
            is_first
        });
    }

    /// Whether it has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.borrow().is_some()
    }

    /// The moment by which it must be over, if it has begun.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.begun.borrow()
    }

    /// Waits until the shutdown begins; gives the moment by which it must be over. Cancellation-safe.
    pub async fn begun(&self) -> Instant {
        let mut begun = self.begun.subscribe();
        match begun.wait_for(Option::is_some).await.map(|deadline| *deadline) {
            Ok(Some(deadline)) => deadline,
            // `self` holds the sender, so the channel cannot close while we wait.
            _ => std::future::pending().await,
        }
    }
}
