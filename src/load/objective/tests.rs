use super::*;
use crate::load::outcome::{Counts, Latencies, Moment, Percentiles, ServerMoment, sample};

/// What one objective says about the sample.
fn judged(text: &str, change: impl FnOnce(&mut Outcome)) -> (String, bool) {
    let mut outcome = sample::held();
    change(&mut outcome);
    let judged = parse(text).unwrap().remove(0).judge(&outcome);
    assert_eq!(judged.objective, text);
    (judged.measured, judged.is_held)
}

fn untouched(_: &mut Outcome) {}

#[test]
fn each_name_finds_its_own_figure() {
    let mut outcome = sample::held();
    let latency = &mut outcome.latency;
    let Latencies { join, accepted, stored, delivery, query } = latency;
    for (base, figures) in
        [100.0, 200.0, 300.0, 400.0, 500.0].into_iter().zip([delivery, join, accepted, stored, query])
    {
        let figures = figures.get_or_insert_default();
        figures.count = 1;
        (figures.p50_ms, figures.p90_ms, figures.p99_ms) = (base + 1.0, base + 2.0, base + 3.0);
        (figures.p999_ms, figures.max_ms) = (base + 4.0, base + 5.0);
    }
    for (n, path) in ["", "join_", "accepted_", "stored_", "query_"].into_iter().enumerate() {
        for (m, rank) in ["p50", "p90", "p99", "p999", "max"].into_iter().enumerate() {
            let value = Measure::named(&format!("{path}{rank}")).unwrap().value(&outcome);
            assert_eq!(value, Some((100 * (n + 1) + m + 1) as f64), "{path}{rank}");
        }
    }
    (outcome.faults.lost, outcome.faults.doubled, outcome.faults.out_of_order) = (1, 2, 3);
    (outcome.faults.wrong_room, outcome.faults.damaged) = (4, 5);
    (outcome.faults.gaps_untold, outcome.faults.gaps_told) = (6, 7);
    for (name, count) in [
        ("lost", 1),
        ("doubled", 2),
        ("out_of_order", 3),
        ("wrong_room", 4),
        ("damaged", 5),
        ("gaps", 13),
        ("faults", 28),
    ] {
        assert_eq!(Measure::named(name).unwrap().value(&outcome), Some(f64::from(count)), "{name}");
    }
}

#[test]
fn a_limit_is_the_most_that_holds() {
    let p99 = |ms: f64| move |outcome: &mut Outcome| outcome.latency.delivery.get_or_insert_default().p99_ms = ms;
    assert_eq!(judged("p99=200ms", p99(200.0)), ("200 ms".to_owned(), true));
    assert_eq!(judged("p99=200ms", p99(200.1)), ("200 ms".to_owned(), false));
    assert_eq!(judged("p99=1s", p99(312.0)), ("312 ms".to_owned(), true));
    assert_eq!(judged("lost=0", untouched), ("0".to_owned(), true));
    assert_eq!(judged("lost=0", |outcome| outcome.faults.lost = 1), ("1".to_owned(), false));
    assert!(!judged("lateness=5ms", |outcome| outcome.client.lateness_p99_ms = 6.0).1);
    let rss = |outcome: &mut Outcome| outcome.server.get_or_insert_default().max_rss_bytes = 300 << 20;
    assert_eq!(judged("rss=300MiB", rss), ("300.0 MiB".to_owned(), true));
    assert!(!judged("rss=300MB", rss).1);
}

#[test]
fn errors_and_refusals_are_counted_or_shares() {
    let trouble = |outcome: &mut Outcome| {
        let counts = &mut outcome.counts;
        (counts.sent, counts.connected, counts.connects_failed, counts.unanswered) = (9_000, 900, 100, 5);
        counts.errors = [("bad frame".to_owned(), 5)].into();
        counts.refused = [("busy".to_owned(), 60), ("rate_limited".to_owned(), 30)].into();
    };
    assert_eq!(judged("errors=110", trouble), ("110".to_owned(), true));
    assert!(!judged("errors=109", trouble).1);
    assert_eq!(judged("errors=1.1%", trouble), ("1.1%".to_owned(), true));
    assert!(!judged("errors=1%", trouble).1);
    assert_eq!(judged("refused=1%", trouble), ("1%".to_owned(), true));
    assert_eq!(judged("refused=89", trouble), ("90".to_owned(), false));
}

