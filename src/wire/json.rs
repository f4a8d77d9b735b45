//! A comment and an error in JSON, the same on the WebSocket and over HTTP.

use std::fmt::Display;
use std::time::Duration;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::model::Comment;

/// A comment as clients see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Comment)]
pub struct CommentView<'a> {
    /// Opaque; the same for every viewer, every node and the store.
    #[serde(serialize_with = "as_text")]
    #[schema(value_type = String, example = "65a1f0c2b3d4e5f60718293a")]
    id: &'a crate::model::CommentId,
    /// The sender.
    #[schema(example = "g-1f0c2b3d4e5f6071")]
    uid: &'a str,
    /// The sender's name at that time.
    name: &'a str,
    /// What it says: text, never markup.
    #[schema(example = "哈哈哈哈")]
    text: &'a str,
    /// 1 scrolls, 4 stands at the bottom, 5 at the top.
    #[schema(example = 1)]
    mode: i32,
    /// RGB, 0–16777215.
    #[schema(example = 16_777_215)]
    color: i32,
    /// Font size, 12–64.
    #[schema(example = 25)]
    size: i32,
    /// Server time of acceptance, UTC milliseconds.
    #[schema(example = 1_700_000_000_000_i64)]
    ts: i64,
}

fn as_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl<'a> From<&'a Comment> for CommentView<'a> {
    fn from(comment: &'a Comment) -> Self {
        Self {
            id: &comment.id,
            uid: comment.uid.as_str(),
            name: comment.name.as_str(),
            text: comment.text.as_str(),
            mode: comment.style.mode.number(),
            color: comment.style.color.number(),
            size: comment.style.size.number(),
            ts: comment.ts.millis(),
        }
    }
}

/// An error as clients see it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Error)]
pub struct ErrorView<'a> {
    /// Stable, for programs.
    #[schema(example = "rate_limited")]
    pub code: &'a str,
    /// A sentence for people.
    pub message: String,
    /// When to try again, where waiting helps, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl<'a> ErrorView<'a> {
    /// An error with its code and sentence.
    #[must_use]
    pub fn new(code: &'a str, message: &dyn Display, retry_after: Option<Duration>) -> Self {
        let retry_after_ms = retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        Self { code, message: message.to_string(), retry_after_ms }
    }
}
