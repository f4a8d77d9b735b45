//! What a client may send.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
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
    #[error("{0}")]
    Json(String),
    /// JSON, but not an object, or a field is missing or has the wrong type.
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

/// What the frames of a client are made of, as far as anybody looks at it.
#[derive(Default)]
struct Raw<'a> {
    kind: Value<'a>,
    nonce: Value<'a>,
    text: Value<'a>,
    mode: Value<'a>,
    color: Value<'a>,
    size: Value<'a>,
    ack: Value<'a>,
    /// A field that is there twice.
    twice: Option<&'static str>,
}

/// A value of any type. What it should be is judged by its field, so that the refusal is a sentence of ours and the
/// frame's nonce is known by then.
#[derive(Default)]
enum Value<'a> {
    /// Not there, or null.
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Number(i64),
    Object(Box<Raw<'a>>),
    /// Anything else.
    Other,
}

impl ClientFrame {
    /// Reads a text frame. Unknown fields are ignored.
    ///
    /// # Errors
    /// [`FrameError`] for anything that is not a frame of the protocol; answer it and go on.
    pub fn parse(text: &str) -> Result<Self, FrameError> {
        let raw = Raw::parse(text, "the frame", "a frame is a JSON object")?;
        match raw.text_of(&raw.kind, "type")? {
            Some("ping") => Ok(Self::Ping),
            Some("send") => raw.into_draft().map(Self::Send),
            Some(other) => Err(FrameError::Type { kind: other.chars().take(32).collect(), nonce: raw.valid_nonce() }),
            None => Err(raw.refuse("type is missing")),
        }
    }

    /// Reads what is to be said from a text that says nothing else, as the body of a request does; it needs no type.
    ///
    /// # Errors
    /// As [`ClientFrame::parse`].
    pub fn parse_draft(text: &str) -> Result<Draft, FrameError> {
        Raw::parse(text, "the body", "the body is a JSON object")?.into_draft()
    }
}

impl<'a> Raw<'a> {
    fn parse(text: &'a str, what: &str, should: &str) -> Result<Self, FrameError> {
        let value: Value<'a> = serde_json::from_str(text).map_err(|error| {
            // The parser's own words name types and states of its own.
            FrameError::Json(format!("{what} is not JSON (line {}, column {})", error.line(), error.column()))
        })?;
        let Value::Object(raw) = value else {
            return Err(FrameError::Field { message: should.to_owned(), nonce: None });
        };
        match raw.twice {
            Some(name) => Err(raw.refuse(&format!("{name} is there twice"))),
            None => Ok(*raw),
        }
    }

    /// Where a field of this name belongs.
    fn field(&mut self, name: &str) -> Option<(&'static str, &mut Value<'a>)> {
        match name {
            "type" => Some(("type", &mut self.kind)),
            "nonce" => Some(("nonce", &mut self.nonce)),
            "text" => Some(("text", &mut self.text)),
            "mode" => Some(("mode", &mut self.mode)),
            "color" => Some(("color", &mut self.color)),
            "size" => Some(("size", &mut self.size)),
            "ack" => Some(("ack", &mut self.ack)),
            _ => None,
        }
    }

    fn refuse(&self, message: &str) -> FrameError {
        FrameError::Field { message: message.to_owned(), nonce: self.valid_nonce() }
    }

    /// The nonce to answer under, when the rest of the frame says nothing.
    fn valid_nonce(&self) -> Option<Nonce> {
        let Value::Text(nonce) = &self.nonce else { return None };
        Nonce::parse(nonce).ok()
    }

    fn text_of<'b>(&self, value: &'b Value<'a>, name: &str) -> Result<Option<&'b str>, FrameError> {
        match value {
            Value::Absent => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            _ => Err(self.refuse(&format!("{name} should be a string"))),
        }
    }

    fn number_of(&self, value: &Value<'a>, name: &str) -> Result<Option<i64>, FrameError> {
        match value {
            Value::Absent => Ok(None),
            Value::Number(number) => Ok(Some(*number)),
            _ => Err(self.refuse(&format!("{name} should be a whole number"))),
        }
    }

    fn into_draft(self) -> Result<Draft, FrameError> {
        let nonce = self.text_of(&self.nonce, "nonce")?.map(Nonce::parse).transpose()?;
        let ack = match &self.ack {
            Value::Absent => AckLevel::parse(None),
            Value::Text(ack) => AckLevel::parse(Some(ack)),
            _ => None,
        };
        let Some(ack) = ack else { return Err(self.refuse("ack should be \"accepted\" or \"stored\"")) };
        let mode = self.number_of(&self.mode, "mode")?;
        let color = self.number_of(&self.color, "color")?;
        let size = self.number_of(&self.size, "size")?;
        let Some(text) = self.text_of(&self.text, "text")? else { return Err(self.refuse("text is missing")) };
        Ok(Draft { text: text.to_owned(), mode, color, size, nonce, ack })
    }
}

