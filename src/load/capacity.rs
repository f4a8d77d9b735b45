//! The highest load that a server carries: raised step by step until something gives way, then closed in on.
//!
//! Pure stepping over a closure that runs one load test at a multiple of the plan and judges it; what the multiple
//! means (viewers, comments, both) is the closure's business. The load is doubled until it breaks, or halved until it
//! holds, and then the middle is tried (the geometric one: loads differ by ratios) until the two are close enough.
//!
//! Measurements swing, so no single one decides: a load that broke is tried once more before it counts as broken, and the
//! highest that held must hold twice. A fault needs no second look. That the client was the limit is said only if both looks
//! say so.

#[cfg(test)]
mod tests;

use std::fmt;

use super::outcome::{Breach, Found, Outcome, Tried};
use super::table::Grid;
use super::units::{self, count, plain, plural};

/// How to look.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityConfig {
    /// The multiple of the plan to begin with.
    pub first: f64,
    /// The least to try before giving up.
    pub least: f64,
    /// The most to try.
    pub most: f64,
    /// How close the highest that held and the lowest that broke come: 0.1 for 10 %.
    pub precision: f64,
    /// The most load tests to run, whatever is known by then.
    pub max_runs: usize,
}

impl Default for CapacityConfig {
    /// From the plan itself, down to a 64th and up to a thousandfold, to 10 %.
    fn default() -> Self {
        Self { first: 1.0, least: 1.0 / 64.0, most: 1_024.0, precision: 0.1, max_runs: 40 }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// The highest load that held: its multiple of the plan and what was measured there.
    pub held: Option<(f64, Box<Outcome>)>,
    /// The lowest that broke, and what was measured there.
    pub broke: Option<(f64, Box<Outcome>)>,
    /// Whether the limit is the client's, both times that it was looked at, so that the server carries more than was found.
    pub is_clients: bool,
    /// Every load test, in the order they ran.
    pub tried: Vec<Tried>,
    /// Why the search ended.
    pub end: End,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The limit is known as closely as was asked.
    Found,
    /// The most that was to be tried has held.
    MostHeld,
    /// The least that was to be tried has broken.
    LeastBroke,
    /// As many load tests were run as were allowed.
    OutOfRuns,
}

/// What gives way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GaveWay {
    /// The load's own side; what else was measured then says nothing about the server.
    Client(Option<String>),
    /// What breaks any test.
    Breach(Breach),
}

impl fmt::Display for GaveWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(Some(why)) => write!(f, "the client itself ({})", plain(why)),
            Self::Client(None) => f.write_str("the client itself"),
            Self::Breach(Breach::Objective { objective, measured }) => {
                write!(f, "{} ({})", plain(objective), plain(measured))
            }
            Self::Breach(breach) => breach.fmt(f),
        }
    }
}

/// What gave way in a load test, the first the one that explains the others; nothing if it held.
#[must_use]
pub fn gave_way(outcome: &Outcome) -> Vec<GaveWay> {
    if outcome.has_held {
        return Vec::new();
    }
    let client = outcome.client.is_limit.then(|| GaveWay::Client(outcome.client.why.clone()));
    client.into_iter().chain(outcome.breaches().into_iter().map(GaveWay::Breach)).collect()
}

/// Finds the highest load that holds. `run` runs one load test at a multiple of the plan and judges it.
///
/// Not cancellation safe: what was found is lost.
///
/// # Errors
/// The first of `run`; nothing is tried after it.
pub async fn find<E>(
    config: &CapacityConfig,
    mut run: impl AsyncFnMut(f64) -> Result<Outcome, E>,
) -> Result<Capacity, E> {
    let mut search = Search::new(config.clone());
    while let Some(scale) = search.next() {
        let outcome = run(scale).await?;
        search.learn(scale, outcome);
    }
    Ok(search.capacity())
}

