//! How nodes pass comments to each other. A relay never calls the hub: what is heard, and when hearing begins and
//! ends, is yielded as [`Heard`], which the application pumps into the hub.
//!
//! [`Loopback`] is for a single node, [`RedisRelay`] joins several through Redis Pub/Sub.

mod codec;
mod loopback;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use crate::metrics::Metrics;
use crate::model::{Posted, Relayed, RoomId, Timestamp};

pub use self::loopback::Loopback;
pub use self::redis::{MAX_STREAM, RedisConfig, RedisRelay, Topology};

/// How long it counts what a node has told of its viewers: three of the five seconds after which it tells them again, for
/// one time may be late and one be lost.
pub const COUNTED_FOR: Duration = Duration::from_secs(15);

/// Has everything that a relay counts shown from the start, whichever it is.
pub fn declare(metrics: &Metrics) {
    self::redis::declare(metrics);
}

/// Comments of one room that were accepted on other nodes, those of each node in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// The room.
    pub room: RoomId,
    /// The comments, oldest first.
    pub comments: Vec<Relayed>,
}

/// What comes from the other nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Comments that another node accepted.
    Comments(Envelope),
    /// Whatever is passed on in this room from here on is heard; of what was passed on before, some may be missing. It
    /// comes when a room is [occupied](Relay::occupied), and whenever something was missed for good.
    Begun {
        /// The room.
        room: RoomId,
        /// When the first comment was accepted that may be missing; `None` when it is since hearing ended, or just now.
        since: Option<Timestamp>,
    },
    /// Hearing goes on in this room where it ended: what was passed on in between has been given, and nothing is missing.
    Resumed(RoomId),
    /// Nothing is heard any more in any room, possibly for some seconds already, until its [`Heard::Begun`] or
    /// [`Heard::Resumed`] comes.
    Lost,
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

    /// Tells that the room has viewers here from now on, so that its comments are wanted. They are heard once
    /// [`Heard::Begun`] comes.
    fn occupied(&self, room: &RoomId);

    /// Tells that the room has no viewers here any more.
    fn vacated(&self, room: &RoomId);

    /// Tells which rooms have viewers here, all of them, and how many; gives how many each has on the other nodes, `None`
    /// where that cannot be learnt now. It counts for [`COUNTED_FOR`], and is to be told anew well before; a room that is
    /// not among them any more is empty here.
    async fn count(&self, here: &[(RoomId, usize)]) -> Vec<Option<usize>>;

    /// Gives how many viewers a room has on the other nodes, `None` when that cannot be learnt now.
    async fn count_elsewhere(&self, room: &RoomId) -> Option<usize>;

    /// Sends a message through the relay and waits until it has come back, for readiness. It goes past what waits.
    ///
    /// # Errors
    /// [`RelayError`] when it did not come back in time, or the relay takes nothing that is written now.
    async fn probe(&self) -> Result<(), RelayError>;

    /// Sends what waits, takes back what was told of viewers, and lets go of the connections.
    async fn close(&self);
}
