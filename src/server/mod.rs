//! The doors: one port for HTTP and WebSockets.
//!
//! [`run`] takes connections until the shutdown begins. HTTP goes through axum; a request to `/ws/{room}` is upgraded by
//! hand, so that the room can write to the TCP socket itself, and becomes a session.

mod access;
mod descriptors;
mod gate;
mod history;
mod http_socket;
mod inbound;
mod listener;
mod ops;
mod page;
mod post;
mod problem;
mod pulse;
mod query;
mod refuser;
mod room;
mod routes;
mod session;
mod upgrade;
mod wheel;

use std::sync::Arc;
use std::time::Duration;

pub use descriptors::raise_limit;
pub use gate::GateConfig;
pub use listener::{bind, run};
pub use ops::Readiness;
pub use problem::CODES;
pub use routes::openapi;
pub use wheel::Wheel;

use tokio::time::Instant;

use crate::auth::Authenticator;
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// How connections are treated.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// How long a client may take to send the head of a request, and a whole request; how long its connection may be idle
    /// before the next; and how long it may take nothing of an answer.
    pub request_timeout: Duration,
    /// Most bytes in a message from a client.
    pub max_message: usize,
    /// Most frames that a client may cut a message into.
    pub max_fragments: u32,
    /// Most frames a second from a client, on average over ten seconds; more of them end the connection.
    pub max_frames_per_sec: u32,
    /// How long nothing may come from a client before it is sent a ping.
    pub ping_interval: Duration,
    /// How long it may take to answer.
    pub ping_timeout: Duration,
    /// How long a viewer's socket may take nothing.
    pub stall_limit: Duration,
    /// How many connections there may be.
    pub gate: GateConfig,
    /// The window over which connections are closed when the server stops.
    pub close_spread: Duration,
    /// When clients should come back after that, at the earliest; they are spread over as much again.
    pub reconnect_after: Duration,
    /// How often readiness is probed.
    pub probe_interval: Duration,
}

/// What every door has at hand. Clones share it.
#[derive(Clone)]
pub struct Doors {
    /// What the server can do.
    pub hub: Hub,
    /// Checks tokens.
    pub auth: Authenticator,
    /// How connections are treated.
    pub config: Arc<ServerConfig>,
    /// Tells when to stop.
    pub shutdown: Shutdown,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Notices peers that are gone.
    pub wheel: Wheel,
    /// What the last probe found.
    pub readiness: Readiness,
}

impl Doors {
    /// Counts a draft that was refused, by whichever door it came.
    fn count_refused(&self, code: &'static str) {
        self.metrics.refused.get_or_create(&[("code", code)]).inc();
    }
}

/// How long before the shutdown's deadline connections that are still open are cut, so that it can be kept.
const CUT_BEFORE: Duration = Duration::from_millis(250);

/// When connections that are still open are cut, for a shutdown with this deadline.
fn cut_at(deadline: Instant) -> Instant {
    deadline.checked_sub(CUT_BEFORE).unwrap_or(deadline)
}