/// What is known so far, and what to try next.
struct Search {
    config: CapacityConfig,
    /// The loads that held, rising. The last is the highest, and every one is below `broke`.
    held: Vec<(f64, Box<Outcome>)>,
    broke: Option<(f64, Box<Outcome>)>,
    /// A load that broke once and is tried again, and whether the client was the limit then.
    doubted: Option<(f64, bool)>,
    /// Whether the client was the limit each time that `broke` was tried.
    is_clients: bool,
    is_confirmed: bool,
    tried: Vec<Tried>,
}

impl Search {
    fn new(config: CapacityConfig) -> Self {
        let (held, tried) = (Vec::new(), Vec::new());
        Self { config, held, broke: None, doubted: None, is_clients: false, is_confirmed: false, tried }
    }

    fn highest(&self) -> Option<f64> {
        self.held.last().map(|(scale, _)| *scale)
    }

    /// The next load to try; none when all is known.
    fn next(&self) -> Option<f64> {
        let CapacityConfig { first, least, most, .. } = self.config;
        if self.tried.len() >= self.config.max_runs {
            return None;
        }
        if let Some((doubted, _)) = self.doubted {
            return Some(doubted);
        }
        match (self.highest(), self.broke.as_ref().map(|(scale, _)| *scale)) {
            (None, None) => Some(first.clamp(least, most)),
            (Some(held), None) if held < most => Some((held * 2.0).min(most)),
            (None, Some(broke)) => (broke > least).then(|| (broke / 2.0).max(least)),
            (Some(held), Some(broke)) if broke > held * (1.0 + self.config.precision) => Some((held * broke).sqrt()),
            (Some(held), _) => (!self.is_confirmed).then_some(held),
        }
    }

    fn learn(&mut self, scale: f64, outcome: Outcome) {
        let gave_way = gave_way(&outcome);
        let decides = |cause: &GaveWay| matches!(cause, GaveWay::Breach(Breach::Fault(..)));
        let is_swing = !gave_way.iter().any(decides);
        self.tried.push(tried(scale, &outcome, &gave_way));
        let doubted = self.doubted.take();
        let is_second_look = doubted.is_some() || self.highest() == Some(scale);
        if outcome.has_held {
            self.is_confirmed = self.highest() == Some(scale);
            self.held.retain(|(other, _)| *other != scale);
            self.held.push((scale, Box::new(outcome)));
        } else if is_swing && !is_second_look {
            self.doubted = Some((scale, outcome.client.is_limit));
        } else {
            self.is_clients = outcome.client.is_limit && doubted.is_some_and(|(_, was_limit)| was_limit);
            self.held.retain(|(other, _)| *other < scale);
            self.broke = Some((scale, Box::new(outcome)));
        }
    }

    fn capacity(self) -> Capacity {
        let end = match (&self.broke, self.is_confirmed, self.held.is_empty()) {
            (Some(_), true, _) => End::Found,
            (None, true, _) => End::MostHeld,
            (Some((scale, _)), _, true) if *scale <= self.config.least => End::LeastBroke,
            _ => End::OutOfRuns,
        };
        let held = self.held.into_iter().next_back();
        Capacity { held, broke: self.broke, is_clients: self.is_clients, tried: self.tried, end }
    }
}

fn tried(scale: f64, outcome: &Outcome, gave_way: &[GaveWay]) -> Tried {
    Tried {
        scale,
        viewers: outcome.summary.viewers,
        rate: outcome.summary.rate,
        deliveries: deliveries_per_sec(outcome),
        p99_ms: outcome.latency.delivery.as_ref().map(|figures| figures.p99_ms),
        gave_way: gave_way.iter().map(GaveWay::to_string).collect(),
    }
}

/// So many a second while comments were being sent.
fn per_sec(count: u64, outcome: &Outcome) -> f64 {
    let secs = if outcome.summary.duration_secs > 0.0 { outcome.summary.duration_secs } else { outcome.took_secs };
    if secs > 0.0 { count as f64 / secs } else { 0.0 }
}

fn deliveries_per_sec(outcome: &Outcome) -> f64 {
    per_sec(outcome.counts.deliveries, outcome)
}

