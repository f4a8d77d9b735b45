//! The words everything else speaks: comments, ids, cursors, styles and refusals.
//!
//! Plain data with its rules of validity, and the two small traits ([`BatchEncoder`], [`Socket`]) through which
//! the room is handed what it must not know. No I/O, no clock, no configuration. Every module may use this one; it
//! uses none of ours.

mod comment;
mod cursor;
mod given;
mod identity;
mod ids;
mod outward;
mod refusal;
mod style;
mod text;

#[cfg(test)]
pub(crate) use comment::tests::comment as test_comment;
pub use comment::{AckLevel, Comment, Draft, Fate, Posted, Relayed};
pub use cursor::{Cursor, CursorError, Position};
pub use given::{Doubt, Given};
#[cfg(test)]
pub(crate) use identity::tests::identity as test_identity;
pub use identity::{Identity, Role};
pub use ids::{CommentId, Epoch, IdError, Nonce, RoomId, Seq, Timestamp, UserId};
pub use outward::{BatchEncoder, Format, FrameHead, Socket, Tier};
pub use refusal::Refusal;
pub use style::{Color, FontSize, Mode, Style, StyleError};
pub use text::{Name, Text, TextError, TextLimits};
