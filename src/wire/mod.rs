//! Protocol v1 as bytes: what clients may send, what the server answers, and how connections end.
//!
//! Codecs only: no socket, no room, no decision. JSON in text frames (RFC 6455); names are those of the README.

mod client;
mod close;
mod compress;
mod fragments;
mod frame;
mod json;
mod server;

pub use client::{ClientFrame, FrameError};
pub use close::{CloseReason, Reconnect};
pub use compress::{CompressedEncoder, Compression};
pub use fragments::{FragmentMeter, TooManyFragments};
pub use frame::{PING, close_frame, text_frame};
pub use json::{CommentView, ErrorView};
pub use server::{Hello, JsonEncoder, Limits, ack, bye, error, gap_at_least, online, pong};
