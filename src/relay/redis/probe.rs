//! Probes: messages of a node to itself. One that comes back shows that Redis takes what is written and passes on what is
//! published, and that the subscription stands.

use futures_util::future::try_join_all;
use redis::{Cmd, RedisError};
use tokio::time::{sleep, timeout};

use super::connection::{Connection, is_refusal, refused};
use super::{PROBE_EVERY, Shared, backoff, stream};

/// Sends a probe over each server until all are back.
///
/// # Errors
/// Why they were not within this time: the last thing that was seen.
pub(super) async fn probe(shared: &Shared, within: std::time::Duration) -> Result<(), RedisError> {
    let mut seen = None;
    let attempts = async {
        for attempt in 1.. {
            match try_probe(shared).await {
                Ok(()) => return,
                Err(error) => seen = Some(error),
            }
            sleep(backoff(attempt)).await;
        }
    };
    let is_back = timeout(within, attempts).await.is_ok();
    if is_back { Ok(()) } else { Err(seen.unwrap_or_else(|| refused("a probe did not come back in time"))) }
}

/// Probes again and again, until one is missed.
pub(super) async fn keep_probing(shared: &Shared) -> RedisError {
    loop {
        sleep(PROBE_EVERY).await;
        if let Err(error) = probe(shared, PROBE_EVERY).await {
            return error;
        }
    }
}

/// Past what waits to be published: whether that can be is not what is asked.
async fn try_probe(shared: &Shared) -> Result<(), RedisError> {
    let (number, connection) = shared.commands.get().await?;
    let (probes, back) = shared.new_probes();
    let channels: Vec<_> = probes.iter().map(|(channel, _)| channel.clone()).collect();
    let publish = |(channel, number): &(String, u64)| {
        let mut publish = redis::cmd(connection.command("PUBLISH"));
        publish.arg(channel).arg(number.to_be_bytes().as_slice());
        publish
    };
    let commands = probes.iter().map(|probe| (probe.0.as_str(), publish(probe))).collect();
    let sent = async {
        check_writing(&connection, &channels).await?;
        connection.ask(commands).await.into_iter().try_for_each(|answer| answer.map(drop))
    };
    if let Err(error) = sent.await {
        // Another server may be the master by now.
        shared.commands.discard(number).await;
        return Err(error);
    }
    try_join_all(back).await.map(drop).map_err(|_| refused("a probe was given up"))
}

/// Finds whether each server takes what is written. One that refuses it for good is written to no more and passes on what
/// is published; a read-only one is another's replica, where what others publish may never come.
pub(super) async fn check_writing(connection: &Connection, channels: &[String]) -> Result<(), RedisError> {
    // It changes nothing, and is refused as every write is.
    let write = |channel: &String| -> Cmd {
        let mut write = redis::cmd("DEL");
        write.arg(stream::key(channel));
        write
    };
    let writes = channels.iter().map(|channel| (channel.as_str(), write(channel))).collect();
    let failed = connection.ask(writes).await.into_iter().filter_map(Result::err).find(|error| !is_refusal(error));
    failed.map_or(Ok(()), Err)
}
