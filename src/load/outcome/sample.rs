//! A load test that never was, for the tests of what shows one: a room of 5,000 that fills, has a burst, and empties.

use super::{
    Client, Counts, Fault, FaultExample, Found, Load, Machine, Moment, Outcome, Percentiles, Server, ServerMoment,
    Tried,
};
use crate::load::outcome::{Latencies, VERSION};

const SECONDS: u64 = 300;
const VIEWERS: f64 = 5_000.0;

/// One that held every objective there could be.
pub(crate) fn held() -> Outcome {
    let series: Vec<Moment> = (1..=SECONDS).map(moment).collect();
    let total = |figure: fn(&Moment) -> u64| series.iter().map(figure).sum::<u64>();
    let (sent, deliveries) = (total(|moment| moment.sent), total(|moment| moment.delivered));
    let counts = Counts {
        scheduled: sent,
        sent,
        accepted: sent,
        stored: sent,
        connected: 5_012,
        reconnects: 12,
        deliveries,
        queries: 300,
        bytes_received: deliveries * 122,
        closes: [("1012 going_away".to_owned(), 12)].into(),
        ..Counts::default()
    };
    Outcome {
        version: VERSION,
        danmakud: "0.1.0".to_owned(),
        started_ms: 1_790_000_000_000,
        took_secs: 304.2,
        command: "danmakud load --profile peak-room --target http://127.0.0.1:8080 --objective p99=200ms,lost=0"
            .split(' ')
            .map(str::to_owned)
            .collect(),
        plan: serde_json::json!({"profile": "peak-room", "rooms": 1, "viewers": 5000, "burst": {"times": 20.0}}),
        summary: Load {
            rooms: 1,
            viewers: 5_000,
            senders: 50,
            rate: 20.0,
            targets: vec!["http://127.0.0.1:8080".to_owned()],
            profile: "peak-room".to_owned(),
            duration_secs: 300.0,
        },
        machine: Some(Machine {
            cores: 2,
            cpu: "AMD EPYC 7763 64-Core Processor".to_owned(),
            kernel: "Linux 6.18.0".to_owned(),
            memory_bytes: 8 << 30,
        }),
        latency: Latencies {
            join: Some(percentiles(5_012, 1.8, 0.9)),
            accepted: Some(percentiles(sent, 1.1, 0.6)),
            stored: Some(percentiles(sent, 58.0, 0.35)),
            delivery: Some(percentiles(deliveries, 42.0, 0.42)),
            query: Some(percentiles(300, 3.4, 0.5)),
        },
        counts,
        series,
        client: Client {
            cpu_seconds: 131.0,
            peak_cores: 0.86,
            max_rss_bytes: 61 << 20,
            lateness_p99_ms: 0.8,
            is_limit: false,
            why: None,
        },
        server: Some(Server {
            version: Some("0.1.0".to_owned()),
            cpu_seconds: 96.0,
            max_rss_bytes: 143 << 20,
            ledger_balances: Some(true),
            not_stored: 0,
        }),
        has_held: true,
        ..Outcome::default()
    }
}

/// One in which much went wrong.
pub(crate) fn broken() -> Outcome {
    let mut outcome = held();
    outcome.faults.lost = 7;
    outcome.faults.out_of_order = 1_204;
    outcome.faults.examples = (0..3).map(example).collect();
    outcome.counts.refused = [("rate_limited".to_owned(), 389), ("busy".to_owned(), 12)].into();
    outcome.counts.errors = [("connection reset".to_owned(), 31)].into();
    outcome.counts.unanswered = 4;
    if let Some(delivery) = &mut outcome.latency.delivery {
        delivery.p99_ms = 312.0;
    }
    outcome.client.is_limit = true;
    outcome.client.why = Some("it used 0.99 of its one core for 41 s".to_owned());
    for moment in outcome.series.iter_mut().filter(|moment| (150.0..165.0).contains(&moment.at_secs)) {
        moment.errors = 2 + moment.sent % 7;
        moment.p99_ms = moment.p99_ms.map(|ms| tidy(ms * 6.0));
    }
    outcome.has_held = false;
    outcome
}

