//! Where comments are kept: the contract, the write path in front of it, and the two stores behind it.
//!
//! A comment that was accepted waits in the [`WriteQueue`]; the [`Flusher`] takes them out in batches and writes each
//! batch to a [`CommentStore`]: [`MongoStore`], the store of record, or [`EmbeddedStore`], which needs no server. A
//! [`Log`] keeps records on local disk, in order, until they are settled. Nothing here is on the way from a sender to the
//! viewers.

mod aside;
mod contract;
mod embedded;
mod faulty;
mod flusher;
mod log;
#[cfg(test)]
pub(crate) mod memory;
mod mongo;
mod queue;

pub use aside::AsideFile;
pub use contract::{CommentStore, Page, Record, SetAside, StoreError, WriteReport};
pub use embedded::{EmbeddedConfig, EmbeddedStore};
pub use faulty::{Attempts, Fault, FaultyStore, Refusals};
pub use flusher::{Flusher, FlusherConfig};
pub use log::{AppendError, Batch, Log, LogConfig, LogError, Place, Recovered};
pub use mongo::{IndexChange, MongoConfig, MongoStore, WriteConcernLevel};
pub use queue::{Ledger, PushError, WriteQueue};
