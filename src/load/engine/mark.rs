//! Texts that tell which comment they are, and whether they are whole.
//!
//! A text begins with six ideographs, each a digit to the base 16,384: the room's number (2), the comment's number in its room
//! (2), and a check sum over both, the run and all the rest of the text (2). So a viewer knows of every comment of the run
//! which it is and whether anything of it was changed, texts may have the lengths and alphabets of real ones, and the server's
//! rules for texts are kept.

use crate::load::text::text_for;

/// Characters that the mark takes.
pub const MARK_CHARS: usize = 6;

/// Numbers of comments in one room, and of rooms, are below this.
pub const MAX_NUMBER: u32 = BASE * BASE;

const BASE: u32 = 16_384;

/// The digit 0: the first of the CJK unified ideographs, of which normalisation leaves all alone.
const ZERO: u32 = 0x4E00;

/// Bytes of a digit in UTF-8.
const DIGIT_BYTES: usize = 3;

/// Which comment a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The room that it was sent to.
    pub room: u32,
    /// Its number there.
    pub number: u32,
}

impl Mark {
    /// Makes the text: `chars` characters, though six at least, and about `bytes` bytes.
    pub fn text(self, run: u32, chars: usize, bytes: usize) -> String {
        let (chars, bytes) = (chars.saturating_sub(MARK_CHARS), bytes.saturating_sub(MARK_CHARS * DIGIT_BYTES));
        let filler = text_for(u64::from(self.number), chars, bytes);
        let mut text = String::with_capacity(MARK_CHARS * DIGIT_BYTES + filler.len());
        for value in [self.room, self.number, self.check(run, &filler)] {
            text.extend([value / BASE, value % BASE].map(|digit| char::from_u32(ZERO + digit).unwrap_or('零')));
        }
        text + &filler
    }

    /// Reads it from a text of this run; none if that was changed, or is none.
    pub fn read(run: u32, text: &str) -> Option<Self> {
        let mut chars = text.chars();
        let mut value = || {
            let mut digit = || chars.next().map(|c| u32::from(c).wrapping_sub(ZERO)).filter(|digit| *digit < BASE);
            Some(digit()? * BASE + digit()?)
        };
        let (mark, check) = (Self { room: value()?, number: value()? }, value()?);
        (check == mark.check(run, chars.as_str())).then_some(mark)
    }

    fn check(self, run: u32, filler: &str) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        for part in [run, self.room, self.number] {
            sum.update(&part.to_le_bytes());
        }
        sum.update(filler.as_bytes());
        sum.finalize() % MAX_NUMBER
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Text, TextLimits};

    const LIMITS: TextLimits = TextLimits { max_chars: 100, max_bytes: 1024, max_combining: 6 };

    proptest! {
        #[test]
        fn a_text_is_taken_as_it_is_and_tells_its_mark(
            run: u32, room in 0..MAX_NUMBER, number in 0..MAX_NUMBER, chars in 0..101usize, width in 1..5usize
        ) {
            let mark = Mark { room, number };
            let text = mark.text(run, chars, chars * width);
            prop_assert_eq!(text.chars().count(), chars.max(MARK_CHARS));
            let taken = Text::parse(&text, &LIMITS).map(|text| text.as_str().to_owned());
            prop_assert_eq!(taken.as_deref(), Ok(text.as_str()));
            prop_assert_eq!(Mark::read(run, &text), Some(mark));
            prop_assert_eq!(Mark::read(run ^ 1, &text), None);
        }

        #[test]
        fn a_text_that_was_changed_is_found_out(number in 0..MAX_NUMBER, at in 0..30usize, other: char) {
            let text = Mark { room: 3, number }.text(9, 30, 80);
            let changed: String = text.chars().enumerate().map(|(i, c)| if i == at { other } else { c }).collect();
            prop_assert_eq!(Mark::read(9, &changed).is_some(), changed == text);
            let cut: String = text.chars().take(at).collect();
            prop_assert_eq!(Mark::read(9, &cut), None);
        }
    }
}
