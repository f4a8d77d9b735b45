//! What the MongoDB store is told: where the server is, and how long to wait for it.

use std::fmt;
use std::time::Duration;

use mongodb::options::{Acknowledgment, ClientOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};

use crate::store::StoreError;

use super::error::{blocked, classify};

/// How many members of the replica set must have a write before it counts as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteConcernLevel {
    /// A majority, so that no change of primary takes it back.
    #[default]
    Majority,
    /// The primary alone; what it had not passed on is lost with it.
    One,
}

/// Where MongoDB is and how to use it. `Debug` shows the URI without its user, password and options.
#[derive(Clone, PartialEq, Eq)]
pub struct MongoConfig {
    /// Connection string, `mongodb://…` or `mongodb+srv://…`; may hold a password. The fields below take precedence
    /// over the same options in it.
    pub uri: String,
    /// Database.
    pub database: String,
    /// Collection, one for all rooms.
    pub collection: String,
    /// When a write counts as stored.
    pub write_concern: WriteConcernLevel,
    /// Whether it must also be in the journal on disk. Replica sets by default journal what a majority is to have, so
    /// this makes a difference for [`WriteConcernLevel::One`] alone.
    pub journal: bool,
    /// Most connections to each server; 0 is no limit.
    pub max_pool_size: u32,
    /// Connections kept open to each server, the first of them before the store counts as ready.
    pub min_pool_size: u32,
    /// How long an operation waits for a server that can take it, such as a new primary.
    pub server_selection_timeout: Duration,
    /// How long to wait for a new connection.
    pub connect_timeout: Duration,
    /// How long the servers may take to meet the write concern (`wtimeout`). An operation that has not ended after
    /// this and [`server_selection_timeout`](Self::server_selection_timeout) together is given up as transient, so
    /// that a server which swallows packets is noticed.
    pub write_timeout: Duration,
}

impl MongoConfig {
    /// The URI as it may be shown: without credentials and options.
    #[must_use]
    pub fn shown_uri(&self) -> String {
        mask(&self.uri)
    }

    /// Everything at its default, for a server at `uri`.
    #[must_use]
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            database: "danmaku".into(),
            collection: "danmaku".into(),
            write_concern: WriteConcernLevel::default(),
            journal: true,
            max_pool_size: 16,
            // Four bulks in flight is where the measured throughput levels off.
            min_pool_size: 4,
            server_selection_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(10),
        }
    }

    /// The most time any one operation may take.
    pub(super) fn operation_timeout(&self) -> Duration {
        self.server_selection_timeout.saturating_add(self.write_timeout)
    }

    /// Reads the URI and lays these settings over it. A `mongodb+srv` URI asks DNS.
    pub(super) async fn client_options(&self) -> Result<ClientOptions, StoreError> {
        let parsed = tokio::time::timeout(self.operation_timeout(), ClientOptions::parse(&self.uri)).await;
        let mut options = match parsed {
            Ok(Ok(options)) => options,
            Ok(Err(error)) => return Err(self.explain_bad_uri(&error).await),
            Err(_) => {
                return Err(StoreError::Transient {
                    detail: format!("DNS does not answer for {}", mask(&self.uri)),
                    source: None,
                });
            }
        };
        let acknowledgment = match self.write_concern {
            WriteConcernLevel::Majority => Acknowledgment::Majority,
            WriteConcernLevel::One => Acknowledgment::Nodes(1),
        };
        options.app_name = Some("danmakud".into());
        options.write_concern = Some(
            WriteConcern::builder()
                .w(acknowledgment)
                // Never `j: false`: under `majority` the server then does not ask for a flush but waits for the
                // journal's next turn, up to 100 ms later, and one bulk in flight falls from 70,000/s to 10,000/s.
                .journal(self.journal.then_some(true))
                .w_timeout(self.write_timeout)
                .build(),
        );
        // Reads go to the primary and see what it has: the ring is joined with what the store acknowledged a moment
        // ago, and a lagging secondary, or the majority's older snapshot under `w: 1`, would leave a hole between them.
        options.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        options.read_concern = Some(ReadConcern::local());
        options.max_pool_size = Some(self.max_pool_size);
        options.min_pool_size = Some(self.min_pool_size);
        options.server_selection_timeout = Some(self.server_selection_timeout);
        options.connect_timeout = Some(self.connect_timeout);
        Ok(options)
    }

    /// Says what is wrong with the URI without showing what may be secret in it: the driver's own message quotes the
    /// part it could not read, and of an unescaped password that is a piece of the password. So the message shown is
    /// the one for the same URI with other credentials.
    async fn explain_bad_uri(&self, error: &mongodb::error::Error) -> StoreError {
        if let StoreError::Transient { detail, .. } = classify(error) {
            return StoreError::Transient {
                detail: format!("the servers of {} cannot be looked up: {detail}", mask(&self.uri)),
                source: None,
            };
        }
        let shown = mask(&self.uri);
        let why = match ClientOptions::parse(without_credentials(&self.uri)).await {
            _ if !self.uri.starts_with("mongodb://") && !self.uri.starts_with("mongodb+srv://") => {
                "it must begin with mongodb:// or mongodb+srv://".to_owned()
            }
            Err(_) if holds_secret_options(&self.uri) => "one of its options is not valid".to_owned(),
            Err(other) => other.kind.to_string(),
            Ok(_) => "user name and password must be percent-encoded (/ is %2F, @ is %40, : is %3A)".to_owned(),
        };
        blocked(format!("the MongoDB URI {shown} cannot be used: {why}"))
    }
}

