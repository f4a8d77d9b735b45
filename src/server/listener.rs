//! Takes connections, and gives each to a task that speaks HTTP with it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::session::GONE;
use super::{Doors, cut_at, ops, problem, routes};
use crate::model::Refusal;
use crate::wire::CloseReason;

/// Most bytes in the head of a request: the least that hyper's `http1::Builder::max_buf_size` takes, it panics below.
const MAX_HEAD: usize = 8192;

/// The answer to a connection too many.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n\
    Content-Type: application/json\r\nContent-Length: 93\r\n\r\n\
    {\"code\":\"too_many_connections\",\"message\":\"too many connections are open\",\"retryAfterMs\":5000}";

/// Takes connections from `listener` until the shutdown begins, then waits until the last of them has ended.
pub async fn run(listener: TcpListener, doors: Doors) {
    for word in CloseReason::ALL.map(CloseReason::word).into_iter().chain([GONE]) {
        drop(doors.metrics.sessions_ended.get_or_create(&[("code", word)]));
    }
    for code in problem::OF_DRAFTS.into_iter().chain(Refusal::CODES) {
        drop(doors.metrics.refused.get_or_create(&[("code", code)]));
    }
    let tasks = TaskTracker::new();
    tasks.spawn(ops::probe_always(doors.clone()));
    tasks.spawn(doors.wheel.clone().turn(doors.shutdown.clone()));
    let places = Arc::new(Semaphore::new(doors.config.max_connections));
    let router = routes::router(doors.clone(), tasks.clone());
    loop {
        tokio::select! {
            biased; // a stop goes before new work
            _ = doors.shutdown.begun() => break,
            taken = listener.accept() => match taken {
                Ok((stream, address)) => take(&doors, &router, &tasks, &places, stream, address),
                Err(error) => pause_after(&error).await,
            },
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

fn take(
    doors: &Doors,
    router: &Router,
    tasks: &TaskTracker,
    places: &Arc<Semaphore>,
    stream: TcpStream,
    address: SocketAddr,
) {
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        doors.metrics.connections_refused.inc();
        let _best_effort = stream.try_write(FULL);
        return;
    };
    doors.metrics.connections_accepted.inc();
    tasks.spawn(serve(doors.clone(), router.clone(), stream, place, address));
}

/// Out of file descriptors, taking on would fail again at once: the client waits in the backlog meanwhile.
async fn pause_after(error: &io::Error) {
    let is_the_clients = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    );
    if !is_the_clients {
        warn!(%error, "cannot take on a connection");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Speaks HTTP until the connection ends or is upgraded; a session goes on in a task of its own and keeps the place.
async fn serve(doors: Doors, router: Router, stream: TcpStream, place: OwnedSemaphorePermit, address: SocketAddr) {
    let place = Arc::new(Place { _permit: place, doors: doors.clone() });
    let service = TowerToHyperService::new(router.layer(axum::Extension(Arc::clone(&place))));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(doors.config.request_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = &mut connection => outcome,
        deadline = doors.shutdown.begun() => {
            connection.as_mut().graceful_shutdown();
            // A request that is never finished must not hold up the end.
            match timeout_at(cut_at(deadline), connection).await {
                Ok(outcome) => outcome,
                Err(_) => return debug!(%address, "connection cut at the end"),
            }
        }
    };
    if let Err(error) = outcome {
        debug!(%error, %address, "connection ended");
    }
}

/// A connection's place among those the server takes; freed when the connection or its session has ended.
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    doors: Doors,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.doors.metrics.connections_closed.inc();
    }
}
