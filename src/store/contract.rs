//! What a store must do. `tests/suite/contract.rs` holds every implementation to it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

use crate::model::{Comment, CommentId, Position, Posted, RoomId, Timestamp};

/// An accepted comment with its bytes as its store keeps them, encoded once however often the write is tried.
#[derive(Clone, Debug)]
pub struct Record {
    /// The comment and whoever waits for its fate.
    pub posted: Arc<Posted>,
    /// What [`CommentStore::encode`] made of it.
    pub bytes: Bytes,
}

/// One record that the store refused for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Which one.
    pub id: CommentId,
    /// A stable word for metrics, such as `schema` or `too_large`.
    pub reason: &'static str,
    /// What the store said.
    pub detail: String,
}

/// What became of a batch. Every record that is not named here is stored; a duplicate key counts as stored, for ids
/// are fixed before the first attempt and only an earlier attempt can have put it there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteReport {
    /// Records the store refused for good.
    pub set_aside: Vec<SetAside>,
    /// How many were there already.
    pub duplicates: usize,
}

/// Why an operation failed as a whole. The batch is kept in every case; the class says what the caller does next.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The network, a change of primary, a timeout: trying again later will mend it.
    #[error("the store cannot be reached or is not ready: {detail}")]
    Transient {
        /// What was seen.
        detail: String,
        /// The driver's or engine's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A wrong password, a missing right, a broken data folder: somebody must act, and is told so.
    #[error("the store refuses to work until its set-up is mended: {detail}")]
    Blocked {
        /// What was seen.
        detail: String,
        /// The driver's or engine's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl StoreError {
    /// Whether waiting alone can mend it.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Transient { .. })
    }

    /// Every word that [`StoreError::class`] gives.
    pub const CLASSES: [&'static str; 2] = ["transient", "blocked"];

    /// The word for metrics.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Transient { .. } => "transient",
            Self::Blocked { .. } => "blocked",
        }
    }
}

/// Comments of one room, ordered as the operation says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The comments.
    pub comments: Vec<Comment>,
    /// Whether the store holds more beyond the last one, in the direction of reading.
    pub has_more: bool,
}

/// A store of comments. Recalled and expired comments are never given back.
///
/// Implementations are shared between tasks; every operation may run at the same time as any other. All futures are
/// cancellation-safe for reads; a cancelled write may or may not have been done and is tried again with the same ids.
#[async_trait]
pub trait CommentStore: Send + Sync + 'static {
    /// Encodes a comment as this store keeps it. Pure; called once for each comment.
    fn encode(&self, comment: &Comment) -> Bytes;

    /// Writes a batch of at most the flusher's batch size, in no particular order.
    ///
    /// # Errors
    /// [`StoreError`] when the batch as a whole has no known outcome; some of it may be written. The caller keeps it
    /// and tries all of it again.
    async fn write(&self, batch: &[Record]) -> Result<WriteReport, StoreError>;

    /// Loads a room's comments with `ts >= from`, newest first, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`] when the answer is not known; it is never cut short in silence.
    async fn load_recent(&self, room: &RoomId, from: Timestamp, limit: usize) -> Result<Page, StoreError>;

    /// Loads the room's comments that come before `before` in the order of (time, id), newest first, at most `limit`.
    ///
    /// # Errors
    /// As [`CommentStore::load_recent`].
    async fn load_before(&self, room: &RoomId, before: Position, limit: usize) -> Result<Page, StoreError>;

    /// Counts the room's comments after `after` and before `before`, both exclusive; stops at `limit`.
    ///
    /// # Errors
    /// As [`CommentStore::load_recent`].
    async fn count_between(
        &self,
        room: &RoomId,
        after: Position,
        before: Position,
        limit: u64,
    ) -> Result<u64, StoreError>;

    /// Goes through to the store and back, as a write would have to, for readiness.
    ///
    /// # Errors
    /// [`StoreError`] when a write could not be done now.
    async fn probe(&self) -> Result<(), StoreError>;

    /// Lets go of connections and files. Nothing may be called afterwards.
    async fn close(&self);
}
