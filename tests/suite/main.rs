//! The tests that run against real servers and speak public protocols, in one binary.

mod redis_relay;
mod support;
