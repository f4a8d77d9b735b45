//! The one connection that takes commands, for the publisher and for whoever reads streams.

use redis::RedisError;
use tokio::sync::Mutex;

use super::connection::Connection;
use super::servers::Servers;

/// Opens the connection when it is needed, and anew after it failed.
#[derive(Debug)]
pub(super) struct Commands {
    servers: Servers,
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    /// Rises with each connection, so that one failure does not cost the next connection as well.
    number: u64,
    connection: Option<Connection>,
}

impl Commands {
    pub(super) fn new(servers: Servers) -> Self {
        Self { servers, current: Mutex::default() }
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The connection with its number; waits while it is being opened.
    pub(super) async fn get(&self) -> Result<(u64, Connection), RedisError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok((current.number, connection.clone()));
        }
        let connection = self.servers.open().await?;
        current.number += 1;
        current.connection = Some(connection.clone());
        Ok((current.number, connection))
    }

    /// Lets go of the connection with this number.
    pub(super) async fn discard(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.number == number {
            current.connection = None;
        }
    }
}
