//! A room's stream at Redis: its newest comments, for nodes that were cut off or are new to the room.
//!
//! An entry is a message. Its id is an [`EntryId`], `<epoch>-<seq>`, so that what is trimmed by id is trimmed by comments.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Script, Value};
use tokio::time::Instant;

use super::connection::{Connection, is_refusal};
use super::entry::{Entry, Life};
use crate::model::RoomId;
use crate::relay::codec::{self, EntryId};

/// Appends and publishes, in one step.
static APPEND: LazyLock<Script> = LazyLock::new(|| Script::new(APPEND_LUA));

pub(super) const APPEND_LUA: &str = include_str!("append.lua");

/// A stream expires so long after its last message or some time later: those of rooms that went quiet together, as at the
/// end of a show, are not all dropped in the same moment.
pub(super) const EXPIRES_AFTER: Duration = Duration::from_secs(120);

/// It has expired so long after its last message.
pub(super) const EXPIRES_WITHIN: Duration = Duration::from_secs(180);

/// The stream of the room with this channel. The braces put it into the channel's slot of a cluster.
pub(super) fn key(channel: &str) -> String {
    format!("{{{channel}}}:stream")
}

/// A message for a stream that keeps `keeps` comments; `is_again` when it may be there already.
/// It is published with the command `publish`.
pub(super) fn append(
    (publish, channel): (&str, &str),
    message: &[u8],
    count: u64,
    keeps: usize,
    is_again: bool,
) -> Cmd {
    let expiry = EXPIRES_AFTER + EXPIRES_WITHIN.saturating_sub(EXPIRES_AFTER).mul_f64(fastrand::f64());
    let mut append = redis::cmd("EVALSHA");
    append.arg(APPEND.get_hash()).arg(2).arg(key(channel)).arg(channel).arg(message).arg(count).arg(keeps);
    append.arg(u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX)).arg(u8::from(is_again)).arg(publish);
    append
}

/// What is to be read: a room's stream, from a place on.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) room: RoomId,
    pub(super) channel: String,
    pub(super) from: Option<EntryId>,
}

/// What several streams have, each `None` when it cannot be read, and the server that has them, if it tells.
pub(super) type Streams = (Option<Arc<Life>>, Vec<Option<Vec<Entry>>>);

/// Reads several streams in one round trip.
///
/// # Errors
/// When a server cannot be reached, or another one is to be asked.
pub(super) async fn read(connection: &Connection, wanted: &[Wanted]) -> Result<Streams, RedisError> {
    let range = |Wanted { channel, from, .. }: &Wanted| {
        let from = from.map_or_else(|| "-".to_owned(), |EntryId { epoch, seq }| format!("{epoch}-{seq}"));
        let mut range = redis::cmd("XRANGE");
        range.arg(key(channel)).arg(from).arg("+");
        range
    };
    let ranges = wanted.iter().map(|wanted| (wanted.channel.as_str(), range(wanted))).collect();
    let info = ["server", "stats", "commandstats", "errorstats"].map(|section| {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        info
    });
    let (lives, answers) = tokio::join!(connection.ask_all(&info), connection.ask(ranges));
    let mut streams = Vec::with_capacity(wanted.len());
    for (wanted, answer) in wanted.iter().zip(answers) {
        streams.push(match answer {
            Ok(answer) => redis::from_redis_value(answer).ok().and_then(|read| entries(&wanted.room, read)),
            Err(error) if is_refusal(&error) => None,
            Err(error) => return Err(error),
        });
    }
    Ok((life(lives).map(Arc::new), streams))
}

/// The lives of all servers together, if all tell.
fn life(servers: Vec<Vec<RedisResult<Value>>>) -> Option<Life> {
    let (mut runs, mut refused, mut evicted) = (Vec::new(), 0, 0);
    for info in servers.into_iter().flatten() {
        let info: String = redis::from_redis_value(info.ok()?).ok()?;
        for line in info.lines() {
            if let Some(run) = line.strip_prefix("run_id:") {
                runs.push(run.to_owned());
            } else if let Some(count) = line.strip_prefix("evicted_keys:") {
                evicted += count.parse::<u64>().ok()?;
            } else {
                refused += refusals(line).unwrap_or(0);
            }
        }
    }
    // A cluster names its servers in any order.
    runs.sort();
    (!runs.is_empty()).then(|| Life { run: runs.concat(), refused, evicted })
}

/// How often a script was refused, as one of the lines of statistics says that tell of it. Errors within scripts are counted
/// with these: before Redis 7 they all have the same code, and others make such errors as well.
fn refusals(line: &str) -> Option<u64> {
    const WITHIN: &str = "cmdstat_evalsha:";
    const BEFORE: [&str; 2] = ["errorstat_NOPERM:", "errorstat_BUSY:"];
    let counts = |stats: &str, wanted: &str| {
        let mut counts = stats.split(',').filter_map(|count| count.split_once('='));
        counts.find(|(name, _)| *name == wanted).and_then(|(_, count)| count.parse().ok())
    };
    match line.strip_prefix(WITHIN) {
        Some(stats) => counts(stats, "failed_calls"),
        None => counts(BEFORE.iter().find_map(|code| line.strip_prefix(code))?, "count"),
    }
}

/// The id of an entry, and its one field with the value.
type Raw = (String, Vec<Vec<u8>>);

/// `None` when there is something among them that this version cannot read.
fn entries(room: &RoomId, read: Vec<Raw>) -> Option<Vec<Entry>> {
    let entry = |(id, fields): Raw| {
        let (epoch, seq) = id.split_once('-')?;
        let id = EntryId { epoch: epoch.parse().ok()?, seq: seq.parse().ok()? };
        Some(Entry { id: Some(id), at: Instant::now(), message: codec::decode(room, fields.get(1)?).ok()? })
    };
    read.into_iter().map(entry).collect()
}
