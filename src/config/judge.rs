//! From what was typed to what is valid.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use super::layers::Merged;
use super::{Config, ConfigError, LogConfig, StoreConfig, address, auth, combinations};
use crate::admission::AdmissionConfig;
use crate::hub::HubConfig;
use crate::model::TextLimits;
use crate::relay::{MAX_STREAM, RedisConfig, Topology};
use crate::room::RoomConfig;
use crate::server::{GateConfig, ServerConfig};
use crate::store::{EmbeddedConfig, FlusherConfig, JournalConfig, MongoConfig, OutboxConfig, WriteConcernLevel};

/// Beyond `store.write_patience` the store may take nothing for this long before the server is not ready: a bulk that was
/// too slow has gone to the outbox by then, and from there to the store if that is well.
const STALL: Duration = Duration::from_secs(5);

/// How often the flusher's waits may double.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

pub(super) const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

pub(super) fn judge(merged: &Merged) -> Result<Config, ConfigError> {
    let raw = &merged.raw;
    let listen = raw
        .listen
        .parse()
        .map_err(|_| merged.refuse("listen", format!("{:?} is not an address such as 127.0.0.1:8080", raw.listen)))?;
    if raw.data_dir.is_empty() {
        return Err(merged.refuse("data_dir", "is empty; name a folder"));
    }
    let hub = hub(merged)?;
    let config = Config {
        listen,
        data_dir: raw.data_dir.clone().into(),
        server: server(merged)?,
        admission: admission(merged)?,
        queue: merged.number("store.queue", raw.store.queue, 1, 16_777_216)?,
        flusher: flusher(merged)?,
        outbox: outbox(merged)?,
        journal: journal(merged)?,
        store: store(merged)?,
        redis: redis(merged)?,
        auth: auth::judge(merged)?,
        shutdown_deadline: merged.time("shutdown.deadline", &raw.shutdown.deadline, SECOND, DAY)?,
        shutdown_grace: merged.time("shutdown.grace", &raw.shutdown.grace, Duration::ZERO, DAY)?,
        log: log(merged)?,
        hub,
    };
    combinations::judge(merged, &config)?;
    Ok(config)
}

impl Merged {
    /// A time within bounds.
    pub(super) fn time(&self, key: &str, raw: &str, least: Duration, most: Duration) -> Result<Duration, ConfigError> {
        let parsed = humantime::parse_duration(raw)
            .map_err(|_| self.refuse(key, format!("{raw:?} is not a time such as 100ms, 30s or 1h")))?;
        if (least..=most).contains(&parsed) {
            return Ok(parsed);
        }
        let (least, most) = (humantime::format_duration(least), humantime::format_duration(most));
        Err(self.refuse(key, format!("{raw} is not within {least} to {most}")))
    }

    /// A number within bounds.
    fn number<T: TryFrom<i64>>(&self, key: &str, raw: i64, least: i64, most: i64) -> Result<T, ConfigError> {
        let within = (least..=most).contains(&raw).then_some(raw);
        within
            .and_then(|raw| T::try_from(raw).ok())
            .ok_or_else(|| self.refuse(key, format!("{raw} is not within {least} to {most}")))
    }

    /// A name for databases, collections and channels.
    fn name(&self, key: &str, raw: &str) -> Result<String, ConfigError> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if raw.is_empty() || raw.len() > 60 || !raw.bytes().all(is_allowed) {
            return Err(self.refuse(key, format!("{raw:?} is not 1 to 60 of A-Z, a-z, 0-9, _ and -")));
        }
        Ok(raw.to_owned())
    }
}

fn server(merged: &Merged) -> Result<ServerConfig, ConfigError> {
    let (raw, shutdown) = (&merged.raw.server, &merged.raw.shutdown);
    Ok(ServerConfig {
        request_timeout: merged.time("server.request_timeout", &raw.request_timeout, SECOND, 600 * SECOND)?,
        max_message: merged.number("server.max_message_bytes", raw.max_message_bytes, 1024, 1_048_576)?,
        max_fragments: merged.number("server.max_fragments", raw.max_fragments, 1, 65_536)?,
        max_frames_per_sec: merged.number("server.max_frames_per_sec", raw.max_frames_per_sec, 1, 100_000)?,
        ping_interval: merged.time("server.ping_interval", &raw.ping_interval, SECOND, DAY)?,
        ping_timeout: merged.time("server.ping_timeout", &raw.ping_timeout, MILLISECOND, DAY)?,
        stall_limit: merged.time("server.stall_limit", &raw.stall_limit, MILLISECOND, DAY)?,
        gate: GateConfig {
            max_connections: merged.number("server.max_connections", raw.max_connections, 1, 10_000_000)?,
            max_per_address: merged.number("server.max_per_address", raw.max_per_address, 0, 10_000_000)?,
            max_handshakes: merged.number("server.max_handshakes", raw.max_handshakes, 1, 10_000_000)?,
        },
        close_spread: merged.time("shutdown.close_spread", &shutdown.close_spread, Duration::ZERO, DAY)?,
        reconnect_after: merged.time("shutdown.reconnect_after", &shutdown.reconnect_after, Duration::ZERO, DAY)?,
        probe_interval: merged.time("server.probe_interval", &raw.probe_interval, 100 * MILLISECOND, DAY)?,
    })
}

