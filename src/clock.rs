//! The wall clock, injected. The only place that reads the system's time; everything that waits uses `tokio::time`,
//! which tests can pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::UNIX_EPOCH;

use crate::model::Timestamp;

/// Tells the time of day. Cheap to clone; clones of a manual clock move together.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The system's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands still until it is [set](Clock::set), for tests.
    #[must_use]
    pub fn manual(at: Timestamp) -> Self {
        Self { manual: Some(Arc::new(AtomicI64::new(at.millis()))) }
    }

    /// The time now. The system's clock may be set back; who needs an order must not rely on it alone.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.manual {
            Some(manual) => Timestamp::from_millis(manual.load(Ordering::Acquire)),
            None => {
                #[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
                let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
            }
        }
    }

    /// Sets a manual clock, also backwards; the system's clock stays as it is.
    pub fn set(&self, to: Timestamp) {
        if let Some(manual) = &self.manual {
            manual.store(to.millis(), Ordering::Release);
        }
    }
}
