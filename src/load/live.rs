//! Shows on stderr how a load test goes, so that stdout has the report alone.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::engine::{Live, Tick, Told};

/// How often a line is written where no bar can be drawn, in ticks of a second.
const LINE_EVERY: u64 = 5;

/// A line that changes on a terminal, a line every few seconds elsewhere.
#[derive(Debug)]
pub(super) struct StderrLive {
    bar: Option<ProgressBar>,
    ticks: u64,
}

impl StderrLive {
    /// Shows nothing before the first second.
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(200));
            match ProgressStyle::with_template("{spinner} {elapsed} {prefix}\n  {wide_msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { bar, ticks: 0 }
    }
}

impl Live for StderrLive {
    fn show(&mut self, tick: &Tick, told: &Told) {
        self.ticks += 1;
        let [first, second] = lines(tick, told);
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(first);
                bar.set_message(second);
            }
            None if self.ticks % LINE_EVERY == 1 => say(&format!("{:.0} s {first}, {second}", tick.at_secs)),
            None => {}
        }
    }
}

impl Drop for StderrLive {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            // Cleared, so that the report does not start in the middle of its line.
            bar.finish_and_clear();
        }
    }
}

/// Writes a line to stderr. Who closed it does not want to know.
pub(super) fn say(line: &str) {
    let _closed = writeln!(std::io::stderr(), "{line}");
}

/// One second in two lines, of which the first has room on any terminal: what matters most comes first.
fn lines(tick: &Tick, told: &Told) -> [String; 2] {
    let ms = |time: Option<f64>| time.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"));
    let first =
        format!("{}: {} faults, {} errors, p99 {} ms", tick.phase, tick.faults, tick.all_errors, ms(tick.p99_ms),);
    let mut line = format!(
        "{} connected, {}/s sent, {}/s delivered, p50 {} ms, own CPU {:.0} %",
        tick.connections,
        tick.sent,
        tick.delivered,
        ms(tick.p50_ms),
        tick.thread_cpu * 100.0,
    );
    if let Some(moment) = told.moment.as_ref().filter(|moment| moment.rss_bytes > 0) {
        let mib = moment.rss_bytes as f64 / f64::from(1 << 20);
        line += &format!("; server CPU {:.0} %, {mib:.0} MiB", moment.cpu * 100.0);
    }
    if let Some(ledger) = &told.ledger {
        let (accepted, stored) = (ledger.accepted, ledger.stored);
        line += &format!(", accepted {accepted} stored {stored} queued {}", ledger.in_queue);
        if ledger.in_outbox > 0 {
            line += &format!(" outbox {}", ledger.in_outbox);
        }
    }
    [first, line]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::outcome::ServerMoment;

    #[test]
    fn a_second_is_told_with_what_is_known_and_the_worst_first() {
        let tick = Tick { phase: "sending", connections: 7, p50_ms: Some(1.25), all_errors: 3, ..Tick::default() };
        let [first, alone] = lines(&tick, &Told::default());
        assert_eq!(first, "sending: 0 faults, 3 errors, p99 – ms");
        assert!(
            alone.starts_with("7 connected") && alone.contains("p50 1.2 ms") && !alone.contains("server"),
            "{alone}"
        );
        let moment = ServerMoment { cpu: 0.5, rss_bytes: 10 << 20, ..ServerMoment::default() };
        let mut told = Told::default();
        (told.moment, told.ledger) = (Some(moment), Some(Default::default()));
        let [_, second] = lines(&tick, &told);
        assert!(second.ends_with("server CPU 50 %, 10 MiB, accepted 0 stored 0 queued 0"), "{second}");
    }

    #[test]
    fn errors_and_faults_are_seen_on_80_columns() {
        let (phase, most) = ("waiting for the last", 9_999_999);
        let tick = Tick { phase, faults: most, all_errors: most, p99_ms: Some(9_999.9), ..Tick::default() };
        let [first, _] = lines(&tick, &Told::default());
        // Before it stand the spinner and the time.
        assert!("⠁ 10m ".chars().count() + first.chars().count() <= 80, "{first}");
    }
}
