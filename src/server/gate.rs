//! How many connections there may be: in all, from one address, and with their handshake still to come.
//!
//! A connection over a bound is answered 503 at once, with when to come back, and costs no task. What a storm cannot do
//! is keep others out for long: whoever has not finished its request within the request timeout loses its place.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// That are no WebSocket yet.
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

    /// A whole answer, ready to send: there is no task to make one.
    pub(super) fn answer(self) -> String {
        let body = match self {
            Self::Connections => r#""message":"too many connections are open","retryAfterMs":5000"#,
            Self::Address => r#""message":"too many connections are open from this address","retryAfterMs":5000"#,
            Self::Handshakes => r#""message":"too many connections are being opened","retryAfterMs":1000"#,
        };
        let body = format!("{{\"code\":\"{}\",{body}}}", self.code());
        let wait = if self == Self::Handshakes { 1 } else { 5 };
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
    address: IpAddr,
    _connection: OwnedSemaphorePermit,
    handshake: Mutex<Option<OwnedSemaphorePermit>>,
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
    pub(super) fn enter(&self, address: IpAddr) -> Result<Place, Full> {
        let inner = &*self.inner;
        let connection = Arc::clone(&inner.connections).try_acquire_owned().map_err(|_| Full::Connections)?;
        let handshake = Arc::clone(&inner.handshakes).try_acquire_owned().map_err(|_| Full::Handshakes)?;
        let mut count = inner.by_address.entry(address).or_insert(0);
        if inner.max_per_address > 0 && *count >= inner.max_per_address {
            return Err(Full::Address);
        }
        *count += 1;
        drop(count);
        inner.metrics.connections_accepted.inc();
        let handshake = Mutex::new(Some(handshake));
        Ok(Place { gate: self.clone(), address, _connection: connection, handshake })
    }
}

impl Place {
    /// The handshake is over: another connection may begin its own.
    pub(super) fn settle(&self) {
        drop(self.handshake.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let inner = &*self.gate.inner;
        if let Entry::Occupied(mut count) = inner.by_address.entry(self.address) {
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

    fn address(n: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, n])
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
