//! Which charts there are, and what they show.

use maud::{Markup, html};

use super::axis::{Axis, round, tail};
use super::chart::{Chart, Line};
use super::ink::Ink;
use crate::load::objective::{self, Measure, Path, Rank};
use crate::load::outcome::{Moment, Outcome, Percentiles, ServerMoment};
use crate::load::units;

/// The most points that a line has. More could not be told apart on a screen, and an hour's page would be megabytes.
const MAX_POINTS: usize = 300;

/// All charts of a test, each with its heading, as figures of the page.
pub(super) fn all(outcome: &Outcome) -> Vec<Markup> {
    let time = Timeline::of(outcome);
    let charts = [
        latency(outcome, &time).ok_or(("Delivery latency", "Nothing was delivered.")),
        percentiles(outcome).ok_or(("Latency percentiles", "No latency was measured.")),
        deliveries(&time).ok_or(("Deliveries", "Nothing was delivered.")),
        comments(&time).ok_or(("Comments", "Nothing was sent.")),
        connections(&time).ok_or(("Connections", "Nothing was connected.")),
        cpu(&time).ok_or(("CPU", "Nothing was measured.")),
        memory(&time).ok_or(("Server memory", "The server told no figures.")),
        queue(&time).ok_or(("Waiting for the store", "The server told no figures.")),
        errors(&time).ok_or(("Errors", "None in the whole test.")),
    ];
    let figure = |(number, chart): (usize, Result<Chart, (&str, &str)>)| match chart {
        Ok(chart) => chart.figure(number),
        Err((title, why)) => html! { figure { h3 { (title) } p.none { (why) } } },
    };
    charts.into_iter().enumerate().map(figure).collect()
}

/// The moments of a test, in bundles where they are too many.
struct Timeline<'a> {
    bundles: Vec<&'a [Moment]>,
    axis: Axis,
    /// What an axis of time shows.
    about: String,
}

impl<'a> Timeline<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let size = outcome.series.len().div_ceil(MAX_POINTS).max(1);
        let until = outcome.series.iter().map(|moment| moment.at_secs).fold(0.0, f64::max);
        let about = match size {
            1 => "over the time since the start, second by second".to_owned(),
            n => format!("over the time since the start, {n} seconds at a time"),
        };
        Self { bundles: outcome.series.chunks(size).collect(), axis: Axis::time(until), about }
    }

    /// The mean of a figure in each bundle; a new run begins after what was not measured.
    fn mean(&self, figure: impl Fn(&Moment) -> Option<f64>) -> Vec<Vec<(f64, f64)>> {
        self.runs(figure, |figures| figures.iter().sum::<f64>() / figures.len() as f64)
    }

    /// The worst of a figure in each bundle.
    fn worst(&self, figure: impl Fn(&Moment) -> Option<f64>) -> Vec<Vec<(f64, f64)>> {
        self.runs(figure, |figures| figures.iter().copied().fold(0.0, f64::max))
    }

    /// How often something happened a second, in each bundle: the last second of a test is seldom a whole one.
    fn per_sec(&self, count: impl Fn(&Moment) -> u64) -> Vec<Vec<(f64, f64)>> {
        let mut begin = 0.0;
        let rate = |bundle: &&[Moment]| {
            let end = bundle.last().map_or(0.0, |moment| moment.at_secs);
            let lasted = end - std::mem::replace(&mut begin, end);
            let total: f64 = bundle.iter().map(|moment| count(moment) as f64).sum();
            // Moments that do not follow each other are not what the engine writes; a second each is as good as any.
            (end, if lasted > 0.0 { total / lasted } else { total / bundle.len() as f64 })
        };
        vec![self.bundles.iter().map(rate).collect()]
    }

    fn runs(&self, figure: impl Fn(&Moment) -> Option<f64>, of_bundle: impl Fn(&[f64]) -> f64) -> Vec<Vec<(f64, f64)>> {
        let mut runs = vec![Vec::new()];
        for bundle in &self.bundles {
            let figures: Vec<f64> = bundle.iter().filter_map(&figure).filter(|figure| figure.is_finite()).collect();
            let at = bundle.last().map_or(0.0, |moment| moment.at_secs);
            match runs.last_mut() {
                Some(run) if !figures.is_empty() => run.push((at, of_bundle(&figures))),
                Some(run) if !run.is_empty() => runs.push(Vec::new()),
                _ => {}
            }
        }
        runs.retain(|run| !run.is_empty());
        runs
    }

    fn chart(&self, title: &'static str, what: &str, y: Axis, lines: Vec<Line>) -> Chart {
        let figures = lines.iter().map(|line| format!("{} {}", line.name, line.figure));
        let about = format!("{what} {}: {}.", self.about, figures.collect::<Vec<_>>().join(", "));
        Chart { title, about, is_wide: false, x: self.axis.clone(), y, x_name: TIME, lines, limit: None }
    }
}

