//! How the server is told to stop, and how long it may take.
//!
//! A stop has two moments. It is *announced*: the server says that it is not ready, and serves on. It *begins*: nothing
//! new is taken, and what runs until stopped ends. Without a time of grace the two are one. The deadline counts from the
//! first of them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A handle that everything which runs until stopped holds a clone of.
#[derive(Clone, Debug)]
pub struct Shutdown {
    stop: watch::Sender<Option<Stop>>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    deadline: Instant,
    has_begun: bool,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stop: watch::Sender::new(None) }
    }
}

impl Shutdown {
    /// Announces the shutdown, to be over after `within`. Only the first call counts.
    pub fn announce(&self, within: Duration) {
        self.come_to(false, within);
    }

    /// Begins the shutdown, to be over after `within`, or when it was announced to be. Only the first call counts.
    pub fn begin(&self, within: Duration) {
        self.come_to(true, within);
    }

    fn come_to(&self, has_begun: bool, within: Duration) {
        self.stop.send_if_modified(|stop| {
            let is_news = stop.is_none_or(|stop| has_begun && !stop.has_begun);
            if is_news {
                let deadline = stop.map_or_else(|| Instant::now() + within, |stop| stop.deadline);
                *stop = Some(Stop { deadline, has_begun });
            }
            is_news
        });
    }

    /// Whether it is announced, or has begun.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Whether it has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.stop.borrow().is_some_and(|stop| stop.has_begun)
    }

    /// The moment by which it must be over, once it is announced.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.stop.borrow().map(|stop| stop.deadline)
    }

    /// Waits until the shutdown is announced; gives the moment by which it must be over. Cancellation-safe.
    pub async fn announced(&self) -> Instant {
        self.reached(|_| true).await
    }

    /// Waits until the shutdown begins; gives the moment by which it must be over. Cancellation-safe.
    pub async fn begun(&self) -> Instant {
        self.reached(|stop| stop.has_begun).await
    }

    async fn reached(&self, is_there: fn(&Stop) -> bool) -> Instant {
        let mut stop = self.stop.subscribe();
        match stop.wait_for(|stop| stop.as_ref().is_some_and(is_there)).await.map(|stop| *stop) {
            Ok(Some(stop)) => stop.deadline,
            // `self` holds the sender, so the channel cannot close while we wait.
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_deadline_counts_from_the_announcement() {
        let (shutdown, at) = (Shutdown::default(), Instant::now());
        shutdown.announce(10 * SECOND);
        assert!(shutdown.is_announced() && !shutdown.has_begun());
        tokio::time::advance(4 * SECOND).await;
        shutdown.begin(10 * SECOND);
        shutdown.announce(SECOND);
        assert!(shutdown.has_begun(), "an announcement does not take a beginning back");
        assert_eq!((shutdown.announced().await, shutdown.begun().await), (at + 10 * SECOND, at + 10 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_beginning_sleeps_through_the_announcement() {
        let shutdown = Shutdown::default();
        let waiter = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.begun().await }
        });
        shutdown.announce(SECOND);
        assert!(tokio::time::timeout(SECOND, shutdown.begun()).await.is_err());
        assert!(!waiter.is_finished());
        shutdown.begin(SECOND);
        waiter.await.unwrap();
    }
}