fn hub(merged: &Merged) -> Result<HubConfig, ConfigError> {
    let (room, store) = (&merged.raw.room, &merged.raw.store);
    Ok(HubConfig {
        room: RoomConfig {
            ring: merged.number("room.ring", room.ring, 1, 1_048_576)?,
            recent: merged.number("room.recent", room.recent, 0, 1000)?,
            max_window: merged.time("room.max_window", &room.max_window, Duration::ZERO, 10 * SECOND)?,
            evict_after: merged.time("room.evict_after", &room.evict_after, Duration::ZERO, DAY)?,
            max_rooms: merged.number("room.max_rooms", room.max_rooms, 1, 100_000_000)?,
        },
        retention: merged.time("store.retention", &store.retention, SECOND, 3650 * DAY)?,
        read_patience: merged.time("store.read_patience", &store.read_patience, MILLISECOND, 60 * SECOND)?,
        write_patience: write_patience(merged)?.saturating_add(STALL),
        retry_after: SECOND,
    })
}

fn admission(merged: &Merged) -> Result<AdmissionConfig, ConfigError> {
    let raw = &merged.raw.limits;
    let burst = merged.number("limits.burst", raw.burst, 1, 100_000)?;
    Ok(AdmissionConfig {
        text: TextLimits {
            max_chars: merged.number("limits.max_chars", raw.max_chars, 1, 10_000)?,
            max_bytes: merged.number("limits.max_text_bytes", raw.max_text_bytes, 1, 262_144)?,
            max_combining: merged.number("limits.max_combining", raw.max_combining, 0, 1000)?,
        },
        min_interval: merged.time("limits.min_interval", &raw.min_interval, Duration::ZERO, DAY)?,
        burst: NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN),
    })
}

fn flusher(merged: &Merged) -> Result<FlusherConfig, ConfigError> {
    let raw = &merged.raw.store;
    Ok(FlusherConfig {
        interval: merged.time("store.flush_interval", &raw.flush_interval, MILLISECOND, 60 * SECOND)?,
        batch: merged.number("store.batch", raw.batch, 1, 100_000)?,
        in_flight: merged.number("store.in_flight", raw.in_flight, 1, 256)?,
        backoff: BACKOFF.0,
        max_backoff: BACKOFF.1,
        patience: write_patience(merged)?,
    })
}

fn write_patience(merged: &Merged) -> Result<Duration, ConfigError> {
    merged.time("store.write_patience", &merged.raw.store.write_patience, 10 * MILLISECOND, 600 * SECOND)
}

fn store(merged: &Merged) -> Result<StoreConfig, ConfigError> {
    let raw = &merged.raw.mongodb;
    if raw.uri.is_empty() {
        let dir = std::path::Path::new(&merged.raw.data_dir).join("store");
        return Ok(StoreConfig::Embedded(EmbeddedConfig { dir, bucket: EmbeddedConfig::DEFAULT_BUCKET }));
    }
    let parsed = address::mongodb(&raw.uri).map_err(|problem| merged.refuse("mongodb.uri", problem))?;
    let write_concern = match raw.write_concern.as_str() {
        "majority" => WriteConcernLevel::Majority,
        "1" => WriteConcernLevel::One,
        other => {
            return Err(merged.refuse("mongodb.write_concern", format!("{other:?} is not \"majority\" or \"1\"")));
        }
    };
    Ok(StoreConfig::Mongo(MongoConfig {
        uri: raw.uri.clone(),
        database: database(merged, parsed.default_database.as_deref())?,
        collection: merged.name("mongodb.collection", &raw.collection)?,
        write_concern,
        journal: raw.journal,
        max_pool_size: merged.number("mongodb.max_pool_size", raw.max_pool_size, 1, 10_000)?,
        min_pool_size: merged.number("mongodb.min_pool_size", raw.min_pool_size, 0, 10_000)?,
        server_selection_timeout: merged.time(
            "mongodb.server_selection_timeout",
            &raw.server_selection_timeout,
            100 * MILLISECOND,
            600 * SECOND,
        )?,
        connect_timeout: merged.time(
            "mongodb.connect_timeout",
            &raw.connect_timeout,
            100 * MILLISECOND,
            600 * SECOND,
        )?,
        write_timeout: merged.time("mongodb.write_timeout", &raw.write_timeout, 100 * MILLISECOND, 600 * SECOND)?,
    }))
}

