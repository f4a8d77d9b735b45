use std::collections::BTreeSet;

use super::*;
use crate::load::objective::{judge, parse};
use crate::load::outcome::{FaultExample, Moment, sample};

fn judged(mut outcome: Outcome) -> Outcome {
    judge(&mut outcome, &parse("p99=200ms,lost=0,stored_p99=150ms,errors=0.1%,cpu=1").unwrap());
    outcome
}

/// What stands between two marks, each time.
fn all_between<'a>(text: &'a str, before: &'a str, after: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(move |rest| rest.split_once(after).map(|(found, _)| found))
}

/// For people: `LOAD_PAGE_DIR=/tmp cargo test page_to_look_at -- --ignored`; the page of a `report.json` there as well.
#[test]
#[ignore = "writes pages to look at"]
fn page_to_look_at() {
    let folder = std::env::var("LOAD_PAGE_DIR").unwrap();
    for (name, outcome) in [
        ("held", sample::held()),
        ("broken", sample::broken()),
        ("empty", Outcome::default()),
        ("searched", sample::searched()),
    ] {
        std::fs::write(format!("{folder}/{name}.html"), render(&judged(outcome))).unwrap();
    }
    if let Ok(outcome) = crate::load::outcome::read(format!("{folder}/report.json").as_ref()) {
        std::fs::write(format!("{folder}/report.html"), render(&outcome)).unwrap();
    }
}

#[test]
fn the_page_needs_nothing_else() {
    let page = render(&judged(sample::broken()));
    for outside in ["<script", "<link", "<img", "<iframe", "@import", "url(", " src=", " href=", "xmlns"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
}

#[test]
fn the_verdict_comes_first_and_says_what_broke() {
    let page = render(&judged(sample::held()));
    assert!(page.contains(">Held</p>") && page.contains("all 5 objectives held"), "{page}");
    assert!(!page.contains("The client was the limit") && !page.contains("<h2>Faults</h2>"));

    let page = render(&judged(sample::broken()));
    assert!(page.contains(">Broke</p>"));
    for reason in ["7 lost", "1,204 out of order", "p99=200ms: measured 312 ms", "lost=0: measured 7"] {
        assert!(page.contains(&format!("<li>{reason}</li>")), "{reason}");
    }
    assert!(page.contains("The client was the limit") && page.contains("Why: it used 0.99 of its one core for 41 s."));
    assert!(page.contains("sequence 88121 came after 88122"), "examples are shown");
    assert!(page.contains("error: connection reset") && page.contains("refused: rate_limited"));
}

#[test]
fn a_search_for_the_capacity_is_told_step_by_step() {
    assert!(!render(&sample::held()).contains("<h2>Capacity</h2>"));
    let page = render(&sample::searched());
    for says in [
        "<li>highest load that held: 2.83 × the plan</li>",
        "2,830 viewers × 20 accepted comments/s",
        "<td class=\"number\">2,830</td>",
        "broke</span> p99=200ms (312 ms)",
    ] {
        assert!(page.contains(says), "{says}");
    }
}

#[test]
fn what_strangers_name_stays_text() {
    const HOSTILE: &str = "\"'><script>alert(1)</script><svg onload=x>&";
    let name = || HOSTILE.to_owned();
    let mut outcome = sample::broken();
    outcome.danmakud = name();
    outcome.command = vec![name()];
    outcome.plan = serde_json::json!({ HOSTILE: HOSTILE });
    (outcome.summary.targets, outcome.summary.profile) = (vec![name(), name()], name());
    for codes in [&mut outcome.counts.refused, &mut outcome.counts.errors, &mut outcome.counts.closes] {
        codes.insert(name(), 1);
    }
    outcome.faults.examples =
        vec![FaultExample { room: name(), id: name(), detail: name(), ..FaultExample::default() }];
    outcome.client.why = Some(name());
    outcome.server.get_or_insert_default().version = Some(name());
    let machine = outcome.machine.get_or_insert_default();
    (machine.cpu, machine.kernel) = (name(), name());
    outcome.capacity = sample::searched().capacity;
    for tried in &mut outcome.capacity.as_mut().unwrap().tried {
        tried.gave_way = vec![name()];
    }
    for judged in &mut outcome.objectives {
        (judged.objective, judged.measured) = (name(), name());
    }
    let page = render(&outcome);
    assert!(!page.contains("<script") && !page.contains("<svg onload"), "markup came through");
    assert!(page.matches("&lt;script&gt;alert(1)&lt;/script&gt;").count() >= 15);
    // In an attribute a quotation mark is what would end it.
    assert!(!page.contains("\"'&gt;"));
}

#[test]
fn each_chart_has_a_title_and_a_description_of_its_own() {
    let page = render(&judged(sample::broken()));
    let ids: Vec<&str> = all_between(&page, " id=\"", "\"").collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "an id is there twice");
    let labels: Vec<&str> = all_between(&page, "aria-labelledby=\"", "\"").collect();
    // Nine charts for two sizes of screen, and the widest for a third.
    assert_eq!(labels.len(), 19);
    for label in labels.iter().flat_map(|label| label.split(' ')) {
        assert!(ids.contains(&label), "{label}");
    }
    assert_eq!(page.matches("role=\"img\"").count(), 19);
    let about = all_between(&page, "<desc", "</desc>").find(|about| about.contains("Comments received a second"));
    assert!(about.is_some_and(|about| about.contains("delivered max 2.12 M/s")), "{about:?}");
}

