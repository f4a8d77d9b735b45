//! The two indexes: made when missing, altered in place when they differ, left alone when they are right.

use std::fmt;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Database;
use mongodb::error::{Error, ErrorKind};
use tokio::time::{Instant, timeout};

/// Serves the 60-second query and paging by position.
pub(super) fn by_room() -> Document {
    doc! { "roomId": 1, "ts": -1, "_id": -1 }
}

/// What start-up did to an index. Starting again does nothing and reports nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// It was missing and was made.
    Created {
        /// Its name.
        name: String,
        /// Its description.
        new: String,
    },
    /// It differed and was altered in place.
    Altered {
        /// Its name.
        name: String,
        /// What it was.
        old: String,
        /// What it is.
        new: String,
    },
    /// It differed in what cannot be altered, so it was dropped and made anew.
    Rebuilt {
        /// Its name.
        name: String,
        /// What it was.
        old: String,
        /// What it is.
        new: String,
    },
}

impl fmt::Display for IndexChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created { name, new } => write!(f, "index {name} created as {new}"),
            Self::Altered { name, old, new } => write!(f, "index {name} altered in place from {old} to {new}"),
            Self::Rebuilt { name, old, new } => write!(f, "index {name} dropped and created anew: was {old}, is {new}"),
        }
    }
}

/// Options that change what an index does for us. The collation is not among them: a new index takes the collection's
/// own, and comparing it would rebuild the index at every start.
const OPTIONS: [&str; 5] = ["expireAfterSeconds", "unique", "sparse", "partialFilterExpression", "hidden"];

const NAMESPACE_NOT_FOUND: i32 = 26;
const INDEX_NOT_FOUND: i32 = 27;
const INDEX_OPTIONS_CONFLICT: i32 = 85;
const INDEX_KEY_SPECS_CONFLICT: i32 = 86;

/// An index as it is wanted.
struct Wanted {
    keys: Document,
    /// Of [`OPTIONS`], those that are set.
    options: Document,
}

/// Where the indexes are.
pub(super) struct Indexes<'a> {
    pub(super) database: &'a Database,
    pub(super) collection: &'a str,
    /// The most time for a command that is not a build.
    pub(super) bound: Duration,
}

