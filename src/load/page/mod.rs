//! `report.html`: a load test on one page that needs nothing else: no script, no font, no picture from elsewhere.
//!
//! Whatever comes from the outcome is text: a target or a room is named by strangers, and the templates escape it.
//! `charts` says which charts there are, `chart` draws one, `axis` finds its ticks, `ink` has the colours.

mod axis;
mod chart;
mod charts;
mod ink;
mod tables;
#[cfg(test)]
mod tests;

use std::time::{Duration, UNIX_EPOCH};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::outcome::Outcome;
use super::units;

const STYLE: &str = include_str!("style.css");

/// The first instant, in milliseconds, that has no date with a year of four digits.
const YEAR_10000_MS: u64 = 253_402_300_800_000;

/// The page. Its size is bounded: the longer a test, the more seconds each point of a chart stands for.
#[must_use]
pub fn render(outcome: &Outcome) -> String {
    let title = format!("Load test: {}", outcome.summary.name());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – " (verdict(outcome).to_lowercase()) }
                style { (PreEscaped(STYLE)) (PreEscaped(ink::style())) }
            }
            body {
                (head(outcome))
                main {
                    (says(outcome))
                    (tiles(outcome))
                    (tables::capacity(outcome))
                    (tables::objectives(outcome))
                    (tables::faults(outcome))
                    section {
                        h2 { "How it went" }
                        div.charts { @for figure in charts::all(outcome) { (figure) } }
                    }
                    (tables::latencies(outcome))
                    (tables::counts(outcome))
                    (tables::environment(outcome))
                    (tables::repeat(outcome))
                }
            }
        }
    };
    page.into_string()
}

fn head(outcome: &Outcome) -> Markup {
    html! {
        header {
            p.kind { "danmakud load test" }
            h1 { (outcome.summary.name()) }
            p.when {
                (when(outcome.started_ms)) " · took " (units::secs(outcome.took_secs)) " · "
                @for (n, target) in outcome.summary.targets.iter().enumerate() {
                    @if n > 0 { ", " }
                    span.target { (target) }
                }
            }
        }
    }
}

/// The time a test began, to the second.
fn when(ms: u64) -> String {
    if ms >= YEAR_10000_MS {
        return "at an unknown time".to_owned();
    }
    let told = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(ms)).to_string();
    told.replace('T', " ").replace('Z', " UTC")
}

fn verdict(outcome: &Outcome) -> &'static str {
    match (outcome.has_held, outcome.has_been_stopped) {
        (true, _) => "Held",
        (false, true) => "Ended early: no verdict",
        (false, false) => "Broke",
    }
}

/// The verdict and why, and whether it is about the server at all.
fn says(outcome: &Outcome) -> Markup {
    let reasons = outcome.broken();
    html! {
        section.verdict.held[outcome.has_held].broke[!outcome.has_held] {
            p.word { (verdict(outcome)) }
            @if reasons.is_empty() && outcome.has_been_stopped {
                p { "A signal ended the test before its time. Nothing was wrong until then." }
            } @else if reasons.is_empty() {
                p { (calm(outcome)) }
            } @else {
                ul { @for reason in &reasons { li { (reason) } } }
            }
        }
        @if outcome.client.is_limit {
            section.verdict.limit {
                p.word { "The client was the limit" }
                p {
                    "Not the server: what this test shows is the least that the server carries."
                    @if let Some(why) = &outcome.client.why { " Why: " (why) "." }
                }
            }
        }
    }
}

fn calm(outcome: &Outcome) -> String {
    let objectives = match outcome.objectives.len() {
        0 => "no objective was set".to_owned(),
        1 => "the objective held".to_owned(),
        n => format!("all {n} objectives held"),
    };
    format!("No fault in {} deliveries; {objectives}.", units::count(outcome.counts.deliveries))
}

/// The figures that one looks for first.
fn tiles(outcome: &Outcome) -> Markup {
    let (load, counts) = (&outcome.summary, &outcome.counts);
    let busiest = outcome.series.iter().map(|moment| moment.delivered).max().unwrap_or(0);
    let delivery = outcome.latency.delivery.as_ref();
    let told = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), units::millis);
    let cpu = outcome.series.iter().filter_map(|moment| Some(moment.server.as_ref()?.cpu)).reduce(f64::max);
    let tiles = [
        ("Viewers", units::count(load.viewers), format!("in {}", units::plural(load.rooms, "room"))),
        ("Comments", format!("{}/s", units::figure(load.rate)), format!("{} sent", units::count(counts.sent))),
        ("Deliveries", units::short(counts.deliveries as f64), format!("up to {}/s", units::short(busiest as f64))),
        (
            "Delivery p99",
            told(delivery.map(|figures| figures.p99_ms)),
            format!("half within {}", told(delivery.map(|figures| figures.p50_ms))),
        ),
        ("Faults", units::count(outcome.faults.total()), format!("{} errors", units::count(counts.troubles()))),
        (
            "Server CPU",
            cpu.map_or_else(|| "–".to_owned(), |cores| format!("{cores:.2}")),
            "cores at the most".to_owned(),
        ),
    ];
    html! {
        section.tiles {
            @for (name, figure, more) in &tiles {
                div.tile { p.name { (name) } p.figure { (figure) } p.more { (more) } }
            }
        }
    }
}
