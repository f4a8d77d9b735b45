//! Where Redis is: one server, several of which one is the master, or what a Sentinel names.

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _, ProtocolVersion,
    PushInfo, RedisError,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::config::{RedisConfig, Topology};
use super::{ANSWER_WITHIN, stream};

/// Takes commands; clones share it.
pub(super) type Connection = MultiplexedConnection;

/// What comes without having been asked for.
pub(super) type Pushes = mpsc::UnboundedReceiver<PushInfo>;

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

    /// Opens a connection for commands. The script is known on it.
    pub(super) async fn open(&self) -> Result<Connection, RedisError> {
        let mut connection = self.connect(None).await?;
        // A server that refuses this refuses what needs the script, which is dealt with there.
        if let Err(error) = stream::load_script().exec_async(&mut connection).await
            && !is_answer(&error)
        {
            return Err(error);
        }
        Ok(connection)
    }

    /// Opens a connection for subscribing.
    pub(super) async fn open_subscription(&self) -> Result<(Connection, Pushes), RedisError> {
        let (sender, pushes) = mpsc::unbounded_channel();
        Ok((self.connect(Some(sender)).await?, pushes))
    }

    /// Connects with the first address that serves.
    async fn connect(&self, pushes: Option<mpsc::UnboundedSender<PushInfo>>) -> Result<Connection, RedisError> {
        let mut failed = None;
        for address in &self.addresses {
            let connection = match &self.topology {
                Topology::Single => connect(address.clone(), pushes.clone(), self.addresses.len() > 1).await,
                Topology::Sentinel { service } => match master_of(address, service).await {
                    Ok(master) => connect(master, pushes.clone(), true).await,
                    Err(error) => Err(error),
                },
            };
            match connection {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| refused("there is no address")))
    }
}

async fn connect(
    address: ConnectionInfo,
    pushes: Option<mpsc::UnboundedSender<PushInfo>>,
    must_be_master: bool,
) -> Result<Connection, RedisError> {
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_WITHIN))
        .set_response_timeout(Some(ANSWER_WITHIN));
    let mut settings = address.redis_settings().clone();
    if let Some(pushes) = pushes {
        config = config.set_push_sender(pushes);
        settings = settings.set_protocol(ProtocolVersion::RESP3);
    }
    let client = Client::open(address.set_redis_settings(settings))?;
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
    let master: Option<(String, u16)> = ask.query_async(&mut connection).await?;
    let (host, port) = master.ok_or_else(|| refused("the sentinel does not know the service"))?;
    let address = match sentinel.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(sentinel.clone().set_addr(address))
}

fn refused(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, why))
}

/// Whether the server answered, and the answer was that it will not.
pub(super) fn is_answer(error: &RedisError) -> bool {
    error.code().is_some()
}