#[test]
fn every_colour_drawn_has_another_for_the_dark() {
    let page = render(&judged(sample::broken()));
    let style = ink::style();
    let drawn: BTreeSet<&str> = all_between(&page, "<svg", "</svg>")
        .flat_map(|svg| all_between(svg, "stroke=\"", "\"").chain(all_between(svg, "fill=\"", "\"")))
        .filter(|colour| *colour != "none")
        .collect();
    assert!(drawn.len() >= 7, "{drawn:?}");
    for colour in drawn {
        assert!(style.contains(&format!("[stroke=\"{colour}\"]")), "{colour} is not in the palette");
    }
}

#[test]
fn an_objective_is_drawn_where_it_can_be_seen() {
    let dashes = |outcome: Outcome| render(&outcome).matches("objective: p99 at most 200 ms").count();
    assert_eq!(dashes(sample::held()), 0, "none was set");
    assert_eq!(dashes(judged(sample::held())), 1);
    let mut quick = sample::held();
    for moment in &mut quick.series {
        (moment.p50_ms, moment.p99_ms) = (Some(0.5), Some(1.0));
    }
    assert_eq!(dashes(judged(quick)), 0, "so far above the figures it would press them flat");
}

#[test]
fn what_was_not_measured_is_said_in_place_of_its_chart() {
    let page = render(&judged(Outcome::default()));
    assert_eq!(page.matches("<svg").count(), 0);
    for says in
        ["Nothing was delivered.", "No latency was measured.", "The server told no figures.", "nothing was connected"]
    {
        assert!(page.contains(says), "{says}");
    }
    assert!(page.contains("1970-01-01 00:00:00 UTC") && page.contains("<h1>without a profile</h1>"));
    let late = render(&Outcome { started_ms: u64::MAX, ..Outcome::default() });
    assert!(late.contains("at an unknown time"));
}

#[test]
fn a_long_test_keeps_its_peaks_and_a_small_page() {
    let mut outcome = sample::held();
    outcome.series = (1..=40_000)
        .map(|at| Moment { at_secs: f64::from(at), p99_ms: Some(10.0), delivered: 7, ..Moment::default() })
        .collect();
    outcome.series[20_000].p99_ms = Some(987.0);
    let page = render(&outcome);
    assert!(page.contains("max 987 ms"), "the peak is lost");
    assert!(page.contains("134 seconds at a time"));
    assert!(page.len() < 500_000, "{} bytes", page.len());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn no_figure_breaks_the_page(
        figures in proptest::collection::vec((proptest::num::f64::ANY, proptest::num::f64::ANY, 0u64..), 0..6),
        curve in proptest::collection::vec((proptest::num::f64::ANY, proptest::num::f64::ANY), 0..5),
    ) {
        let mut outcome = sample::held();
        outcome.series = figures.iter().map(|&(at_secs, value, count)| Moment {
            at_secs, p50_ms: Some(value), p99_ms: (count % 2 == 0).then_some(value), client_cpu: value,
            connections: count, sent: count, accepted: count, delivered: count, errors: count,
            server: Some(crate::load::outcome::ServerMoment { cpu: value, rss_bytes: count, queue: count, outbox: 0 }),
        }).collect();
        let delivery = outcome.latency.delivery.get_or_insert_default();
        (delivery.curve, delivery.p99_ms) = (curve, figures.first().map_or(f64::NAN, |f| f.1));
        outcome.took_secs = delivery.p99_ms;
        outcome.summary.rate = delivery.p99_ms;
        let page = render(&outcome);
        assert!(!page.contains("could not be drawn"));
        assert!(page.len() < 400_000);
    }
}