impl fmt::Debug for MongoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoConfig")
            .field("uri", &mask(&self.uri))
            .field("database", &self.database)
            .field("collection", &self.collection)
            .field("write_concern", &self.write_concern)
            .field("journal", &self.journal)
            .field("max_pool_size", &self.max_pool_size)
            .field("min_pool_size", &self.min_pool_size)
            .field("server_selection_timeout", &self.server_selection_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("write_timeout", &self.write_timeout)
            .finish()
    }
}

/// Splits a URI into scheme, credentials and the rest, at the last `@`: an unescaped one in a password must not show.
fn split(uri: &str) -> (&str, Option<&str>, &str) {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("", uri));
    match rest.rsplit_once('@') {
        Some((credentials, hosts)) => (scheme, Some(credentials), hosts),
        None => (scheme, None, rest),
    }
}

/// The URI as it may be shown: no credentials, and no options, for these hold secrets too (a key file's password, a
/// session token).
fn mask(uri: &str) -> String {
    let (scheme, credentials, rest) = split(uri);
    let (hosts, options) = rest.split_once('?').map_or((rest, ""), |(hosts, _)| (hosts, "?…"));
    let credentials = if credentials.is_some() { "***@" } else { "" };
    format!("{scheme}://{credentials}{hosts}{options}")
}

fn without_credentials(uri: &str) -> String {
    let (scheme, credentials, rest) = split(uri);
    let credentials = if credentials.is_some() { "user:password@" } else { "" };
    format!("{scheme}://{credentials}{rest}")
}

fn holds_secret_options(uri: &str) -> bool {
    let options = uri.split_once('?').map_or("", |(_, options)| options).to_ascii_lowercase();
    options.contains("password") || options.contains("authmechanismproperties")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: [&str; 5] = ["hunter2", "hun/ter2", "hun@ter2", "hun?ter2", "hun:ter/2@x?y"];

    #[test]
    fn debug_never_shows_the_password() {
        for secret in SECRETS {
            let config = MongoConfig::new(format!("mongodb://bob:{secret}@db1:27017,db2/x?authSource=admin"));
            let shown = format!("{config:?}");
            assert!(!shown.contains("ter2") && !shown.contains("ter/2") && !shown.contains("bob"), "{shown}");
            assert!(shown.contains("mongodb://***@db1:27017,db2/x?…"), "{shown}");
        }
        assert_eq!(mask("mongodb://db1/x"), "mongodb://db1/x");
    }

    #[tokio::test]
    async fn the_journal_is_asked_for_or_not_mentioned() {
        for (journal, asked) in [(true, Some(true)), (false, None)] {
            let config = MongoConfig { journal, ..MongoConfig::new("mongodb://db1/?w=1&journal=false") };
            let concern = config.client_options().await.unwrap().write_concern.unwrap();
            assert_eq!((concern.journal, concern.w), (asked, Some(Acknowledgment::Majority)));
        }
    }

    #[tokio::test]
    async fn a_bad_uri_is_refused_in_plain_words_without_the_password() {
        for secret in SECRETS.iter().skip(1) {
            let error = MongoConfig::new(format!("mongodb://bob:{secret}@db1")).client_options().await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!error.is_transient() && shown.contains("percent-encoded"), "{shown}");
            assert!(!shown.contains("ter2") && !shown.contains("hun"), "{shown}");
        }
        for (uri, word) in [
            ("http://db1", "must begin with"),
            ("db1:27017", "must begin with"),
            ("", "must begin with"),
            ("mongodb://bob:hunter2@db1:99999999", "port"),
            ("mongodb://bob:hunter2@db1/?retryWrites=maybe", "retrywrites"),
            ("mongodb://bob:x@db1/?tls=true&tlsCertificateKeyFilePassword=hunter2&w=-5", "one of its options"),
        ] {
            let error = MongoConfig::new(uri).client_options().await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!error.is_transient() && shown.to_lowercase().contains(word), "{uri}: {shown}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
