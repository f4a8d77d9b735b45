//! The colours of the charts, in the light and in the dark.

use plotters::style::RGBColor;

/// What a colour stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    /// The text at the axes.
    Label,
    /// The lines behind the figures.
    Grid,
    /// The first figure of a chart.
    First,
    /// The second.
    Second,
    /// The third.
    Third,
    /// The fourth.
    Fourth,
    /// What is there to compare with.
    Quiet,
    /// What should not be.
    Bad,
}

/// Each with its colour on white and on black. All of them differ, as the drawn ones are found again by their colour.
/// The figures' colours keep 3:1 to the panel (WCAG 1.4.11), the labels' 4.5:1 (1.4.3).
const INKS: [(Ink, [u8; 3], [u8; 3]); 8] = [
    (Ink::Label, [0x5b, 0x63, 0x70], [0x9a, 0xa3, 0xb2]),
    (Ink::Grid, [0xe3, 0xe6, 0xec], [0x2c, 0x32, 0x3c]),
    (Ink::First, [0x25, 0x63, 0xeb], [0x6e, 0xa8, 0xfe]),
    (Ink::Second, [0x0d, 0x93, 0x82], [0x3c, 0xcf, 0xbb]),
    (Ink::Third, [0xb9, 0x74, 0x10], [0xf0, 0xb3, 0x54]),
    (Ink::Fourth, [0x8b, 0x4f, 0xe0], [0xb7, 0x9c, 0xff]),
    (Ink::Quiet, [0x75, 0x7f, 0x8e], [0x8a, 0x94, 0xa4]),
    (Ink::Bad, [0xcf, 0x2f, 0x3a], [0xff, 0x7b, 0x82]),
];

impl Ink {
    /// The colour that a chart is drawn in.
    pub(super) fn drawn(self) -> RGBColor {
        let [red, green, blue] = INKS.iter().find(|(ink, ..)| *ink == self).map_or([0; 3], |(_, light, _)| *light);
        RGBColor(red, green, blue)
    }

    /// Its class in a legend.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Grid => "grid",
            Self::First => "first",
            Self::Second => "second",
            Self::Third => "third",
            Self::Fourth => "fourth",
            Self::Quiet => "quiet",
            Self::Bad => "bad",
        }
    }
}

/// The style sheet that colours the legends, and in the dark the charts as well: what is drawn has fixed colours, but
/// a rule of the page outweighs them.
pub(super) fn style() -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for (ink, on_white, on_black) in INKS {
        let (drawn, other, class) = (hex(on_white), hex(on_black), ink.class());
        light += &format!(".legend .{class}::before{{background:{drawn}}}");
        dark += &format!(".legend .{class}::before{{background:{other}}}");
        dark += &format!("svg [stroke=\"{drawn}\"]{{stroke:{other}}}svg [fill=\"{drawn}\"]{{fill:{other}}}");
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

/// As the drawing library writes it.
fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The panels that charts are on, as the style sheet has them.
    const PANELS: [[u8; 3]; 2] = [[0xff; 3], [0x1b, 0x1e, 0x24]];

    /// WCAG 2.2, relative luminance.
    fn luminance(colour: [u8; 3]) -> f64 {
        let linear = colour.map(|channel| match f64::from(channel) / 255.0 {
            c if c <= 0.04045 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }

    #[test]
    fn every_figure_can_be_told_from_the_panel_in_the_light_and_in_the_dark() {
        for (ink, on_white, on_black) in INKS.into_iter().filter(|(ink, ..)| *ink != Ink::Grid) {
            for (colour, panel) in [on_white, on_black].into_iter().zip(PANELS) {
                let (a, b) = (luminance(colour) + 0.05, luminance(panel) + 0.05);
                let needed = if ink == Ink::Label { 4.5 } else { 3.0 };
                assert!(f64::max(a / b, b / a) >= needed, "{ink:?} on {panel:?}: {:.2}", f64::max(a / b, b / a));
            }
        }
        let style = include_str!("style.css");
        assert!(style.contains("--panel: #fff;") && style.contains("--panel: #1b1e24;"));
    }

    #[test]
    fn every_colour_is_drawn_once_and_has_its_own_in_the_dark() {
        let style = style();
        for (ink, on_white, on_black) in INKS {
            assert_eq!(INKS.iter().filter(|(_, other, _)| *other == on_white).count(), 1, "{ink:?}");
            assert!(style.contains(&format!("[stroke=\"{}\"]{{stroke:{}}}", hex(on_white), hex(on_black))), "{ink:?}");
            let RGBColor(red, green, blue) = ink.drawn();
            assert_eq!([red, green, blue], on_white);
        }
    }
}
