//! Configuration: what the user typed becomes what is valid, or a refusal that names the place.
//!
//! Three layers, each over the one before: a TOML file, `DANMAKUD_…` environment variables, flags. An unknown key, a bad
//! value or an impossible combination refuses to start and says where it stands, which key it is, and what would be
//! right. Every module gets its own part, never the whole.

mod address;
mod auth;
mod combinations;
mod judge;
mod layers;
mod raw;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

pub use layers::Layers;

use crate::admission::AdmissionConfig;
use crate::auth::AuthConfig;
use crate::auth::rules::Anonymous;
use crate::hub::HubConfig;
use crate::relay::{RedisConfig, Topology};
use crate::server::ServerConfig;
use crate::store::{EmbeddedConfig, FlusherConfig, JournalConfig, MongoConfig, OutboxConfig, WriteConcernLevel};

/// Why a configuration was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{file}: {problem}")]
    File {
        /// Which file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key is unknown or its value is not right.
    #[error("{place}: {key}: {problem}")]
    Key {
        /// The file, variable or flag that has it.
        place: String,
        /// The key, as `section.key`.
        key: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

/// A configuration that is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where local data goes.
    pub data_dir: PathBuf,
    /// Connections.
    pub server: ServerConfig,
    /// Rooms and reading.
    pub hub: HubConfig,
    /// Rules and rates.
    pub admission: AdmissionConfig,
    /// Most comments in the write queue.
    pub queue: usize,
    /// How it is emptied.
    pub flusher: FlusherConfig,
    /// Where comments are kept.
    pub store: StoreConfig,
    /// Where batches go that MongoDB does not take; `None` for nowhere.
    pub outbox: Option<OutboxConfig>,
    /// Where comments are synced before they are acknowledged; `None` for nowhere.
    pub journal: Option<JournalConfig>,
    /// How nodes are joined; a single node without.
    pub redis: Option<RedisConfig>,
    /// How tokens are checked, and what guests may.
    pub auth: AuthConfig,
    /// How long a stop may take.
    pub shutdown_deadline: Duration,
    /// How long of it everything is served as before, while the server says that it is not ready.
    pub shutdown_grace: Duration,
    /// What is logged, and how.
    pub log: LogConfig,
}

/// Where comments are kept.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// In MongoDB, the store of record.
    Mongo(MongoConfig),
    /// In the data folder of this node.
    Embedded(EmbeddedConfig),
}

impl StoreConfig {
    /// Its kind, as a word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mongo(_) => "mongodb",
            Self::Embedded(_) => "embedded",
        }
    }

    /// What of it is used, for people; the embedded store has no parts.
    #[must_use]
    pub fn part(&self) -> Option<String> {
        match self {
            Self::Mongo(MongoConfig { database, collection, .. }) => {
                Some(format!("database {database}, collection {collection}"))
            }
            Self::Embedded(_) => None,
        }
    }
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A filter such as `info` or `danmakud=debug,mongodb=warn`.
    pub filter: String,
    /// One line of text or one JSON object an event.
    pub is_json: bool,
}

impl Config {
    /// Reads the layers and judges what they say together.
    ///
    /// # Errors
    /// [`ConfigError`] for the first thing that is not right.
    pub fn load(layers: &Layers) -> Result<Self, ConfigError> {
        let merged = layers.merge()?;
        judge::judge(&merged)
    }
}

impl fmt::Display for Config {
    /// A few lines for people, without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "listen   {}", self.listen)?;
        writeln!(f, "data     {}", self.data_dir.display())?;
        match &self.store {
            StoreConfig::Mongo(mongo) => show_mongo(mongo, f)?,
            StoreConfig::Embedded(embedded) => writeln!(f, "store    embedded, in {}", embedded.dir.display())?,
        }
        match &self.redis {
            Some(redis) => {
                let servers = address::redis(redis).unwrap_or_else(|_| "no address".to_owned());
                let place = match &redis.topology {
                    Topology::Single => format!("Redis at {servers}"),
                    Topology::Sentinel { service } => format!("Redis, as sentinels at {servers} know {service}"),
                    Topology::Cluster => format!("Redis Cluster at {servers}"),
                };
                writeln!(f, "relay    {place}, channels {}", redis.prefix)?;
            }
            None => writeln!(f, "relay    none, a single node")?,
        }
        if let Some(outbox) = &self.outbox {
            writeln!(f, "outbox   up to {} bytes, in {}", outbox.max_bytes, outbox.dir.display())?;
        }
        if let Some(journal) = &self.journal {
            writeln!(f, "journal  accepted comments are synced to {} first", journal.dir.display())?;
        }
        let guests = match self.auth.policy.anonymous {
            Anonymous::Send => "may watch and send",
            Anonymous::Read => "may watch",
            Anonymous::None => "stay outside",
        };
        writeln!(f, "tokens   keys: {}; guests {guests}", self.auth.source)?;
        writeln!(f, "keeps    each comment for {}", humantime::format_duration(self.hub.retention))?;
        write!(f, "stops    within {}", humantime::format_duration(self.shutdown_deadline))
    }
}

fn show_mongo(mongo: &MongoConfig, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // Read anew, for the URI itself may hold a password; it was read when it was judged.
    let hosts = address::mongodb(&mongo.uri).map_or_else(|_| "no address".to_owned(), |uri| address::hosts(&uri));
    let MongoConfig { database, collection, .. } = mongo;
    writeln!(f, "store    MongoDB at {hosts}, database {database}, collection {collection}")?;
    let who = match mongo.write_concern {
        WriteConcernLevel::Majority => "the majority has",
        WriteConcernLevel::One => "the primary alone has",
    };
    let place = if mongo.journal { " in the journal" } else { "" };
    let within = humantime::format_duration(mongo.write_timeout);
    writeln!(f, "         a comment is stored once {who} it{place}; writes have {within}")
}

#[cfg(test)]
mod tests;
