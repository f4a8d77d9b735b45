//! Every metric, declared in one place with its relations; the doc comment is the help text that operators read.
//!
//! Labels are bounded: reasons and codes from fixed lists, never rooms or users.

mod process;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// One label, `code` or `reason`, with a value from a fixed list.
pub type Labels = [(&'static str, &'static str); 1];

/// A counter per value of one label.
pub type Counters = Family<Labels, Counter>;

trait Metric: prometheus_client::registry::Metric + Clone {
    fn make() -> Self;
}

impl Metric for Counter {
    fn make() -> Self {
        Self::default()
    }
}

impl Metric for Gauge {
    fn make() -> Self {
        Self::default()
    }
}

impl Metric for Counters {
    fn make() -> Self {
        Self::default()
    }
}

impl Metric for Histogram {
    /// Seconds, 0.5 ms to 16 s, doubling.
    fn make() -> Self {
        Self::new(exponential_buckets(0.0005, 2.0, 16))
    }
}

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ty = $name:literal;)+) => {
        /// The metrics of one server. Everything that counts holds a shared reference.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            process: Registry,
            /// Where every accepted comment is.
            pub account: Account,
            $($(#[doc = $help])+ pub $field: $kind,)+
        }

        impl Default for Metrics {
            fn default() -> Self {
                let mut registry = Registry::with_prefix("danmaku");
                $(
                    let $field = <$kind as Metric>::make();
                    let help = [$($help),+].map(str::trim).join(" ");
                    registry.register($name, help.trim_end_matches('.'), $field.clone());
                )+
                let account = Account::default();
                registry.register_collector(Box::new(account.clone()));
                let mut process = Registry::default();
                process.register_collector(Box::new(process::Process));
                Self { registry, process, account, $($field),+ }
            }
        }
    };
}

metrics! {
    /// Comments in the write queue.
    queued: Gauge = "queued";
    /// Drafts refused on WebSockets and over HTTP, and frames that are none, by the code of the answer.
    refused: Counters = "refused";
    /// Resent drafts recognised by their nonce.
    resent: Counter = "resent";
    /// Time from the first attempt to write a bulk until the store had taken it, in seconds.
    flush_seconds: Histogram = "flush_seconds";
    /// Attempts to write a bulk that failed and are made again, by the class of the failure.
    flush_retries: Counters = "flush_retries";
    /// Whether the write path is held up by a failure that waiting does not mend, such as a wrong password (0 or 1).
    flush_blocked: Gauge = "flush_blocked";
    /// Whether batches go to the outbox because the store does not take them (0 or 1).
    outbox_in_use: Gauge = "outbox_in_use";
    /// Bytes that the outbox takes on the disk.
    outbox_bytes: Gauge = "outbox_bytes";
    /// Comments that went into the outbox because the store did not take them in time.
    outbox_parked: Counter = "outbox_parked";
    /// Batches that the outbox had no room for, or could not write; they stay in memory and are tried again.
    outbox_refused: Counter = "outbox_refused";
    /// Groups of comments that were synced to the journal, with `store.durability = "disk"`.
    journal_syncs: Counter = "journal_syncs";
    /// Comments that could not be written to the journal; they are acknowledged once they are stored.
    journal_failed: Counter = "journal_failed";
    /// Comments that were set aside and are in no file: it could not be written, or the oldest file had to make way.
    set_aside_lost: Counter = "set_aside_lost";
    /// Connections taken on by the listener. open = accepted - closed.
    connections_accepted: Counter = "connections_accepted";
    /// Connections that ended.
    connections_closed: Counter = "connections_closed";
    /// Connections, and requests on open ones, answered 503 because there were too many, by which bound.
    connections_refused: Counters = "connections_refused";
    /// Requests refused for whom they came from, by code.
    access_refused: Counters = "access_refused";
    /// WebSocket sessions begun. Sessions now = begun - ended.
    sessions_begun: Counter = "sessions_begun";
    /// WebSocket sessions that ended, by close code.
    sessions_ended: Counters = "sessions_ended";
    /// Viewers in all rooms of this node now.
    viewers: Gauge = "viewers";
    /// Rooms in memory now.
    rooms: Gauge = "rooms";
    /// Rooms dropped from memory because nobody was in them.
    rooms_evicted: Counter = "rooms_evicted";
    /// Frames written straight to viewers' sockets.
    frames_sent: Counter = "frames_sent";
    /// Comments delivered, counted once for each viewer.
    deliveries: Counter = "deliveries";
    /// Comments left out for viewers who asked for fewer, counted once for each viewer.
    left_out: Counter = "left_out";
    /// Comments that viewers were told they had missed, counted once for each viewer.
    missed: Counter = "missed";
    /// Reads of a room's comments by viewers coming in and over HTTP, by what answered: memory alone, the store as well, or
    /// neither, as the store did not answer or lacked what waits in the outbox. The hit ratio is memory by all.
    reads: Counters = "reads";
    /// Reads that the store was asked for.
    store_reads: Counter = "store_reads";
    /// Reads that were answered by an equal one already on its way.
    store_reads_merged: Counter = "store_reads_merged";
    /// Comments received from other nodes.
    relay_received: Counter = "relay_received";
    /// Comments of other nodes that came from a room's stream rather than live: the room was new here, or they were missed.
    relay_read: Counter = "relay_read";
    /// Times that a room's stream was read because something may have been missed, by outcome: bridged (nothing is missing),
    /// too_long (some had left the stream) or unknown (the stream is gone). What is missing is taken from the store.
    relay_gaps: Counters = "relay_gaps";
    /// Comments that were not passed on to other nodes, as too many waited or for too long; those nodes are told.
    relay_dropped: Counter = "relay_dropped";
    /// Messages that could not be published at an attempt, and attempts without a connection, by reason: unreachable,
    /// read_only, out_of_memory or refused.
    relay_publish_failed: Counters = "relay_publish_failed";
    /// Comments published without being written to their room's stream, as Redis was out of memory or refused it.
    relay_unstreamed: Counter = "relay_unstreamed";
    /// Comments from other nodes that this node took too slowly; what their room's stream has of them still comes.
    relay_missed: Counter = "relay_missed";
    /// Messages on the relay that no version known here can read.
    relay_unreadable: Counter = "relay_unreadable";
    /// Times the relay's subscribing connection was opened, the first one included.
    relay_connects: Counter = "relay_connects";
    /// Times the relay's subscribing connection was lost, by reason: closed (by Redis, as when this node read too slowly),
    /// failed, no_answer, probe_missed, or moved (a slot of a cluster).
    relay_disconnects: Counters = "relay_disconnects";
    /// Rooms whose numbers of viewers could not be exchanged with the other nodes, counted once for each attempt.
    relay_counts_failed: Counter = "relay_counts_failed";
    /// Whether the relay's subscribing connection stands (0 or 1).
    relay_up: Gauge = "relay_up";
}

