//! What the servers tell of themselves while the test runs: `/metrics`, `/api/ledger` and `/api/openapi.json`. What they do
//! not tell is left out; no test fails for it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::http;
use crate::load::client::Target;
use crate::load::outcome::{Server, ServerMoment};

/// How often they are asked.
const EVERY: Duration = Duration::from_secs(1);

/// What was told longer ago is no more what is.
const FRESH: Duration = Duration::from_millis(1500);

/// How often they are asked at the end, until all is stored.
const SETTLING: Duration = Duration::from_millis(100);

/// Whom to ask, and where.
pub(super) type Targets = Vec<(SocketAddr, Target)>;

/// The names by which Prometheus' own client libraries tell of the process.
const CPU: &str = "process_cpu_seconds_total";
const MEMORY: &str = "process_resident_memory_bytes";

/// Where every accepted comment is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Ledger {
    /// Comments accepted.
    pub(crate) accepted: u64,
    recovered: u64,
    /// Comments stored.
    pub(crate) stored: u64,
    set_aside: std::collections::BTreeMap<String, u64>,
    /// Comments in memory.
    pub(crate) in_queue: u64,
    /// Comments in the outbox.
    pub(crate) in_outbox: u64,
}

impl Ledger {
    fn set_aside(&self) -> u64 {
        self.set_aside.values().sum()
    }

    fn balances(&self) -> bool {
        self.accepted + self.recovered == self.stored + self.set_aside() + self.in_queue + self.in_outbox
    }

    fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.recovered += other.recovered;
        self.stored += other.stored;
        self.in_queue += other.in_queue;
        self.in_outbox += other.in_outbox;
        for (reason, count) in &other.set_aside {
            *self.set_aside.entry(reason.clone()).or_default() += count;
        }
    }
}

/// What was told last, if that is not long ago.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// The newest moment; none unless every server that ever told one has told it.
    pub(crate) moment: Option<ServerMoment>,
    /// The newest ledger of all targets together; none unless all of them told theirs.
    pub(crate) ledger: Option<Ledger>,
}

/// A process' counter of processor time, as it was read again and again.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// When it was read last, and what it said.
    last: Option<(Instant, f64)>,
    used: f64,
}

impl Meter {
    /// Notes what was read; gives the cores used since the time before, if there was one.
    fn read(&mut self, at: Instant, cpu: f64) -> Option<f64> {
        let (before, old) = self.last.replace((at, cpu))?;
        // One that has fallen is that of a new process, and began at 0.
        let used = if cpu < old { cpu } else { cpu - old };
        self.used += used;
        Some(used / at.duration_since(before).as_secs_f64().max(0.001))
    }
}

/// All that is known.
#[derive(Debug, Default)]
struct State {
    told: Told,
    /// When `told` was told.
    at: Option<Instant>,
    /// What was told in all.
    server: Option<Server>,
    /// By target.
    meters: Vec<Meter>,
    /// Comments that were set aside before the test began.
    aside_before: Option<u64>,
}

/// Where it is told; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    state: Arc<Mutex<State>>,
}

/// One reading of one target.
#[derive(Clone, Debug)]
struct Reading {
    /// When `/metrics` was read.
    at: Instant,
    cpu: Option<f64>,
    memory: Option<f64>,
    ledger: Option<Ledger>,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was told last; nothing if that is long ago.
    pub(super) fn told(&self) -> Told {
        let state = self.lock();
        let is_fresh = state.at.is_some_and(|at| at.elapsed() < FRESH);
        if is_fresh { state.told.clone() } else { Told::default() }
    }

    /// What was told in all.
    pub(super) fn server(&self) -> Option<Server> {
        self.lock().server.clone()
    }

    /// Asks until it is dropped.
    pub(super) async fn run(self, targets: Targets) {
        let version = version(&targets).await;
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.ask(&targets, version.as_ref()).await;
        }
    }

    /// Asks until the servers have stored what they had accepted, or `patience` is over.
    pub(super) async fn settle(&self, targets: &Targets, patience: Duration) {
        let version = self.lock().server.as_ref().and_then(|server| server.version.clone());
        let until = Instant::now() + patience;
        loop {
            self.ask(targets, version.as_ref()).await;
            let waiting = self.lock().told.ledger.as_ref().map_or(0, |ledger| ledger.in_queue + ledger.in_outbox);
            if waiting == 0 || Instant::now() >= until {
                return;
            }
            sleep(SETTLING).await;
        }
    }

    async fn ask(&self, targets: &Targets, version: Option<&String>) {
        let readings = join_all(targets.iter().map(|(address, target)| read(*address, target))).await;
        self.lock().take(&readings, version);
    }
}

