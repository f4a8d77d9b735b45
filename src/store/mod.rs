//! Where comments are kept: the contract, the write path in front of it, and the two stores behind it.
//!
//! A comment that was accepted waits in the [`WriteQueue`]; the [`Flusher`] takes them out in batches and writes each
//! batch to a [`CommentStore`]: [`MongoStore`], the store of record, or [`EmbeddedStore`], which needs no server. What
//! MongoDB does not take in time waits in the [`Outbox`], and with `durability = "disk"` everything passes the [`Journal`]:
//! both are a [`Log`] on the local disk. [`WritePath`] puts them together. Nothing here is on the way from a sender to the
//! viewers.

mod aside;
mod contract;
mod embedded;
mod faulty;
mod flusher;
mod journal;
mod log;
mod mark;
#[cfg(test)]
pub(crate) mod memory;
mod mongo;
mod outbox;
mod outcomes;
mod path;
mod queue;
mod recovery;
mod replayer;
mod settle;
mod trouble;
mod turns;

pub use aside::AsideFile;
pub use contract::{CommentStore, Page, Record, SetAside, StoreError, WriteReport};
pub use embedded::{EmbeddedConfig, EmbeddedStore};
pub use faulty::{Attempts, Fault, FaultyStore, Refusals};
pub use flusher::{Flusher, FlusherConfig, FlusherParts};
pub use journal::{Journal, JournalConfig, Left, Leftovers, Release};
pub use log::{AppendError, Batch, Log, LogConfig, LogError, Place, Recovered, make_folder};
pub use mark::MarkError;
pub use mongo::{IndexChange, MongoConfig, MongoStore, WriteConcernLevel};
pub use outbox::{Outbox, OutboxConfig, ParkError};
pub use path::{WritePath, WritePathConfig, WritePathError};
pub use queue::{PushError, WriteQueue};
pub use replayer::{Replayer, ReplayerConfig, ReplayerParts};
