//! Where an axis begins, ends and has its ticks.

use std::ops::Range;

use crate::load::units;

/// The most that is drawn, so that arithmetic with what a file claims stays finite.
const MOST: f64 = 1e15;

/// How many ticks an axis has room for.
const TICKS: f64 = 5.0;

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    /// What it spans; never empty.
    pub range: Range<f64>,
    /// Where its ticks are and what they say, in order.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From nothing up to at least `most`, with ticks at round figures.
    pub(super) fn up_to(most: f64, told: impl Fn(f64) -> String) -> Self {
        Self::in_units(most, 1.0, told)
    }

    /// Like [`Axis::up_to`], with ticks at round multiples of `unit`.
    fn in_units(most: f64, unit: f64, told: impl Fn(f64) -> String) -> Self {
        let most = bounded(most / unit);
        let step = round_step(if most > 0.0 { most } else { 1.0 });
        let steps = (most / step - 1e-9).ceil().max(1.0) as u32;
        let ticks = (0..=steps).map(|n| f64::from(n) * step).map(|value| (value * unit, told(value * unit))).collect();
        Self { range: 0.0..f64::from(steps) * step * unit, ticks }
    }

    /// Counts: no tick between two whole ones.
    pub(super) fn counts(most: f64, unit: &str) -> Self {
        Self::up_to(most.max(TICKS - 1.0), |value| format!("{}{unit}", units::short(value)))
    }

    /// Memory in bytes.
    pub(super) fn bytes(most: f64) -> Self {
        const MIB: f64 = 1_048_576.0;
        let (unit, name) = if most >= 4_096.0 * MIB { (1_024.0 * MIB, "GiB") } else { (MIB, "MiB") };
        Self::in_units(most, unit, |value| format!("{} {name}", units::figure(value / unit)))
    }

    /// The time since the start, in seconds.
    pub(super) fn time(until_secs: f64) -> Self {
        const STEPS: [u32; 16] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400];
        let until = bounded(until_secs).max(1.0);
        let step = STEPS.into_iter().map(f64::from).find(|step| until / step <= 10.0);
        let step = step.unwrap_or_else(|| round_step(until));
        let ticks = (0..).map(|n| f64::from(n) * step).take_while(|at| *at <= until);
        Self { range: 0.0..until, ticks: ticks.map(|at| (at, clock(at))).collect() }
    }

    /// Times on a logarithmic scale: positions are powers of ten of milliseconds.
    pub(super) fn logarithmic(least_ms: f64, most_ms: f64) -> Self {
        // A microsecond is the least that is measured.
        let (least, most) = (bounded(least_ms).max(0.001), bounded(most_ms).max(0.002));
        let decades = (least.log10().floor() as i32)..=(most.log10().ceil() as i32);
        let is_narrow = most / least < 150.0;
        let marks: &[f64] = if is_narrow { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all: Vec<f64> = decades.flat_map(|power| marks.iter().map(move |mark| mark * 10f64.powi(power))).collect();
        let low = all.iter().copied().rfind(|tick| *tick <= least).unwrap_or(least);
        let high = all.iter().copied().find(|tick| *tick >= most).unwrap_or(most);
        let ticks = all.into_iter().filter(|tick| (low..=high).contains(tick));
        Self {
            range: low.log10()..high.log10().max(low.log10() + 0.1),
            ticks: ticks.map(|ms| (ms.log10(), round(ms))).collect(),
        }
    }

    /// Quantiles, the tail drawn out: each tenth of what is left takes as much room as the nine before.
    pub(super) fn quantiles(until: f64) -> Self {
        const TICKS: [(f64, &str); 8] = [
            (0.0, "0%"),
            (0.5, "50%"),
            (0.9, "90%"),
            (0.99, "99%"),
            (0.999, "99.9%"),
            (0.999_9, "99.99%"),
            (0.999_99, "99.999%"),
            (0.999_999, "99.9999%"),
        ];
        let until = bounded(until).max(1.0);
        let ticks = TICKS.into_iter().map(|(quantile, told)| (tail(quantile), told.to_owned()));
        Self { range: 0.0..until, ticks: ticks.filter(|(at, _)| *at <= until).collect() }
    }

    /// The same with those ticks alone whose texts leave each other room on `width` pixels.
    pub(super) fn thinned(mut self, width: f64) -> Self {
        let Range { start, end } = self.range;
        let mut free_from = f64::NEG_INFINITY;
        self.ticks.retain(|(at, told)| {
            let half = text_width(told) / 2.0;
            let middle = (at - start) / (end - start) * width;
            let has_room = middle - half >= free_from;
            if has_room {
                free_from = middle + half + 10.0;
            }
            has_room
        });
        self
    }
}

/// Where a quantile is on the axis of [`Axis::quantiles`].
pub(super) fn tail(quantile: f64) -> f64 {
    // What is left is at least one in a hundred million.
    -(1.0 - quantile.clamp(0.0, 1.0)).max(1e-8).log10()
}

