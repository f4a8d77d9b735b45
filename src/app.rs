//! The wiring: builds every room of the house from the configuration, runs it, and takes it down in order.

use std::future::ready;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, error, info, warn};

use crate::admission::Admission;
use crate::auth::Authenticator;
use crate::clock::Clock;
use crate::config::{Config, StoreConfig};
use crate::hub::{Census, Housekeeper, Hub, HubParts};
use crate::metrics::{Ledger, Metrics};
use crate::relay::{self, Heard, Loopback, RedisRelay, Relay};
use crate::server::{self, Doors, Readiness, Wheel};
use crate::shutdown::Shutdown;
use crate::store::{
    self, CommentStore, EmbeddedStore, IndexChange, MongoConfig, MongoStore, StoreError, WritePath, WritePathConfig,
};
use crate::wire;

/// How often rooms are looked after.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// How often rooms' viewers are counted, and told of it.
const COUNTING: Duration = Duration::from_secs(5);

/// How long a start waits for MongoDB when it need not: one that is there is prepared by then, and one that refuses for good
/// is told at once.
const HEAD_START: Duration = Duration::from_secs(1);

/// How long after a failed attempt a MongoDB that was away at the start is prepared again.
const PREPARE_AGAIN: Duration = Duration::from_secs(1);

/// A server that takes connections.
pub struct App {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether this start made the secret that tokens are signed with, so that nobody has a token yet.
    pub has_new_secret: bool,
    hub: Hub,
    shutdown: Shutdown,
    grace: Duration,
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

impl Farewell {
    /// For a stop that came before anything was accepted: what was found on the disk is still there.
    #[must_use]
    pub fn before_serving(metrics: &Metrics) -> Self {
        Self { ledger: metrics.account.read(), is_journaled: true, has_closed_all: true }
    }
}

impl App {
    /// Opens the store, joins other nodes, listens, and serves.
    ///
    /// # Errors
    /// When the data folder, the store, the relay or the address cannot be had; nothing is left running.
    pub async fn start(config: Config, clock: Clock, shutdown: Shutdown, metrics: Arc<Metrics>) -> Result<Self> {
        store::make_folder(&config.data_dir)
            .with_context(|| format!("cannot make the data folder {}", config.data_dir.display()))?;
        let (auth, has_new_secret) =
            Authenticator::open(config.auth, clock.clone()).await.context("cannot check tokens")?;
        let listener = server::bind(config.listen).with_context(|| format!("cannot listen on {}", config.listen))?;
        let (kind, part) = (config.store.kind(), config.store.part());
        // A folder with an outbox has been used with MongoDB: the address is not a slip of the first day.
        let has_served = config.outbox.as_ref().is_some_and(|outbox| outbox.dir.exists());
        let store = open_store(config.store, &clock, has_served).await?;
        let (relay, heard) = open_relay(config.redis, &metrics).await?;
        let write_path = WritePath::begin(
            WritePathConfig {
                queue: config.queue,
                flusher: config.flusher,
                outbox: config.outbox,
                journal: config.journal,
                data_dir: config.data_dir,
                store: kind,
                part,
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
        tokio::spawn(Housekeeper::new(hub.clone(), HOUSEKEEPING).run(shutdown.clone()));
        tokio::spawn(Census::new(hub.clone(), COUNTING, wire::online).run(shutdown.clone()));
        let address = listener.local_addr()?;
        tokio::spawn(auth.clone().run(shutdown.clone()));
        let doors = Doors {
            hub: hub.clone(),
            auth,
            wheel: Wheel::new(config.server.ping_interval, config.server.ping_timeout),
            config: Arc::new(config.server),
            shutdown: shutdown.clone(),
            metrics,
            readiness: Readiness::default(),
        };
        let server = tokio::spawn(server::run(listener, doors));
        Ok(Self {
            address,
            has_new_secret,
            hub,
            shutdown,
            grace: config.shutdown_grace,
            store,
            relay,
            write_path,
            server,
        })
    }

    /// The account of all accepted comments.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.hub.ledger()
    }

    /// Waits for the shutdown to be announced, serves on for the time of grace, then takes everything down within the
    /// deadline: intake off, what is queued into the store, sockets told and closed over their window, and what other
    /// nodes have yet to hear to them.
    pub async fn drain(mut self) -> Farewell {
        let deadline = self.shutdown.announced().await;
        if !self.grace.is_zero() {
            info!(grace = ?self.grace, "about to stop: not ready any more, and serving on until then");
        }
        tokio::select! {
            biased; // who begins a stop without announcing it has no time of grace
            _ = self.shutdown.begun() => {}
            () = sleep(self.grace) => {}
        }
        info!("stopping: no more comments are taken, what is queued goes to the store");
        self.hub.close_intake().await;
        self.shutdown.begin(deadline.saturating_duration_since(Instant::now()));
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
        let close_relay = async {
            self.hub.shown().await;
            self.relay.close().await;
        };
        let goodbyes = async { tokio::join!(close_relay, close_store) };
        if timeout_at(deadline, goodbyes).await.is_err() {
            info!("the deadline came before the last connections were closed in order");
        }
        farewell
    }
}

async fn open_store(config: StoreConfig, clock: &Clock, has_served: bool) -> Result<Arc<dyn CommentStore>> {
    match config {
        StoreConfig::Mongo(config) => Ok(Arc::new(open_mongo(config, clock, has_served).await?)),
        StoreConfig::Embedded(config) => {
            let (dir, bucket) = (config.dir.display().to_string(), config.bucket);
            let store = EmbeddedStore::open(config, clock.clone()).context("cannot use the embedded store")?;
            store.spawn_retention(bucket);
            info!(dir, "comments are kept in the embedded store");
            Ok(Arc::new(store))
        }
    }
}

/// Opens MongoDB. If the data folder `has_served` before, one that is away is waited for beside the serving.
async fn open_mongo(config: MongoConfig, clock: &Clock, has_served: bool) -> Result<MongoStore> {
    let shown = config.shown_uri();
    // Without its sources, which repeat it with all that the driver knows.
    let failed = |error: StoreError| anyhow!("cannot use MongoDB at {shown}: {error}");
    let store = MongoStore::new(config, clock.clone()).map_err(failed)?;
    let mut preparing = Box::pin({
        let store = store.clone();
        async move { store.prepare().await }
    });
    let patience = if has_served { HEAD_START } else { Duration::MAX };
    match timeout(patience, &mut preparing).await {
        Ok(Ok(changes)) => tell_prepared(&changes),
        Ok(Err(error)) if has_served && error.is_transient() => {
            warn!(%error, "MongoDB is away; comments wait in the outbox until it is back");
            tokio::spawn(prepare_later(store.clone(), ready(Err(error))));
        }
        Ok(Err(error)) => return Err(failed(error)),
        Err(_) => {
            warn!("MongoDB is not ready yet; comments wait in the outbox until it is");
            tokio::spawn(prepare_later(store.clone(), preparing));
        }
    }
    Ok(store)
}

fn tell_prepared(changes: &[IndexChange]) {
    for change in changes {
        info!(%change, "index");
    }
    info!("comments are kept in MongoDB");
}

/// Prepares a MongoDB that was away at the start, once it is there. The first attempt was begun then.
async fn prepare_later(store: MongoStore, first: impl Future<Output = Result<Vec<IndexChange>, StoreError>>) {
    let mut prepared = first.await;
    loop {
        match prepared {
            Ok(changes) => return tell_prepared(&changes),
            Err(error) if error.is_transient() => debug!(%error, "MongoDB is still away"),
            Err(error) => error!(%error, "MongoDB cannot be used until somebody acts"),
        }
        sleep(PREPARE_AGAIN).await;
        prepared = store.prepare().await;
    }
}

type Opened = (Arc<dyn Relay>, Option<mpsc::Receiver<Heard>>);

async fn open_relay(config: Option<crate::relay::RedisConfig>, metrics: &Arc<Metrics>) -> Result<Opened> {
    relay::declare(metrics);
    let Some(config) = config else { return Ok((Arc::new(Loopback), None)) };
    let (relay, heard) = RedisRelay::connect(config, Arc::clone(metrics)).await.context("cannot use Redis")?;
    info!("comments go to other nodes and come from them through Redis, while that serves");
    Ok((Arc::new(relay), Some(heard)))
}

/// Brings what other nodes accepted to the hub, until the relay is gone. One message that nobody foresaw must not end that
/// in silence, while probes still come back.
async fn pump(mut received: mpsc::Receiver<Heard>, hub: Hub) {
    while let Some(heard) = received.recv().await {
        if catch_unwind(AssertUnwindSafe(|| hub.hear(heard))).is_err() {
            error!("what was heard from another node could not be taken; this is a fault in the server");
        }
    }
}