impl State {
    /// Takes one reading of each target. What a target does not tell is not known: neither is what it told before repeated, nor
    /// is what the others tell taken for all.
    fn take(&mut self, readings: &[Reading], version: Option<&String>) {
        self.meters.resize(readings.len(), Meter::default());
        let mut cores = Some(0.0);
        for (meter, reading) in self.meters.iter_mut().zip(readings) {
            let here = match reading.cpu {
                Some(cpu) => meter.read(reading.at, cpu),
                // It never told any: no server with such metrics.
                None if meter.last.is_none() => Some(0.0),
                None => None,
            };
            cores = cores.zip(here).map(|(sum, here)| sum + here);
        }
        let is_metered = self.meters.iter().any(|meter| meter.last.is_some());
        let ledgers: Option<Vec<&Ledger>> = readings.iter().map(|reading| reading.ledger.as_ref()).collect();
        let ledger = ledgers.map(|all| {
            all.into_iter().fold(Ledger::default(), |mut sum, one| {
                sum.add(one);
                sum
            })
        });
        let parts = ledger.clone().unwrap_or_default();
        if ledger.is_some() {
            self.aside_before.get_or_insert(parts.set_aside());
        }
        let rss_bytes = readings.iter().filter_map(|reading| reading.memory).map(whole).sum();
        let most = self.server.as_ref().map_or(0, |server| server.max_rss_bytes);
        let moment = |cpu| ServerMoment { cpu, rss_bytes, queue: parts.in_queue, outbox: parts.in_outbox };
        self.told.moment = cores.filter(|_| is_metered).map(moment);
        if is_metered || ledger.is_some() || self.server.is_some() {
            self.server = Some(Server {
                version: version.cloned(),
                cpu_seconds: self.meters.iter().map(|meter| meter.used).sum(),
                max_rss_bytes: most.max(rss_bytes),
                ledger_balances: ledger.as_ref().map(Ledger::balances),
                not_stored: parts.in_queue
                    + parts.in_outbox
                    + parts.set_aside().saturating_sub(self.aside_before.unwrap_or(0)),
            });
        }
        self.told.ledger = ledger;
        self.at = Some(Instant::now());
    }
}

async fn read(address: SocketAddr, target: &Target) -> Reading {
    let (metrics, ledger) = futures_util::join!(
        async {
            let answer = http::get(address, target, "/metrics").await;
            (Instant::now(), answer)
        },
        http::get(address, target, "/api/ledger"),
    );
    let (at, metrics) = metrics;
    let text = metrics.ok().filter(|(status, _)| *status == 200).map(|(_, text)| text).unwrap_or_default();
    let ledger = ledger.ok().filter(|(status, _)| *status == 200);
    let ledger = ledger.and_then(|(_, text)| serde_json::from_str(&text).ok());
    Reading { at, cpu: metric(&text, CPU), memory: metric(&text, MEMORY), ledger }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes are whole and not below 0")]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

/// The first server's version; none if it is no danmakud, or an old one.
async fn version(targets: &Targets) -> Option<String> {
    let (address, target) = targets.first()?;
    let (_, body) = http::get(*address, target, "/api/openapi.json").await.ok()?;
    let document: serde_json::Value = serde_json::from_str(&body).ok()?;
    Some(document.get("info")?.get("version")?.as_str()?.to_owned())
}

/// A metric without labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.split(' ').next()?.parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# TYPE x counter\nx_more 3\nx 1.5\ny{a=\"b\"} 2\nz 7 1700000000\n";
        assert_eq!((metric(text, "x"), metric(text, "y"), metric(text, "z")), (Some(1.5), None, Some(7.0)));
    }

    fn reading(at: Instant, cpu: Option<f64>) -> Reading {
        Reading { at, cpu, memory: Some(1e6), ledger: cpu.map(|_| Ledger::default()) }
    }

    #[test]
    fn processor_time_is_told_of_each_target_by_its_own_clock() {
        let (begun, mut state) = (Instant::now(), State::default());
        let at = |secs| begun + Duration::from_secs(secs);
        state.take(&[reading(at(0), Some(10.0)), reading(at(0), Some(20.0))], None);
        assert_eq!(state.told.moment, None, "there is nothing to compare with");
        // The second target answers a second late.
        state.take(&[reading(at(1), Some(10.5)), reading(at(2), Some(21.0))], None);
        assert_eq!(state.told.moment.as_ref().unwrap().cpu, 1.0);
        state.take(&[reading(at(2), Some(11.0)), reading(at(3), None)], None);
        assert_eq!(state.told.moment, None, "one has not told");
        assert!(state.told.ledger.is_none() && state.server.as_ref().unwrap().ledger_balances.is_none());
        // Its counter is that of a new process, four seconds after it was read last.
        state.take(&[reading(at(3), Some(11.5)), reading(at(6), Some(2.0))], None);
        assert_eq!(state.told.moment.as_ref().unwrap().cpu, 1.0);
        assert_eq!(state.server.as_ref().unwrap().cpu_seconds, 1.5 + 1.0 + 2.0);
    }

    #[test]
    fn what_is_dead_tells_nothing_to_the_end() {
        let mut state = State::default();
        let begun = Instant::now();
        for secs in 0..3 {
            state.take(&[reading(begun + Duration::from_secs(secs), Some(secs as f64))], None);
        }
        assert_eq!(state.server.as_ref().unwrap().ledger_balances, Some(true));
        state.take(&[reading(begun + Duration::from_secs(3), None)], None);
        let server = state.server.unwrap();
        assert_eq!((server.ledger_balances, server.cpu_seconds, state.told.moment), (None, 2.0, None));
    }

    #[test]
    fn what_was_set_aside_before_the_test_is_not_held_against_it() {
        let mut state = State::default();
        let mut reading = reading(Instant::now(), Some(1.0));
        let told = r#"{"accepted":5,"stored":3,"setAside":{"schema":2}}"#;
        reading.ledger = serde_json::from_str(told).unwrap();
        state.take(&[reading.clone()], None);
        assert_eq!(state.server.as_ref().unwrap().not_stored, 0);
        reading.ledger.as_mut().unwrap().in_queue = 4;
        state.take(&[reading], None);
        assert_eq!(state.server.unwrap().not_stored, 4);
    }

    #[test]
    fn a_ledger_balances_or_not_and_ledgers_add_up() {
        let told = r#"{"accepted":10,"recovered":1,"stored":5,"setAside":{"schema":2},"inQueue":3,"inOutbox":1}"#;
        let mut ledger: Ledger = serde_json::from_str(told).unwrap();
        assert!(ledger.balances());
        ledger.add(&ledger.clone());
        assert!(ledger.balances() && ledger.set_aside() == 4);
        ledger.stored += 1;
        assert!(!ledger.balances());
    }
}
