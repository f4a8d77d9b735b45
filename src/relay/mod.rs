//! How nodes pass comments to each other. A relay never calls the hub: what arrives is yielded as [`Envelope`]s, which
//! the application pumps into the hub.
//!
//! [`Loopback`] is for a single node, [`RedisRelay`] joins several through Redis Pub/Sub.

mod codec;
mod loopback;
mod redis;

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use crate::model::{Comment, Posted, RoomId};

pub use self::loopback::Loopback;
pub use self::redis::{RedisConfig, RedisRelay};

/// Comments of one room that were accepted on another node, in that node's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// The room.
    pub room: RoomId,
    /// The comments, oldest first.
    pub comments: Vec<Comment>,
}

/// Why other nodes cannot be reached. Local delivery and storing go on.
#[derive(Debug, Error)]
#[error("the relay cannot be reached: {detail}")]
pub struct RelayError {
    /// What was seen.
    pub detail: String,
}

/// Joins this node with others.
#[async_trait]
pub trait Relay: Send + Sync + 'static {
    /// Whether there can be other nodes at all; when not, rooms spare themselves the work.
    fn is_joined(&self) -> bool;

    /// Passes on comments that this node accepted in `room`, oldest first. Never waits; when the relay cannot keep up
    /// they are dropped for other nodes and counted.
    fn forward(&self, room: &RoomId, comments: &[Arc<Posted>]);

    /// Tells that the room has viewers here from now on, so that its comments are wanted.
    fn occupied(&self, room: &RoomId);

    /// Tells that the room has no viewers here any more.
    fn vacated(&self, room: &RoomId);

    /// Sends a message through the relay and waits until it has come back, for readiness.
    ///
    /// # Errors
    /// [`RelayError`] when it did not come back in time.
    async fn probe(&self) -> Result<(), RelayError>;

    /// Sends what waits and lets go of the connections.
    async fn close(&self);
}