const TIME: &str = "time since the start (min:s)";

/// The highest point; none if there is no point above nothing.
fn peak(runs: &[Vec<(f64, f64)>]) -> f64 {
    runs.iter().flatten().map(|(_, value)| *value).fold(0.0, f64::max)
}

fn line(name: &'static str, ink: Ink, runs: Vec<Vec<(f64, f64)>>, told: impl Fn(f64) -> String) -> Line {
    Line { name, figure: format!("max {}", told(peak(&runs))), ink, is_filled: false, runs }
}

fn filled(line: Line) -> Line {
    Line { is_filled: true, ..line }
}

fn latency(outcome: &Outcome, time: &Timeline) -> Option<Chart> {
    let p99 = time.worst(|moment| moment.p99_ms);
    let p50 = time.mean(|moment| moment.p50_ms);
    let most = peak(&p99).max(peak(&p50));
    let limit = p99_objective(outcome);
    // An objective far above would press the figures flat; it is in the table anyway.
    let limit = limit.filter(|limit| *limit <= most * 4.0);
    let y = Axis::up_to(most.max(limit.unwrap_or(0.0) * 1.05), round);
    let lines = vec![line("p99", Ink::First, p99, units::millis), line("p50", Ink::Second, p50, units::millis)];
    let is_measured = lines.iter().any(|line| !line.runs.is_empty());
    let chart = time.chart("Delivery latency", "From the scheduled time until a viewer had the comment,", y, lines);
    let limit = limit.map(|limit| (limit, format!("objective: p99 at most {}", units::millis(limit))));
    is_measured.then_some(Chart { is_wide: true, limit, ..chart })
}

/// What p99 was to be at most, in milliseconds.
fn p99_objective(outcome: &Outcome) -> Option<f64> {
    let parsed = outcome.objectives.iter().filter_map(|judged| objective::parse(&judged.objective).ok()).flatten();
    let mut p99 = parsed.filter(|objective| objective.measure() == Measure::Latency(Path::Delivery, Rank::P99));
    p99.next()?.most()
}

fn percentiles(outcome: &Outcome) -> Option<Chart> {
    let inks = [Ink::First, Ink::Third, Ink::Second, Ink::Fourth, Ink::Quiet];
    let measured = outcome.latency.named().zip(inks).filter_map(|((name, figures), ink)| {
        let figures = figures.filter(|figures| figures.curve.len() > 1)?;
        Some(Line {
            name,
            figure: format!("p99 {}", units::millis(figures.p99_ms)),
            ink,
            is_filled: false,
            runs: vec![curve(figures)],
        })
    });
    let lines: Vec<Line> = measured.collect();
    let points = || lines.iter().flat_map(|line| line.runs.iter().flatten());
    let until = points().map(|(along, _)| *along).fold(0.0, f64::max);
    let (least, most) = points().fold((f64::MAX, 0.0), |(least, most), (_, up)| (up.min(least), up.max(most)));
    let figures: Vec<_> = lines.iter().map(|line| format!("{} {}", line.name, line.figure)).collect();
    let y = Axis::logarithmic(10f64.powf(least), 10f64.powf(most));
    (!lines.is_empty()).then(|| Chart {
        title: "Latency percentiles",
        about: format!("The time that a share took at most, on logarithmic axes: {}.", figures.join(", ")),
        is_wide: false,
        x: Axis::quantiles(until),
        y,
        x_name: "share that took at most this long",
        lines,
        limit: None,
    })
}

/// The points of a distribution on logarithmic axes.
fn curve(figures: &Percentiles) -> Vec<(f64, f64)> {
    // The longest is one in as many as there are; the quantile 1 itself has no place on the axis.
    let last = (figures.count.max(2) as f64).log10();
    let finite = figures.curve.iter().filter(|(quantile, ms)| quantile.is_finite() && ms.is_finite());
    finite.map(|(quantile, ms)| (tail(*quantile).min(last), ms.clamp(0.001, 1e9).log10())).collect()
}

fn per_second(value: f64) -> String {
    format!("{}/s", units::short(value))
}

fn deliveries(time: &Timeline) -> Option<Chart> {
    let delivered = time.per_sec(|moment| moment.delivered);
    let most = peak(&delivered);
    let lines = vec![filled(line("delivered", Ink::First, delivered, per_second))];
    let chart =
        time.chart("Deliveries", "Comments received a second, once per viewer,", Axis::counts(most, "/s"), lines);
    (most > 0.0).then_some(chart)
}

