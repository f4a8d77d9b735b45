//! What a client may send.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;
use thiserror::Error;

use crate::model::{AckLevel, Draft, IdError, Nonce};

/// A frame from a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientFrame {
    /// Asks to have something said.
    Send(Draft),
    /// Asks for a pong, for clients that cannot send WebSocket pings.
    Ping,
}

/// A frame that says nothing the protocol knows. The connection goes on.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// Not JSON.
    #[error("the frame is not JSON: {0}")]
    Json(String),
    /// JSON, but a field is missing or has the wrong type.
    #[error("{message}")]
    Field {
        /// What is wrong.
        message: String,
        /// The frame's nonce, where it has one.
        nonce: Option<Nonce>,
    },
    /// A type that the protocol does not have.
    #[error("the type {kind:?} is not one of \"send\" and \"ping\"")]
    Type {
        /// The type, or its beginning.
        kind: String,
        /// The frame's nonce, where it has one.
        nonce: Option<Nonce>,
    },
    /// A nonce that is not one.
    #[error("{0}")]
    Nonce(#[from] IdError),
}

impl FrameError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Json(_) => "bad_json",
            Self::Field { .. } => "bad_field",
            Self::Type { .. } => "unknown_type",
            Self::Nonce(_) => "bad_nonce",
        }
    }

    /// The nonce to answer under, where the frame has one.
    #[must_use]
    pub fn nonce(&self) -> Option<&Nonce> {
        match self {
            Self::Field { nonce, .. } | Self::Type { nonce, .. } => nonce.as_ref(),
            Self::Json(_) | Self::Nonce(_) => None,
        }
    }
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    nonce: Option<Cow<'a, str>>,
    text: Option<String>,
    mode: Option<i64>,
    color: Option<i64>,
    size: Option<i64>,
    #[serde(borrow)]
    ack: Option<Cow<'a, str>>,
}

impl ClientFrame {
    /// Reads a text frame. Unknown fields are ignored.
    ///
    /// # Errors
    /// [`FrameError`] for anything that is not a frame of the protocol; answer it and go on.
    pub fn parse(text: &str) -> Result<Self, FrameError> {
        let raw: Raw<'_> = serde_json::from_str(text).map_err(|error| explain(&error, text))?;
        match raw.kind.as_deref() {
            Some("ping") => Ok(Self::Ping),
            Some("send") => raw.into_draft().map(Self::Send),
            Some(other) => Err(FrameError::Type { kind: other.chars().take(32).collect(), nonce: raw.valid_nonce() }),
            None => Err(field("type is missing", raw.valid_nonce())),
        }
    }

    /// Reads what is to be said from a text that says nothing else, as the body of a request does; it needs no type.
    ///
    /// # Errors
    /// As [`ClientFrame::parse`].
    pub fn parse_draft(text: &str) -> Result<Draft, FrameError> {
        let raw: Raw<'_> = serde_json::from_str(text).map_err(|error| explain(&error, text))?;
        raw.into_draft()
    }
}

impl Raw<'_> {
    /// The nonce to answer under, when the rest of the frame says nothing.
    fn valid_nonce(&self) -> Option<Nonce> {
        Nonce::parse(self.nonce.as_deref()?).ok()
    }

    fn into_draft(self) -> Result<Draft, FrameError> {
        let nonce = self.nonce.as_deref().map(Nonce::parse).transpose()?;
        let ack = match AckLevel::parse(self.ack.as_deref()) {
            Some(ack) => ack,
            None => return Err(field("ack is not one of \"accepted\" and \"stored\"", nonce)),
        };
        let Some(text) = self.text else { return Err(field("text is missing", nonce)) };
        Ok(Draft { text, mode: self.mode, color: self.color, size: self.size, nonce, ack })
    }
}

fn field(message: &str, nonce: Option<Nonce>) -> FrameError {
    FrameError::Field { message: message.to_owned(), nonce }
}

fn explain(error: &serde_json::Error, text: &str) -> FrameError {
    if error.classify() != Category::Data {
        return FrameError::Json(error.to_string());
    }
    let nonce = serde_json::from_str::<Value>(text).ok();
    let nonce = nonce.as_ref().and_then(|value| Nonce::parse(value.get("nonce")?.as_str()?).ok());
    FrameError::Field { message: error.to_string(), nonce }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_send_is_read_with_all_its_fields_and_without() {
        let full = r#"{"type":"send","nonce":"n1","text":"哈","mode":4,"color":255,"size":30,"ack":"stored","x":1}"#;
        let draft = Draft {
            text: "哈".into(),
            mode: Some(4),
            color: Some(255),
            size: Some(30),
            nonce: Nonce::parse("n1").ok(),
            ack: AckLevel::Stored,
        };
        assert_eq!(ClientFrame::parse(full), Ok(ClientFrame::Send(draft)));
        let bare = ClientFrame::parse(r#"{"text":"a\u0062","type":"send"}"#);
        assert_eq!(bare, Ok(ClientFrame::Send(Draft { text: "ab".into(), ..Draft::default() })));
        assert_eq!(ClientFrame::parse(r#"{"type":"ping"}"#), Ok(ClientFrame::Ping));
    }

    #[test]
    fn each_kind_of_bad_frame_has_its_own_code() {
        let table = [
            ("", "bad_json"),
            ("nonsense", "bad_json"),
            (r#"{"type":"send","text":"a""#, "bad_json"),
            (r#"{"type":"send","text":"\ud800"}"#, "bad_json"),
            ("[]", "bad_field"),
            ("null", "bad_field"),
            ("{}", "bad_field"),
            (r#"{"type":"send"}"#, "bad_field"),
            (r#"{"type":"send","text":5}"#, "bad_field"),
            (r#"{"type":"send","text":"a","mode":1.5}"#, "bad_field"),
            (r#"{"type":"send","text":"a","ack":"never"}"#, "bad_field"),
            (r#"{"type":"send","text":"a","text":"b"}"#, "bad_field"),
            (r#"{"type":"send","text":"a","nonce":""}"#, "bad_nonce"),
            (r#"{"type":"send","text":"a","nonce":"\n"}"#, "bad_nonce"),
            (r#"{"type":"shout","text":"a"}"#, "unknown_type"),
        ];
        for (frame, code) in table {
            assert_eq!(ClientFrame::parse(frame).unwrap_err().code(), code, "{frame}");
        }
    }

    #[test]
    fn a_bad_frame_is_answered_under_its_nonce() {
        for frame in [r#"{"type":"send","nonce":"n7","text":5}"#, r#"{"type":"shout","nonce":"n7"}"#, r#"{"nonce":"n7"}"#] {
            let error = ClientFrame::parse(frame).unwrap_err();
            assert_eq!(error.nonce().map(Nonce::as_str), Some("n7"), "{frame}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,200}|\\{\"type\":\"send\"[\\PC]{0,60}\\}") {
            let _outcome = ClientFrame::parse(&text);
        }
    }
}
