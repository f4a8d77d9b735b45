//! How a comment looks: mode, colour and font size, in the numbers the field has used since the first danmaku players.

use thiserror::Error;

/// Says which part of a style was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StyleError {
    /// The mode is not among those the server takes.
    #[error("mode {0} is not one of 1 (scroll), 4 (bottom), 5 (top)")]
    Mode(i64),
    /// The colour is outside 0–0xFFFFFF.
    #[error("colour {0} is not within 0 to 16777215")]
    Color(i64),
    /// The font size is outside 12–64.
    #[error("size {0} is not within 12 to 64")]
    Size(i64),
}

/// Where a comment appears. The numbers are those of the danmaku XML format that players share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Scrolls from right to left (1).
    #[default]
    Scroll,
    /// Stands at the bottom (4).
    Bottom,
    /// Stands at the top (5).
    Top,
}

impl Mode {
    /// Reads the number.
    ///
    /// # Errors
    /// [`StyleError::Mode`] for every number but 1, 4 and 5.
    pub fn parse(raw: i64) -> Result<Self, StyleError> {
        match raw {
            1 => Ok(Self::Scroll),
            4 => Ok(Self::Bottom),
            5 => Ok(Self::Top),
            other => Err(StyleError::Mode(other)),
        }
    }

    /// The number on the wire and in the store.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Scroll => 1,
            Self::Bottom => 4,
            Self::Top => 5,
        }
    }
}

/// An RGB colour, 0–0xFFFFFF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Color(i32);

impl Color {
    /// Reads the number.
    ///
    /// # Errors
    /// [`StyleError::Color`] outside 0–0xFFFFFF.
    pub fn parse(raw: i64) -> Result<Self, StyleError> {
        match i32::try_from(raw) {
            Ok(rgb @ 0..=0xFF_FFFF) => Ok(Self(rgb)),
            _ => Err(StyleError::Color(raw)),
        }
    }

    /// The number on the wire and in the store.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }
}

impl Default for Color {
    fn default() -> Self {
        Self(0xFF_FFFF)
    }
}

/// A font size, 12–64, in the units that players scale by (25 is the usual one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FontSize(i32);

impl FontSize {
    /// Reads the number.
    ///
    /// # Errors
    /// [`StyleError::Size`] outside 12–64.
    pub fn parse(raw: i64) -> Result<Self, StyleError> {
        match i32::try_from(raw) {
            Ok(size @ 12..=64) => Ok(Self(size)),
            _ => Err(StyleError::Size(raw)),
        }
    }

    /// The number on the wire and in the store.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }
}

impl Default for FontSize {
    fn default() -> Self {
        Self(25)
    }
}

/// Mode, colour and size together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Style {
    /// Where it appears.
    pub mode: Mode,
    /// In which colour.
    pub color: Color,
    /// How large.
    pub size: FontSize,
}

impl Style {
    /// Reads the three numbers; an absent one takes its default (scroll, white, 25).
    ///
    /// # Errors
    /// The [`StyleError`] of the first number that is out of range.
    pub fn parse(mode: Option<i64>, color: Option<i64>, size: Option<i64>) -> Result<Self, StyleError> {
        Ok(Self {
            mode: mode.map(Mode::parse).transpose()?.unwrap_or_default(),
            color: color.map(Color::parse).transpose()?.unwrap_or_default(),
            size: size.map(FontSize::parse).transpose()?.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_hold_to_their_ranges() {
        let style = Style::parse(Some(4), Some(0), Some(64)).unwrap();
        assert_eq!((style.mode.number(), style.color.number(), style.size.number()), (4, 0, 64));
        assert_eq!(Style::parse(None, None, None).unwrap(), Style::default());
        for mode in [0, 2, 3, 6, 7, 8, -1, i64::MAX] {
            assert_eq!(Mode::parse(mode), Err(StyleError::Mode(mode)));
        }
        for color in [-1, 0x100_0000, i64::MIN] {
            assert_eq!(Color::parse(color), Err(StyleError::Color(color)));
        }
        for size in [11, 65, -25, i64::MAX] {
            assert_eq!(FontSize::parse(size), Err(StyleError::Size(size)));
        }
    }
}
