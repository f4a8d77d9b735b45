//! What the tests start and stop.

pub mod redis;
