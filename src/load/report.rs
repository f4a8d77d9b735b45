//! What became of a replay: counted while it runs, told at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The counts of a replay, so far or at its end.
///
/// Once nothing is pending any more: sent + retried = accepted + all refused + unanswered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Comments of the trace within the chosen span.
    pub total: u64,
    /// Comments sent, each counted once, however often it was sent again.
    pub sent: u64,
    /// Refused comments that were sent once more for `--retry`.
    pub retried: u64,
    /// Comments sent once more because the connection was lost before their answer.
    pub resent: u64,
    /// Comments acknowledged at either level.
    pub accepted: u64,
    /// Comments acknowledged as stored; none when that was not asked for.
    pub stored: Option<u64>,
    /// Refusals by code.
    pub refused: BTreeMap<String, u64>,
    /// Errors by code that named no comment of ours.
    pub other_errors: BTreeMap<String, u64>,
    /// Comments sent and neither acknowledged nor refused.
    pub unanswered: u64,
    /// Comments not sent, because the replay was stopped or a connection given up.
    pub unsent: u64,
    /// Whether the replay was stopped before its end.
    pub is_stopped: bool,
    /// Connections that were given up, each with its last trouble.
    pub given_up: Vec<String>,
    /// Times a connection was opened again.
    pub reconnects: u64,
    /// Comments that the connections were told they had missed as viewers.
    pub missed: u64,
    /// How much later than planned comments were sent.
    pub lateness: Lateness,
    /// From the first comment's time until the last answer.
    pub duration: Duration,
}

impl Report {
    /// Whether every comment was sent, unless the replay was stopped, every one that was sent has its answer, and no
    /// connection was given up.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.unanswered == 0 && self.given_up.is_empty() && (self.unsent == 0 || self.is_stopped)
    }

    /// Refusals of all codes.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The longest code, with two blanks before it and two behind.
        let width = self.refused.keys().map(|code| code.len() + 4).max().unwrap_or(0).max(14);
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:<width$}{value}");
        row("sent", &format_args!("{} of {}", self.sent, self.total))?;
        row("accepted", &self.accepted)?;
        if let Some(stored) = self.stored {
            row("stored", &stored)?;
        }
        row("refused", &self.refusals())?;
        for (code, count) in &self.refused {
            row(&format!("  {code}"), count)?;
        }
        row("unanswered", &self.unanswered)?;
        for (name, count) in [
            ("not sent", self.unsent),
            ("sent again", self.resent),
            ("retried", self.retried),
            ("reconnects", self.reconnects),
            ("missed", self.missed),
        ] {
            if count > 0 {
                row(name, &count)?;
            }
        }
        for (code, count) in &self.other_errors {
            row("other error", &format_args!("{code} ({count} times)"))?;
        }
        for trouble in &self.given_up {
            row("given up", trouble)?;
        }
        let Lateness { p50, p99, max } = self.lateness;
        row("lateness", &format_args!("p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}"))?;
        write!(f, "{:<width$}{:.1?}", "duration", self.duration)
    }
}

/// How much later than planned comments were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Half were at most this late.
    pub p50: Duration,
    /// 99 of 100 were at most this late.
    pub p99: Duration,
    /// The latest.
    pub max: Duration,
}

impl Lateness {
    /// Sums up single values (nearest rank).
    #[must_use]
    pub fn of(mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        let at = |hundredths: usize| {
            let rank = (values.len() * hundredths).div_ceil(100).saturating_sub(1);
            values.get(rank).copied().unwrap_or_default()
        };
        Self { p50: at(50), p99: at(99), max: at(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_by_nearest_rank() {
        let millis = Duration::from_millis;
        let lateness = Lateness::of((1..=200).rev().map(millis).collect());
        assert_eq!((lateness.p50, lateness.p99, lateness.max), (millis(100), millis(198), millis(200)));
        assert_eq!(Lateness::of(vec![]), Lateness::default());
    }

    #[test]
    fn the_report_tells_each_refusal_and_leaves_out_what_did_not_happen() {
        let mut report = Report { total: 9, sent: 8, accepted: 5, stored: Some(4), ..Report::default() };
        report.refused.extend([("busy".to_owned(), 2), ("text_blank".to_owned(), 1)]);
        let text = report.to_string();
        for line in ["sent          8 of 9", "stored        4", "refused       3", "  busy        2", "unanswered    0"]
        {
            assert!(text.lines().any(|l| l == line), "{line:?} is missing in\n{text}");
        }
        assert!(!text.contains("reconnects"));
        assert!(report.is_clean());
        report.unanswered = 1;
        assert!(!report.is_clean());
    }

    #[test]
    fn what_was_not_sent_is_clean_after_a_stop_alone() {
        let mut report = Report { total: 9, sent: 8, accepted: 8, unsent: 1, ..Report::default() };
        assert!(!report.is_clean());
        report.is_stopped = true;
        assert!(report.is_clean());
    }

    #[test]
    fn the_columns_keep_apart_however_long_a_code_is() {
        let mut report = Report::default();
        report.refused.extend([("rate_limited".to_owned(), 389), ("text_combining".to_owned(), 2)]);
        let text = report.to_string();
        for line in ["  rate_limited    389", "  text_combining  2", "refused           391"] {
            assert!(text.lines().any(|l| l == line), "{line:?} is missing in\n{text}");
        }
    }
}