impl<'de> Deserialize<'de> for Value<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Anything)
    }
}

/// Takes every value that JSON has, so that the only errors left are those of the text itself.
struct Anything;

impl<'de> Visitor<'de> for Anything {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Absent)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value<'de>, E> {
        Ok(Value::Other)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value<'de>, E> {
        Ok(i64::try_from(number).map_or(Value::Other, Value::Number))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value<'de>, E> {
        Ok(Value::Other)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value<'de>, A::Error> {
        let mut raw = Box::new(Raw::default());
        while let Some(name) = fields.next_key::<Name<'de>>()? {
            let Some((name, place)) = raw.field(&name.0) else {
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            let is_twice = !matches!(place, Value::Absent);
            *place = fields.next_value()?;
            if is_twice {
                raw.twice = Some(name);
            }
        }
        Ok(Value::Object(raw))
    }
}

/// A field's name, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

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
            (r#"["ping"]"#, "bad_field"),
            (r#"["send","n1","hello",1,255,25,"accepted"]"#, "bad_field"),
            ("\"send\"", "bad_field"),
            ("1e3", "bad_field"),
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
    fn a_bad_frame_is_told_in_our_own_words_what_it_should_be() {
        let long = "x".repeat(8000);
        let table = [
            ("[1]".to_owned(), "a frame is a JSON object"),
            ("nonsense".to_owned(), "the frame is not JSON (line 1, column 2)"),
            ("{".to_owned(), "the frame is not JSON (line 1, column 1)"),
            (r#"{"type":"send","text":{"a":[5]}}"#.to_owned(), "text should be a string"),
            (format!(r#"{{"type":"send","text":"a","mode":"{long}"}}"#), "mode should be a whole number"),
            (r#"{"type":"send","text":"a","size":1.5}"#.to_owned(), "size should be a whole number"),
            (r#"{"type":"send","text":"a","color":18446744073709551615}"#.to_owned(), "color should be a whole number"),
            (r#"{"type":"send","text":"a","nonce":7}"#.to_owned(), "nonce should be a string"),
            (r#"{"type":7}"#.to_owned(), "type should be a string"),
            (r#"{"type":"send","text":"a","ack":[]}"#.to_owned(), "ack should be \"accepted\" or \"stored\""),
            (format!(r#"{{"type":"send","text":"a","ack":"{long}"}}"#), "ack should be \"accepted\" or \"stored\""),
            (r#"{"type":"send","text":"a","text":"b"}"#.to_owned(), "text is there twice"),
        ];
        for (frame, message) in table {
            assert_eq!(ClientFrame::parse(&frame).unwrap_err().to_string(), message, "{frame:.60}");
        }
        let error = ClientFrame::parse(&format!(r#"{{"type":"{long}"}}"#)).unwrap_err().to_string();
        assert!(error.len() < 100, "{error}");
        for body in ["[]", r#"["send","n1","hello"]"#, "7"] {
            assert_eq!(ClientFrame::parse_draft(body).unwrap_err().to_string(), "the body is a JSON object");
        }
    }

    #[test]
    fn null_is_as_good_as_absent() {
        let frame = r#"{"type":"send","text":"a","mode":null,"color":null,"size":null,"nonce":null,"ack":null}"#;
        let bare = Draft { text: "a".into(), ..Draft::default() };
        assert_eq!(ClientFrame::parse(frame), Ok(ClientFrame::Send(bare)));
    }

    #[test]
    fn a_bad_frame_is_answered_under_its_nonce() {
        for frame in
            [r#"{"type":"send","nonce":"n7","text":5}"#, r#"{"type":"shout","nonce":"n7"}"#, r#"{"nonce":"n7"}"#]
        {
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
