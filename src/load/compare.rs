//! Two load tests side by side: what got better, what got worse, and what cannot be said.

use std::collections::BTreeMap;

use serde_json::Value;

use super::outcome::{Fault, Outcome, Percentiles};
use super::table::{Grid, verdict};
use super::units::{self, millis, plain};

/// Figures that differ by less than this share of the larger one mean nothing: the same test twice on the same machine
/// differs by as much.
const NOISE: f64 = 0.25;

/// Times that differ by less mean nothing either: it is what waking a task may take on a busy machine.
const NOISE_MS: f64 = 1.0;

/// How many differences of the plans are told.
const MAX_DIFFERENCES: usize = 20;

/// Which way is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    /// Neither: it says what was done, not how well.
    Neither,
}

/// One figure of a test.
struct Figure {
    name: String,
    better: Better,
    /// Differences below are noise, and so are those below [`NOISE`]; none if even the least difference tells something.
    noise: Option<f64>,
    told: fn(f64) -> String,
    values: [Option<f64>; 2],
}

/// The differences between an earlier and a later test, several lines without a last line end: how far the plans are
/// the same, the figures of both with what became of them, faults, verdicts.
#[must_use]
pub fn compare(before: &Outcome, after: &Outcome) -> String {
    let both = [before, after];
    let mut lines = circumstances(before, after);
    let mut grid = Grid::with_figures_from(1);
    grid.row(["", "A", "B", "B / A", ""].map(str::to_owned));
    for figure in figures(both).iter().filter(|figure| figure.values.iter().any(Option::is_some)) {
        grid.row(figure.cells());
    }
    lines.extend(grid.lines());
    lines.push(String::new());
    lines.push(format!("Differences under {:.0} % or {} are noise.", NOISE * 100.0, millis(NOISE_MS)));
    for (name, outcome) in ["A", "B"].into_iter().zip(both) {
        if outcome.client.is_limit {
            lines.push(format!("In {name} the client, not the server, was the limit."));
        }
    }
    lines.extend(["A", "B"].into_iter().zip(both).map(|(name, outcome)| format!("{name} {}", verdict(outcome))));
    lines.join("\n")
}

impl Figure {
    fn cells(&self) -> [String; 5] {
        let told = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), self.told);
        let [before, after] = self.values;
        let (ratio, verdict) = match (before, after) {
            (Some(before), Some(after)) => (ratio(before, after), self.verdict(before, after)),
            _ => (String::new(), "not measured in both"),
        };
        [self.name.clone(), told(before), told(after), ratio, verdict.to_owned()]
    }

    fn verdict(&self, before: f64, after: f64) -> &'static str {
        let difference = (after - before).abs();
        let is_noise = self.noise.is_some_and(|noise| difference < noise.max(NOISE * before.max(after)));
        let is_noise = is_noise || difference == 0.0;
        match self.better {
            _ if is_noise => "same",
            Better::Less if after < before => "better",
            Better::More if after > before => "better",
            Better::Neither => "differs",
            _ => "worse",
        }
    }
}

fn ratio(before: f64, after: f64) -> String {
    if before > 0.0 { format!("{:.2}", after / before) } else { String::new() }
}

fn figures(both: [&Outcome; 2]) -> Vec<Figure> {
    let figure = |name: &str, better, noise, told, value: &dyn Fn(&Outcome) -> Option<f64>| Figure {
        name: name.to_owned(),
        better,
        noise,
        told,
        values: both.map(value),
    };
    let mut figures = latencies(both);
    figures.extend([
        figure("comments sent /s", Better::Neither, Some(0.0), units::short, &|outcome| {
            per_sec(outcome.counts.sent, outcome)
        }),
        figure("accepted /s", Better::More, Some(0.0), units::short, &|outcome| {
            per_sec(outcome.counts.accepted, outcome)
        }),
        figure("deliveries /s", Better::More, Some(0.0), units::short, &|o| per_sec(o.counts.deliveries, o)),
        figure("server CPU s / M deliveries", Better::Less, Some(0.0), units::figure, &|outcome| {
            per_million(outcome.server.as_ref()?.cpu_seconds, outcome)
        }),
        figure("client CPU s / M deliveries", Better::Less, Some(0.0), units::figure, &|outcome| {
            per_million(outcome.client.cpu_seconds, outcome)
        }),
        // A mebibyte: what an allocator keeps or gives back as it likes.
        figure("server memory", Better::Less, Some(1_048_576.0), |bytes| units::bytes(bytes as u64), &|outcome| {
            outcome.server.as_ref().map(|server| server.max_rss_bytes as f64)
        }),
        figure("sent late by, p99", Better::Less, Some(NOISE_MS), millis, &|outcome| {
            Some(outcome.client.lateness_p99_ms)
        }),
        figure("refused", Better::Less, Some(0.0), units::figure, &|outcome| Some(outcome.counts.refusals() as f64)),
        figure("errors", Better::Less, Some(0.0), units::figure, &|outcome| Some(outcome.counts.troubles() as f64)),
    ]);
    // A fault that neither had is not worth a line.
    figures.extend(faults(both));
    figures
}

