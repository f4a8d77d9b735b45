//! Reads across buckets: one room's comments, newest first, as if they lay in one. All calls block.

use std::collections::BinaryHeap;

use fjall::{Iter, Readable as _, UserKey, UserValue};

use super::codec::DecodeError;
use super::engine::Engine;
use super::key::KeyRange;
use super::{codec, fault, key};
use crate::model::{RoomId, Timestamp};
use crate::store::{Page, StoreError};

/// Reads the newest comments of `range` that have not expired by `now`.
pub(super) fn load(
    engine: &Engine,
    room: &RoomId,
    range: &KeyRange,
    now: Timestamp,
    limit: usize,
) -> Result<Page, StoreError> {
    let mut page = Page::default();
    for entry in NewestFirst::open(engine, range, now)? {
        let (key, value) = entry?;
        if page.comments.len() >= limit {
            page.has_more = true;
            break;
        }
        let position =
            key::decode_position(&key).ok_or_else(|| fault::blocked("a key in the embedded store is broken"))?;
        page.comments.push(codec::decode(room, position, &value).map_err(broken)?);
    }
    Ok(page)
}

/// Counts the comments of `range` that have not expired by `now`, up to `limit`.
pub(super) fn count(engine: &Engine, range: &KeyRange, now: Timestamp, limit: u64) -> Result<u64, StoreError> {
    let mut count = 0;
    let mut entries = NewestFirst::open(engine, range, now)?;
    while count < limit && entries.next().transpose()?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn broken(error: DecodeError) -> StoreError {
    StoreError::Blocked { detail: format!("cannot read the embedded store: {error}"), source: Some(error.into()) }
}

/// Merges the buckets. A key that lies in two of them, as after a change of the bucket width, comes once.
struct NewestFirst<'a> {
    engine: &'a Engine,
    now: Timestamp,
    buckets: Vec<Iter>,
    heads: BinaryHeap<Head>,
    last: Option<UserKey>,
}

/// The next entry of a bucket. Ordered by key first; no two heads have the same key and bucket.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    key: UserKey,
    bucket: usize,
    value: UserValue,
}

impl<'a> NewestFirst<'a> {
    fn open(engine: &'a Engine, range: &KeyRange, now: Timestamp) -> Result<Self, StoreError> {
        let (snapshot, live) = engine.live(now);
        let buckets: Vec<Iter> = live.iter().map(|keyspace| snapshot.range(keyspace, range.clone())).collect();
        let mut merge = Self { engine, now, heads: BinaryHeap::with_capacity(buckets.len()), buckets, last: None };
        for bucket in 0..merge.buckets.len() {
            merge.advance(bucket)?;
        }
        Ok(merge)
    }

    /// Puts the bucket's next entry among the heads.
    fn advance(&mut self, bucket: usize) -> Result<(), StoreError> {
        let Some(entry) = self.buckets.get_mut(bucket).and_then(Iter::next_back) else { return Ok(()) };
        let (key, value) = entry.into_inner().map_err(|error| self.engine.failed("reading", error))?;
        self.heads.push(Head { key, bucket, value });
        Ok(())
    }

    fn try_next(&mut self) -> Result<Option<(UserKey, UserValue)>, StoreError> {
        while let Some(Head { key, bucket, value }) = self.heads.pop() {
            self.advance(bucket)?;
            let is_double = self.last.as_ref() == Some(&key);
            if !is_double && codec::decode_expiry(&value).map_err(broken)? > self.now {
                self.last = Some(key.clone());
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

impl Iterator for NewestFirst<'_> {
    type Item = Result<(UserKey, UserValue), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
