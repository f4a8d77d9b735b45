//! danmakud (work in progress).
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod clock;
pub mod load;
pub mod metrics;
pub mod model;
pub mod relay;
pub mod shutdown;
pub mod store;