fn latencies(both: [&Outcome; 2]) -> Vec<Figure> {
    type Rank = (&'static str, fn(&Percentiles) -> f64);
    const RANKS: [Rank; 3] = [("p50", |p| p.p50_ms), ("p99", |p| p.p99_ms), ("p99.9", |p| p.p999_ms)];
    let names = both[0].latency.named().map(|(name, _)| name);
    let pairs = both[0].latency.named().zip(both[1].latency.named()).map(|((_, a), (_, b))| [a, b]);
    let rows = names.zip(pairs).flat_map(|(name, pair)| {
        RANKS.map(|(rank, of)| Figure {
            name: format!("{name} {rank}"),
            better: Better::Less,
            noise: Some(NOISE_MS),
            told: millis,
            values: pair.map(|figures| figures.map(of)),
        })
    });
    rows.collect()
}

fn faults(both: [&Outcome; 2]) -> impl Iterator<Item = Figure> {
    Fault::ALL.into_iter().filter_map(move |fault| {
        let values = both.map(|outcome| outcome.faults.count(fault));
        (values != [0, 0]).then(|| Figure {
            name: format!("fault: {}", fault.name()),
            better: Better::Less,
            noise: None,
            told: units::figure,
            values: values.map(|count| Some(count as f64)),
        })
    })
}

fn per_sec(count: u64, outcome: &Outcome) -> Option<f64> {
    (outcome.took_secs > 0.0).then(|| count as f64 / outcome.took_secs)
}

fn per_million(cpu_secs: f64, outcome: &Outcome) -> Option<f64> {
    let deliveries = outcome.counts.deliveries;
    (deliveries > 0).then(|| cpu_secs * 1e6 / deliveries as f64)
}

/// What was not the same about the two tests, so that their figures are not taken for more than they say.
fn circumstances(before: &Outcome, after: &Outcome) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differ = |what: &str, a: Option<&str>, b: Option<&str>| {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            differences.push(format!("  {what}: A {}, B {}", plain(a), plain(b)));
        }
    };
    differ("danmakud (load)", Some(&before.danmakud), Some(&after.danmakud));
    let version = |outcome: &Outcome| outcome.server.as_ref().and_then(|server| server.version.clone());
    differ("danmakud (server)", version(before).as_deref(), version(after).as_deref());
    let machine =
        |outcome: &Outcome| outcome.machine.as_ref().map(|machine| format!("{} × {}", machine.cores, machine.cpu));
    differ("machine", machine(before).as_deref(), machine(after).as_deref());
    let [a, b] = [before, after].map(|outcome| {
        let mut knobs = BTreeMap::new();
        flatten("", &outcome.plan, &mut knobs);
        knobs
    });
    let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
    let told = |value: Option<&String>| value.map_or_else(|| "nothing".to_owned(), |value| plain(value));
    let changed = names.filter(|name| a.get(*name) != b.get(*name));
    let plans: Vec<_> =
        changed.map(|name| format!("  {}: A {}, B {}", plain(name), told(a.get(name)), told(b.get(name)))).collect();
    let more = plans.len().saturating_sub(MAX_DIFFERENCES);
    let is_same = plans.is_empty() && differences.is_empty();
    let mut lines = vec![if is_same { "The plans are the same." } else { "Not the same in both:" }.to_owned()];
    lines.extend(differences);
    lines.extend(plans.into_iter().take(MAX_DIFFERENCES));
    if more > 0 {
        lines.push(format!("  and {more} more of the plan"));
    }
    lines.push(String::new());
    lines
}

