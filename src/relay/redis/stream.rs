//! A room's stream at Redis: its newest comments, for nodes that were cut off or are new to the room.
//!
//! An entry is a message. Its id is an [`EntryId`], `<epoch>-<seq>`, so that what is trimmed by id is trimmed by comments.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, RedisResult, Script, Value};

use super::follower::{Entry, Life};
use super::servers::Connection;
use crate::model::RoomId;
use crate::relay::codec::{self, EntryId};

/// Appends and publishes, in one step.
static APPEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("append.lua")));

/// A stream expires so long after its last message, or up to half as much later: those of rooms that went quiet together,
/// as at the end of a show, are not all dropped in the same moment.
pub(super) const EXPIRES_AFTER: Duration = Duration::from_secs(120);

/// The stream of the room with this channel. The braces put it into the channel's slot of a cluster.
pub(super) fn key(channel: &str) -> String {
    format!("{{{channel}}}:stream")
}

/// A message for a stream that keeps `keeps` comments; `is_again` when it may be there already.
pub(super) fn append(channel: &str, message: &[u8], count: u64, keeps: usize, is_again: bool) -> Cmd {
    let expiry = EXPIRES_AFTER.mul_f64(1.0 + fastrand::f64() / 2.0);
    let mut append = redis::cmd("EVALSHA");
    append.arg(APPEND.get_hash()).arg(2).arg(key(channel)).arg(channel).arg(message).arg(count).arg(keeps);
    append.arg(u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX)).arg(u8::from(is_again));
    append
}

/// Makes the script known to the server.
pub(super) fn load_script() -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(include_str!("append.lua"));
    load
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
pub(super) async fn read(connection: &mut Connection, wanted: &[Wanted]) -> Result<Streams, RedisError> {
    let mut pipeline = Pipeline::with_capacity(wanted.len() + 2);
    pipeline.cmd("INFO").arg("server").cmd("INFO").arg("errorstats");
    for Wanted { channel, from, .. } in wanted {
        let from = from.map_or_else(|| "-".to_owned(), |EntryId { epoch, seq }| format!("{epoch}-{seq}"));
        pipeline.cmd("XRANGE").arg(key(channel)).arg(from).arg("+");
    }
    let answers: Vec<RedisResult<Value>> = pipeline.ignore_errors().query_async(connection).await?;
    let mut answers = answers.into_iter().map(Result::ok);
    let life = life(answers.next().flatten(), answers.next().flatten());
    let streams = wanted
        .iter()
        .zip(answers)
        .map(|(wanted, answer)| entries(&wanted.room, redis::from_redis_value(answer?).ok()?));
    Ok((life.map(Arc::new), streams.collect()))
}

fn life(server: Option<Value>, errors: Option<Value>) -> Option<Life> {
    let [server, errors]: [String; 2] =
        [redis::from_redis_value(server?).ok()?, redis::from_redis_value(errors?).ok()?];
    let run = server.lines().find_map(|line| line.strip_prefix("run_id:"))?.to_owned();
    let refused = errors.lines().find_map(|line| line.strip_prefix("errorstat_OOM:count="));
    Some(Life { run, refused: refused.map_or(Some(0), |count| count.trim().parse().ok())? })
}

/// The id of an entry, and its one field with the value.
type Raw = (String, Vec<Vec<u8>>);

/// `None` when there is something among them that this version cannot read.
fn entries(room: &RoomId, read: Vec<Raw>) -> Option<Vec<Entry>> {
    let entry = |(id, fields): Raw| {
        let (epoch, seq) = id.split_once('-')?;
        let id = EntryId { epoch: epoch.parse().ok()?, seq: seq.parse().ok()? };
        Some(Entry { id: Some(id), message: codec::decode(room, fields.get(1)?).ok()? })
    };
    read.into_iter().map(entry).collect()
}
