//! What the tests start and stop.

pub mod mongod;
pub mod redis;