/// Each value of a plan under the path to it: `burst.times`.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(&below(name), value, into)),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(n, value)| flatten(&below(&n.to_string()), value, into));
        }
        Value::Null => {}
        value => {
            into.insert(path.to_owned(), value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::outcome::sample;

    /// What is said of one figure: the cells of its row.
    fn row(text: &str, name: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name:?} is missing in\n{text}"));
        line[name.len()..].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn a_test_is_the_same_as_itself() {
        let text = compare(&sample::held(), &sample::held());
        assert!(text.starts_with("The plans are the same.\n"), "{text}");
        assert_eq!(row(&text, "delivery p99 "), ["112 ms", "112 ms", "1.00", "same"]);
        assert!(!text.contains("better") && !text.contains("worse") && !text.contains("fault:"), "{text}");
        assert!(text.ends_with("\nA HELD\nB HELD"), "{text}");
    }

    #[test]
    fn what_differs_beyond_the_noise_is_better_or_worse() {
        let (before, mut after) = (sample::held(), sample::held());
        let delivery = after.latency.delivery.as_mut().unwrap();
        (delivery.p50_ms, delivery.p99_ms, delivery.p999_ms) = (21.0, 140.0, 250.0);
        after.latency.accepted.as_mut().unwrap().p50_ms = 0.3;
        after.latency.query = None;
        after.counts.deliveries /= 2;
        after.counts.refused.insert("busy".to_owned(), 3);
        after.server.as_mut().unwrap().cpu_seconds = 40.0;
        let text = compare(&before, &after);
        assert_eq!(row(&text, "delivery p50"), ["42.0 ms", "21.0 ms", "0.50", "better"]);
        assert_eq!(row(&text, "delivery p99 "), ["112 ms", "140 ms", "1.25", "same"], "under a quarter of the larger");
        assert_eq!(row(&text, "delivery p99.9"), ["154 ms", "250 ms", "1.63", "worse"]);
        assert_eq!(row(&text, "accepted p50"), ["1.10 ms", "0.30 ms", "0.27", "same"], "under a millisecond");
        assert_eq!(row(&text, "query p50"), ["3.40 ms", "–", "not measured in both"]);
        assert_eq!(row(&text, "deliveries /s"), ["159 k", "79.4 k", "0.50", "worse"]);
        assert_eq!(row(&text, "server CPU s / M deliveries")[2..], ["0.83", "same"], "by what was delivered");
        assert_eq!(row(&text, "refused"), ["0", "3", "worse"]);
    }

    #[test]
    fn one_fault_is_never_noise() {
        let (mut before, mut after) = (sample::held(), sample::held());
        (before.faults.lost, after.faults.lost, after.faults.doubled) = (1_000, 999, 1);
        (before.has_held, after.has_held, after.client.is_limit) = (false, false, true);
        let text = compare(&before, &after);
        assert_eq!(row(&text, "fault: doubled"), ["0", "1", "worse"]);
        assert_eq!(row(&text, "fault: lost"), ["1,000", "999", "1.00", "better"]);
        assert!(
            text.ends_with(
                "\nIn B the client, not the server, was the limit.\nA BROKE: 1,000 lost\nB BROKE: 999 lost; 1 doubled"
            ),
            "{text}"
        );
    }

    #[test]
    fn different_plans_are_pointed_out_knob_by_knob() {
        let (mut before, mut after) = (sample::held(), sample::held());
        before.plan =
            serde_json::json!({"viewers": 5000, "burst": {"times": 20.0}, "targets": ["a", "b"], "tier": null});
        after.plan =
            serde_json::json!({"viewers": 5000, "burst": {"times": 10.0}, "targets": ["a"], "ack": "\u{1b}[2J"});
        after.danmakud = "0.2.0".to_owned();
        after.machine.as_mut().unwrap().cores = 4;
        let text = compare(&before, &after);
        let expected = "\
Not the same in both:
  danmakud (load): A 0.1.0, B 0.2.0
  machine: A 2 × AMD EPYC 7763 64-Core Processor, B 4 × AMD EPYC 7763 64-Core Processor
  burst.times: A 20.0, B 10.0
  targets.1: A \"b\", B nothing
  ack: A nothing, B \"\\u001b[2J\"
";
        assert!(text.starts_with(expected), "{text}");

        before.plan =
            (0..30).map(|n| (format!("knob{n:02}"), Value::from(n))).collect::<serde_json::Map<_, _>>().into();
        after.plan = Value::Null;
        let text = compare(&before, &after);
        assert!(
            text.contains("knob19") && !text.contains("knob20") && text.contains("  and 10 more of the plan"),
            "{text}"
        );
    }
}
