//! Takes connections, and gives each to a task that speaks HTTP with it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::gate::{Full, Gate, Place};
use super::http_socket::HttpSocket;
use super::refuser::Refuser;
use super::session::GONE;
use super::{Doors, cut_at, ops, problem, routes};
use crate::auth::AuthError;
use crate::model::Refusal;
use crate::wire::CloseReason;

/// Most bytes in the head of a request: the least that hyper's `http1::Builder::max_buf_size` takes, it panics below.
const MAX_HEAD: usize = 8192;

/// Connections that may wait to be taken on. The kernel takes the lesser of this and its own bound (net.core.somaxconn, 4,096
/// by default since Linux 5.4); a client beyond it is not heard and tries again a second later.
const BACKLOG: u32 = 4096;

/// Listens at `address`.
///
/// # Errors
/// When the address cannot be had.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Else a restart would have to wait until the connections of the server before it are forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Takes connections from `listener` until the shutdown begins, then waits until the last of them has ended.
pub async fn run(listener: TcpListener, doors: Doors) {
    for word in CloseReason::ALL.map(CloseReason::word).into_iter().chain([GONE]) {
        drop(doors.metrics.sessions_ended.get_or_create(&[("code", word)]));
    }
    for full in Full::ALL {
        drop(doors.metrics.connections_refused.get_or_create(&[("code", full.code())]));
    }
    for code in AuthError::OF_ACCESS {
        drop(doors.metrics.access_refused.get_or_create(&[("code", code)]));
    }
    for code in problem::OF_DRAFTS.into_iter().chain(Refusal::CODES) {
        drop(doors.metrics.refused.get_or_create(&[("code", code)]));
    }
    let tasks = TaskTracker::new();
    tasks.spawn(ops::probe_always(doors.clone()));
    tasks.spawn(doors.wheel.clone().turn(doors.shutdown.clone()));
    let taker = Arc::new(Taker {
        gate: Gate::new(&doors.config.gate, Arc::clone(&doors.metrics)),
        refuser: Refuser::new(tasks.clone(), doors.shutdown.clone()),
        router: routes::router(doors.clone(), tasks.clone()),
        tasks: tasks.clone(),
        doors,
        listener,
    });
    // One for each core: in a storm a single one would be what everybody waits for.
    let acceptors = tokio::runtime::Handle::current().metrics().num_workers();
    let acceptors: JoinSet<()> = (0..acceptors).map(|_| Arc::clone(&taker).accept()).collect();
    drop(taker);
    acceptors.join_all().await;
    tasks.close();
    tasks.wait().await;
}

/// What takes connections on.
struct Taker {
    gate: Gate,
    refuser: Refuser,
    router: Router,
    tasks: TaskTracker,
    doors: Doors,
    listener: TcpListener,
}

impl Taker {
    async fn accept(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased; // a stop goes before new work
                _ = self.doors.shutdown.begun() => return,
                taken = self.listener.accept() => match taken {
                    Ok((stream, address)) => self.take(stream, address),
                    Err(error) => pause_after(&error).await,
                },
            }
        }
    }

    fn take(&self, stream: TcpStream, address: SocketAddr) {
        match self.gate.enter(address) {
            Ok(place) => {
                self.tasks.spawn(serve(self.doors.clone(), self.router.clone(), stream, Arc::new(place)));
            }
            Err(full) => {
                self.gate.count_refused(full);
                self.refuser.refuse(stream, full);
            }
        }
    }
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
async fn serve(doors: Doors, router: Router, stream: TcpStream, place: Arc<Place>) {
    let address = place.address();
    let socket = HttpSocket::new(stream, Arc::clone(&place), doors.config.request_timeout);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&place));
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(doors.config.request_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(socket), service)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn thousands_may_wait_to_be_taken_on() {
        super::super::raise_limit(0);
        let kernels = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let waiting = kernels.trim().parse::<usize>().unwrap().min(1500);
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut clients = Vec::new();
        for number in 0..waiting {
            // One too many is not refused, but has to try again after a second.
            let connect = TcpStream::connect(listener.local_addr().unwrap());
            let connected = tokio::time::timeout(Duration::from_millis(900), connect).await;
            clients.push(connected.unwrap_or_else(|_| panic!("no more than {number} may wait")).unwrap());
        }
    }

    #[tokio::test]
    async fn an_address_is_free_again_at_once() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        // Who closes first keeps the address busy for a while (TIME_WAIT).
        drop(listener.accept().await.unwrap());
        drop(listener);
        drop(client);
        assert_eq!(bind(address).unwrap().local_addr().unwrap(), address);
    }
}
