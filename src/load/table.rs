//! What became of a load test, at its end, in a terminal. Short, and the verdict last: it is what is read first.

use super::outcome::{ENOUGH, Outcome};
use super::units::{self, coded, count, millis, plain, plural};

/// How many examples of faults are shown; the report has the others.
const EXAMPLES: usize = 3;

/// Rows of cells, told in columns.
#[derive(Default)]
pub(super) struct Grid {
    rows: Vec<Vec<String>>,
    /// The columns from this one on are figures, which end below each other.
    figures_from: usize,
}

impl Grid {
    pub(super) fn with_figures_from(column: usize) -> Self {
        Self { rows: Vec::new(), figures_from: column }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column >= self.figures_from { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// The summary, several lines without a last line end.
#[must_use]
pub fn summary(outcome: &Outcome) -> String {
    let mut lines = vec![headline(outcome), String::new()];
    lines.extend(latencies(outcome));
    lines.extend(facts(outcome).lines());
    lines.push(String::new());
    if !outcome.objectives.is_empty() {
        lines.extend(objectives(outcome).lines());
        lines.push(String::new());
    }
    if outcome.client.is_limit {
        let why = outcome.client.why.as_deref().map(|why| format!(": {}", plain(why))).unwrap_or_default();
        lines.push(format!("the client, not the server, was the limit{why}"));
    }
    lines.push(verdict(outcome));
    lines.join("\n")
}

/// The verdict in one line.
pub(super) fn verdict(outcome: &Outcome) -> String {
    let broken = outcome.broken().join("; ");
    match (outcome.has_held, outcome.has_been_stopped) {
        (true, _) => "HELD".to_owned(),
        (false, false) => format!("BROKE: {broken}"),
        (false, true) if broken.is_empty() => "NO VERDICT: ended early by a signal".to_owned(),
        (false, true) => format!("NO VERDICT: ended early by a signal; until then: {broken}"),
    }
}

/// What was to be carried, in one line.
pub(super) fn headline(outcome: &Outcome) -> String {
    let load = &outcome.summary;
    let targets: Vec<String> = load.targets.iter().map(|target| plain(target)).collect();
    format!(
        "{}: {}, {}, {}, {} comments/s for {}, on {}",
        plain(load.name()),
        plural(load.rooms, "room"),
        plural(load.viewers, "viewer"),
        plural(load.senders, "sender"),
        units::figure(load.rate),
        units::secs(load.duration_secs),
        targets.join(", "),
    )
}

fn latencies(outcome: &Outcome) -> Vec<String> {
    let mut grid = Grid::with_figures_from(1);
    grid.row(["latency", "p50", "p90", "p99", "p99.9", "max", "count"].map(str::to_owned));
    for (name, figures) in outcome.latency.named() {
        let Some(figures) = figures else { continue };
        let times = [figures.p50_ms, figures.p90_ms, figures.p99_ms, figures.p999_ms, figures.max_ms].map(millis);
        grid.row([name.to_owned()].into_iter().chain(times).chain([count(figures.count)]));
    }
    if grid.rows.len() == 1 {
        return Vec::new();
    }
    let thin: Vec<_> =
        outcome.latency.named().filter_map(|(name, figures)| figures?.is_thin().then_some(name)).collect();
    let warning = (!thin.is_empty()).then(|| format!("a p99 of fewer than {ENOUGH} says little: {}", thin.join(", ")));
    grid.lines().into_iter().chain(warning).chain([String::new()]).collect()
}

fn facts(outcome: &Outcome) -> Grid {
    let counts = &outcome.counts;
    let mut grid = Grid::with_figures_from(usize::MAX);
    let mut fact = |name: &str, told: String| grid.row([name.to_owned(), told]);
    let mut comments = format!("{} sent, {} accepted", count(counts.sent), count(counts.accepted));
    if counts.stored > 0 {
        comments += &format!(", {} stored", count(counts.stored));
    }
    if counts.unanswered > 0 {
        comments += &format!(", {} unanswered", count(counts.unanswered));
    }
    fact("comments", comments);
    let rate = counts.deliveries as f64 / outcome.took_secs.max(0.001);
    fact("deliveries", format!("{}, {}/s", count(counts.deliveries), units::short(rate)));
    let mut connections = format!("{} made, {} failed", count(counts.connected), count(counts.connects_failed));
    if counts.reconnects > 0 {
        connections += &format!(", {} made again", count(counts.reconnects));
    }
    fact("connections", connections);
    let kinds = [
        ("refused", &counts.refused),
        ("errors", &counts.errors),
        ("closed", &counts.closes),
        ("misbehaved", &counts.misbehaved),
    ];
    for (name, codes) in kinds {
        if !codes.is_empty() {
            fact(name, coded(codes));
        }
    }
    for (name, number) in [("left out", counts.left_out), ("missed, told", counts.gaps_told)] {
        if number > 0 {
            fact(name, count(number));
        }
    }
    let faults: Vec<_> = outcome.faults.happened().map(|(fault, n)| format!("{} {}", count(n), fault.name())).collect();
    fact("faults", if faults.is_empty() { "none".to_owned() } else { faults.join(", ") });
    for example in outcome.faults.examples.iter().take(EXAMPLES) {
        let (room, id, detail) = (plain(&example.room), plain(&example.id), plain(&example.detail));
        fact("", format!("{}: viewer {} in {room}, comment {id}: {detail}", example.fault.name(), example.viewer));
    }
    fact("server", server(outcome));
    let client = &outcome.client;
    let (peak, held) = (client.peak_cores, units::bytes(client.max_rss_bytes));
    let late = millis(client.lateness_p99_ms);
    fact("this client", format!("at most {peak:.2} cores and {held}; 99 of 100 sent at most {late} late"));
    grid
}

fn server(outcome: &Outcome) -> String {
    let Some(server) = &outcome.server else { return "told no figures".to_owned() };
    let cores = server.cpu_seconds / outcome.took_secs.max(0.001);
    let ledger = match server.ledger_balances {
        Some(true) => "ledger balances".to_owned(),
        Some(false) => format!("ledger does NOT balance, {} not stored", count(server.not_stored)),
        None => "ledger not readable".to_owned(),
    };
    format!("{cores:.2} cores on average, at most {}; {ledger}", units::bytes(server.max_rss_bytes))
}

fn objectives(outcome: &Outcome) -> Grid {
    let mut grid = Grid::with_figures_from(usize::MAX);
    grid.row(["objective", "measured", ""].map(str::to_owned));
    for judged in &outcome.objectives {
        let verdict = if judged.is_held { "held" } else { "BROKE" };
        grid.row([plain(&judged.objective), plain(&judged.measured), verdict.to_owned()]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::objective::{judge, parse};
    use crate::load::outcome::sample;

    #[test]
    fn a_test_that_held_is_told_in_a_few_aligned_lines() {
        let mut outcome = sample::held();
        judge(&mut outcome, &parse("p99=200ms,lost=0").unwrap());
        let expected = "\
peak-room: 1 room, 5,000 viewers, 50 senders, 20 comments/s for 5 min, on http://127.0.0.1:8080

latency       p50      p90      p99    p99.9      max       count
delivery  42.0 ms  72.0 ms   112 ms   154 ms   252 ms  48,277,498
accepted  1.10 ms  2.37 ms  4.44 ms  7.02 ms  10.2 ms      10,555
stored    58.0 ms  90.8 ms   131 ms   171 ms   213 ms      10,555
join      1.80 ms  5.71 ms  14.6 ms  29.0 ms  29.0 ms       5,012
query     3.40 ms  6.45 ms  10.9 ms  15.9 ms  10.9 ms         300

comments     10,555 sent, 10,555 accepted, 10,555 stored
deliveries   48,277,498, 159 k/s
connections  5,012 made, 0 failed, 12 made again
closed       1012 going_away: 12
faults       none
server       0.32 cores on average, at most 143.0 MiB; ledger balances
this client  at most 0.86 cores and 61.0 MiB; 99 of 100 sent at most 0.80 ms late

objective  measured
p99=200ms  112 ms    held
lost=0     0         held

HELD";
        assert_eq!(summary(&outcome), expected);
    }

    #[test]
    fn what_broke_is_said_last_with_examples_before() {
        let mut outcome = sample::broken();
        judge(&mut outcome, &parse("p99=200ms,cpu=1").unwrap());
        let text = summary(&outcome);
        for line in [
            "refused      busy: 12, rate_limited: 389",
            "errors       connection reset: 31",
            "faults       7 lost, 1,204 out of order",
            "             lost: viewer 1702 in peak-1, comment 6748a1f2c4e5b60000000000: \
             acknowledged as stored, and not received within 30 s",
            "p99=200ms  312 ms      BROKE",
            "the client, not the server, was the limit: it used 0.99 of its one core for 41 s",
        ] {
            assert!(text.lines().any(|own| own == line), "{line:?} is missing in\n{text}");
        }
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "BROKE: 7 lost; 1,204 out of order; 31 errors (connection reset: 31); 4 comments unanswered; \
             401 comments refused (busy: 12, rate_limited: 389); p99=200ms: measured 312 ms"
        );
    }

    #[test]
    fn what_was_ended_early_has_no_verdict() {
        let mut outcome = sample::held();
        outcome.has_been_stopped = true;
        judge(&mut outcome, &[]);
        assert!(!outcome.has_held);
        assert!(summary(&outcome).ends_with("\n\nNO VERDICT: ended early by a signal"));
        outcome.faults.lost = 1;
        assert!(summary(&outcome).ends_with("\nNO VERDICT: ended early by a signal; until then: 1 lost"));
    }

    #[test]
    fn a_p99_of_a_few_is_told_as_such() {
        let mut outcome = sample::held();
        let says = "a p99 of fewer than 100 says little: join, query";
        assert!(!summary(&outcome).contains("says little"));
        for few in [&mut outcome.latency.join, &mut outcome.latency.query] {
            few.as_mut().unwrap().count = 99;
        }
        let text = summary(&outcome);
        assert!(text.lines().any(|line| line == says), "{text}");
    }

    #[test]
    fn what_strangers_name_does_not_reach_the_terminal_as_it_is() {
        let name = || "\x1b[2J\n\u{202e}x".to_owned();
        let mut outcome = sample::broken();
        (outcome.summary.profile, outcome.summary.targets) = (name(), vec![name()]);
        outcome.counts.refused.insert(name(), 1);
        outcome.counts.errors.insert(name(), 1);
        outcome.counts.closes.insert(name(), 1);
        outcome.client.why = Some(name());
        for example in &mut outcome.faults.examples {
            (example.room, example.id, example.detail) = (name(), name(), name());
        }
        judge(&mut outcome, &parse("p99=200ms").unwrap());
        (outcome.objectives[0].objective, outcome.objectives[0].measured) = (name(), name());
        let text = summary(&outcome);
        assert!(text.matches("\u{fffd}[2J\u{fffd}\u{fffd}x").count() >= 14, "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']));
    }
}
