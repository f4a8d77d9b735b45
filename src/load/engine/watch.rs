//! What the servers tell of themselves while the test runs: `/metrics`, `/api/ledger` and `/api/openapi.json`. What they do
//! not tell is left out; no test fails for it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::http;
use crate::load::client::Target;
use crate::load::outcome::{Server, ServerMoment};

/// How often they are asked.
const EVERY: Duration = Duration::from_secs(1);

/// Servers have so long to store what they had accepted by the end.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

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

/// What was told last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// The newest moment.
    pub(crate) moment: Option<ServerMoment>,
    /// The newest ledger of all targets together.
    pub(crate) ledger: Option<Ledger>,
    /// What was told in all.
    pub(crate) server: Option<Server>,
    /// Processor time when it began, and when it was told last.
    first: Option<f64>,
    last: Option<(Instant, f64)>,
}

/// Where it is told; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    told: Arc<Mutex<Told>>,
}

/// One reading of all targets.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    cpu: Option<f64>,
    memory: Option<f64>,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was told last.
    pub(super) fn told(&self) -> Told {
        self.lock().clone()
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

    /// Asks until the servers have stored what they had accepted, for a while.
    pub(super) async fn settle(&self, targets: &Targets) {
        let version = self.lock().server.as_ref().and_then(|server| server.version.clone());
        let until = Instant::now() + SETTLED_WITHIN;
        loop {
            self.ask(targets, version.as_ref()).await;
            let waiting = self.lock().ledger.as_ref().map_or(0, |ledger| ledger.in_queue + ledger.in_outbox);
            if waiting == 0 || Instant::now() >= until {
                return;
            }
            sleep(SETTLED_WITHIN / 20).await;
        }
    }

    async fn ask(&self, targets: &Targets, version: Option<&String>) {
        let (reading, ledger) = (read_metrics(targets).await, read_ledger(targets).await);
        if reading.cpu.is_none() && ledger.is_none() {
            return;
        }
        let now = Instant::now();
        let mut told = self.lock();
        let before = told.last.replace((now, reading.cpu.unwrap_or(0.0)));
        let cpu = reading.cpu.unwrap_or(0.0);
        let first = *told.first.get_or_insert(cpu);
        let rate = before.map_or(0.0, |(at, before)| (cpu - before) / now.duration_since(at).as_secs_f64().max(0.001));
        let rss_bytes = reading.memory.map_or(0, whole);
        let parts = ledger.clone().unwrap_or_default();
        let most = told.server.as_ref().map_or(0, |server| server.max_rss_bytes);
        told.moment =
            Some(ServerMoment { cpu: rate.max(0.0), rss_bytes, queue: parts.in_queue, outbox: parts.in_outbox });
        told.server = Some(Server {
            version: version.cloned(),
            cpu_seconds: (cpu - first).max(0.0),
            max_rss_bytes: most.max(rss_bytes),
            ledger_balances: ledger.as_ref().map(Ledger::balances),
            not_stored: parts.in_queue + parts.in_outbox + parts.set_aside(),
        });
        told.ledger = ledger;
    }
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

async fn read_metrics(targets: &Targets) -> Reading {
    let mut sum = Reading::default();
    for (address, target) in targets {
        let Ok((200, text)) = http::get(*address, target, "/metrics").await else { continue };
        let add = |sum: &mut Option<f64>, name| {
            if let Some(value) = metric(&text, name) {
                *sum = Some(sum.unwrap_or(0.0) + value);
            }
        };
        add(&mut sum.cpu, CPU);
        add(&mut sum.memory, MEMORY);
    }
    sum
}

async fn read_ledger(targets: &Targets) -> Option<Ledger> {
    let mut sum: Option<Ledger> = None;
    for (address, target) in targets {
        let Ok((200, text)) = http::get(*address, target, "/api/ledger").await else { continue };
        let Ok(ledger) = serde_json::from_str::<Ledger>(&text) else { continue };
        sum.get_or_insert_default().add(&ledger);
    }
    sum
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
