//! Where Redis is and how much may wait.

use std::fmt;
use std::time::Duration;

use url::Url;

/// Most comments that a room's stream keeps: as many as a viewer that joins is given.
pub const MAX_STREAM: usize = 200;

/// How the servers of an address belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server, or several of which the first that is a master serves.
    Single,
    /// Sentinels, which name the master.
    Sentinel {
        /// What the master is called there.
        service: String,
    },
    /// A cluster, of which these are some servers.
    Cluster,
}

/// Where Redis is and how much may wait.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://[user:password@]host[:port][,host[:port]…][/database]`, `rediss://…` for TLS, or `redis+unix:///path`.
    pub url: String,
    /// How the servers belong together.
    pub topology: Topology,
    /// What all channel names begin with, so that several groups of nodes can share a Redis.
    pub prefix: String,
    /// How many comments a room's stream keeps. No more than a room keeps in memory, or a node that comes back to a room
    /// would be given comments again that have left its memory.
    pub stream: usize,
    /// How many messages (one a room and tick) may wait to be published; what comes on top is dropped and counted.
    pub max_queued: usize,
    /// How long a message may wait to be published; then it is given up, and other nodes are told. So late a comment is no
    /// danmaku any more, and the store, from which they take it, has long had it.
    pub max_age: Duration,
    /// How many envelopes may wait to be taken by this node; what comes on top is read from the stream later.
    pub max_received: usize,
}

impl RedisConfig {
    /// A configuration with the defaults: prefix `danmakud`, streams of 200 comments, 4,096 messages each way,
    /// and none that is older than 15 s.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            topology: Topology::Single,
            prefix: "danmakud".to_owned(),
            stream: MAX_STREAM,
            max_queued: 4096,
            max_age: Duration::from_secs(15),
            max_received: 4096,
        }
    }

    /// The address of each server.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let Some((scheme, rest)) = self.url.split_once("://") else { return vec![self.url.clone()] };
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        hosts.split(',').map(|host| format!("{scheme}://{user}{host}{tail}")).collect()
    }

    /// The addresses with their password masked, fit for logs.
    #[must_use]
    pub fn shown_url(&self) -> String {
        self.urls().iter().map(|url| shown(url)).collect::<Vec<_>>().join(", ")
    }
}

fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "(not a URL)".to_owned() };
    if url.password().is_some() && url.set_password(Some("***")).is_err() {
        return "(not shown)".to_owned();
    }
    // redis+unix:// takes its password from the query.
    if url.query().is_some() {
        url.set_query(Some("***"));
    }
    url.into()
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, topology, prefix, stream, max_queued, max_age, max_received } = self;
        f.debug_struct("RedisConfig")
            .field("url", &self.shown_url())
            .field("topology", topology)
            .field("prefix", prefix)
            .field("stream", stream)
            .field("max_queued", max_queued)
            .field("max_age", max_age)
            .field("max_received", max_received)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_never_shown() {
        for url in [
            "redis://user:s3cret@h:1/0",
            "redis://:s3cret@h",
            "rediss://:s3cret@h",
            "rediss://:s3cret@h:1,i:2",
            "redis+unix:///x?pass=s3cret",
            "s3cret",
        ] {
            let config = RedisConfig::new(url);
            let shown = format!("{config:?} {}", config.shown_url());
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        let config = RedisConfig::new("redis://user:p@h:1,i/0");
        assert_eq!(config.shown_url(), "redis://user:***@h:1/0, redis://user:***@i/0");
    }

    #[test]
    fn each_host_of_an_address_has_its_user_and_database() {
        for (url, urls) in [
            ("redis://h", vec!["redis://h"]),
            ("redis://u:p@h:1,[::1]:2/3", vec!["redis://u:p@h:1/3", "redis://u:p@[::1]:2/3"]),
            ("redis+unix:///x?pass=a,b", vec!["redis+unix:///x?pass=a,b"]),
        ] {
            assert_eq!(RedisConfig::new(url).urls(), urls);
        }
    }
}
