//! What the tests start and stop, and how they talk to it.

pub mod faulty_wire;
pub mod fleet;
pub mod follower;
pub mod mongod;
pub mod proxy;
pub mod redis;
mod redis_groups;
pub mod relay;
pub mod server;
pub mod storm;
pub mod viewer;
pub mod wire;
