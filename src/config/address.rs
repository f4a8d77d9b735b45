//! The addresses of servers: read by the drivers' own parsers, and refused in words of ours.
//!
//! What a driver says about an address it cannot read quotes pieces of it, and a piece may belong to a password. So
//! the driver is asked about parts of the address instead, and what is told is which part it does not take. Nothing
//! here touches the network.

use mongodb::options::{Acknowledgment, ConnectionString, HostInfo};
use redis::{IntoConnectionInfo as _, RedisError};

use crate::relay::{RedisConfig, Topology};

/// Reads a MongoDB connection string.
///
/// # Errors
/// What is wrong with it; nothing of it is repeated but the name of an option.
pub(super) fn mongodb(uri: &str) -> Result<ConnectionString, String> {
    if !uri.starts_with("mongodb://") && !uri.starts_with("mongodb+srv://") {
        return Err("does not begin with mongodb:// or mongodb+srv://".to_owned());
    }
    let parsed = ConnectionString::parse(uri).map_err(|_| explain(uri))?;
    let acknowledged = parsed.write_concern.as_ref().and_then(|concern| concern.w.as_ref());
    if acknowledged == Some(&Acknowledgment::Nodes(0)) {
        return Err("w=0 is a write that nobody acknowledges; leave w to mongodb.write_concern".to_owned());
    }
    Ok(parsed)
}

/// Finds the part that the driver does not take.
fn explain(uri: &str) -> String {
    let reads = |uri: &str| ConnectionString::parse(uri).is_ok();
    let (scheme, rest) = uri.split_once("://").unwrap_or(("", uri));
    // At the last @, for an unescaped one in a password must not show.
    let (has_user, rest) = rest.rsplit_once('@').map_or((false, rest), |(_, rest)| (true, rest));
    let (before, options) = rest.split_once('?').unwrap_or((rest, ""));
    let hosts = before.split('/').next().unwrap_or_default();
    if !reads(&format!("{scheme}://{hosts}")) {
        return if scheme == "mongodb" {
            "its hosts are not right; they look like db1:27017,db2:27017".to_owned()
        } else {
            "its host is not right; mongodb+srv:// takes one name without a port".to_owned()
        };
    }
    if !reads(&format!("{scheme}://{before}")) {
        return "its database is not right; it stands behind the hosts as /NAME".to_owned();
    }
    let user = if has_user { "user:password@" } else { "" };
    let with = |options: &str| reads(&format!("{scheme}://{user}{before}?{options}"));
    if with(options) {
        return "user name and password must be percent-encoded (/ is %2F, @ is %40, : is %3A)".to_owned();
    }
    let pairs: Vec<_> = options.split('&').collect();
    let is_culprit = |&(place, _): &(usize, &&str)| {
        let others = pairs.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, pair)| *pair);
        with(&others.collect::<Vec<_>>().join("&"))
    };
    let culprit = pairs.iter().enumerate().find(is_culprit).and_then(|(_, pair)| pair.split_once('='));
    match culprit.map(|(name, _)| name).filter(|name| name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphabetic()))
    {
        Some(name) => format!("its option {name:?} is not known, or its value is not right"),
        None => "its options are not right, or do not go together".to_owned(),
    }
}

/// The servers that a connection string names, fit to be shown.
pub(super) fn hosts(parsed: &ConnectionString) -> String {
    match &parsed.host_info {
        HostInfo::HostIdentifiers(hosts) => hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        HostInfo::DnsRecord(name) => format!("the servers that DNS names for {name}"),
        _ => "servers of its own".to_owned(),
    }
}

/// Reads the addresses of Redis; gives its servers, fit to be shown.
///
/// # Errors
/// What is wrong with them; nothing of them is repeated.
pub(super) fn redis(config: &RedisConfig) -> Result<String, String> {
    if !["redis://", "rediss://"].iter().any(|scheme| config.url.starts_with(scheme)) {
        return Err("does not begin with redis:// or rediss://".to_owned());
    }
    let server = |url: String| url.into_connection_info();
    let servers: Result<Vec<_>, RedisError> = config.urls().into_iter().map(server).collect();
    let servers = servers.map_err(|_| {
        "is not an address such as redis://user:password@host:6379/0, the last number being the database; more hosts \
         follow the first with a comma between"
    })?;
    if config.topology == Topology::Cluster && servers.iter().any(|server| server.redis_settings().db() != 0) {
        return Err("names a database, and a cluster has none but 0".to_owned());
    }
    Ok(servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>().join(", "))
}
