//! A connection: with one server, or with each master of a cluster.

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use super::slots::Slots;

/// Takes commands for channels, and passes each to the server that has the channel. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    servers: Vec<MultiplexedConnection>,
    /// Of a cluster, which server has which channels.
    slots: Option<Slots>,
    /// The scripts could not be made known on it, and may not be.
    lacks_scripts: bool,
}

impl Connection {
    pub(super) fn new(servers: Vec<MultiplexedConnection>, slots: Option<Slots>) -> Self {
        Self { servers, slots, lacks_scripts: false }
    }

    pub(super) fn without_scripts(self) -> Self {
        Self { lacks_scripts: true, ..self }
    }

    /// Whether what this connection was told will not be done on it, now or later, and no other server has to be asked.
    pub(super) fn is_refusal(&self, error: &RedisError) -> bool {
        let is_unknown = error.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
        is_refusal(error) || (self.lacks_scripts && is_unknown)
    }

    /// The commands of one server or of a cluster: its channels are sharded.
    pub(super) fn command(&self, name: &'static str) -> &'static str {
        match (name, &self.slots) {
            ("PUBLISH", Some(_)) => "SPUBLISH",
            ("SUBSCRIBE", Some(_)) => "SSUBSCRIBE",
            ("UNSUBSCRIBE", Some(_)) => "SUNSUBSCRIBE",
            _ => name,
        }
    }

    /// Sends commands with the channels they are about in one round trip; gives the answers in their order.
    pub(super) async fn ask(&self, commands: Vec<(&str, Cmd)>) -> Vec<RedisResult<Value>> {
        let mut answers: Vec<_> = commands.iter().map(|_| Err(refused("no server has the channel"))).collect();
        let mut shares = vec![(Vec::new(), Pipeline::new()); self.servers.len()];
        for (place, (channel, command)) in commands.into_iter().enumerate() {
            if let Some((places, pipeline)) = self.server(channel).and_then(|server| shares.get_mut(server)) {
                places.push(place);
                pipeline.add_command(command);
            }
        }
        let ask = |((places, pipeline), server): ((Vec<usize>, Pipeline), &MultiplexedConnection)| {
            let server = server.clone();
            async move { (send(pipeline, server).await, places) }
        };
        for (share, places) in join_all(shares.into_iter().zip(&self.servers).map(ask)).await {
            for (answer, place) in share.into_iter().zip(places) {
                if let Some(slot) = answers.get_mut(place) {
                    *slot = answer;
                }
            }
        }
        answers
    }

    /// Sends the same commands to every server in one round trip; gives the answers of each.
    pub(super) async fn ask_all(&self, commands: &[Cmd]) -> Vec<Vec<RedisResult<Value>>> {
        let mut pipeline = Pipeline::new();
        for command in commands {
            pipeline.add_command(command.clone());
        }
        join_all(self.servers.iter().map(|server| send(pipeline.clone(), server.clone()))).await
    }

    /// Subscribes channels, or gives them up.
    pub(super) async fn subscribe(&self, name: &'static str, channels: &[String]) -> Result<(), RedisError> {
        // A cluster takes only channels of one slot in one command.
        let most = if self.slots.is_some() { 1 } else { channels.len().max(1) };
        let subscribe = |some: &'_ [String]| {
            let mut command = redis::cmd(self.command(name));
            command.arg(some);
            command
        };
        let commands = channels.chunks(most).map(|some| (some.first().map_or("", String::as_str), subscribe(some)));
        self.ask(commands.collect()).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// A channel on each server, with names that begin with this one.
    pub(super) fn probe_channels(&self, name: &str) -> Vec<String> {
        let numbered = |server| {
            let names = (0..u16::MAX).map(|number| format!("{name}:{number}"));
            names.into_iter().find(|name| self.server(name) == Some(server))
        };
        (0..self.servers.len()).filter_map(numbered).collect()
    }

    fn server(&self, channel: &str) -> Option<usize> {
        self.slots.as_ref().map_or(Some(0), |slots| slots.server(channel))
    }
}

/// Answers for each command, be it that all have failed.
async fn send(mut pipeline: Pipeline, mut server: MultiplexedConnection) -> Vec<RedisResult<Value>> {
    let count = pipeline.len();
    if count == 0 {
        return Vec::new();
    }
    match pipeline.ignore_errors().query_async(&mut server).await {
        Ok(answers) => answers,
        Err(error) => vec![Err(error); count],
    }
}

pub(super) fn refused(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, why))
}

/// Whether the server will not do it, now or later, and no other has to be asked.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    let is_elsewhere = matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::ReadOnly
                | ServerErrorKind::NoScript
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
        )
    );
    error.code().is_some() && !is_elsewhere
}
