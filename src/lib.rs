//! danmakud: a server for live-stream danmaku (弹幕, bullet comments).
//!
//! # The path of one comment
//!
//! A viewer sends a frame. Its session ([`server`]) reads it, [`wire`] decodes a draft, and the session asks the
//! [`hub`] to publish it. [`admission`] judges it; the [`room`] gives it its time, id and place, and while it holds the
//! room's order the hub pushes it into the write queue ([`store`]). Only then is it in the room's ring. The room's tick
//! encodes what is new once and writes it to every viewer's socket; the sender's acknowledgement goes out beside it, and
//! the [`relay`] takes it to other nodes. Every 100 ms the flusher empties the queue into MongoDB or the embedded store;
//! the fate of each comment comes back to whoever asked to be told when it is stored.
//!
//! A comment that finds the queue full is refused to its sender, and nobody has seen it.
//!
//! # The house
//!
//! | layer | rooms |
//! |---|---|
//! | 4 house | `main.rs`, [`cli`], [`serve`], [`app`] (the wiring), [`config`], [`telemetry`] |
//! | 3 doors | [`server`] (listener, HTTP, sessions), [`load`] (an outside client) |
//! | 2 hallway | [`hub`]: what the server can do |
//! | 1 leaves | [`room`], [`admission`], [`store`], [`relay`], [`wire`], [`auth`] |
//! | 0 ground | [`model`], [`metrics`], [`clock`], [`shutdown`] |
//!
//! Imports go down only, and leaves do not import one another; `tests/layering.rs` holds them to it.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod admission;
pub mod app;
pub mod auth;
pub mod cli;
pub mod clock;
pub mod config;
pub mod hub;
pub mod load;
pub mod metrics;
pub mod model;
pub mod relay;
pub mod room;
pub mod serve;
pub mod server;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod wire;
