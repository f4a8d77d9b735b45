//! What a comment or a name may say: the rules of text, pure.
//!
//! A text is NFC, trimmed, on one line, visible, and of bounded length, by what people count (extended grapheme
//! clusters, UAX #29) as well as by bytes. Markup is not looked for: a text is text wherever it is shown. Noncharacters
//! are refused as controls are, for Unicode keeps them out of what programs pass on; private-use characters are allowed,
//! for a streamer's own font may draw its emotes with them.

use std::sync::Arc;

use thiserror::Error;
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;
use unicode_segmentation::UnicodeSegmentation as _;

/// How long a text may be, and how many combining marks may follow each other in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Most extended grapheme clusters.
    pub max_chars: usize,
    /// Most bytes of UTF-8, after normalisation.
    pub max_bytes: usize,
    /// Most combining marks in a row.
    pub max_combining: usize,
}

/// Says why a text was refused; each kind has its own stable code.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TextError {
    /// Nothing but white space.
    #[error("the text is empty")]
    Blank,
    /// Nothing that can be seen: zero-width characters and blanks only.
    #[error("the text has only invisible characters")]
    Invisible,
    /// A control character, a line break among them.
    #[error("the text has the control character U+{0:04X}")]
    Control(u32),
    /// One of the 66 code points that Unicode will never make a character (section 23.7 of its standard).
    #[error("the text has the noncharacter U+{0:04X}")]
    Noncharacter(u32),
    /// A character that overrides or isolates the direction of writing.
    #[error("the text has the direction control U+{0:04X}")]
    Bidi(u32),
    /// A pile of combining marks.
    #[error("the text has more than {0} combining marks in a row")]
    Combining(usize),
    /// More grapheme clusters than allowed.
    #[error("the text is longer than {0} characters")]
    TooLong(usize),
    /// More bytes than allowed.
    #[error("the text is larger than {0} bytes")]
    TooLarge(usize),
}

impl TextError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Blank => "text_blank",
            Self::Invisible => "text_invisible",
            Self::Control(_) | Self::Noncharacter(_) => "text_control",
            Self::Bidi(_) => "text_bidi",
            Self::Combining(_) => "text_combining",
            Self::TooLong(_) => "text_too_long",
            Self::TooLarge(_) => "text_too_large",
        }
    }
}