/// One at the end of a search for the highest load.
pub(crate) fn searched() -> Outcome {
    let tried = [(1.0, 58.0), (2.0, 91.0), (2.83, 142.0), (4.0, 312.0)].map(|(scale, p99_ms)| Tried {
        scale,
        viewers: (1_000.0 * scale) as u64,
        rate: 20.0,
        deliveries: 20_000.0 * scale,
        p99_ms: Some(p99_ms),
        gave_way: if p99_ms > 200.0 { vec!["p99=200ms (312 ms)".to_owned()] } else { Vec::new() },
    });
    let says = [
        "highest load that held: 2.83 × the plan",
        "measured: 2,830 viewers × 20 accepted comments/s = 56.1 k deliveries/s in one room",
        "gave way first, at 4 × the plan: p99=200ms (312 ms)",
    ];
    let says = says.map(str::to_owned).to_vec();
    Outcome { capacity: Some(Found { says, tried: tried.to_vec() }), ..held() }
}

fn example(n: u64) -> FaultExample {
    let (fault, detail) = match n {
        0 => (Fault::Lost, "acknowledged as stored, and not received within 30 s".to_owned()),
        _ => (Fault::OutOfOrder, format!("sequence {} came after {}", 88_120 + n, 88_121 + n)),
    };
    FaultExample {
        fault,
        viewer: 1_702 + n,
        room: "peak-1".to_owned(),
        id: format!("6748a1f2c4e5b600000000{n:02}"),
        detail,
    }
}

/// The second that ends at `at`: 60 s of joining, a burst of twenty times the mean at 150 s, leaving from 270 s on.
fn moment(at: u64) -> Moment {
    let mut random = fastrand::Rng::with_seed(at);
    let mut about = |value: f64| tidy(value * (0.92 + 0.16 * random.f64()));
    let t = at as f64;
    let present = (t / 60.0).min(1.0) * ((SECONDS as f64 - t) / 30.0).min(1.0);
    let burst = if (150..162).contains(&at) { 20.0 } else { 1.0 };
    let sent = about(20.0 * burst).round();
    let connections = (VIEWERS * present).round();
    let crowd = 8.0 + 40.0 * present * burst.sqrt();
    Moment {
        at_secs: t,
        connections: connections as u64,
        sent: sent as u64,
        accepted: sent as u64,
        delivered: (sent * connections) as u64,
        errors: 0,
        p50_ms: (connections > 0.0).then(|| about(crowd * 0.55)),
        p99_ms: (connections > 0.0).then(|| about(crowd)),
        client_cpu: about(0.08 + 0.22 * present * burst.sqrt() * 0.8),
        server: Some(ServerMoment {
            cpu: about(0.05 + 0.18 * present * burst.sqrt() * 0.8),
            rss_bytes: ((38.0 + 100.0 * (t / 90.0).min(1.0) + random.f64()) * 1_048_576.0) as u64,
            queue: (sent * 0.05) as u64,
            outbox: 0,
        }),
    }
}

/// A log-normal distribution around a median.
fn percentiles(count: u64, median: f64, spread: f64) -> Percentiles {
    // The normal distribution's quantiles at 0.5, 0.9, 0.99, 0.999 and so on.
    const SCORES: [(f64, f64); 9] = [
        (0.0, -3.0),
        (0.25, -0.674),
        (0.5, 0.0),
        (0.75, 0.674),
        (0.9, 1.282),
        (0.99, 2.326),
        (0.999, 3.090),
        (0.9999, 3.719),
        (0.99999, 4.265),
    ];
    let at = |score: f64| tidy(median * (score * spread).exp());
    let seen = SCORES.iter().filter(|(quantile, _)| (1.0 - quantile) * count as f64 >= 1.0);
    let curve: Vec<(f64, f64)> = seen.map(|(quantile, score)| (*quantile, at(*score))).collect();
    Percentiles {
        count,
        mean_ms: at(spread / 2.0),
        min_ms: at(-3.0),
        p50_ms: at(0.0),
        p90_ms: at(1.282),
        p99_ms: at(2.326),
        p999_ms: at(3.090),
        max_ms: curve.last().map_or(0.0, |(_, ms)| *ms),
        curve,
    }
}

/// To the microsecond, as HDR histograms have it: and so that it survives JSON to the last bit.
fn tidy(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
