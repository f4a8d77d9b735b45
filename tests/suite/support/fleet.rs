//! Three nodes over one MongoDB and one Redis, and who walks from one to another.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use super::mongod::ReplicaSet;
use super::redis::{Cable, RedisServer};
use super::server::{NO_LIMITS, Server, Start, until};
use super::viewer::Viewer;

pub const NODES: usize = 3;
pub const ROOM: &str = "r";

const STOP: &str = "[shutdown]\ngrace = \"500ms\"\nclose_spread = \"1s\"\nreconnect_after = \"200ms\"";

/// Where the nodes are now; all who walk from node to node look here.
#[derive(Clone, Default)]
pub struct Addresses(Arc<Mutex<[Option<SocketAddr>; NODES]>>);

impl Addresses {
    fn set(&self, node: usize, address: Option<SocketAddr>) {
        self.0.lock().unwrap()[node] = address;
    }

    /// Goes to the next node that takes the connection, with a query.
    pub async fn next(&self, node: &mut usize, query: &str) -> Viewer {
        loop {
            *node = (*node + 1) % NODES;
            let address = self.0.lock().unwrap()[*node];
            if let Some(address) = address
                && let Ok(viewer) = Viewer::try_join(address, ROOM, query).await
            {
                return viewer;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

pub struct Fleet {
    nodes: Vec<Option<Server>>,
    pub addresses: Addresses,
    mongodb: String,
    /// Redis, as each node reaches it.
    urls: [String; NODES],
    folders: Vec<TempDir>,
    /// What the first node reaches Redis by.
    pub cable: Cable,
    pub redis: RedisServer,
}

impl Fleet {
    /// Starts all of them, with a database of their own.
    pub async fn start(database: &str) -> Self {
        let redis = RedisServer::start().await;
        let mongodb = ReplicaSet::shared().await.uri(None).replace("/?", &format!("/{database}?"));
        let (behind, cable) = redis.behind_cable().await;
        let urls = [behind, redis.url(), redis.url()];
        let folders = (0..NODES).map(|_| tempfile::tempdir().unwrap()).collect();
        let nodes = (0..NODES).map(|_| None).collect();
        let mut fleet = Self { nodes, addresses: Addresses::default(), mongodb, urls, folders, cable, redis };
        for node in 0..NODES {
            fleet.begin(node).await;
        }
        fleet
    }

    /// A node that runs.
    pub fn node(&self, node: usize) -> &Server {
        self.nodes[node].as_ref().unwrap()
    }

    /// Starts a node, and waits until it is ready.
    pub async fn begin(&mut self, node: usize) {
        let flags = ["--mongodb", &self.mongodb, "--redis", &self.urls[node]];
        let start = Start::in_folder(self.folders[node].path()).config(NO_LIMITS).config(STOP).args(&flags);
        // It waits for the server, and what carries the cable must go on meanwhile.
        let server = tokio::task::spawn_blocking(|| start.run()).await.unwrap();
        until("the node is ready", async || server.request("GET", "/readyz", "").await.0 == 200).await;
        self.addresses.set(node, Some(server.address));
        self.nodes[node] = Some(server);
    }

    /// Stops a node as a rolling restart does, and starts it anew.
    pub async fn restart(&mut self, node: usize) {
        let end = self.nodes[node].take().unwrap().stop().await;
        assert_eq!((end.code, end.ledger().not_stored), (Some(0), 0), "{end:?}");
        self.begin(node).await;
    }

    /// Kills a node as `kill -9` does.
    pub fn kill(&mut self, node: usize) {
        self.addresses.set(node, None);
        drop(self.nodes[node].take());
    }
}
