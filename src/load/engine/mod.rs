//! Runs a [`Plan`] against servers and tells what became of it, as an [`Outcome`] that is not judged yet.
//!
//! One thread plays all clients (`worker`), with sockets that nobody waits for: `joins` lets them come, be lost and leave, `io`
//! reads and sends, `rude` misbehaves. A connection (`conn`) finds its frames (`frame`) and has the room's comments decoded once
//! for all who get the same bytes (`batches`, `decode`); the `tracker` holds what one viewer has had against what was `sent`,
//! which the `mark` in each text tells. Beside that thread, `watch` asks the servers how they are and `query` asks for the last
//! 60 seconds as hosts do. [`Plan`] and chance decide everything that is sent; nothing waits for an answer.

mod absent;
mod batches;
mod conn;
mod decode;
mod figures;
mod frame;
mod hall;
mod http;
mod io;
mod joins;
mod machine;
pub(super) mod mark;
mod query;
mod rude;
mod sent;
mod socket;
mod tracker;
mod verdict;
mod watch;
mod worker;

#[cfg(test)]
mod checker_tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::client::{ClientError, Guest, Target, Tcp, connect};
use super::outcome::Outcome;
use super::plan::Plan;
use crate::clock::Clock;
use crate::shutdown::Shutdown;

use query::Queries;
use watch::Watch;
use worker::Worker;

pub(crate) use watch::Told;
pub(crate) use worker::Tick;

/// Seconds that may wait to be shown.
const TICKS: usize = 64;

/// Connections from one address before the next one is used: the system has some 28,000 ports for each.
const FROM_ONE: u32 = 15_000;

/// Files that are open besides the connections.
const OTHER_FILES: u64 = 64;

/// Why a load test could not be run.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A server cannot be reached, or is none.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The server wants a token, or another one.
    #[error("{target} refused {} (401)", if *.is_given { "the token" } else { "to open without a token; give one with --token" })]
    Token {
        /// The target as given.
        target: String,
        /// Whether a token was sent.
        is_given: bool,
    },
    /// A host's name has no address.
    #[error("{target}: its host has no address")]
    Name {
        /// The target as given.
        target: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The process may not have as many connections.
    #[error("{wanted} connections need as many open files, and {allowed} are allowed; raise the limit (ulimit -n)")]
    Files {
        /// What the plan needs.
        wanted: u64,
        /// What there is.
        allowed: u64,
    },
    /// The system gives no thread, or nothing to poll with.
    #[error("the load test cannot start")]
    System(#[source] std::io::Error),
}

/// What a run gives.
#[derive(Clone, Debug)]
pub struct Run {
    /// The figures; objectives and verdict are still to be added.
    pub outcome: Outcome,
    /// What a person should know about them: one line each.
    pub hints: Vec<String>,
}

/// Is shown how it goes, once a second.
pub(crate) trait Live {
    /// One second.
    fn show(&mut self, tick: &Tick, told: &Told);
}

/// Runs a plan. When `stop` begins it ends early, and what was measured until then is given.
///
/// # Errors
/// [`LoadError`] when it could not begin.
pub(crate) async fn run(plan: &Arc<Plan>, stop: &Shutdown, live: &mut dyn Live) -> Result<Run, LoadError> {
    let run = fastrand::u32(..);
    machine::raise_file_limit(u64::from(plan.connections()) + OTHER_FILES)?;
    let mut targets = Vec::new();
    for target in &plan.targets {
        targets.push((resolve(target).await?, target.clone()));
    }
    let prefix = hall::room_prefix(plan, run);
    probe(plan, &prefix, run).await?;
    let started_ms = u64::try_from(Clock::system().now().millis()).unwrap_or(0);
    let (ticks, mut shown) = mpsc::channel(TICKS);
    let addresses: Vec<SocketAddr> = targets.iter().map(|(address, _)| *address).collect();
    let sources = sources(plan, &addresses);
    let worker = Worker::new(Arc::clone(plan), run, (addresses, sources), (stop.clone(), ticks));
    let worker = worker.map_err(LoadError::System)?;
    let (watch, queries) = (Watch::default(), Queries::default());
    let watching = AbortOnDropHandle::new(tokio::spawn(watch.clone().run(targets.clone())));
    let asking = queries.clone().run(plan.query_rate, targets.clone(), (prefix, plan.seating.rooms.len()));
    let asking = AbortOnDropHandle::new(tokio::spawn(asking));
    let before = machine::process_cpu();
    let (done, finished) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("load".into());
    let spawned = thread.spawn(move || {
        // The receiver is gone only when the run was given up.
        let _given_up = done.send(worker.run());
    });
    spawned.map_err(LoadError::System)?;
    let mut series = verdict::Series::default();
    while let Some(tick) = shown.recv().await {
        let told = watch.told();
        live.show(&tick, &told);
        series.add(&tick, &told);
    }
    let finished = finished.await.map_err(|_| LoadError::System(std::io::Error::other("its thread has failed")))?;
    drop((watching, asking));
    // A stop asks for an end, and what is not stored by then is no verdict.
    watch.settle(&targets, if stop.has_begun() { Duration::ZERO } else { plan.patience }).await;
    let cpu = machine::process_cpu() - before;
    Ok(verdict::outcome(plan, finished, series, (queries.asked(), watch.server()), (started_ms, cpu)))
}

async fn resolve(target: &Target) -> Result<SocketAddr, LoadError> {
    let name = |source| LoadError::Name { target: target.shown().to_owned(), source };
    let none = || name(std::io::Error::other("none was found"));
    lookup_host(target.socket()).await.map_err(name)?.next().ok_or_else(none)
}

/// Comes in once at each target, so that a wrong address is told in one line.
async fn probe(plan: &Plan, prefix: &str, run: u32) -> Result<(), LoadError> {
    let room = hall::room_name(prefix, 0);
    for (nth, target) in plan.targets.iter().enumerate() {
        let guest = Guest { key: format!("load-{run:08x}-probe-{nth}"), name: hall::NAME.to_owned() };
        let mut url = target.room_url(&room, &guest, None);
        if let Some(token) = plan.tokens.first() {
            url.query_pairs_mut().append_pair("token", token);
        }
        match connect(&Tcp, target, &url).await {
            Err(ClientError::Refused { target, status: 401 }) => {
                return Err(LoadError::Token { target, is_given: !plan.tokens.is_empty() });
            }
            socket => drop(socket?),
        }
    }
    Ok(())
}

/// Where to connect from: what the plan says, or on loopback as many addresses as there have to be.
fn sources(plan: &Plan, targets: &[SocketAddr]) -> Vec<IpAddr> {
    let is_loopback = |address: &SocketAddr| matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback());
    if !plan.sources.is_empty() || plan.connections() <= FROM_ONE || !targets.iter().all(is_loopback) {
        return plan.sources.clone();
    }
    let count = plan.connections().div_ceil(FROM_ONE);
    let first = u32::from(Ipv4Addr::LOCALHOST);
    (0..count).map(|nth| IpAddr::V4(Ipv4Addr::from(first + nth))).collect()
}