/// How wide a tick's text is, in pixels at 12 pixels high: figures are about this wide in all the usual fonts.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.8
}

fn bounded(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, MOST) } else { 0.0 }
}

/// One, two, two and a half or five times a power of ten, so that some [`TICKS`] of them make `span`.
fn round_step(span: f64) -> f64 {
    let raw = span / TICKS;
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 2.5, 5.0].into_iter().map(|mark| mark * power).find(|step| *step >= raw).unwrap_or(10.0 * power)
}

/// A time that is a round figure: `20 ms`, `1 s`.
pub(super) fn round(ms: f64) -> String {
    match ms {
        ms if ms >= 999.9 => format!("{} s", units::figure(ms / 1_000.0)),
        ms if ms >= 0.999 || ms == 0.0 => format!("{} ms", units::figure((ms * 100.0).round() / 100.0)),
        _ => format!("{} µs", units::figure((ms * 1_000.0).round())),
    }
}

fn clock(secs: f64) -> String {
    let whole = secs as u64;
    match (whole / 3_600, whole / 60 % 60, whole % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(axis: &Axis) -> String {
        axis.ticks.iter().map(|(_, text)| &**text).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn ticks_are_at_round_figures_that_contain_the_most() {
        assert_eq!(told(&Axis::up_to(187.0, round)), "0 ms | 50 ms | 100 ms | 150 ms | 200 ms");
        assert_eq!(told(&Axis::up_to(12.0, units::figure)), "0 | 2.5 | 5 | 7.5 | 10 | 12.5");
        assert_eq!(told(&Axis::up_to(0.9, units::figure)), "0 | 0.2 | 0.4 | 0.6 | 0.8 | 1");
        assert_eq!(told(&Axis::counts(2_100_000.0, "/s")), "0/s | 500 k/s | 1 M/s | 1.5 M/s | 2 M/s | 2.5 M/s");
        assert_eq!(told(&Axis::counts(1.0, "")), "0 | 1 | 2 | 3 | 4");
        assert_eq!(told(&Axis::bytes(150e6)), "0 MiB | 50 MiB | 100 MiB | 150 MiB");
        assert_eq!(told(&Axis::bytes(8.5e9)), "0 GiB | 2 GiB | 4 GiB | 6 GiB | 8 GiB");
        assert_eq!(Axis::up_to(200.0, round).range, 0.0..200.0);
    }

    #[test]
    fn time_is_told_in_minutes() {
        assert_eq!(told(&Axis::time(62.0)), "0:00 | 0:10 | 0:20 | 0:30 | 0:40 | 0:50 | 1:00");
        assert_eq!(
            told(&Axis::time(300.0)),
            "0:00 | 0:30 | 1:00 | 1:30 | 2:00 | 2:30 | 3:00 | 3:30 | 4:00 | 4:30 | 5:00"
        );
        assert!(told(&Axis::time(7_200.0)).ends_with("1:45:00 | 2:00:00"));
    }

    #[test]
    fn a_wide_span_has_its_decades_and_a_narrow_one_more() {
        assert_eq!(told(&Axis::logarithmic(0.12, 251.0)), "100 µs | 1 ms | 10 ms | 100 ms | 1 s");
        assert_eq!(told(&Axis::logarithmic(11.0, 90.0)), "10 ms | 20 ms | 50 ms | 100 ms");
    }

    #[test]
    fn the_tail_has_as_much_room_as_all_before() {
        let axis = Axis::quantiles(4.2);
        assert_eq!(told(&axis), "0% | 50% | 90% | 99% | 99.9% | 99.99%");
        let positions: Vec<_> = axis.ticks.iter().skip(2).map(|(at, _)| (at * 1e6).round() / 1e6).collect();
        assert_eq!(positions, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(tail(1.0), 8.0);
    }

    #[test]
    fn texts_that_would_overlap_are_left_out() {
        let axis = Axis::quantiles(6.0);
        let kept = axis.clone().thinned(200.0).ticks;
        assert!(kept.len() < axis.ticks.len());
        let scale = 200.0 / 6.0;
        for pair in kept.windows(2) {
            let room = (pair[1].0 - pair[0].0) * scale - (text_width(&pair[0].1) + text_width(&pair[1].1)) / 2.0;
            assert!(room >= 10.0 - 1e-9, "{pair:?} have {room} pixels");
        }
        assert_eq!(axis.clone().thinned(1_000.0), axis);
    }

    #[test]
    fn no_figure_breaks_an_axis() {
        for most in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE, 1e-300] {
            for axis in [
                Axis::up_to(most, round),
                Axis::counts(most, "/s"),
                Axis::bytes(most),
                Axis::time(most),
                Axis::logarithmic(most, most),
                Axis::logarithmic(most, 1.0),
                Axis::quantiles(most),
            ] {
                assert!(axis.range.end > axis.range.start && axis.range.end.is_finite(), "{most}: {axis:?}");
                assert!(axis.ticks.len() <= 40, "{most}: {} ticks", axis.ticks.len());
            }
        }
    }
}