impl Indexes<'_> {
    /// Brings the collection's indexes to what they must be.
    pub(super) async fn ensure(&self) -> Result<Vec<IndexChange>, Error> {
        let wanted = [
            Wanted { keys: by_room(), options: doc! {} },
            // Rooms keep their comments for different times, so each document says when it goes and the index adds nothing.
            Wanted { keys: doc! { "expireAt": 1 }, options: doc! { "expireAfterSeconds": 0 } },
        ];
        let mut changes = Vec::new();
        for index in wanted {
            if let Some(change) = self.ensure_one(&index).await? {
                changes.push(change);
            }
        }
        Ok(changes)
    }

    async fn ensure_one(&self, wanted: &Wanted) -> Result<Option<IndexChange>, Error> {
        let existing = self.list().await?;
        let new = wanted.describe();
        let same_keys: Vec<_> = existing.iter().filter(|index| wanted.has_keys_of(index)).collect();
        if same_keys.iter().any(|index| wanted.has_options_of(index)) {
            return Ok(None);
        }
        let Some(found) = same_keys.first() else {
            let name = self.create(wanted, &existing).await?;
            return Ok(Some(IndexChange::Created { name, new }));
        };
        let (name, old) = (name_of(found), describe(found));
        if wanted.is_alterable(found) && self.alter(wanted, found).await? {
            return Ok(Some(IndexChange::Altered { name, old, new }));
        }
        let dropped = self.run(doc! { "dropIndexes": self.collection, "index": &name }).await;
        // Another node, starting at the same time, may have been first.
        if let Err(error) = dropped
            && code_of(&error) != Some(INDEX_NOT_FOUND)
        {
            return Err(error);
        }
        let name = self.create(wanted, &self.list().await?).await?;
        Ok(Some(IndexChange::Rebuilt { name, old, new }))
    }

    /// Alters an index in place; says whether the server could. One before MongoDB 5.1 cannot make a plain index expire.
    async fn alter(&self, wanted: &Wanted, found: &Document) -> Result<bool, Error> {
        let mut change = doc! { "name": name_of(found) };
        for option in ["expireAfterSeconds", "hidden"] {
            if !is_same(found.get(option), wanted.options.get(option)) {
                change.insert(option, wanted.options.get(option).cloned().unwrap_or(Bson::Boolean(false)));
            }
        }
        match self.run(doc! { "collMod": self.collection, "index": change }).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind.as_ref(), ErrorKind::Command(command) if is_refusal(command.code)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the index and gives its name: the usual one, or, if an index over other fields has that, one of ours. Nothing
    /// depends on the name.
    async fn create(&self, wanted: &Wanted, existing: &[Document]) -> Result<String, Error> {
        let usual =
            wanted.keys.iter().map(|(field, direction)| format!("{field}_{direction}")).collect::<Vec<_>>().join("_");
        let is_taken = existing.iter().any(|index| name_of(index) == usual);
        let name = if is_taken { format!("danmakud_{usual}") } else { usual };
        let mut index = doc! { "key": wanted.keys.clone(), "name": &name };
        index.extend(wanted.options.clone());
        tracing::info!(
            collection = self.collection,
            index = name,
            "creating an index, which takes a while on a large collection"
        );
        match self.build(doc! { "createIndexes": self.collection, "indexes": [index] }).await {
            Ok(_) => Ok(name),
            // Another node, starting at the same time, was first; if what it made is right, so are we.
            Err(error)
                if matches!(code_of(&error), Some(INDEX_OPTIONS_CONFLICT | INDEX_KEY_SPECS_CONFLICT))
                    && self
                        .list()
                        .await?
                        .iter()
                        .any(|index| wanted.has_keys_of(index) && wanted.has_options_of(index)) =>
            {
                Ok(name)
            }
            Err(error) => Err(error),
        }
    }

    /// The collection's indexes as the server describes them. There are at most 64, so the first batch holds them all.
    async fn list(&self) -> Result<Vec<Document>, Error> {
        let reply = match self.run(doc! { "listIndexes": self.collection }).await {
            Ok(reply) => reply,
            Err(error) if code_of(&error) == Some(NAMESPACE_NOT_FOUND) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let indexes = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        Ok(indexes.map(|all| all.iter().filter_map(Bson::as_document).cloned().collect()).unwrap_or_default())
    }

    /// Runs a command that should not take long; a server that swallows packets is noticed.
    async fn run(&self, command: Document) -> Result<Document, Error> {
        let ran = timeout(self.bound, self.database.run_command(command).into_future()).await;
        ran.unwrap_or_else(|_| {
            let detail = format!("no answer about the indexes within {:?}", self.bound);
            Err(ErrorKind::from(io::Error::new(io::ErrorKind::TimedOut, detail)).into())
        })
    }

    /// Runs a command that takes as long as it takes, while the server answers others.
    async fn build(&self, command: Document) -> Result<Document, Error> {
        let begun = Instant::now();
        let mut building = pin!(self.database.run_command(command).into_future());
        loop {
            if let Ok(built) = timeout(self.bound, &mut building).await {
                return built;
            }
            self.run(doc! { "ping": 1 }).await?;
            tracing::info!(collection = self.collection, since = ?begun.elapsed(), "an index is still being created");
        }
    }
}

impl Wanted {
    fn describe(&self) -> String {
        let mut full = doc! { "key": self.keys.clone() };
        full.extend(self.options.clone());
        describe(&full)
    }

    /// Same fields in the same order; the directions may be of any numeric type.
    fn has_keys_of(&self, index: &Document) -> bool {
        let Ok(keys) = index.get_document("key") else { return false };
        keys.len() == self.keys.len()
            && keys.iter().zip(&self.keys).all(|((name, value), (wanted_name, wanted))| {
                name == wanted_name && number(value).is_some() && number(value) == number(wanted)
            })
    }

    fn has_options_of(&self, index: &Document) -> bool {
        OPTIONS.iter().all(|option| is_same(index.get(option), self.options.get(option)))
    }

    /// `collMod` changes `expireAfterSeconds` and `hidden` and nothing else, and cannot end an index being TTL.
    fn is_alterable(&self, index: &Document) -> bool {
        let fixed = ["unique", "sparse", "partialFilterExpression"];
        fixed.iter().all(|option| is_same(index.get(option), self.options.get(option)))
            && (self.options.contains_key("expireAfterSeconds") || !index.contains_key("expireAfterSeconds"))
    }
}

/// BadValue, FailedToParse, IllegalOperation, InvalidOptions, the index gone: this server cannot alter it so.
fn is_refusal(code: i32) -> bool {
    [2, 9, 20, 72, INDEX_NOT_FOUND].contains(&code)
}

fn code_of(error: &Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}

fn name_of(index: &Document) -> String {
    index.get_str("name").unwrap_or_default().to_owned()
}

fn describe(index: &Document) -> String {
    let mut shown = Document::new();
    for key in ["key"].iter().chain(&OPTIONS) {
        if let Some(value) = index.get(key) {
            shown.insert(*key, value.clone());
        }
    }
    shown.to_string()
}

fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(n) => Some(f64::from(*n)),
        #[expect(clippy::cast_precision_loss, reason = "directions and seconds are small")]
        Bson::Int64(n) => Some(*n as f64),
        Bson::Double(n) => Some(*n),
        _ => None,
    }
}

/// Whether two options mean the same; an absent one is `false`. A NaN, which old servers let in, equals nothing.
fn is_same(a: Option<&Bson>, b: Option<&Bson>) -> bool {
    let set = |value: Option<&Bson>| value.filter(|value| **value != Bson::Boolean(false)).cloned();
    match (set(a), set(b)) {
        (None, None) => true,
        (Some(a), Some(b)) => a == b || number(&a).is_some() && number(&a) == number(&b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_compared_by_what_they_mean() {
        let same = |a: Bson, b: Bson| is_same(Some(&a), Some(&b));
        assert!(same(Bson::Int32(0), Bson::Double(0.0)) && same(Bson::Int64(0), Bson::Int32(0)));
        assert!(!same(Bson::Double(f64::NAN), Bson::Int32(0)) && !same(Bson::Int32(60), Bson::Int32(0)));
        assert!(is_same(Some(&Bson::Boolean(false)), None) && !is_same(Some(&Bson::Boolean(true)), None));
        let ttl = Wanted { keys: doc! { "expireAt": 1 }, options: doc! { "expireAfterSeconds": 0 } };
        assert!(ttl.has_keys_of(&doc! { "key": { "expireAt": 1.0 } }));
        assert!(!ttl.has_keys_of(&doc! { "key": { "expireAt": -1 } }));
        assert!(!ttl.has_keys_of(&doc! { "key": { "expireAt": "hashed" } }));
        assert!(!ttl.has_keys_of(&doc! { "key": { "expireAt": 1, "ts": 1 } }));
    }
}
