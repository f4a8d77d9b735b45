//! Where comments are kept: the contract, the write path in front of it, and the two stores behind it.
//!
//! A comment that was accepted waits in the write queue; the flusher takes them out in batches and writes each batch to
//! a [`CommentStore`]: MongoDB, the store of record, or the embedded one, which needs no server. Nothing here is on the
//! way from a sender to the viewers.

mod contract;
mod embedded;
mod faulty;

pub use contract::{CommentStore, Page, Record, SetAside, StoreError, WriteReport};
pub use embedded::{EmbeddedConfig, EmbeddedStore};
pub use faulty::{Attempts, Fault, FaultyStore, Refusals};