/// How many [`SET_ASIDE_REASONS`] there are.
const REASONS: usize = 4;

/// Why a comment can be given up for good, every reason that it is counted under: the store refuses it, or (`damaged`) the
/// disk gives back from the outbox other bytes than it was given.
pub const SET_ASIDE_REASONS: [&str; REASONS] = ["schema", "too_large", "refused", "damaged"];

/// The counters of the ledger. They are shown from one reading of all, so that each scrape balances:
/// accepted + recovered = stored + set aside + in the outbox + unsettled.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Comments accepted; counted before anything else can become of them.
    pub accepted: Counter,
    recovered: Counter,
    stored: Counter,
    set_aside: Counters,
    outbox: Gauge,
    /// Held while comments go from one place to another, and while all places are read.
    moves: Arc<Mutex<()>>,
}

/// Where comments are whose fate is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory: in the write queue, or in a bulk on its way.
    Memory,
    /// In the outbox.
    Outbox,
}

/// Where every accepted comment is at one moment: accepted + recovered = stored + set aside + outbox + unsettled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Comments accepted.
    pub accepted: u64,
    /// Comments that an earlier life of the server accepted and left on the disk, found at the start.
    pub recovered: u64,
    /// Comments the store has acknowledged.
    pub stored: u64,
    /// Comments in the outbox.
    pub outbox: u64,
    /// Comments the store refused for good, in the order of [`SET_ASIDE_REASONS`].
    pub set_aside: [u64; REASONS],
}

impl Account {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an earlier life left so many comments in the outbox.
    pub fn recover(&self, count: u64) {
        let _moving = self.lock();
        self.recovered.inc_by(count);
        self.outbox.inc_by(signed(count));
    }

    /// Notes that so many comments went from memory into the outbox.
    pub fn park(&self, count: u64) {
        let _moving = self.lock();
        self.outbox.inc_by(signed(count));
    }

    /// Whether comments wait in the outbox.
    #[must_use]
    pub fn has_parked(&self) -> bool {
        self.outbox.get() > 0
    }

