//! The store of record: one MongoDB collection for all rooms, through the official driver.
//!
//! It keeps no comment and no state beyond the driver's connections, retries nothing by itself but what the driver
//! retries once, and decides nothing about a failed batch but its class. The flusher and the hub come here through
//! [`CommentStore`]; `app` alone opens it.

mod config;
pub(super) mod document;
mod driver;
mod error;
mod index;
mod query;
mod undecided;

pub use config::{MongoConfig, WriteConcernLevel};
pub use index::IndexChange;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bson::raw::RawDocument;
use bson::{Document, doc};
use bytes::Bytes;
use tokio::sync::OnceCell;

use crate::clock::Clock;
use crate::model::{Comment, CommentId, Position, RoomId, Timestamp};

use super::contract::{CommentStore, Page, Record, SetAside, StoreError, WriteReport};
use document::Encoded;
use driver::Driver;
use error::{Verdict, blocked, classify, judge, timed_out};
use query::PageQuery;
use undecided::Undecided;

/// How long [`CommentStore::probe`] waits. Readiness is asked for every few seconds and must not pile up.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long [`CommentStore::close`] lets the driver say goodbye to the servers before it just drops the connections.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A handle on the comments in MongoDB. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct MongoStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: OnceCell<Driver>,
    config: MongoConfig,
    clock: Clock,
    undecided: Undecided,
}

impl MongoStore {
    /// Opens the store and [prepares](Self::prepare) it.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`prepare`](Self::prepare).
    pub async fn connect(config: MongoConfig, clock: Clock) -> Result<(Self, Vec<IndexChange>), StoreError> {
        let store = Self::open(config, clock).await?;
        let changes = store.prepare().await?;
        Ok((store, changes))
    }

    /// Makes a handle without talking to a server (a `mongodb+srv` URI asks DNS). Its operations reach for one.
    ///
    /// # Errors
    /// [`StoreError::Blocked`] when the configuration cannot be used, and transient ones when DNS does not answer. No
    /// message holds the password.
    pub async fn open(config: MongoConfig, clock: Clock) -> Result<Self, StoreError> {
        let store = Self::new(config, clock)?;
        store.driver().await?;
        Ok(store)
    }

