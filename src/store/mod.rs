//! Where comments are kept: the contract, the write path in front of it, and the two stores behind it.
//!
//! A comment that was accepted waits in the [`WriteQueue`]; the [`Flusher`] takes them out in batches and writes each
//! batch to a [`CommentStore`]: [`MongoStore`], the store of record, or [`EmbeddedStore`], which needs no server. Nothing
//! here is on the way from a sender to the viewers.

mod aside;
mod contract;
mod embedded;
mod faulty;
mod flusher;
#[cfg(test)]
pub(crate) mod memory;
mod mongo;
mod queue;

pub use aside::AsideFile;
pub use contract::{CommentStore, Page, Record, SetAside, StoreError, WriteReport};
pub use embedded::{EmbeddedConfig, EmbeddedStore};
pub use faulty::{Attempts, Fault, FaultyStore, Refusals};
pub use flusher::{Flusher, FlusherConfig};
pub use mongo::{IndexChange, MongoConfig, MongoStore, WriteConcernLevel};
pub use queue::{Ledger, PushError, WriteQueue};