#[test]
fn the_servers_cpu_is_that_of_its_busiest_five_seconds() {
    let cpu = |used: &[f64]| -> Vec<Moment> {
        let told = used.iter().map(|&cpu| Some(ServerMoment { cpu, ..ServerMoment::default() }));
        told.map(|server| Moment { server, ..Moment::default() }).collect()
    };
    // One second of 1.5 cores among idle ones is 0.3 cores over five.
    let spike = cpu(&[0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 0.0]);
    assert_eq!(judged("cpu=0.31", |outcome| outcome.series = spike), ("0.30 cores".to_owned(), true));
    let busy = cpu(&[0.2, 0.9, 0.9, 0.9, 0.9, 0.9, 0.2]);
    assert_eq!(judged("cpu=89%", |outcome| outcome.series = busy), ("0.90 cores".to_owned(), false));
    let brief = cpu(&[0.4, 0.6]);
    assert_eq!(judged("cpu=0.5", |outcome| outcome.series = brief).0, "0.50 cores");
}

#[test]
fn what_was_not_measured_is_broken_and_says_so() {
    let blind = |outcome: &mut Outcome| {
        outcome.latency = Latencies::default();
        outcome.latency.join = Some(Percentiles::default());
        outcome.counts = Counts::default();
        outcome.series.clear();
        outcome.server = None;
    };
    for text in ["p99=1h", "join_p99=1h", "cpu=64", "rss=1TiB", "errors=100%", "refused=100%", "lateness=1h"] {
        assert_eq!(judged(text, blind), ("not measured".to_owned(), false), "{text}");
    }
}

