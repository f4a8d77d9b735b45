//! What operators' tools ask: whether the process lives, whether it should get traffic, and its metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::interval;
use tracing::{info, warn};
use utoipa::ToSchema;

use super::Doors;
use super::problem::Problem;
use super::routes::AppState;
use crate::hub::NotReady;
use crate::metrics::{Ledger, SET_ASIDE_REASONS};

type Finding = Result<(), Arc<NotReady>>;

/// What the last probe found. Clones share it.
#[derive(Clone, Debug)]
pub struct Readiness {
    found: watch::Sender<Option<Finding>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { found: watch::Sender::new(None) }
    }
}

impl Readiness {
    fn get(&self) -> Option<Finding> {
        self.found.borrow().clone()
    }
}

/// Probes store and relay until the shutdown begins, so that asking for readiness costs nothing and cannot hang.
pub(super) async fn probe_always(doors: Doors) {
    let mut ticks = interval(doors.config.probe_interval);
    loop {
        tokio::select! {
            biased; // a stop goes before another probe
            _ = doors.shutdown.begun() => return,
            _ = ticks.tick() => probe_once(&doors).await,
        }
    }
}

async fn probe_once(doors: &Doors) {
    let found = doors.hub.probe().await.map_err(Arc::new);
    let before = doors.readiness.get();
    match (&found, before) {
        (Err(error), None | Some(Ok(()))) => warn!(%error, "not ready"),
        (Ok(()), None | Some(Err(_))) => info!("ready"),
        _ => {}
    }
    doors.readiness.found.send_replace(Some(found));
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "operations",
    responses((status = 200, description = "The process lives", body = String)))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// The server should get traffic: a probe has gone through the store and the relay and back.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses(
        (status = 200, description = "The last probe came back", body = String),
        (status = 503, description = "It did not (`store_unavailable`, `relay_unavailable`, `not_probed`), or the \
            store takes probes and no comments (`store_blocked`, `store_stalled`), or the server is about to stop \
            (`going_away`)", body = crate::wire::ErrorView<'_>),
    ))]
pub(super) async fn readyz(State(state): State<AppState>) -> Result<&'static str, Problem> {
    if state.doors.shutdown.is_announced() || !state.doors.hub.is_open() {
        return Err(Problem::going_away());
    }
    match state.doors.readiness.get() {
        Some(Ok(())) => Ok("ready\n"),
        Some(Err(error)) => Err(Problem::from(&*error)),
        None => Err(Problem::from(&NotReady::NotProbed)),
    }
}

/// Where every accepted comment is. accepted + recovered = stored + setAside + inQueue + inOutbox, at every moment.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerView {
    /// Comments accepted since the start.
    accepted: u64,
    /// Comments that an earlier life of the server accepted and left on the disk, found at the start.
    recovered: u64,
    /// Comments the store has acknowledged.
    stored: u64,
    /// Comments the store refused for good, by reason.
    set_aside: BTreeMap<&'static str, u64>,
    /// Comments in memory whose fate is open: in the write queue or in a bulk on its way.
    in_queue: u64,
    /// Comments on the local disk until the store is back.
    in_outbox: u64,
}

impl From<Ledger> for LedgerView {
    fn from(ledger: Ledger) -> Self {
        let Ledger { accepted, recovered, stored, outbox: in_outbox, set_aside } = ledger;
        let set_aside = SET_ASIDE_REASONS.into_iter().zip(set_aside).collect();
        Self { accepted, recovered, stored, set_aside, in_queue: ledger.unsettled(), in_outbox }
    }
}

/// Where every accepted comment is.
#[utoipa::path(get, path = "/api/ledger", tag = "operations",
    responses((status = 200, description = "All places, read at one moment", body = LedgerView)))]
pub(super) async fn ledger(State(state): State<AppState>) -> Json<LedgerView> {
    Json(state.doors.hub.ledger().into())
}

/// The metrics, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "OpenMetrics 1.0 text", body = String)))]
pub(super) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], state.doors.hub.metrics())
}