    /// Makes a handle that does not even ask DNS before its first operation does.
    ///
    /// # Errors
    /// [`StoreError::Blocked`] when the database or the collection has no name.
    pub fn new(config: MongoConfig, clock: Clock) -> Result<Self, StoreError> {
        for (name, what) in [(&config.database, "database"), (&config.collection, "collection")] {
            if name.is_empty() {
                return Err(blocked(format!("the name of the MongoDB {what} is empty")));
            }
        }
        let inner = Inner { driver: OnceCell::new(), config, clock, undecided: Undecided::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    async fn driver(&self) -> Result<&Driver, StoreError> {
        self.inner.driver.get_or_try_init(|| Driver::open(&self.inner.config)).await
    }

    /// Reaches the server, opens the first connections and brings the indexes to what they must be. A start
    /// does this once and fails when it fails; done again it changes nothing. Making a missing index on a large
    /// collection takes as long as it takes, while the server lives.
    ///
    /// # Errors
    /// [`StoreError`] when the server cannot be reached, or does not let us in or alter the indexes.
    pub async fn prepare(&self) -> Result<Vec<IndexChange>, StoreError> {
        let (config, Driver { client, database, .. }) = (&self.inner.config, self.driver().await?);
        self.bounded("the first ping", database.run_command(doc! { "ping": 1 })).await?;
        // A member of the set that hangs must not keep the others from serving; the driver opens the rest later.
        if tokio::time::timeout(config.operation_timeout(), client.warm_connection_pool()).await.is_err() {
            tracing::warn!(min_pool_size = config.min_pool_size, "not all first connections are open yet");
        }
        let indexes = index::Indexes { database, collection: &config.collection, bound: config.operation_timeout() };
        indexes.ensure().await.map_err(|error| classify(&error))
    }

    /// How the server executes [`CommentStore::load_recent`] with the same arguments (`explain`, `executionStats`).
    ///
    /// # Errors
    /// As [`CommentStore::load_recent`].
    pub async fn explain_recent(&self, room: &RoomId, from: Timestamp, limit: usize) -> Result<Document, StoreError> {
        self.explain(&PageQuery::recent(room, from, self.inner.clock.now(), one_more(limit))).await
    }

    /// How the server executes [`CommentStore::load_before`] with the same arguments.
    ///
    /// # Errors
    /// As [`CommentStore::load_before`].
    pub async fn explain_before(&self, room: &RoomId, before: Position, limit: usize) -> Result<Document, StoreError> {
        self.explain(&PageQuery::before(room, before, self.inner.clock.now(), one_more(limit))).await
    }

    async fn explain(&self, query: &PageQuery) -> Result<Document, StoreError> {
        let find = query.to_command(&self.inner.config.collection);
        let explain =
            self.driver().await?.database.run_command(doc! { "explain": find, "verbosity": "executionStats" });
        self.bounded("an explain", explain).await
    }

    /// Loads a page. Asks for one document more than the limit, which tells whether there are more. Malformed documents
    /// are passed over, and more asked for in their place: a page of nothing else would leave its reader standing.
    async fn load(&self, room: &RoomId, limit: usize, query: impl Fn(i64) -> PageQuery) -> Result<Page, StoreError> {
        let mut ask = one_more(limit);
        loop {
            let (driver, query) = (self.driver().await?, query(ask));
            let read = self.bounded("a page", self.read(driver, room, &query));
            let Read { mut comments, is_exhausted } = read.await?;
            let has_more = comments.len() > limit;
            if has_more || is_exhausted {
                comments.truncate(limit);
                return Ok(Page { comments, has_more });
            }
            ask = ask.saturating_mul(2);
        }
    }

    async fn read(&self, driver: &Driver, room: &RoomId, query: &PageQuery) -> Result<Read, mongodb::error::Error> {
        let find = driver
            .collection
            .find(query.filter.clone())
            .sort(PageQuery::sort())
            .hint(mongodb::options::Hint::Keys(PageQuery::hint()))
            .limit(query.limit)
            // One more than the limit, for the server ends the cursor with its first answer only if the batch was not
            // filled; the default of 101 would cost a second round trip.
            .batch_size(u32::try_from(query.limit.saturating_add(1)).unwrap_or(MAX_BATCH).min(MAX_BATCH));
        let mut cursor = find.await?;
        let (mut comments, mut documents, mut malformed) = (Vec::new(), 0_i64, 0_u64);
        while cursor.advance().await? {
            documents += 1;
            match document::decode(cursor.current(), room) {
                Ok(comment) => comments.push(comment),
                Err(field) => {
                    malformed += 1;
                    if malformed == 1 {
                        let id = cursor.current().get("_id").ok().flatten();
                        tracing::warn!(?id, field, "passed over a document that is not a comment");
                    }
                }
            }
        }
        if malformed > 1 {
            tracing::warn!(malformed, "passed over documents that are not comments");
        }
        Ok(Read { comments, is_exhausted: documents < query.limit })
    }

    /// Adds to the report what the error of an insert says of the documents that were sent.
    ///
    /// # Errors
    /// When the batch as a whole has no known outcome, or a document of it may yet be taken: it is to be tried again.
    fn take_apart(
        &self,
        error: &mongodb::error::Error,
        sent: &[CommentId],
        report: &mut WriteReport,
    ) -> Result<(), StoreError> {
        let verdicts = judge(error)?;
        // Duplicates are in from an earlier attempt: they do not show that the server takes anything now.
        let has_inserted = sent.len() > verdicts.len();
        if has_inserted {
            self.inner.undecided.took_some();
        }
        let mut undecided = Vec::new();
        for (index, verdict) in verdicts {
            // The server may name a document that it was not sent. Nothing it says of the others holds then.
            let Some(&id) = sent.get(index) else { return Err(classify(error)) };
            match verdict {
                Verdict::Duplicate => report.duplicates += 1,
                Verdict::SetAside { reason, detail } => report.set_aside.push(SetAside { id, reason, detail }),
                Verdict::Undecided { code, detail } => {
                    if self.inner.undecided.has_failed_enough(id, code, has_inserted) {
                        report.set_aside.push(SetAside { id, reason: "refused", detail });
                    } else {
                        undecided.push(detail);
                    }
                }
            }
        }
        let Some(first) = undecided.first() else { return Ok(()) };
        let detail = format!("{} of {} documents were not taken yet, {first}", undecided.len(), sent.len());
        Err(StoreError::Transient { detail, source: None })
    }

    /// Gives up on an operation that takes longer than any should, so that a server which swallows packets is noticed.
    async fn bounded<T>(
        &self,
        doing: &str,
        operation: impl IntoFuture<Output = Result<T, mongodb::error::Error>>,
    ) -> Result<T, StoreError> {
        within(self.inner.config.operation_timeout(), doing, operation.into_future())
            .await?
            .map_err(|error| classify(&error))
    }
}

struct Read {
    comments: Vec<Comment>,
    /// Whether the server had no more than these.
    is_exhausted: bool,
}

async fn within<T>(bound: Duration, doing: &str, operation: impl Future<Output = T>) -> Result<T, StoreError> {
    tokio::time::timeout(bound, operation).await.map_err(|_| timed_out(doing, bound))
}

/// The driver takes no more, and no answer has as many.
const MAX_BATCH: u32 = i32::MAX as u32;

fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// The record's document, if a server would look at it at all.
fn sendable(record: &Record) -> Result<&RawDocument, SetAside> {
    let set_aside = |reason, detail| SetAside { id: record.posted.comment.id, reason, detail };
    // The driver would refuse the whole batch for one such document.
    if record.bytes.len() > document::MAX_BYTES {
        let detail = format!("{} bytes are more than the {} of a document", record.bytes.len(), document::MAX_BYTES);
        return Err(set_aside("too_large", detail));
    }
    RawDocument::from_bytes(&record.bytes).map_err(|error| set_aside("refused", format!("not a document: {error}")))
}

#[async_trait]
impl CommentStore for MongoStore {
    fn encode(&self, comment: &Comment) -> Bytes {
        document::encode(comment)
    }

    async fn write(&self, batch: &[Record]) -> Result<WriteReport, StoreError> {
        let mut report = WriteReport::default();
        let (mut sent, mut documents) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for record in batch {
            match sendable(record) {
                Ok(document) => {
                    sent.push(record.posted.comment.id);
                    documents.push(Encoded(document));
                }
                Err(set_aside) => report.set_aside.push(set_aside),
            }
        }
        if documents.is_empty() {
            return Ok(report);
        }
        let collection = self.driver().await?.collection.clone_with_type::<Encoded<'_>>();
        let insert = collection.insert_many(&documents).ordered(false).into_future();
        match within(self.inner.config.operation_timeout(), "a write", insert).await? {
            Ok(_) => self.inner.undecided.took_some(),
            Err(error) => self.take_apart(&error, &sent, &mut report)?,
        }
        self.inner.undecided.forget(&sent);
        Ok(report)
    }

    async fn load_recent(&self, room: &RoomId, from: Timestamp, limit: usize) -> Result<Page, StoreError> {
        let now = self.inner.clock.now();
        self.load(room, limit, |ask| PageQuery::recent(room, from, now, ask)).await
    }

    async fn load_before(&self, room: &RoomId, before: Position, limit: usize) -> Result<Page, StoreError> {
        let now = self.inner.clock.now();
        self.load(room, limit, |ask| PageQuery::before(room, before, now, ask)).await
    }

    async fn count_between(
        &self,
        room: &RoomId,
        after: Position,
        before: Position,
        limit: u64,
    ) -> Result<u64, StoreError> {
        // A limit of 0 means none to the server.
        if limit == 0 || after >= before {
            return Ok(0);
        }
        let filter = query::between(room, after, before, self.inner.clock.now());
        let count = self
            .driver()
            .await?
            .collection
            .count_documents(filter)
            .hint(mongodb::options::Hint::Keys(PageQuery::hint()))
            .limit(limit.min(i64::MAX as u64));
        self.bounded("a count", count).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        // A `ping` would be answered by a member that has just ceased to be the primary, too.
        let admin = self.driver().await?.client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).into_future();
        let hello = within(PROBE_TIMEOUT, "a probe", hello).await?.map_err(|error| classify(&error))?;
        match hello.get_bool("isWritablePrimary") {
            Ok(true) => Ok(()),
            _ => Err(StoreError::Transient { detail: "the server is not a writable primary".into(), source: None }),
        }
    }

    async fn close(&self) {
        let Some(driver) = self.inner.driver.get() else { return };
        // The driver waits for operations that are under way, and a server that hangs answers none of them. Without a
        // goodbye it finds out by itself once the sockets are closed.
        if tokio::time::timeout(CLOSE_TIMEOUT, driver.client.clone().shutdown()).await.is_err() {
            tracing::debug!("mongodb was left without a goodbye");
        }
    }
}