    /// Notes that the store has said of a batch what became of it: `stored` were stored, and of those refused for good,
    /// each for one of [`SET_ASIDE_REASONS`].
    pub fn settle(&self, from: Place, stored: u64, refused: &[&'static str]) {
        let _moving = self.lock();
        self.stored.inc_by(stored);
        for reason in refused {
            self.set_aside.get_or_create(&[("reason", *reason)]).inc();
        }
        if from == Place::Outbox {
            self.outbox.dec_by(signed(stored + refused.len() as u64));
        }
    }

    /// Notes that so many comments of the outbox are given up as damaged.
    pub fn damage(&self, count: u64) {
        let _moving = self.lock();
        self.set_aside.get_or_create(&[("reason", "damaged")]).inc_by(count);
        self.outbox.dec_by(signed(count));
    }

    /// Reads all of it.
    #[must_use]
    pub fn read(&self) -> Ledger {
        let _moving = self.lock();
        let set_aside = SET_ASIDE_REASONS.map(|reason| self.set_aside.get_or_create(&[("reason", reason)]).get());
        let (recovered, stored) = (self.recovered.get(), self.stored.get());
        let outbox = u64::try_from(self.outbox.get()).unwrap_or(0);
        // The accepted last: a comment is counted as accepted before it can be anywhere else, so what is left of them
        // when the others are taken off is never negative.
        Ledger { accepted: self.accepted.get(), recovered, stored, outbox, set_aside }
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Ledger {
    /// Comments the store refused for good, for whatever reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.set_aside.iter().sum()
    }

    /// Comments whose fate is open and that are in memory alone: in the write queue, or in a bulk on its way.
    #[must_use]
    pub fn unsettled(&self) -> u64 {
        let gone = self.stored + self.refused() + self.outbox;
        (self.accepted + self.recovered).saturating_sub(gone)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, recovered, stored, outbox, .. } = self;
        let (set_aside, unsettled) = (self.refused(), self.unsettled());
        write!(f, "accepted={accepted} recovered={recovered} stored={stored} set_aside={set_aside} ")?;
        write!(f, "in_outbox={outbox} not_stored={unsettled}")
    }
}

impl Collector for Account {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let ledger = self.read();
        let mut show = |name, help, metric: &dyn Fn(MetricEncoder<'_>) -> fmt::Result, kind| {
            metric(encoder.encode_descriptor(name, help, None, kind)?)
        };
        let help = "Comments accepted. accepted + recovered = stored + set aside + outbox comments + unsettled.";
        show("accepted", help, &|to| ConstCounter::new(ledger.accepted).encode(to), MetricType::Counter)?;
        let help = "Comments that an earlier life of the server accepted and left on the disk.";
        show("recovered", help, &|to| ConstCounter::new(ledger.recovered).encode(to), MetricType::Counter)?;
        let help = "Comments the store has acknowledged, a duplicate of an earlier attempt included once.";
        show("stored", help, &|to| ConstCounter::new(ledger.stored).encode(to), MetricType::Counter)?;
        let help = "Comments the store refused for good, by reason; each is logged with its id.";
        let by_reason = |mut to: MetricEncoder<'_>| {
            SET_ASIDE_REASONS.iter().zip(ledger.set_aside).try_for_each(|(reason, count)| {
                ConstCounter::new(count).encode(to.encode_family(&[("reason", *reason)])?)
            })
        };
        show("set_aside", help, &by_reason, MetricType::Counter)?;
        let help = "Comments in the outbox: on the local disk until the store is back.";
        show("outbox_comments", help, &|to| ConstGauge::new(signed(ledger.outbox)).encode(to), MetricType::Gauge)?;
        let help = "Comments whose fate is open and that are in memory: in the write queue or in a bulk on its way.";
        show("unsettled", help, &|to| ConstGauge::new(signed(ledger.unsettled())).encode(to), MetricType::Gauge)
    }
}

impl Metrics {
    /// The metrics as the text that Prometheus reads (OpenMetrics 1.0).
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _infallible = encode_registry(&mut text, &self.registry).and_then(|()| encode(&mut text, &self.process));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_adds_up_wherever_its_comments_are() {
        let account = Account::default();
        account.recover(5);
        account.accepted.inc_by(20);
        account.settle(Place::Memory, 3, &["schema"]);
        account.park(10);
        account.settle(Place::Outbox, 7, &["refused"]);
        let ledger = account.read();
        assert_eq!((ledger.stored, ledger.refused(), ledger.outbox, ledger.unsettled()), (10, 2, 7, 6));
        assert_eq!(ledger.accepted + ledger.recovered, 25);
    }

    #[test]
    fn the_text_names_each_metric_with_its_help() {
        let metrics = Metrics::default();
        metrics.account.accepted.inc();
        metrics.refused.get_or_create(&[("code", "busy")]).inc();
        let text = metrics.to_text();
        for line in [
            "# HELP danmaku_accepted Comments accepted. accepted + recovered = stored + set aside + outbox comments + unsettled.",
            "danmaku_accepted_total 1",
            "danmaku_refused_total{code=\"busy\"} 1",
            "# TYPE process_cpu_seconds counter",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
