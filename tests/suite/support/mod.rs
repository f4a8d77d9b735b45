//! What the tests share.

pub mod mongod;
