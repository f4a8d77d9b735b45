//! How many connections there may be: in all, from one address, and in a handshake or another request.
//!
//! A connection over a bound is answered 503 at once, with when to come back, and costs no task. A place for a request is
//! held from the connection's beginning, or the head of a later request, until the answer is written, or the client does
//! not take it at once; a WebSocket holds none, nor does a connection that waits for its next request. What a storm cannot
//! do is keep others out for long: to bring a request and to have it handled may take the request timeout each.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub struct GateConfig {
    /// In all.
    pub max_connections: usize,
    /// From one address; 0 for no bound, as behind a proxy, where all come from one.
    pub max_per_address: usize,
    /// That are in a handshake or another request.
    pub max_handshakes: usize,
}

/// Which bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    Connections,
    Address,
    Handshakes,
}

impl Full {
    pub(super) const ALL: [Self; 3] = [Self::Connections, Self::Address, Self::Handshakes];

    /// The stable code.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Connections => "too_many_connections",
            Self::Address => "too_many_from_address",
            Self::Handshakes => "too_many_handshakes",
        }
    }

    /// The sentence for people.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Connections => "too many connections are open",
            Self::Address => "too many connections are open from this address",
            Self::Handshakes => "too many handshakes and requests are under way",
        }
    }

    /// When to come back, in seconds.
    pub(super) fn retry_after_secs(self) -> u64 {
        match self {
            Self::Connections | Self::Address => 5,
            Self::Handshakes => 1,
        }
    }

    /// A whole answer, ready to send: there is no task to make one.
    pub(super) fn answer(self) -> String {
        let (code, message, wait) = (self.code(), self.message(), self.retry_after_secs());
        let body = format!("{{\"code\":\"{code}\",\"message\":\"{message}\",\"retryAfterMs\":{wait}000}}");
        format!(
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: {wait}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Counts the connections. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connections: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    by_address: DashMap<IpAddr, usize>,
    max_per_address: usize,
    metrics: Arc<Metrics>,
}

/// A connection's place among those the server takes; freed when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    gate: Gate,
    address: SocketAddr,
    _connection: OwnedSemaphorePermit,
    request: Mutex<Request>,
}

/// The request that a connection is in.
#[derive(Debug)]
struct Request {
    /// Its place among those; `None` between two requests.
    place: Option<OwnedSemaphorePermit>,
    /// There is an answer, so that the place is free once that is written.
    is_answered: bool,
}

impl Gate {
    pub(super) fn new(config: &GateConfig, metrics: Arc<Metrics>) -> Self {
        let semaphore = |places: usize| Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
        Self {
            inner: Arc::new(Inner {
                connections: semaphore(config.max_connections),
                handshakes: semaphore(config.max_handshakes),
                by_address: DashMap::new(),
                max_per_address: config.max_per_address,
                metrics,
            }),
        }
    }

    /// Gives a connection from `address` its place, if there is one.
    pub(super) fn enter(&self, address: SocketAddr) -> Result<Place, Full> {
        let inner = &*self.inner;
        let connection = Arc::clone(&inner.connections).try_acquire_owned().map_err(|_| Full::Connections)?;
        let place = Some(self.handshake()?);
        let mut count = inner.by_address.entry(address.ip()).or_insert(0);
        if inner.max_per_address > 0 && *count >= inner.max_per_address {
            return Err(Full::Address);
        }
        *count += 1;
        drop(count);
        inner.metrics.connections_accepted.inc();
        let request = Mutex::new(Request { place, is_answered: false });
        Ok(Place { gate: self.clone(), address, _connection: connection, request })
    }

    /// Counts a connection, or a request on one, for which there is no place.
    pub(super) fn count_refused(&self, full: Full) {
        self.inner.metrics.connections_refused.get_or_create(&[("code", full.code())]).inc();
    }

    fn handshake(&self) -> Result<OwnedSemaphorePermit, Full> {
        Arc::clone(&self.inner.handshakes).try_acquire_owned().map_err(|_| Full::Handshakes)
    }
}

impl Place {
    /// Where the connection comes from.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A request has come. The first has its place since the connection began; a later one needs another.
    pub(super) fn begin_request(&self) -> Result<(), Full> {
        let mut request = self.request();
        if request.place.is_none() {
            request.place = Some(self.gate.handshake().inspect_err(|full| self.gate.count_refused(*full))?);
        }
        request.is_answered = false;
        Ok(())
    }

    /// There is an answer to the request; its place is free once that is [written](Self::written).
    pub(super) fn answered(&self) {
        self.request().is_answered = true;
    }

    /// All that there was to write is written: another connection may have the place, unless the request is still handled.
    pub(super) fn written(&self) {
        let mut request = self.request();
        if request.is_answered {
            request.place = None;
        }
    }

    /// The handshake is over, or the client takes its time with an answer: another connection may have the place.
    pub(super) fn settle(&self) {
        self.request().place = None;
    }

    fn request(&self) -> MutexGuard<'_, Request> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let inner = &*self.gate.inner;
        if let Entry::Occupied(mut count) = inner.by_address.entry(self.address.ip()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        inner.metrics.connections_closed.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(max_connections: usize, max_per_address: usize, max_handshakes: usize) -> Gate {
        Gate::new(&GateConfig { max_connections, max_per_address, max_handshakes }, Arc::default())
    }

    fn address(n: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, n], 4000))
    }

    #[test]
    fn each_bound_holds_and_places_are_given_back() {
        let gate = gate(3, 2, 3);
        let first = gate.enter(address(1)).unwrap();
        let second = gate.enter(address(1)).unwrap();
        assert_eq!(gate.enter(address(1)).unwrap_err(), Full::Address);
        let third = gate.enter(address(2)).unwrap();
        assert_eq!(gate.enter(address(3)).unwrap_err(), Full::Connections);
        drop(first);
        let again = gate.enter(address(1)).unwrap();
        drop((second, third, again));
        assert!(gate.inner.by_address.is_empty());
        assert_eq!(gate.inner.metrics.connections_accepted.get(), 4);
        assert_eq!(gate.inner.metrics.connections_closed.get(), 4);
    }

    #[test]
    fn a_handshake_that_is_over_makes_room_for_another() {
        let gate = gate(10, 0, 1);
        let first = gate.enter(address(1)).unwrap();
        assert_eq!(gate.enter(address(1)).unwrap_err(), Full::Handshakes);
        first.settle();
        let second = gate.enter(address(1)).unwrap();
        drop((first, second));
    }

    #[test]
    fn a_place_for_a_request_is_held_until_its_answer_is_written() {
        let gate = gate(10, 0, 1);
        let place = gate.enter(address(1)).unwrap();
        let is_full = || gate.inner.handshakes.available_permits() == 0;
        for _ in 0..2 {
            place.begin_request().unwrap();
            place.written();
            assert!(is_full(), "what is written before the answer is none");
            place.answered();
            assert!(is_full(), "it is not written yet");
            place.written();
            assert!(!is_full());
        }
        // A request that came before the answer to the one before it was written.
        place.begin_request().unwrap();
        place.answered();
        place.begin_request().unwrap();
        place.written();
        assert!(is_full());
        place.answered();
        place.written();
        let other = gate.enter(address(2)).unwrap();
        assert_eq!(place.begin_request(), Err(Full::Handshakes));
        drop(other);
        assert_eq!(place.begin_request(), Ok(()));
    }

    #[test]
    fn the_answer_is_whole() {
        for full in Full::ALL {
            let answer = full.answer();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["code"], full.code());
            assert_eq!(head.contains("Retry-After: 1"), body["retryAfterMs"] == 1000);
        }
    }
}