/// The text of a comment, valid by the rules above. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// Normalises and checks an untrusted text.
    ///
    /// # Errors
    /// The [`TextError`] of the first rule that it breaks.
    pub fn parse(raw: &str, limits: &TextLimits) -> Result<Self, TextError> {
        clean(raw, limits).map(|text| Self(text.into()))
    }

    /// Wraps a text that was checked when it was accepted, as a store gives it back.
    #[must_use]
    pub fn from_store(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A display name, valid by the same rules as a text. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// 20 characters, 128 bytes, two marks in a row: what fits beside a comment.
    pub const LIMITS: TextLimits = TextLimits { max_chars: 20, max_bytes: 128, max_combining: 2 };

    /// Normalises and checks an untrusted name against [`Name::LIMITS`].
    ///
    /// # Errors
    /// The [`TextError`] of the first rule that it breaks.
    pub fn parse(raw: &str) -> Result<Self, TextError> {
        clean(raw, &Self::LIMITS).map(|name| Self(name.into()))
    }

    /// Wraps a name that was checked when its comment was accepted.
    #[must_use]
    pub fn from_store(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn clean(raw: &str, limits: &TextLimits) -> Result<String, TextError> {
    // No normalisation shrinks a text below a third of its bytes, so this spares the work on hopeless ones.
    if raw.len() > limits.max_bytes.saturating_mul(3) {
        return Err(TextError::TooLarge(limits.max_bytes));
    }
    let text: String = raw.trim().nfc().collect();
    if text.is_empty() {
        return Err(TextError::Blank);
    }
    let (mut marks, mut is_visible) = (0, false);
    for c in text.chars() {
        match c {
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => return Err(TextError::Control(c as u32)),
            c if is_noncharacter(c) => return Err(TextError::Noncharacter(c as u32)),
            '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => return Err(TextError::Bidi(c as u32)),
            _ => {}
        }
        marks = if is_combining_mark(c) { marks + 1 } else { 0 };
        if marks > limits.max_combining {
            return Err(TextError::Combining(limits.max_combining));
        }
        is_visible |= !is_unseen(c) && !is_combining_mark(c);
    }
    if !is_visible {
        return Err(TextError::Invisible);
    }
    if text.len() > limits.max_bytes {
        return Err(TextError::TooLarge(limits.max_bytes));
    }
    if text.graphemes(true).nth(limits.max_chars).is_some() {
        return Err(TextError::TooLong(limits.max_chars));
    }
    Ok(text)
}

/// Whether it is one of U+FDD0 to U+FDEF, or one of the last two of a plane.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{FDD0}'..='\u{FDEF}') || c as u32 & 0xFFFE == 0xFFFE
}

/// Whether a character leaves no mark of its own: white space, or one of Unicode's Default_Ignorable_Code_Points
/// (DerivedCoreProperties.txt), or the Braille blank.
fn is_unseen(c: char) -> bool {
    c.is_whitespace()
        || matches!(c,
            '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}'
            | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{2060}'..='\u{206F}' | '\u{2800}' | '\u{3164}'
            | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}'
            | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: TextLimits = TextLimits { max_chars: 100, max_bytes: 1024, max_combining: 6 };

    fn parse(raw: &str) -> Result<String, TextError> {
        Text::parse(raw, &LIMITS).map(|text| text.as_str().to_owned())
    }

    #[test]
    fn what_people_write_passes_as_it_is() {
        for good in
            ["哈哈哈哈", "233", "👨‍👩‍👧‍👦 家", "ก็ดี", "שלום", "<b>bold</b>", "naïve", "❤️", "\u{E000}\u{F8FF}\u{100000}"]
        {
            assert_eq!(parse(good).unwrap(), good);
        }
    }

    #[test]
    fn texts_are_trimmed_and_composed() {
        assert_eq!(parse("  cafe\u{301}\t").unwrap(), "caf\u{e9}");
    }

    #[test]
    fn each_kind_of_bad_text_has_its_own_code() {
        let long = "好".repeat(101);
        let large = "👨‍👩‍👧‍👦".repeat(50);
        let huge = "a".repeat(5000);
        let zalgo = format!("a{}", "\u{316}".repeat(7));
        let table = [
            ("", "text_blank"),
            (" \u{3000}\n ", "text_blank"),
            ("\u{200B}\u{FEFF}", "text_invisible"),
            ("\u{3164}\u{2800}", "text_invisible"),
            ("\u{E0041}\u{E0042}", "text_invisible"),
            ("a\u{0}b", "text_control"),
            ("two\nlines", "text_control"),
            ("two\u{2028}lines", "text_control"),
            ("\u{9b}x", "text_control"),
            ("a\u{FFFE}b", "text_control"),
            ("a\u{FFFF}b", "text_control"),
            ("a\u{FDD0}b", "text_control"),
            ("a\u{FDEF}b", "text_control"),
            ("a\u{1FFFE}b", "text_control"),
            ("a\u{10FFFF}b", "text_control"),
            ("abc\u{202E}def", "text_bidi"),
            ("abc\u{2066}def", "text_bidi"),
            (zalgo.as_str(), "text_combining"),
            (long.as_str(), "text_too_long"),
            (large.as_str(), "text_too_large"),
            (huge.as_str(), "text_too_large"),
        ];
        for (raw, code) in table {
            assert_eq!(parse(raw).unwrap_err().code(), code, "{raw:?}");
        }
    }

    #[test]
    fn length_counts_graphemes_and_not_code_points() {
        let family = "👨‍👩‍👧‍👦";
        let limits = TextLimits { max_chars: 2, ..LIMITS };
        assert!(Text::parse(&family.repeat(2), &limits).is_ok());
        assert_eq!(Text::parse(&family.repeat(3), &limits), Err(TextError::TooLong(2)));
    }

    proptest! {
        #[test]
        fn what_passes_is_within_the_limits_and_passes_again(raw in "\\PC{0,140}|.{0,60}") {
            if let Ok(text) = parse(&raw) {
                prop_assert!(text.len() <= LIMITS.max_bytes);
                prop_assert!(text.graphemes(true).count() <= LIMITS.max_chars);
                prop_assert!(!text.chars().any(char::is_control));
                prop_assert_eq!(parse(&text), Ok(text));
            }
        }
    }
}
