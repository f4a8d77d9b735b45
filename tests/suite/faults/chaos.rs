//! Everything at once, in a random order and at random times.

use std::time::Duration;

use bson::doc;
use fastrand::Rng;
use tokio::time::{Instant, sleep};

use super::super::support::mongod::ReplicaSet;
use super::super::support::server::Server;
use super::super::support::storm::{Promised, Storm};
use super::{Force, Told, each_once, settled, start};

const DISK: &str = "durability = \"disk\"";

/// How a node of MongoDB is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Well,
    Frozen,
    Killed,
}

/// A server with a storm on it, and what earlier lives of it promised.
struct Life {
    folder: tempfile::TempDir,
    uri: String,
    number: u32,
    promised: Promised,
    running: Option<(Server, Storm)>,
}

impl Life {
    async fn begin(&mut self, force: Force) {
        let server = start(self.folder.path(), &self.uri, DISK);
        self.number += 1;
        let storm = Storm::begin(server.address, &format!("life{}", self.number), force.per_sec).await;
        self.running = Some((server, storm));
    }

    /// Ends the server with a signal, and hears what its senders were promised.
    async fn end(&mut self, signal: &str) {
        let Some((server, storm)) = self.running.take() else { return };
        server.signal(signal);
        let end = server.end().await;
        assert!(signal == "KILL" || end.code == Some(0), "{end:?}");
        self.promised.add(storm.end().await.0);
    }
}

/// Nodes of MongoDB are killed and frozen, its primary steps down, the server is stopped and killed; in the end all that was
/// acknowledged is in MongoDB, once.
pub async fn all_at_once(force: Force) -> Told {
    let mut random = Rng::new();
    let (seed, mut set) = (random.get_seed(), ReplicaSet::start_of_equals(3).await);
    println!("all at once: seed {seed}");
    let mut life = Life {
        folder: tempfile::tempdir().expect("a folder"),
        uri: set.uri(None),
        number: 0,
        promised: Promised::default(),
        running: None,
    };
    life.begin(force).await;
    let (mut nodes, mut faults, over) = ([Node::Well; 3], 0, Instant::now() + force.lasts * 3);
    while Instant::now() < over {
        sleep(force.lasts.mul_f64(random.f64() / 4.0)).await;
        faults += 1;
        match random.u32(0..8) {
            0..5 => change(&mut set, &mut nodes, &mut random).await,
            5 => heal(&mut set, &mut nodes).await,
            _ => {
                life.end(if random.bool() { "TERM" } else { "KILL" }).await;
                life.begin(force).await;
            }
        }
    }
    heal(&mut set, &mut nodes).await;
    let (server, storm) = life.running.take().expect("it runs");
    life.promised.add(storm.end().await.0);
    settled(&server).await;
    let end = server.stop().await;
    assert_eq!((end.code, end.ledger().not_stored), (Some(0), 0), "{end:?}");
    each_once(&set.texts().await, life.promised.acknowledged());
    let acknowledged = life.promised.acknowledged().count() as u64;
    Told(vec![("acknowledged", acknowledged), ("faults", faults), ("lives of the server", life.number.into())])
}

/// Does something to one node, whatever state the others are in.
async fn change(set: &mut ReplicaSet, nodes: &mut [Node; 3], random: &mut Rng) {
    let node = random.usize(0..nodes.len());
    nodes[node] = match (nodes[node], random.u32(0..3)) {
        (Node::Well, 0) => {
            set.freeze(node);
            Node::Frozen
        }
        (Node::Well, 1) => {
            set.kill(node);
            Node::Killed
        }
        (Node::Well, _) => {
            let step_down = doc! { "replSetStepDown": 5, "force": true };
            // One that is no primary refuses.
            let _asked = tokio::time::timeout(Duration::from_secs(1), set.command(node, step_down)).await;
            Node::Well
        }
        (Node::Frozen, _) => {
            set.thaw(node);
            Node::Well
        }
        (Node::Killed, _) => {
            set.restart(node).await;
            Node::Well
        }
    };
}

async fn heal(set: &mut ReplicaSet, nodes: &mut [Node; 3]) {
    for (number, node) in nodes.iter_mut().enumerate() {
        match std::mem::replace(node, Node::Well) {
            Node::Well => {}
            Node::Frozen => set.thaw(number),
            Node::Killed => set.restart(number).await,
        }
    }
}
