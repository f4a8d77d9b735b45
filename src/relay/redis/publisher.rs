//! The publishing side: takes from the queue what waits and publishes it in one pipeline, in order.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisError};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{ANSWER_WITHIN, Shared, backoff, is_told};
use crate::relay::codec;

/// Most messages in one pipeline; about as many bytes as one write to a socket moves well (256 × some 100 bytes).
const MAX_PIPELINED: usize = 256;

/// A message that waits to be published.
pub(super) struct Outgoing {
    pub(super) channel: String,
    pub(super) payload: Vec<u8>,
    /// How many comments are in it; 0 for a probe.
    pub(super) comments: u64,
}

/// Publishes until told to stop, then what still waits, as far as one attempt goes.
pub(super) async fn run(shared: Arc<Shared>, mut queue: mpsc::Receiver<Outgoing>) {
    let mut publisher = Publisher { shared, connection: None, seq: 0 };
    let mut batch = Vec::new();
    let mut attempt = 0;
    let stop = publisher.shared.stop.clone();
    loop {
        if batch.is_empty() {
            tokio::select! {
                taken = queue.recv_many(&mut batch, MAX_PIPELINED) => if taken == 0 { return },
                () = stop.cancelled(), if !queue.is_closed() => {
                    queue.close();
                    continue;
                }
            }
            publisher.number(&mut batch);
        }
        match publisher.publish(&batch).await {
            Ok(()) => {
                batch.clear();
                attempt = 0;
            }
            Err(_) if stop.is_cancelled() => break,
            Err(error) => {
                attempt += 1;
                if is_told(attempt) {
                    tracing::warn!(%error, attempt, "publishing to redis failed");
                }
                tokio::select! {
                    () = sleep(backoff(attempt)) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }
    queue.close();
    while let Ok(message) = queue.try_recv() {
        batch.push(message);
    }
    publisher.shared.metrics.relay_dropped.inc_by(batch.iter().map(|message| message.comments).sum());
}

struct Publisher {
    shared: Arc<Shared>,
    connection: Option<MultiplexedConnection>,
    seq: u64,
}

impl Publisher {
    /// Numbers messages in the order in which they will be published. The numbers make it safe to publish a batch
    /// again whose answer did not come: other nodes skip what they have had.
    fn number(&mut self, batch: &mut [Outgoing]) {
        for message in batch.iter_mut().filter(|message| message.comments > 0) {
            self.seq += 1;
            codec::set_seq(&mut message.payload, self.seq);
        }
    }

    async fn publish(&mut self, batch: &[Outgoing]) -> Result<(), RedisError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(ANSWER_WITHIN))
                    .set_response_timeout(Some(ANSWER_WITHIN));
                self.shared.client.get_multiplexed_async_connection_with_config(&config).await?
            }
        };
        let mut pipeline = Pipeline::with_capacity(batch.len());
        for Outgoing { channel, payload, .. } in batch {
            pipeline.cmd("PUBLISH").arg(channel).arg(payload).ignore();
        }
        // After an error the connection is not kept: what it still answers would be taken for other answers.
        pipeline.exec_async(&mut connection).await?;
        self.connection = Some(connection);
        Ok(())
    }
}
