//! The driver's handles on server, database and collection, made once.

use bson::RawDocumentBuf;
use mongodb::{Client, Collection, Database};

use super::config::MongoConfig;
use super::error::classify;
use crate::store::StoreError;

/// What the driver knows. It reaches for the servers by itself.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) client: Client,
    pub(super) database: Database,
    pub(super) collection: Collection<RawDocumentBuf>,
}

impl Driver {
    /// Makes the handles without talking to a server; a `mongodb+srv` URI asks DNS.
    ///
    /// # Errors
    /// As [`MongoStore::open`](super::MongoStore::open).
    pub(super) async fn open(config: &MongoConfig) -> Result<Self, StoreError> {
        let options = config.client_options().await?;
        let client = Client::with_options(options).map_err(|error| classify(&error))?;
        let database = client.database(&config.database);
        let collection = database.collection(&config.collection);
        Ok(Self { client, database, collection })
    }
}
