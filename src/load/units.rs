//! Figures as people read them, the same in the table, the page and the comparison.

use std::collections::BTreeMap;

use bytesize::ByteSize;

/// A time: three figures, in the unit that suits it.
pub(super) fn millis(ms: f64) -> String {
    match ms.abs() {
        // Half a microsecond is where the figure would round to nothing.
        size if size < 0.000_5 => "0 ms".to_owned(),
        size if size < 0.1 => format!("{:.0} µs", ms * 1_000.0),
        size if size < 10.0 => format!("{ms:.2} ms"),
        size if size < 100.0 => format!("{ms:.1} ms"),
        size if size < 1_000.0 => format!("{ms:.0} ms"),
        size if size < 10_000.0 => format!("{:.2} s", ms / 1_000.0),
        _ => format!("{:.1} s", ms / 1_000.0),
    }
}

/// A duration: `45 s`, `5 min`, `1 min 30 s`, `2 h 5 min`.
pub(super) fn secs(secs: f64) -> String {
    if secs < 60.0 {
        let text = format!("{secs:.1}");
        return format!("{} s", text.strip_suffix(".0").unwrap_or(&text));
    }
    // Whole seconds from here on: tenths of a minute-long test tell nothing.
    let whole = secs.round() as u64;
    let parts = [(whole / 3_600, "h"), (whole / 60 % 60, "min"), (whole % 60, "s")];
    let told: Vec<_> = parts.iter().filter(|(n, _)| *n > 0).take(2).map(|(n, unit)| format!("{n} {unit}")).collect();
    told.join(" ")
}

/// A count with its thousands apart: `1,234,567`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut told = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            told.push(',');
        }
        told.push(digit);
    }
    told
}

/// A figure that need not be whole: `0.42`, `8.3`, `1,250`.
pub(super) fn figure(n: f64) -> String {
    match n.abs() {
        size if size >= 100.0 => count(n.round() as u64),
        size if size >= 10.0 || n.fract() == 0.0 => trimmed(format!("{n:.1}")),
        _ => trimmed(format!("{n:.2}")),
    }
}

/// A figure short enough for an axis: `500`, `1.5 k`, `12 M`.
pub(super) fn short(n: f64) -> String {
    match n.abs() {
        size if size >= 1e9 => format!("{} G", figure(n / 1e9)),
        size if size >= 1e6 => format!("{} M", figure(n / 1e6)),
        size if size >= 10_000.0 => format!("{} k", figure(n / 1e3)),
        _ => figure(n),
    }
}

/// Memory: `212.4 MiB`.
pub(super) fn bytes(n: u64) -> String {
    ByteSize(n).display().iec().to_string()
}

/// A share: `0.1%`.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    // A share that is not nothing must not read as nothing.
    let places = if percent == 0.0 || percent >= 0.01 { 2 } else { 5 };
    format!("{}%", trimmed(format!("{percent:.places$}")))
}

/// `1 room`, `2 rooms`.
pub(super) fn plural(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Codes with their counts: `busy: 12, rate_limited: 389`.
pub(super) fn coded(codes: &BTreeMap<String, u64>) -> String {
    codes.iter().map(|(code, n)| format!("{}: {}", plain(code), count(*n))).collect::<Vec<_>>().join(", ")
}

/// A text from outside, on one line and without what a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_reordering(c) { '\u{fffd}' } else { c }).collect()
}

/// Characters that make what follows them read in another order.
fn is_reordering(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn trimmed(decimal: String) -> String {
    if decimal.contains('.') { decimal.trim_end_matches('0').trim_end_matches('.').to_owned() } else { decimal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let told = [0.0, 0.042, 0.42, 8.25, 21.34, 312.4, 1_234.0, 61_000.0].map(millis);
        assert_eq!(told, ["0 ms", "42 µs", "0.42 ms", "8.25 ms", "21.3 ms", "312 ms", "1.23 s", "61.0 s"]);
        let told = [0.5, 45.0, 300.0, 90.0, 7_500.0, 3_601.0].map(secs);
        assert_eq!(told, ["0.5 s", "45 s", "5 min", "1 min 30 s", "2 h 5 min", "1 h 1 s"]);
    }

    #[test]
    fn figures_are_short_and_never_read_as_nothing() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.421, 8.25, 50.0, 1_250.4].map(figure), ["0", "0.42", "8.25", "50", "1,250"]);
        assert_eq!([500.0, 1_500.0, 15_000.0, 12e6].map(short), ["500", "1,500", "15 k", "12 M"]);
        assert_eq!([0.0, 0.001, 0.25, 0.000_001].map(percent), ["0%", "0.1%", "25%", "0.0001%"]);
        assert_eq!(bytes(222_500_000), "212.2 MiB");
        assert_eq!((plural(1, "room"), plural(1_200, "room")), ("1 room".to_owned(), "1,200 rooms".to_owned()));
    }

    #[test]
    fn what_a_terminal_would_obey_is_taken_out() {
        assert_eq!(plain("a\x1b[2Jb\nc\u{202e}d é 弹"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d é 弹");
    }
}
