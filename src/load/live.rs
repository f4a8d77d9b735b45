//! Shows on stderr how a load test goes, so that stdout has the report alone.

use std::io::IsTerminal as _;
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
            match ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
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
        match &self.bar {
            Some(bar) => bar.set_message(line(tick, told)),
            None if self.ticks % LINE_EVERY == 1 => eprintln!("{:.0} s {}", tick.at_secs, line(tick, told)),
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

/// One second in one line.
fn line(tick: &Tick, told: &Told) -> String {
    let ms = |time: Option<f64>| time.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"));
    let mut line = format!(
        "{}: {} connections, {}/s sent, {}/s delivered, p50 {} p99 {} ms, {} errors, {} faults, own CPU {:.0} %",
        tick.phase,
        tick.connections,
        tick.sent,
        tick.delivered,
        ms(tick.p50_ms),
        ms(tick.p99_ms),
        tick.all_errors,
        tick.faults,
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
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::outcome::ServerMoment;

    #[test]
    fn a_second_is_one_line_with_what_is_known() {
        let tick = Tick { phase: "sending", connections: 7, p50_ms: Some(1.25), all_errors: 3, ..Tick::default() };
        let alone = line(&tick, &Told::default());
        assert!(alone.starts_with("sending: 7 connections") && alone.contains("p50 1.2 p99 – ms, 3 errors"), "{alone}");
        assert!(!alone.contains("server"), "{alone}");
        let moment = ServerMoment { cpu: 0.5, rss_bytes: 10 << 20, ..ServerMoment::default() };
        let mut told = Told::default();
        (told.moment, told.ledger) = (Some(moment), Some(Default::default()));
        assert!(line(&tick, &told).ends_with("server CPU 50 %, 10 MiB, accepted 0 stored 0 queued 0"));
    }
}