/// What a load means: viewers × comments/s, as they were and not as they were planned.
fn meaning(outcome: &Outcome) -> String {
    let (load, counts) = (&outcome.summary, &outcome.counts);
    let most = outcome.series.iter().map(|moment| moment.connections).max().unwrap_or(counts.connected);
    let viewers = plural(most.min(load.viewers), "viewer");
    let rate = units::figure(per_sec(counts.accepted, outcome));
    let measured = units::short(deliveries_per_sec(outcome));
    if load.rooms == 1 {
        format!("measured: {viewers} × {rate} accepted comments/s = {measured} deliveries/s in one room")
    } else {
        let rooms = plural(load.rooms, "room");
        format!("measured: {viewers} in {rooms}, {rate} accepted comments/s in all = {measured} deliveries/s")
    }
}

/// Whether nothing but the pace of the plan's senders was too much.
fn is_senders(outcome: &Outcome) -> bool {
    let limited = outcome.counts.refused.get("rate_limited").copied().unwrap_or(0);
    limited > 0 && limited == outcome.counts.refusals() && outcome.faults.total() == 0 && outcome.counts.troubles() == 0
}

impl Capacity {
    /// The highest load that held, what that means, and what gave way first; one sentence each.
    #[must_use]
    pub fn says(&self) -> Vec<String> {
        let mut says = match &self.held {
            Some((scale, outcome)) => {
                vec![format!("highest load that held: {} × the plan", units::figure(*scale)), meaning(outcome)]
            }
            None => vec!["no load held".to_owned()],
        };
        match self.end {
            End::MostHeld => says.push("nothing gave way up to the most that was to be tried".to_owned()),
            End::OutOfRuns => {
                says.push(format!("ended after {} load tests, before the limit was certain", self.tried.len()));
            }
            End::Found | End::LeastBroke => {}
        }
        if let Some((scale, outcome)) = &self.broke {
            let causes = gave_way(outcome).into_iter();
            let causes = causes.filter(|cause| self.is_clients || !matches!(cause, GaveWay::Client(_)));
            let causes: Vec<_> = causes.map(|cause| cause.to_string()).collect();
            says.push(format!("gave way first, at {} × the plan: {}", units::figure(*scale), causes.join("; ")));
            if is_senders(outcome) {
                says.push(
                    "the plan's senders were the limit, not the server: they sent faster than limits.min_interval lets \
                     them; have more --senders"
                        .to_owned(),
                );
            }
        }
        if self.is_clients {
            says.push("the client gave way, not the server: the server carries at least this much".to_owned());
        }
        says
    }

    /// The load test to report on, with what was found: that of the highest load that held, else of the lowest that
    /// broke; none if none was run.
    #[must_use]
    pub fn into_outcome(self) -> Option<Outcome> {
        let found = Found { says: self.says(), tried: self.tried };
        let (_, outcome) = self.held.or(self.broke)?;
        Some(Outcome { capacity: Some(found), ..*outcome })
    }
}

/// For people, several lines: every load test, then [`Capacity::says`].
impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut grid = Grid::with_figures_from(0);
        grid.row(["× plan", "viewers", "comments/s", "deliveries/s", "p99"].map(str::to_owned));
        for tried in &self.tried {
            let p99 = tried.p99_ms.map_or_else(|| "–".to_owned(), units::millis);
            let deliveries = units::short(tried.deliveries);
            grid.row([units::figure(tried.scale), count(tried.viewers), units::figure(tried.rate), deliveries, p99]);
        }
        let verdicts = self.tried.iter().map(|tried| match tried.gave_way.first() {
            None => "held".to_owned(),
            Some(cause) => format!("broke: {cause}"),
        });
        let verdicts = std::iter::once(String::new()).chain(verdicts);
        for (line, verdict) in grid.lines().into_iter().zip(verdicts) {
            writeln!(f, "{}", format!("{line}  {verdict}").trim_end())?;
        }
        write!(f, "\n{}", self.says().join("\n"))
    }
}
