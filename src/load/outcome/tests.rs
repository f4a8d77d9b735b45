use super::*;

/// A report of version 1, as it was written when version 1 was made. Do not change it: add another.
const V1: &[u8] = include_bytes!("../../../tests/data/load-v1/report.json");

#[test]
fn a_report_of_version_1_reads_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    std::fs::write(&path, V1).unwrap();
    let outcome = read(&path).unwrap();
    assert_eq!((outcome.version, &*outcome.danmakud, outcome.started_ms), (1, "0.1.0", 1_790_000_000_000));
    assert_eq!((outcome.took_secs, outcome.has_held), (61.5, false));
    assert_eq!(outcome.command, ["danmakud", "load", "--profile", "peak-room"]);
    assert_eq!(outcome.plan["burst"]["times"], 20.0);
    let Load { rooms, viewers, senders, rate, targets, profile, duration_secs } = &outcome.summary;
    assert_eq!((*rooms, *viewers, *senders, *rate, *duration_secs), (2, 1_000, 20, 12.5, 60.0));
    assert_eq!((&**profile, &**targets), ("peak-room", &["http://127.0.0.1:8080".to_owned()][..]));
    let machine = outcome.machine.unwrap();
    assert_eq!((machine.cores, &*machine.cpu, &*machine.kernel), (2, "AMD EPYC", "Linux 6.18.0"));
    let delivery = outcome.latency.delivery.unwrap();
    assert_eq!((delivery.count, delivery.min_ms, delivery.p50_ms, delivery.max_ms), (700_000, 3.5, 21.25, 240.0));
    assert_eq!((delivery.p90_ms, delivery.p99_ms, delivery.p999_ms, delivery.mean_ms), (44.0, 98.5, 180.0, 25.0));
    assert_eq!(delivery.curve, [(0.0, 3.5), (0.5, 21.25), (0.99, 98.5), (1.0, 240.0)]);
    assert_eq!(outcome.latency.query, None);
    let counts = outcome.counts;
    assert_eq!((counts.scheduled, counts.sent, counts.accepted, counts.stored), (750, 750, 740, 739));
    assert_eq!((counts.unanswered, counts.refusals(), counts.troubles()), (1, 9, 6));
    assert_eq!((counts.left_out, counts.gaps_told, counts.queries), (5, 6, 7));
    assert_eq!(counts.closes["1012 going_away"], 2);
    assert_eq!((outcome.faults.lost, outcome.faults.total(), outcome.faults.out_of_order), (1, 22, 3));
    assert_eq!(outcome.faults.examples[0].fault, Fault::OutOfOrder);
    assert_eq!((outcome.faults.examples[0].viewer, &*outcome.faults.examples[0].room), (17, "peak-1"));
    assert_eq!(outcome.series.len(), 2);
    assert_eq!((outcome.series[0].p99_ms, outcome.series[0].server.as_ref()), (None, None));
    let server = outcome.series[1].server.as_ref().unwrap();
    assert_eq!((server.cpu, server.rss_bytes, server.queue, server.outbox), (0.5, 100_000_000, 12, 3));
    assert!(outcome.client.is_limit);
    assert_eq!(outcome.client.why.as_deref(), Some("its core was full"));
    assert_eq!(outcome.server.unwrap().ledger_balances, Some(true));
    let [judged] = &*outcome.objectives else { panic!("{:?}", outcome.objectives) };
    assert_eq!((&*judged.objective, &*judged.measured, judged.is_held), ("p99=50ms", "98.5 ms", false));
}

#[test]
fn what_is_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    for outcome in [sample::held(), sample::broken()] {
        write(&path, &outcome).unwrap();
        // Not assert_eq: it would print both, moment by moment.
        assert!(read(&path).unwrap() == outcome);
    }
}

#[test]
fn what_later_versions_add_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    std::fs::write(&path, r#"{"version": 1, "new": {"a": 1}, "summary": {}, "counts": {"sent": 3, "news": 4}}"#)
        .unwrap();
    let outcome = read(&path).unwrap();
    assert_eq!(outcome, Outcome { version: 1, counts: Counts { sent: 3, ..Counts::default() }, ..Outcome::default() });
}

#[test]
fn what_is_no_report_is_refused_in_one_line_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    let refusal = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = anyhow::Error::from(read(&path).unwrap_err());
        format!("{error:#}")
    };
    for (bytes, says) in [
        (&b""[..], "is not the report.json of a load test: EOF"),
        (b"[]", "is not the report.json"),
        (b"\xff\xfe", "is not the report.json"),
        (br#"{"version": 1, "counts": {"sent": -1}}"#, "is not the report.json"),
        (b"[1]", "is not the report.json of a load test: it is no object"),
        (br#"{"version": 1}"#, "is not the report.json of a load test: it has no summary and counts"),
        (br#"{"version": 1, "counts": [1], "summary": {}}"#, "is not the report.json"),
        (b"{}", "is not the report.json of a load test: it names no version"),
        (br#"{"version": 2}"#, "report version 2, and this danmakud reads 1 to 1"),
    ] {
        let line = refusal(bytes);
        assert!(line.contains("a.json") && line.contains(says) && !line.contains('\n'), "{line}");
    }
    let missing = read(&folder.path().join("none.json")).unwrap_err();
    assert!(matches!(missing, FileError::Read { .. }), "{missing}");
    assert!(prepare(&path).is_err() && prepare(&folder.path().join("new/folder")).is_ok());
    let left: Vec<_> = std::fs::read_dir(folder.path().join("new/folder")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let unwritable = write(&folder.path().join("no/folder/report.json"), &Outcome::default()).unwrap_err();
    assert!(matches!(unwritable, FileError::Write { .. }), "{unwritable}");
}

#[test]
fn each_kind_of_fault_is_counted_once_and_told_by_name() {
    let faults = Faults {
        lost: 1,
        doubled: 10,
        out_of_order: 100,
        wrong_room: 1_000,
        damaged: 10_000,
        gaps_untold: 100_000,
        gaps_told: 1_000_000,
        examples: Vec::new(),
    };
    assert_eq!(faults.total(), 1_111_111);
    let told: Vec<_> = faults.happened().map(|(fault, count)| format!("{count} {}", fault.name())).collect();
    assert_eq!(
        told.join(", "),
        "1 lost, 10 doubled, 100 out of order, 1000 wrong room, 10000 damaged, 100000 gap untold, 1000000 gap told"
    );
    assert_eq!(Faults { lost: u64::MAX, doubled: 1, ..Faults::default() }.total(), u64::MAX);
}
