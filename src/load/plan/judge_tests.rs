use std::io::Write as _;

use super::*;
use crate::model::AckLevel;

/// The plan of a profile, against a server that is not asked.
pub(in crate::load) fn plan(toml: &str) -> Plan {
    try_plan(toml, Knobs::default()).unwrap_or_else(|error| panic!("{toml}: {error}"))
}

fn try_plan(toml: &str, flags: Knobs) -> Result<Plan, PlanError> {
    let mut file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    file.write_all(toml.as_bytes()).unwrap();
    let profile = Some(file.path().to_str().unwrap().to_owned());
    let targets = vec![Target::parse("http://127.0.0.1:1").unwrap()];
    Plan::new(Asking { profile, flags, targets, ..Asking::default() })
}

#[test]
fn every_shipped_profile_is_a_plan() {
    assert_eq!(shipped::PROFILES.len(), 7);
    for (name, _) in shipped::PROFILES {
        let plan = Plan::new(Asking { profile: Some((*name).to_owned()), ..Asking::default() });
        let plan = plan.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.profile, *name);
        assert!(plan.mean_rate() > 1.0, "{name}");
    }
}

#[test]
fn no_profile_is_a_plan_and_flags_go_before_the_profile() {
    let none = Plan::new(Asking::default()).unwrap();
    assert_eq!((none.seating.viewers(), none.seating.senders(), none.ramp.as_millis()), (100, 20, 100));
    assert_eq!((none.ack.level(0), none.ack.level(1)), (AckLevel::Accepted, AckLevel::Stored));
    let flags = Knobs { viewers: Some(7), rate: Some(3.0), ..Knobs::default() };
    let both = try_plan("viewers = 50\nduration = '5s'", flags).unwrap();
    assert_eq!((both.seating.viewers(), both.seating.senders(), both.duration.as_secs()), (7, 6, 5));
}

#[test]
fn a_rate_takes_the_place_of_a_profiles_trace_and_the_other_way_round() {
    let rate = Knobs { rate: Some(3.0), ..Knobs::default() };
    assert!(matches!(try_plan("trace = 'evening'", rate).unwrap().sending, Sending::Rate(_)));
    let trace = Knobs { trace: Some("evening".into()), ..Knobs::default() };
    let profile = "rate = 3\nburst = 2\nburst_for = '1s'\ntext = '20'";
    assert!(matches!(try_plan(profile, trace).unwrap().sending, Sending::Trace { .. }));
    let rate = Knobs { rate: Some(3.0), ..Knobs::default() };
    let profile = "trace = 'evening'\ntrace_speed = 2\ntrace_from = '1m'";
    assert!(matches!(try_plan(profile, rate).unwrap().sending, Sending::Rate(_)));
}

#[test]
fn a_plan_can_be_scaled_and_keeps_the_rest() {
    let plan = plan("viewers = 100\nrate = 10\nmisbehaving = 3\nburst = 4\nduration = '7s'").scaled(4.0, Scaled::Rate);
    let plan = plan.and_then(|plan| plan.scaled(2.0, Scaled::Viewers)).unwrap();
    assert_eq!((plan.seating.viewers(), plan.misbehaving, plan.duration.as_secs()), (200, 3, 7));
    let Sending::Rate(rate) = plan.sending else { panic!("a rate") };
    assert_eq!((rate.mean, rate.burst), (40.0, 4.0));
    let faster = self::plan("trace = 'evening'\ntrace_speed = 2").scaled(3.0, Scaled::Both).unwrap();
    assert!(matches!(faster.sending, Sending::Trace { speed: 6.0, .. }));
    assert_eq!(faster.seating.viewers(), 300);
}

#[test]
fn nonsense_is_named_with_its_place_and_what_would_be_right() {
    let corpus = [
        ("viewer = 3", "line 1: unknown field `viewer`"),
        ("\nrate = 'many'", "line 2: invalid type"),
        ("rate = ", "line 1:"),
        ("rooms = -1", "line 1:"),
        ("rooms = 0", "rooms: 0 is not within 1 to 100000"),
        ("rooms = 5\nviewers = 4", "viewers: 4 are fewer than the 5 rooms"),
        ("viewers = 3\nsenders = 4", "senders: 4 are more than the 3 viewers"),
        ("rate = 0", "rate: 0 is not within 0.001 to 1000000"),
        ("rate = nan", "rate: NaN is not within"),
        ("duration = 'long'", "duration: \"long\" is not a time such as 100ms, 30s or 5m"),
        ("duration = '10ms'", "duration: 10ms is not within 1s to 1day"),
        ("leave = '31s'", "leave: is longer than the duration"),
        ("burst = 2\nburst_for = '5s'\nburst_every = '2s'", "burst_for: is longer than burst_every"),
        ("arrivals = 'late'", "arrivals: \"late\" is neither poisson nor even"),
        ("text = '2..5'", "text: \"2..5\" is not characters such as 20 or 6..40"),
        ("text = '9..7'", "text: \"9..7\" is not characters"),
        ("text = 'x'", "text: \"x\" is not characters"),
        ("ack = 'kept'", "ack: \"kept\" is not accepted, stored or both"),
        ("compress = 'gzip'", "compress: \"gzip\" is not none, zstd, br or deflate"),
        ("slow = 1.5", "slow: 1.5 is not within 0 to 1"),
        ("trace = 'evening'\nrate = 1", "trace: has its own rate"),
        ("trace = 'no-such.csv'", "trace"),
        ("trace = 'evening'\ntrace_from = '9h'", "trace_from: is behind the end of the trace"),
        ("trace_speed = 2", "trace_speed: does nothing without"),
        ("storm_share = 0.1", "storm_share: does nothing without"),
        ("tier_share = 0.1", "tier_share: does nothing without"),
        ("slow_bytes = 10", "slow_bytes: does nothing without"),
        ("burst_for = '1s'", "burst_for: does nothing without"),
        ("trace = 'evening'\nburst = 2", "burst: does nothing beside a trace"),
        ("trace = 'evening'\ntext = '20'", "text: does nothing beside a trace"),
        ("trace = 'evening'\narrivals = 'even'", "arrivals: does nothing beside a trace"),
        ("room = 'a/b'", "room: is not the beginning of a room's name"),
        ("rate = 1000000\nduration = '1day'\nviewers = 3", "--duration: 86400000000 comments are more than"),
    ];
    for (toml, says) in corpus {
        let error = try_plan(toml, Knobs::default()).unwrap_err().to_string();
        assert!(error.contains(says), "{toml:?}: {error:?} does not say {says:?}");
        assert!(!error.contains('\n'), "{error:?} is one line");
        assert!(error.starts_with("--duration") || error.contains(".toml"), "{error:?} names the file");
    }
    let flags = Knobs { rooms: Some(0), ..Knobs::default() };
    assert_eq!(try_plan("", flags).unwrap_err().to_string(), "--rooms: 0 is not within 1 to 100000");
    let asking = Asking { profile: Some("no-such".into()), ..Asking::default() };
    let error = Plan::new(asking).unwrap_err().to_string();
    assert!(error.contains("no-such is neither a shipped profile (quiet-evening, evening, peak-room"), "{error}");
}
