//! Where Redis is: one server, several of which one is the master, the one that a Sentinel names, or a cluster.

use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _,
    ProtocolVersion, PushInfo, RedisError, ServerErrorKind, Value,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::config::{RedisConfig, Topology};
use super::connection::{Connection, is_refusal, refused};
use super::slots::{Host, Slots};
use super::{ANSWER_WITHIN, counts, stream};

/// What comes without having been asked for.
pub(super) type Pushes = mpsc::UnboundedReceiver<PushInfo>;
type Pusher = mpsc::UnboundedSender<PushInfo>;

/// The servers of the configuration.
#[derive(Debug)]
pub(super) struct Servers {
    addresses: Vec<ConnectionInfo>,
    topology: Topology,
}

impl Servers {
    /// # Errors
    /// When an address is not one of Redis.
    pub(super) fn new(config: &RedisConfig) -> Result<Self, RedisError> {
        let urls = config.urls();
        let addresses = urls.iter().map(|url| url.as_str().into_connection_info()).collect::<Result<_, _>>()?;
        Ok(Self { addresses, topology: config.topology.clone() })
    }

    /// Opens a connection for commands. The scripts are known on it.
    pub(super) async fn open(&self) -> Result<Connection, RedisError> {
        let connection = self.connect(None).await?;
        let answers = connection.ask_all(&[stream::APPEND_LUA, counts::COUNT_LUA].map(load)).await;
        let failed: Vec<_> = answers.into_iter().flatten().filter_map(Result::err).collect();
        if failed.is_empty() {
            return Ok(connection);
        }
        // Some other node may have made the scripts known all the same.
        let lost = failed.into_iter().find(|error| !is_refusal(error));
        lost.map_or_else(|| Ok(connection.without_scripts()), Err)
    }

    /// What somebody must do about an error of a connection that does not pass by itself; `None` if it may.
    pub(super) fn advice(&self, error: &RedisError) -> Option<&'static str> {
        let is_moved = error.kind() == ErrorKind::Server(ServerErrorKind::Moved);
        let is_unknown = matches!(error.code(), Some("WRONGPASS" | "NOAUTH"));
        match (error.kind(), &self.topology) {
            (kind, _) if is_unknown || kind == ErrorKind::AuthenticationFailed => {
                Some("set the user and the password in redis.url right")
            }
            (ErrorKind::InvalidClientConfig, _) => Some("set redis.service to what the sentinels call the master"),
            (_, Topology::Single) if is_moved => Some("this is a cluster: set redis.mode to \"cluster\""),
            _ if !is_refusal(error) => None,
            (_, Topology::Single) => Some("look at the database in redis.url, and at what its user may do"),
            (_, Topology::Sentinel { .. }) => Some("look whether these are sentinels, and at what the user may do"),
            (_, Topology::Cluster) => Some("look whether this is a cluster, and at what the user may do"),
        }
    }

    /// Opens a connection for subscribing.
    pub(super) async fn open_subscription(&self) -> Result<(Connection, Pushes), RedisError> {
        let (sender, pushes) = mpsc::unbounded_channel();
        Ok((self.connect(Some(sender)).await?, pushes))
    }

    /// Connects by the first address that serves.
    async fn connect(&self, pushes: Option<Pusher>) -> Result<Connection, RedisError> {
        let mut failed = None;
        for address in &self.addresses {
            match self.connect_by(address, pushes.clone()).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| refused("there is no address")))
    }

    async fn connect_by(&self, address: &ConnectionInfo, pushes: Option<Pusher>) -> Result<Connection, RedisError> {
        let server = match &self.topology {
            Topology::Single => connect(address.clone(), pushes, self.addresses.len() > 1).await?,
            Topology::Sentinel { service } => connect(master_of(address, service).await?, pushes, true).await?,
            Topology::Cluster => {
                let (slots, hosts) = slots_of(address).await?;
                let masters = hosts.into_iter().map(|host| connect(at(address, host), pushes.clone(), false));
                return Ok(Connection::new(try_join_all(masters).await?, Some(slots)));
            }
        };
        Ok(Connection::new(vec![server], None))
    }
}

/// Makes a script known to the server.
fn load(script: &str) -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(script);
    load
}

async fn connect(
    address: ConnectionInfo,
    pushes: Option<Pusher>,
    must_be_master: bool,
) -> Result<MultiplexedConnection, RedisError> {
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_WITHIN))
        .set_response_timeout(Some(ANSWER_WITHIN));
    // Who may do little need not be refused it with each connection.
    let mut settings = address.redis_settings().clone().set_skip_set_lib_name();
    if let Some(pushes) = pushes {
        config = config.set_push_sender(pushes);
        settings = settings.set_protocol(ProtocolVersion::RESP3);
    }
    // A pipeline's last, short packet must not wait until the ones before it are acknowledged.
    let tcp = address.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(address.set_redis_settings(settings).set_tcp_settings(tcp))?;
    let mut connection = timeout(ANSWER_WITHIN, client.get_multiplexed_async_connection_with_config(&config))
        .await
        .map_err(|_| refused("no answer in time"))??;
    if must_be_master {
        let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        let role = role.into_iter().next().map(redis::from_redis_value::<String>);
        if !matches!(&role, Some(Ok(role)) if role == "master") {
            return Err(refused("this one is not the master"));
        }
    }
    Ok(connection)
}

/// Asks a Sentinel where the master of a service is; it is spoken with as the configuration says.
async fn master_of(sentinel: &ConnectionInfo, service: &str) -> Result<ConnectionInfo, RedisError> {
    // Its user and database are those of the servers, a Sentinel has none.
    let plain = sentinel.clone().set_redis_settings(redis::RedisConnectionInfo::default());
    let mut connection = connect(plain, None, false).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let master: Option<Host> = ask.query_async(&mut connection).await?;
    let unknown = || RedisError::from((ErrorKind::InvalidClientConfig, "the sentinel does not know the service"));
    Ok(at(sentinel, master.ok_or_else(unknown)?))
}

/// Asks a server of a cluster for the masters.
async fn slots_of(server: &ConnectionInfo) -> Result<(Slots, Vec<Host>), RedisError> {
    let mut connection = connect(server.clone(), None, false).await?;
    let mut ask = redis::cmd("CLUSTER");
    let answer: Value = ask.arg("SLOTS").query_async(&mut connection).await?;
    let (ConnectionAddr::Tcp(asked, _) | ConnectionAddr::TcpTls { host: asked, .. }) = server.addr() else {
        return Err(refused("a cluster is not on a Unix socket"));
    };
    Slots::read(answer, asked)
}

/// Another server that is spoken with in the same way.
fn at(known: &ConnectionInfo, (host, port): Host) -> ConnectionInfo {
    let address = match known.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    known.clone().set_addr(address)
}
