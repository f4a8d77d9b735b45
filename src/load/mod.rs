//! The load generator: an outside client that shows a server the peak before it comes.
//!
//! It speaks the public protocol and nothing else, so that it measures what viewers get; of this crate it uses the
//! ground only (ids, shutdown). Called by the command line alone; no part of the server depends on it.
//!
//! - [`trace`] reads a recorded stream, [`text`] makes texts of its recorded lengths;
//! - [`client`] is one WebSocket connection;
//! - `lane` keeps what one connection has to send and what it still waits for, `connection` sends and reads it;
//! - [`replay`] sends a trace at its recorded times, [`report`] says what became of it;
//! - [`plan`] is what a load test is to do, `engine` does it, `live` shows it as it goes;
//! - [`outcome`] is what became of a load test, [`objective`] judges it, [`table`] and [`page`] show it, [`compare`] tells
//!   two apart, [`capacity`] looks for the highest load that holds;
//! - [`args`] and [`progress`] are the command line and the progress bar of a replay, [`load_args`] and `load_command` those of
//!   a load test.

pub mod args;
pub mod capacity;
pub mod client;
pub mod compare;
mod connection;
mod engine;
mod lane;
mod live;
pub mod load_args;
mod load_command;
pub mod objective;
pub mod outcome;
pub mod page;
pub mod plan;
pub mod progress;
pub mod replay;
pub mod report;
pub mod table;
pub mod text;
pub mod trace;
mod units;

#[cfg(test)]
mod fake_server;

pub use args::{ReplayArgs, replay_command};
pub use load_args::{CommandError, LoadArgs};
pub use load_command::load_command;
pub use replay::{ReplayConfig, ReplayError};
pub use report::Report;