fn comments(time: &Timeline) -> Option<Chart> {
    let sent = time.per_sec(|moment| moment.sent);
    let accepted = time.per_sec(|moment| moment.accepted);
    let most = peak(&sent).max(peak(&accepted));
    let lines =
        vec![line("accepted", Ink::First, accepted, per_second), filled(line("sent", Ink::Quiet, sent, per_second))];
    let chart = time.chart("Comments", "Comments sent and acknowledged a second,", Axis::counts(most, "/s"), lines);
    (most > 0.0).then_some(chart)
}

fn connections(time: &Timeline) -> Option<Chart> {
    let open = time.mean(|moment| Some(moment.connections as f64));
    let most = peak(&open);
    let lines = vec![filled(line("open", Ink::First, open, units::short))];
    let chart = time.chart("Connections", "Connections open", Axis::counts(most, ""), lines);
    (most > 0.0).then_some(chart)
}

fn cores(value: f64) -> String {
    let told = format!("{value:.3}");
    format!("{} cores", told.trim_end_matches('0').trim_end_matches('.'))
}

fn server(figure: impl Fn(&ServerMoment) -> f64) -> impl Fn(&Moment) -> Option<f64> {
    move |moment| moment.server.as_ref().map(&figure)
}

fn cpu(time: &Timeline) -> Option<Chart> {
    let of_server = time.mean(server(|server| server.cpu));
    let of_client = time.mean(|moment| Some(moment.client_cpu));
    let y = Axis::up_to(peak(&of_server).max(peak(&of_client)).max(0.1), cores);
    let lines = [line("server", Ink::First, of_server, cores), line("this client", Ink::Third, of_client, cores)];
    let lines: Vec<Line> = lines.into_iter().filter(|line| !line.runs.is_empty()).collect();
    (!lines.is_empty()).then(|| time.chart("CPU", "Processor cores used", y, lines))
}

fn memory(time: &Timeline) -> Option<Chart> {
    let held = time.worst(server(|server| server.rss_bytes as f64));
    let most = peak(&held);
    let lines = vec![filled(line("resident", Ink::First, held, |bytes| units::bytes(bytes as u64)))];
    (most > 0.0).then(|| time.chart("Server memory", "Memory that the server held", Axis::bytes(most), lines))
}

fn queue(time: &Timeline) -> Option<Chart> {
    let queue = time.worst(server(|server| server.queue as f64));
    let outbox = time.worst(server(|server| server.outbox as f64));
    let is_told = !queue.is_empty();
    let y = Axis::counts(peak(&queue).max(peak(&outbox)), "");
    let lines =
        vec![line("write queue", Ink::First, queue, units::short), line("outbox", Ink::Third, outbox, units::short)];
    is_told.then(|| time.chart("Waiting for the store", "Comments in the write queue and in the outbox", y, lines))
}

fn errors(time: &Timeline) -> Option<Chart> {
    let errors = time.per_sec(|moment| moment.errors);
    let most = peak(&errors);
    let lines = vec![filled(line("errors and refusals", Ink::Bad, errors, per_second))];
    let chart =
        time.chart("Errors", "Errors, refusals and failed connections a second,", Axis::counts(most, "/s"), lines);
    (most > 0.0).then_some(chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_that_is_not_a_whole_one_is_not_taken_for_a_lull() {
        let moment = |at_secs, sent| Moment { at_secs, sent, ..Moment::default() };
        let series = vec![moment(1.0, 50), moment(2.5, 75), moment(2.75, 12)];
        let outcome = Outcome { series, ..Outcome::default() };
        let rates = Timeline::of(&outcome).per_sec(|moment| moment.sent);
        assert_eq!(rates, [[(1.0, 50.0), (2.5, 50.0), (2.75, 48.0)]]);
    }

    #[test]
    fn what_was_not_measured_is_a_gap_and_not_nothing() {
        let moment = |at_secs, p50_ms| Moment { at_secs, p50_ms, ..Moment::default() };
        let series = vec![moment(1.0, None), moment(2.0, Some(3.0)), moment(3.0, None), moment(4.0, Some(5.0))];
        let outcome = Outcome { series, ..Outcome::default() };
        let runs = Timeline::of(&outcome).mean(|moment| moment.p50_ms);
        assert_eq!(runs, [[(2.0, 3.0)], [(4.0, 5.0)]]);
    }

    #[test]
    fn few_cores_are_told_apart() {
        assert_eq!([0.025, 0.05, 1.0, 0.0].map(cores), ["0.025 cores", "0.05 cores", "1 cores", "0 cores"]);
    }
}
