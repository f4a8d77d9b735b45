//! danmakud (work in progress).
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod admission;
pub mod auth;
pub mod clock;
pub mod hub;
pub mod metrics;
pub mod model;
pub mod relay;
pub mod room;
pub mod shutdown;
pub mod store;
pub mod wire;