/// The database that is named, else the one in the URI, else `danmakud`.
fn database(merged: &Merged, in_uri: Option<&str>) -> Result<String, ConfigError> {
    let raw = &merged.raw.mongodb;
    let (key, name) = match in_uri {
        _ if !raw.database.is_empty() => ("mongodb.database", raw.database.as_str()),
        Some(in_uri) => ("mongodb.uri", in_uri),
        None => ("mongodb.database", "danmakud"),
    };
    merged.name(key, name)
}

/// The store that needs no server has none. Its values are judged beside any store: a wrong one is to be told now and
/// not when the store is changed.
fn outbox(merged: &Merged) -> Result<Option<OutboxConfig>, ConfigError> {
    let raw = &merged.raw.store;
    let max_bytes = merged.number("store.outbox_max_bytes", raw.outbox_max_bytes, 0, i64::MAX)?;
    let per_sec = merged.number("store.outbox_replay_per_sec", raw.outbox_replay_per_sec, 1, 10_000_000)?;
    if (1..OutboxConfig::LEAST_BYTES).contains(&max_bytes) {
        let problem = format!("{max_bytes} is neither 0 nor at least {}", OutboxConfig::LEAST_BYTES);
        return Err(merged.refuse("store.outbox_max_bytes", problem));
    }
    if merged.raw.mongodb.uri.is_empty() || max_bytes == 0 {
        return Ok(None);
    }
    Ok(Some(OutboxConfig { dir: Path::new(&merged.raw.data_dir).join("outbox"), max_bytes, per_sec }))
}

fn journal(merged: &Merged) -> Result<Option<JournalConfig>, ConfigError> {
    match merged.raw.store.durability.as_str() {
        "memory" => Ok(None),
        "disk" => Ok(Some(JournalConfig { dir: Path::new(&merged.raw.data_dir).join("journal") })),
        other => Err(merged.refuse("store.durability", format!("{other:?} is not \"memory\" or \"disk\""))),
    }
}

fn redis(merged: &Merged) -> Result<Option<RedisConfig>, ConfigError> {
    let raw = &merged.raw.redis;
    let prefix = merged.name("redis.prefix", &raw.prefix)?;
    let topology = topology(merged)?;
    if raw.url.is_empty() {
        return match topology {
            Topology::Single => Ok(None),
            _ => Err(merged.refuse_pair("redis.mode", "redis.url", "says what hosts are that redis.url does not name")),
        };
    }
    let stream = MAX_STREAM.min(merged.number("room.ring", merged.raw.room.ring, 1, 1_048_576)?);
    let config = RedisConfig { prefix, topology, stream, ..RedisConfig::new(&raw.url) };
    address::redis(&config).map_err(|problem| merged.refuse("redis.url", problem))?;
    Ok(Some(config))
}

fn topology(merged: &Merged) -> Result<Topology, ConfigError> {
    let raw = &merged.raw.redis;
    let topology = match raw.mode.as_str() {
        "single" => Topology::Single,
        "sentinel" => Topology::Sentinel { service: raw.service.clone() },
        "cluster" => Topology::Cluster,
        other => {
            let problem = format!("{other:?} is not \"single\", \"sentinel\" or \"cluster\"");
            return Err(merged.refuse("redis.mode", problem));
        }
    };
    let is_sentinel = matches!(topology, Topology::Sentinel { .. });
    if is_sentinel && raw.service.is_empty() {
        let problem = "is empty; redis.mode = \"sentinel\" needs the name that the sentinels have for the master";
        return Err(merged.refuse_pair("redis.service", "redis.mode", problem));
    }
    if !is_sentinel && !raw.service.is_empty() {
        let problem = "is a name that only sentinels have; set redis.mode = \"sentinel\" as well";
        return Err(merged.refuse("redis.service", problem));
    }
    Ok(topology)
}

fn log(merged: &Merged) -> Result<LogConfig, ConfigError> {
    let raw = &merged.raw.log;
    tracing_subscriber::EnvFilter::try_new(&raw.filter)
        .map_err(|error| merged.refuse("log.filter", format!("{:?} is not a filter: {error}", raw.filter)))?;
    let is_json = match raw.format.as_str() {
        "text" => false,
        "json" => true,
        other => return Err(merged.refuse("log.format", format!("{other:?} is not \"text\" or \"json\""))),
    };
    Ok(LogConfig { filter: raw.filter.clone(), is_json })
}
