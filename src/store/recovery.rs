//! What an earlier life has left in the journal is brought to where it is safe: the outbox, or the store.
//!
//! That is done before anything is accepted, where it can be. When neither takes it, as with a full outbox while MongoDB is
//! away, the server serves all the same: it stays in the journal, and is brought in as soon as one of them does.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::contract::{CommentStore, Record};
use super::journal::{Left, Leftovers};
use super::log::LogError;
use super::outbox::{Outbox, revived};
use super::path::WritePathError;
use super::settle::Settler;
use crate::metrics::{Metrics, Place};
use crate::model::Comment;

/// How long after a failed attempt it is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// What brings it in.
pub(super) struct Recovery {
    pub(super) leftovers: Arc<Leftovers>,
    pub(super) outbox: Option<Outbox>,
    pub(super) store: Arc<dyn CommentStore>,
    pub(super) settler: Settler,
    pub(super) metrics: Arc<Metrics>,
    /// Most comments at a time.
    pub(super) batch: usize,
}

impl Recovery {
    /// Brings in all there is, or gives the task that goes on with it.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub(super) async fn begin(self) -> Result<Option<JoinHandle<()>>, WritePathError> {
        let failed = |source| WritePathError::Log { what: "the journal", source };
        let mut found = 0;
        while let Some(left) = self.leftovers.next(self.batch).map_err(failed)? {
            found += left.comments.len();
            if let Err(problem) = self.bring_in(&left).await {
                warn!(problem, "comments of an earlier life stay in the journal until they can be brought in");
                return Ok(Some(tokio::spawn(self.go_on(left))));
            }
        }
        if found > 0 {
            info!(comments = found, "brought in what was left in the journal; some may have been stored before");
        }
        Ok(None)
    }

    async fn go_on(self, first: Left) {
        let mut next = Some(first);
        while let Some(left) = next {
            while self.bring_in(&left).await.is_err() {
                sleep(TRY_AGAIN).await;
            }
            next = self.next_or_wait().await;
        }
        info!("brought in what was left in the journal");
    }

    async fn next_or_wait(&self) -> Option<Left> {
        loop {
            match self.leftovers.next(self.batch) {
                Ok(left) => return left,
                Err(error) => self.tell(&error).await,
            }
        }
    }

    async fn tell(&self, error: &LogError) {
        error!(%error, "the journal cannot be read");
        sleep(TRY_AGAIN).await;
    }

    /// Puts some of it into the outbox, else into the store, and forgets it here.
    async fn bring_in(&self, left: &Left) -> Result<(), String> {
        let records: Vec<_> = left.comments.iter().map(|comment| self.record(comment.clone())).collect();
        if !records.is_empty()
            && let Err(parking) = self.park(&records).await
        {
            let stored = self.store.write(&records).await;
            let report = stored
                .map_err(|error| parking.map_or_else(|| error.to_string(), |full| full + "; " + &error.to_string()))?;
            self.metrics.account.recover(records.len() as u64);
            self.settler.settle(&records, &report, Place::Outbox).await;
        }
        self.metrics.account.recover(left.foreign.len() as u64 + left.lost);
        self.settler.give_up(left.lost, &left.foreign).await;
        self.leftovers.release(left.release);
        Ok(())
    }

    /// Puts them into the outbox; the error says why it does not take them, if there is one.
    async fn park(&self, records: &[Record]) -> Result<(), Option<String>> {
        let outbox = self.outbox.as_ref().ok_or(None)?;
        outbox.recover(records).await.map_err(|error| Some(error.to_string()))
    }

    fn record(&self, comment: Comment) -> Record {
        let posted = revived(comment);
        Record { bytes: self.store.encode(&posted.comment), posted }
    }
}
