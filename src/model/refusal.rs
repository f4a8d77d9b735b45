//! Why the server would not take a comment.

use std::time::Duration;

use thiserror::Error;

use super::style::StyleError;
use super::text::TextError;

/// A refusal to the sender alone: an expected outcome, not a fault. Nobody else has seen the comment.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The text breaks a rule.
    #[error("{0}")]
    Text(#[from] TextError),
    /// Mode, colour or size is out of range.
    #[error("{0}")]
    Style(#[from] StyleError),
    /// The sender is too fast.
    #[error("you are sending too fast")]
    RateLimited {
        /// When the next one will be taken.
        retry_after: Duration,
    },
    /// The write queue is full, so the comment could not be kept.
    #[error("the server cannot keep more comments at the moment")]
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// As many rooms are in memory as may be, and this would be one more.
    #[error("the server cannot open more rooms at the moment")]
    TooManyRooms {
        /// When to try again.
        retry_after: Duration,
    },
    /// The server takes no more comments, because it is about to stop.
    #[error("the server is about to stop")]
    GoingAway {
        /// When to try again.
        retry_after: Duration,
    },
}

impl Refusal {
    /// Every code, so that each can be counted from the start.
    pub const CODES: [&'static str; 14] = [
        "text_blank",
        "text_invisible",
        "text_control",
        "text_bidi",
        "text_combining",
        "text_too_long",
        "text_too_large",
        "bad_mode",
        "bad_color",
        "bad_size",
        "rate_limited",
        "busy",
        "too_many_rooms",
        "going_away",
    ];

    /// The stable code; one of [`Refusal::CODES`].
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Text(error) => error.code(),
            Self::Style(StyleError::Mode(_)) => "bad_mode",
            Self::Style(StyleError::Color(_)) => "bad_color",
            Self::Style(StyleError::Size(_)) => "bad_size",
            Self::RateLimited { .. } => "rate_limited",
            Self::Busy { .. } => "busy",
            Self::TooManyRooms { .. } => "too_many_rooms",
            Self::GoingAway { .. } => "going_away",
        }
    }

    /// How long to wait before another try, where waiting helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after }
            | Self::Busy { retry_after }
            | Self::TooManyRooms { retry_after }
            | Self::GoingAway { retry_after } => Some(*retry_after),
            _ => None,
        }
    }
}