#[test]
fn a_wrong_objective_is_told_what_would_be_right() {
    for (text, says) in [
        ("", "is missing"),
        ("p99=200ms,", "is missing"),
        ("p99", "\"p99\" names no limit"),
        ("p98=1ms", "there is no objective \"p98\"; there are p50, p90, p99, p999, max, join_p50"),
        ("delivery_lost=0", "there is no objective"),
        ("p99=200", "\"200\" is no duration like 200ms"),
        ("p99=", "is no duration"),
        ("p99=-1ms", "is no duration"),
        ("lost=0.5", "is no count"),
        ("lost=1%", "is no count"),
        ("lost=", "is no count"),
        ("lost=+1", "is no count"),
        ("errors=101%", "is no count like 10 or share"),
        ("errors=nan%", "is no count like 10 or share"),
        ("cpu=1e3", "is no number of cores"),
        ("cpu=.", "is no number of cores"),
        ("rss=512", "is no size like 512MiB"),
        ("rss=MB", "is no size"),
        ("p99=1ms,p99=2ms", "p99 is given twice"),
        ("p99=1ms,delivery_p99=2ms", "p99 is given twice"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn every_known_name_is_understood_and_told_again() {
    let names = Measure::names();
    assert_eq!(names.len(), 37);
    for name in names {
        let measure = Measure::named(&name).unwrap();
        assert_eq!(measure.name(), name);
    }
    assert_eq!(Measure::named("delivery_p999"), Measure::named("p999"));
}

#[test]
fn the_verdict_is_held_only_without_faults_and_with_every_objective() {
    let objectives = parse(" p99 = 200ms , lost=0 ").unwrap();
    let mut outcome = sample::held();
    judge(&mut outcome, &objectives);
    assert!(outcome.has_held, "{:?}", outcome.broken());
    assert_eq!(outcome.objectives.iter().map(|judged| &*judged.objective).collect::<Vec<_>>(), ["p99=200ms", "lost=0"]);

    outcome.faults.doubled = 1;
    judge(&mut outcome, &objectives);
    assert!(!outcome.has_held, "a fault breaks it, though no objective names it");
    assert_eq!(outcome.broken(), ["1 doubled"]);

    outcome.faults.doubled = 0;
    outcome.latency.delivery.as_mut().unwrap().p99_ms = 1_234.0;
    judge(&mut outcome, &objectives);
    assert!(!outcome.has_held);
    assert_eq!(outcome.broken(), ["p99=200ms: measured 1.23 s"]);
}

#[test]
fn a_test_that_reached_nobody_has_not_held() {
    let mut outcome = Outcome::default();
    judge(&mut outcome, &[]);
    assert_eq!((outcome.has_held, outcome.broken()), (false, vec!["nothing was connected".to_owned()]));
}

/// What breaks a test, after a change to one that held.
fn broken(objectives: &str, change: impl FnOnce(&mut Outcome)) -> String {
    let mut outcome = sample::held();
    change(&mut outcome);
    judge(&mut outcome, &if objectives.is_empty() { Vec::new() } else { parse(objectives).unwrap() });
    assert_eq!(outcome.has_held, outcome.broken().is_empty());
    outcome.broken().join("; ")
}

#[test]
fn what_did_not_arrive_breaks_a_test_that_has_no_objective() {
    let error = |kind: &'static str| move |o: &mut Outcome| o.counts.errors.extend([(kind.to_owned(), 255)]);
    assert_eq!(broken("", |o| o.counts.unanswered = 3), "3 comments unanswered");
    assert_eq!(broken("", error("nobody_to_send")), "255 comments could not be sent, for nobody was connected");
    assert_eq!(broken("", error("closed_4001")), "255 errors (closed_4001: 255)");
    assert_eq!(broken("", |o| o.counts.never_came = 450), "450 viewers never came");
    assert_eq!(broken("", |o| o.counts.connects_failed = 606), "606 connections failed");
    let refused = |o: &mut Outcome| o.counts.refused.extend([("busy".to_owned(), 1_200)]);
    assert_eq!(broken("", refused), "1,200 comments refused (busy: 1,200)");
    let nothing = |o: &mut Outcome| (o.counts.scheduled, o.counts.sent, o.counts.deliveries) = (0, 0, 0);
    assert_eq!(broken("", nothing), "nothing was sent");
    assert_eq!(broken("", |o| o.counts.deliveries = 0), "nothing was delivered");
    let server = |o: &mut Outcome| {
        let server = o.server.get_or_insert_default();
        (server.ledger_balances, server.not_stored) = (Some(false), 7);
    };
    assert_eq!(broken("", server), "the server's ledger does not balance; 7 comments accepted and not stored");
}

#[test]
fn what_the_test_itself_brings_on_breaks_nothing() {
    assert_eq!(broken("", |o| (o.counts.connects_failed, o.counts.connects_failed_in_storms) = (9, 9)), "");
    assert_eq!(broken("", |o| o.counts.cut_off = 9), "");
    assert_eq!(broken("", |o| o.counts.misbehaved.extend([("text_too_long".to_owned(), 9)])), "");
    let idle = |o: &mut Outcome| {
        (o.summary.rate, o.counts.scheduled, o.counts.sent, o.counts.deliveries) = (0.001, 0, 0, 0);
    };
    assert_eq!(broken("", idle), "", "nothing was to be sent");
}

#[test]
fn an_objective_takes_the_place_of_what_else_may_not_be() {
    let trouble = |o: &mut Outcome| {
        (o.counts.unanswered, o.counts.connects_failed) = (3, 2);
        o.counts.refused.insert("busy".to_owned(), 5);
    };
    assert_eq!(broken("errors=5,refused=5", trouble), "");
    assert_eq!(broken("errors=5", trouble), "5 comments refused (busy: 5)");
    assert_eq!(broken("refused=5", trouble), "2 connections failed; 3 comments unanswered");
    assert_eq!(broken("errors=4,refused=4", trouble), "errors=4: measured 5; refused=4: measured 5");
}

proptest::proptest! {
    #[test]
    fn what_is_understood_reads_the_same_from_its_own_words(
        text in "\\PC{0,40}|(p99|lost|errors|cpu|rss|query_max) ?= ?[0-9.]{1,4}(ms|s|%|MiB|)(,[a-z0-9=]{0,9})?",
    ) {
        for objective in parse(&text).unwrap_or_default() {
            assert_eq!(parse(&objective.judge(&Outcome::default()).objective), Ok(vec![objective]));
        }
    }
}
