//! Shows a replay's progress on stderr, so that stdout has the report alone.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::replay::Progress;
use super::report::Report;

/// How often a line is written where no bar can be drawn.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A bar on a terminal, an occasional line elsewhere.
#[derive(Debug)]
pub struct StderrProgress {
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Default for StderrProgress {
    fn default() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            match ProgressStyle::with_template("{bar:32} {pos}/{len} sent, {msg} [{elapsed}, {eta} to go]") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { bar, last_line: Instant::now() }
    }
}

impl Progress for StderrProgress {
    fn show(&mut self, so_far: &Report) {
        let state = format!("{} accepted, {} refused", so_far.accepted, so_far.refusals());
        if let Some(bar) = &self.bar {
            bar.set_length(so_far.total);
            bar.set_position(so_far.sent);
            bar.set_message(state);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{} of {} sent, {state}", so_far.sent, so_far.total);
        }
    }
}

impl Drop for StderrProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            // Cleared, so that the report does not start in the middle of the bar's line.
            bar.finish_and_clear();
        }
    }
}
