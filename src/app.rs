//! The wiring: builds every room of the house from the configuration, runs it, and takes it down in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;
use tracing::{info, warn};

use crate::admission::Admission;
use crate::clock::Clock;
use crate::config::{Config, StoreConfig};
use crate::hub::{Housekeeper, Hub, HubParts};
use crate::metrics::{Ledger, Metrics};
use crate::relay::{self, Heard, Loopback, RedisRelay, Relay};
use crate::server::{self, Doors, Readiness, Wheel};
use crate::shutdown::Shutdown;
use crate::store::{CommentStore, EmbeddedStore, MongoStore, StoreError, WritePath, WritePathConfig};
use crate::wire;

/// How often rooms are looked after.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// A server that takes connections.
pub struct App {
    /// Where it listens.
    pub address: SocketAddr,
    hub: Hub,
    shutdown: Shutdown,
    store: Arc<dyn CommentStore>,
    relay: Arc<dyn Relay>,
    write_path: WritePath,
    server: JoinHandle<()>,
}

/// What was left when the server stopped.
#[derive(Clone, Copy, Debug)]
pub struct Farewell {
    /// The account of all accepted comments.
    pub ledger: Ledger,
    /// Whether what is neither stored nor in the outbox is on the disk all the same, in the journal.
    pub is_journaled: bool,
    /// Whether every socket was closed in time.
    pub has_closed_all: bool,
}

impl App {
    /// Opens the store, joins other nodes, listens, and serves.
    ///
    /// # Errors
    /// When the data folder, the store, the relay or the address cannot be had; nothing is left running.
    pub async fn start(config: Config, clock: Clock, shutdown: Shutdown) -> Result<Self> {
        let metrics = Arc::new(Metrics::default());
        std::fs::create_dir_all(&config.data_dir)
            .with_context(|| format!("cannot make the data folder {}", config.data_dir.display()))?;
        let listener = server::bind(config.listen).with_context(|| format!("cannot listen on {}", config.listen))?;
        let kind = config.store.kind();
        let store = open_store(config.store, &clock).await?;
        let (relay, heard) = open_relay(config.redis, &metrics).await?;
        let write_path = WritePath::begin(
            WritePathConfig {
                queue: config.queue,
                flusher: config.flusher,
                outbox: config.outbox,
                journal: config.journal,
                data_dir: config.data_dir,
                store: kind,
            },
            &store,
            &metrics,
        )
        .await?;
        let parts = HubParts {
            admission: Admission::new(config.admission),
            queue: write_path.queue(),
            store: Arc::clone(&store),
            relay: Arc::clone(&relay),
            clock,
            metrics: Arc::clone(&metrics),
        };
        let hub = Hub::new(config.hub, parts);
        if let Some(heard) = heard {
            tokio::spawn(pump(heard, hub.clone()));
        }
        tokio::spawn(Housekeeper::new(hub.clone(), HOUSEKEEPING, wire::online).run(shutdown.clone()));
        let address = listener.local_addr()?;
        let doors = Doors {
            hub: hub.clone(),
            wheel: Wheel::new(config.server.ping_interval, config.server.ping_timeout),
            config: Arc::new(config.server),
            shutdown: shutdown.clone(),
            metrics,
            readiness: Readiness::default(),
        };
        let server = tokio::spawn(server::run(listener, doors));
        Ok(Self { address, hub, shutdown, store, relay, write_path, server })
    }

    /// The account of all accepted comments.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.hub.ledger()
    }

    /// A handle that reads the account while [`App::drain`] runs.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.hub.clone()
    }

    /// Waits for the shutdown to begin, then takes everything down within its deadline: intake off, what is queued into
    /// the store, sockets told and closed over their window.
    pub async fn drain(mut self) -> Farewell {
        let deadline = self.shutdown.begun().await;
        info!("stopping: no more comments are taken, what is queued goes to the store");
        self.hub.close_intake().await;
        let (is_flushed, closed) =
            tokio::join!(self.write_path.drain(deadline), timeout_at(deadline, &mut self.server));
        if !is_flushed {
            warn!(not_stored = self.ledger().unsettled(), "the store did not take everything before the deadline");
        }
        if closed.is_err() {
            self.server.abort();
            warn!("some sockets were still open at the deadline");
        }
        let farewell = Farewell {
            ledger: self.ledger(),
            is_journaled: self.write_path.has_all_on_disk(),
            has_closed_all: closed.is_ok(),
        };
        // Whether they are told goodbye changes no comment's fate, so a Redis or MongoDB that hangs is just left.
        let close_store = async {
            if is_flushed {
                self.store.close().await;
            }
        };
        let goodbyes = async { tokio::join!(self.relay.close(), close_store) };
        if timeout_at(deadline, goodbyes).await.is_err() {
            info!("the deadline came before the last connections were closed in order");
        }
        farewell
    }
}

async fn open_store(config: StoreConfig, clock: &Clock) -> Result<Arc<dyn CommentStore>> {
    match config {
        StoreConfig::Mongo(config) => {
            let shown = config.shown_uri();
            // Without its sources, which repeat it with all that the driver knows.
            let failed = |error: StoreError| anyhow!("cannot use MongoDB at {shown}: {error}");
            let (store, changes) = MongoStore::connect(config, clock.clone()).await.map_err(failed)?;
            for change in changes {
                info!(%change, "index");
            }
            info!("comments are kept in MongoDB");
            Ok(Arc::new(store))
        }
        StoreConfig::Embedded(config) => {
            let (dir, bucket) = (config.dir.display().to_string(), config.bucket);
            let store = EmbeddedStore::open(config, clock.clone()).context("cannot use the embedded store")?;
            store.spawn_retention(bucket);
            info!(dir, "comments are kept in the embedded store");
            Ok(Arc::new(store))
        }
    }
}

type Opened = (Arc<dyn Relay>, Option<mpsc::Receiver<Heard>>);

async fn open_relay(config: Option<crate::relay::RedisConfig>, metrics: &Arc<Metrics>) -> Result<Opened> {
    relay::declare(metrics);
    let Some(config) = config else { return Ok((Arc::new(Loopback), None)) };
    let (relay, heard) = RedisRelay::connect(config, Arc::clone(metrics)).await.context("cannot use Redis")?;
    info!("joined with other nodes through Redis");
    Ok((Arc::new(relay), Some(heard)))
}

/// Brings what other nodes accepted to the hub, until the relay is gone.
async fn pump(mut received: mpsc::Receiver<Heard>, hub: Hub) {
    while let Some(heard) = received.recv().await {
        hub.hear(heard);
    }
}
