//! Texts for a trace that records only lengths: pure, and the same on every run.

use std::ops::Range;

/// Chinese, 3 bytes each: CJK unified ideographs, U+4E00 to U+9FA5, all of which normalisation leaves alone.
const HAN: Range<u32> = 0x4E00..0x9FA6;
/// Cyrillic letters, 2 bytes each.
const CYRILLIC: Range<u32> = 0x0410..0x0450;
/// Faces, 4 bytes each.
const EMOJI: Range<u32> = 0x1F600..0x1F650;
/// Visible ASCII, 1 byte each; no blank, which trimming could take away.
const ASCII: Range<u32> = 0x21..0x7F;

/// Makes the text with a number: exactly `chars` code points and, where `chars` to `4 * chars` allows, exactly
/// `utf8_bytes` bytes.
///
/// Equal arguments give equal texts; different numbers give different texts as long as there are enough texts of
/// that length. A server that holds texts to be visible, in NFC and free of controls takes them all, except the empty
/// text of length 0.
#[must_use]
pub fn text_for(number: u64, chars: usize, utf8_bytes: usize) -> String {
    let mut rest = number;
    let mut last = 0;
    let mut text = String::with_capacity(utf8_bytes);
    for (count, alphabet) in shape(number, chars, utf8_bytes) {
        let size = alphabet.end - alphabet.start;
        for _ in 0..count {
            // The number's next digit in this alphabet's base, moved on by the character before. As that one can be
            // read from the text, so can the number: different numbers cannot meet before the digits run out.
            let digit = u32::try_from(rest % u64::from(size)).unwrap_or(0);
            rest /= u64::from(size);
            // 7,919 is a prime with no part in the sizes, so that neighbours look unlike each other.
            last = (digit + last * 7_919 % size + 11) % size;
            text.extend(char::from_u32(alphabet.start + last));
        }
    }
    text
}

/// How many characters of each alphabet make up the lengths, in the order in which they are written.
fn shape(number: u64, chars: usize, utf8_bytes: usize) -> [(usize, Range<u32>); 4] {
    // All ASCII would be `chars` bytes; an ideograph adds 2 to that, a Cyrillic letter 1, a face 3.
    let extra = utf8_bytes.clamp(chars, chars.saturating_mul(4)) - chars;
    let mut emoji = extra.saturating_sub(2 * chars);
    let mut han = (extra - 3 * emoji) / 2;
    let cyrillic = (extra - 3 * emoji) % 2;
    // In every fifth text three ideographs (6) become two faces and an ASCII character (6): real texts have them.
    if number % 5 == 4 && han >= 3 {
        han -= 3;
        emoji += 2;
    }
    [(han, HAN), (emoji, EMOJI), (cyrillic, CYRILLIC), (chars - han - emoji - cyrillic, ASCII)]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{Text, TextLimits};

    const LIMITS: TextLimits = TextLimits { max_chars: 1_000, max_bytes: 4_096, max_combining: 0 };

    proptest! {
        #[test]
        fn a_text_has_the_lengths_asked_for_and_passes_the_servers_rules(
            number: u64, (chars, bytes) in (1..200usize).prop_flat_map(|chars| (Just(chars), chars..=4 * chars))
        ) {
            let text = text_for(number, chars, bytes);
            prop_assert_eq!((text.chars().count(), text.len()), (chars, bytes));
            let passed = Text::parse(&text, &LIMITS).map(|text| text.as_str().to_owned());
            prop_assert_eq!(passed.as_deref(), Ok(text.as_str()));
        }
    }

    #[test]
    fn different_numbers_give_different_texts_where_the_length_permits() {
        for (chars, bytes, permits) in [(1, 3, 20_000), (2, 6, 50_000), (1, 1, 94), (2, 5, 50_000), (9, 20, 50_000)] {
            let texts: HashSet<_> = (0..permits).map(|number| text_for(number, chars, bytes)).collect();
            assert_eq!(texts.len() as u64, permits, "{chars} characters, {bytes} bytes");
        }
        assert_eq!(text_for(7, 5, 15), text_for(7, 5, 15));
    }

    #[test]
    fn impossible_lengths_keep_the_characters_and_come_near_in_bytes() {
        assert_eq!((text_for(1, 3, 1).len(), text_for(1, 3, 99).len(), text_for(1, 0, 0).len()), (3, 12, 0));
    }
}
