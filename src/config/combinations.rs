//! Values that are right alone and wrong together.

use super::layers::Merged;
use super::{Config, ConfigError, StoreConfig};
use crate::store::MongoConfig;

/// How much longer a text may be in JSON than in UTF-8. Encoders that write ASCII alone make 6 bytes (`\\u54c8`) of 2 or
/// 3, and 12 of 4; a quote or a backslash becomes 2.
const JSON_FACTOR: usize = 3;

/// What a message has besides its text, generously: all keys with the longest values that are right come to about 170
/// bytes, 64 of them the nonce; the rest is for white space and fields of the client's own.
const JSON_AROUND: usize = 512;

/// Refuses what is right alone and wrong together.
pub(super) fn judge(merged: &Merged, config: &Config) -> Result<(), ConfigError> {
    if let StoreConfig::Mongo(mongo) = &config.store {
        combinations_with_mongo(merged, config, mongo)?;
    }
    if config.flusher.batch > config.queue {
        let problem = format!("{} is more than store.queue, {}", config.flusher.batch, config.queue);
        return Err(merged.refuse_pair("store.batch", "store.queue", problem));
    }
    if config.hub.room.recent > config.hub.room.ring {
        let problem = format!("{} is more than room.ring, {}", config.hub.room.recent, config.hub.room.ring);
        return Err(merged.refuse_pair("room.recent", "room.ring", problem));
    }
    let (text, message) = (config.admission.text.max_bytes, config.server.max_message);
    let needed = text.saturating_mul(JSON_FACTOR).saturating_add(JSON_AROUND);
    if needed > message {
        let problem = format!("{text} needs {needed} bytes of server.max_message_bytes, which is {message}");
        return Err(merged.refuse_pair("limits.max_text_bytes", "server.max_message_bytes", problem));
    }
    let (patience, request) = (config.hub.read_patience, config.server.request_timeout);
    if patience >= request {
        let (patience, request) = (humantime::format_duration(patience), humantime::format_duration(request));
        let problem = format!(
            "{patience} is not shorter than server.request_timeout, {request}: readers would get no answer instead of \
             what memory has"
        );
        return Err(merged.refuse_pair("store.read_patience", "server.request_timeout", problem));
    }
    times_of_a_stop(merged, config)?;
    if config.redis.is_some() && matches!(config.store, StoreConfig::Embedded(_)) {
        let problem = "several nodes need a common store: set mongodb.uri as well";
        return Err(merged.refuse_pair("redis.url", "mongodb.uri", problem));
    }
    Ok(())
}

/// Values of the MongoDB store that are right alone and wrong together, or beside others.
fn combinations_with_mongo(merged: &Merged, config: &Config, mongo: &MongoConfig) -> Result<(), ConfigError> {
    if mongo.min_pool_size > mongo.max_pool_size {
        let problem = format!("{} is more than mongodb.max_pool_size, {}", mongo.min_pool_size, mongo.max_pool_size);
        return Err(merged.refuse_pair("mongodb.min_pool_size", "mongodb.max_pool_size", problem));
    }
    let (in_flight, pool) = (config.flusher.in_flight, mongo.max_pool_size);
    if usize::try_from(pool).is_ok_and(|pool| in_flight > pool) {
        let problem = format!("{in_flight} is more than mongodb.max_pool_size, {pool}: each write takes a connection");
        return Err(merged.refuse_pair("store.in_flight", "mongodb.max_pool_size", problem));
    }
    let left = config.shutdown_deadline.saturating_sub(config.shutdown_grace);
    if mongo.write_timeout > left {
        let [write, left] = [mongo.write_timeout, left].map(humantime::format_duration);
        let after = if config.shutdown_grace.is_zero() { "" } else { " after shutdown.grace" };
        let problem = format!("{write} is longer than shutdown.deadline, {left}{after}: a stop would not wait for it");
        return Err(merged.refuse_pair("mongodb.write_timeout", "shutdown.deadline", problem));
    }
    Ok(())
}

/// The times of a stop follow each other before its deadline.
fn times_of_a_stop(merged: &Merged, config: &Config) -> Result<(), ConfigError> {
    let Config { shutdown_grace: grace, shutdown_deadline: deadline, .. } = config;
    let spread = config.server.close_spread;
    if spread >= *deadline {
        let problem = "is not shorter than shutdown.deadline: sockets would be cut instead of closed";
        return Err(merged.refuse_pair("shutdown.close_spread", "shutdown.deadline", problem));
    }
    if grace.saturating_add(spread) >= *deadline {
        let [shown, spread, deadline] = [*grace, spread, *deadline].map(humantime::format_duration);
        let problem = format!(
            "{shown} and shutdown.close_spread, {spread}, are together not shorter than shutdown.deadline, {deadline}: \
             sockets would be cut instead of closed"
        );
        return Err(merged.refuse_pair("shutdown.grace", "shutdown.deadline", problem));
    }
    Ok(())
}
