//! How many viewers rooms have on each node: a hash beside the room's stream, with a field for each node that counts only
//! for [`COUNTED_FOR`]. Nobody counts up or down, so nothing can drift, and a node that dies is forgotten by itself.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use redis::{Cmd, RedisError, Script};
use tokio::time::timeout;

use super::{ANSWER_WITHIN, Shared};
use crate::model::RoomId;
use crate::relay::COUNTED_FOR;

/// Tells and asks, in one step.
static COUNT: LazyLock<Script> = LazyLock::new(|| Script::new(COUNT_LUA));

pub(super) const COUNT_LUA: &str = include_str!("count.lua");

/// Most rooms in one round trip: some 5 ms of Redis, for which the comments of a tick may have to wait.
const MAX_AT_ONCE: usize = 256;

/// A room, and its viewers on this node; `None` to ask alone.
type Count = (RoomId, Option<usize>);

/// What this node has told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Rooms of which Redis may have a number of this node's.
    rooms: HashSet<RoomId>,
    is_over: bool,
}

/// Tells how many viewers the rooms have here and takes back what was told of others; gives how many they have elsewhere.
pub(super) async fn exchange(shared: &Shared, here: &[(RoomId, usize)]) -> Vec<Option<usize>> {
    // Over the round trips as well: what is told now must not come after what is taken back.
    let mut told = shared.told.lock().await;
    if told.is_over || is_away(shared) {
        return vec![None; here.len()];
    }
    tell(shared, &mut told.rooms, here).await
}

async fn tell(shared: &Shared, told: &mut HashSet<RoomId>, here: &[(RoomId, usize)]) -> Vec<Option<usize>> {
    let occupied: HashMap<_, _> = here.iter().filter(|(_, viewers)| *viewers > 0).map(|(room, n)| (room, *n)).collect();
    let left = told.iter().filter(|room| !occupied.contains_key(room)).map(|room| (room.clone(), Some(0)));
    let counts: Vec<Count> = here.iter().map(|(room, n)| (room.clone(), Some(*n))).chain(left).collect();
    // Noted before it is told: it may be told though no answer comes.
    told.extend(occupied.into_keys().cloned());
    let mut elsewhere = Vec::with_capacity(counts.len());
    for some in counts.chunks(MAX_AT_ONCE) {
        let answers = ask(shared, some).await;
        let is_away = answers.iter().all(Option::is_none);
        elsewhere.extend(answers);
        if is_away {
            break;
        }
    }
    elsewhere.resize(counts.len(), None);
    for ((room, viewers), answer) in counts.iter().zip(&elsewhere) {
        if *viewers == Some(0) && answer.is_some() {
            told.remove(room);
        }
    }
    elsewhere.truncate(here.len());
    elsewhere
}

/// Gives how many viewers a room has elsewhere.
pub(super) async fn elsewhere(shared: &Shared, room: &RoomId) -> Option<usize> {
    if is_away(shared) {
        return None;
    }
    ask(shared, &[(room.clone(), None)]).await.pop().flatten()
}

/// Takes back all that was told; nothing is told any more.
pub(super) async fn take_back(shared: &Shared) {
    let mut told = shared.told.lock().await;
    told.is_over = true;
    if !is_away(shared) {
        tell(shared, &mut told.rooms, &[]).await;
    }
}

/// A Redis that is known to be away is not waited for.
fn is_away(shared: &Shared) -> bool {
    !*shared.is_up.borrow()
}

/// An answer for each room, `None` where there is none within [`ANSWER_WITHIN`].
async fn ask(shared: &Shared, counts: &[Count]) -> Vec<Option<usize>> {
    let answers = timeout(ANSWER_WITHIN, try_ask(shared, counts))
        .await
        .ok()
        .and_then(Result::ok)
        .unwrap_or_else(|| vec![None; counts.len()]);
    let failed = answers.iter().filter(|answer| answer.is_none()).count();
    shared.metrics.relay_counts_failed.inc_by(failed as u64);
    answers
}

async fn try_ask(shared: &Shared, counts: &[Count]) -> Result<Vec<Option<usize>>, RedisError> {
    let (number, connection) = shared.commands.get().await?;
    let channels: Vec<_> = counts.iter().map(|(room, _)| shared.room_channel(room)).collect();
    let node = format!("{:016x}", u64::from_be_bytes(shared.node));
    let commands = counts.iter().zip(&channels).map(|((_, here), channel)| {
        let here = here.map_or_else(String::new, |viewers| viewers.to_string());
        (channel.as_str(), count(channel, &node, &here))
    });
    let answers = connection.ask(commands.collect()).await;
    if answers.iter().filter_map(|answer| answer.as_ref().err()).any(|error| !connection.is_refusal(error)) {
        shared.commands.discard(number).await;
    }
    Ok(answers.into_iter().map(|answer| redis::from_redis_value(answer.ok()?).ok()).collect())
}

/// Beside the room's stream, in the channel's slot of a cluster.
fn key(channel: &str) -> String {
    format!("{{{channel}}}:online")
}

fn count(channel: &str, node: &str, here: &str) -> Cmd {
    let mut count = redis::cmd("EVALSHA");
    count.arg(COUNT.get_hash()).arg(1).arg(key(channel)).arg(node).arg(here);
    count.arg(u64::try_from(COUNTED_FOR.as_millis()).unwrap_or(u64::MAX));
    count
}
