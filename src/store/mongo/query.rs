//! The questions put to MongoDB: every one names its room and is answered along the index
//! `{roomId: 1, ts: -1, _id: -1}`, in its order.

use bson::{Bson, Document, doc};

use crate::model::{Position, RoomId, Timestamp};

use super::document::date;
use super::index::by_room;

/// A page, newest first: what `find` and `explain` are both given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PageQuery {
    pub(super) filter: Document,
    /// At most so many documents.
    pub(super) limit: i64,
}

impl PageQuery {
    /// The order of the index within a room, so that nothing is sorted.
    pub(super) fn sort() -> Document {
        doc! { "ts": -1, "_id": -1 }
    }

    /// The index is named, by its keys: left to itself the planner may take the one on `expireAt`, and after a change
    /// of data it tries plans anew, in the middle of the evening's peak.
    pub(super) fn hint() -> Document {
        by_room()
    }

    /// The `find` command, for `explain`.
    pub(super) fn to_command(&self, collection: &str) -> Document {
        doc! {
            "find": collection,
            "filter": self.filter.clone(),
            "sort": Self::sort(),
            "hint": Self::hint(),
            "limit": self.limit,
        }
    }

    /// Comments with `ts >= from`.
    pub(super) fn recent(room: &RoomId, from: Timestamp, now: Timestamp, limit: i64) -> Self {
        Self { filter: served(room, doc! { "ts": { "$gte": date(from) } }, now), limit }
    }

    /// Comments before a position.
    ///
    /// The condition (ts, _id) < (T, I) is written as `ts < T`, or `ts = T` and `_id < I`, under one `$or`. By its plan
    /// (mongod 6.0) this is two exact ranges of the index, each read in order and merged as they come: a page of 51 at a
    /// depth of 3,000 with 1,000 comments of the same millisecond examines 52 keys and 51 documents, and sorts nothing.
    /// `min`/`max` with a hint is as tight (51 and 51) but cannot be used by an aggregate, which the count is, and is
    /// not narrowed to one type, so that a foreign `_id` or `ts` would be read.
    pub(super) fn before(room: &RoomId, before: Position, now: Timestamp, limit: i64) -> Self {
        Self { filter: served(room, doc! { "$or": ranges_before(before) }, now), limit }
    }
}

/// Comments after `after` and before `before`, both exclusive.
pub(super) fn between(room: &RoomId, after: Position, before: Position, now: Timestamp) -> Document {
    let (after_id, before_id) = (after.id.object_id(), before.id.object_id());
    let range = if after.ts == before.ts {
        doc! { "ts": date(after.ts), "_id": { "$gt": after_id, "$lt": before_id } }
    } else {
        doc! { "$or": [
            { "ts": date(before.ts), "_id": { "$lt": before_id } },
            { "ts": { "$gt": date(after.ts), "$lt": date(before.ts) } },
            { "ts": date(after.ts), "_id": { "$gt": after_id } },
        ] }
    };
    served(room, range, now)
}

fn ranges_before(before: Position) -> [Bson; 2] {
    [
        Bson::Document(doc! { "ts": { "$lt": date(before.ts) } }),
        Bson::Document(doc! { "ts": date(before.ts), "_id": { "$lt": before.id.object_id() } }),
    ]
}

/// Narrows a range of a room to what may be served. The TTL monitor comes by once a minute, so what has expired since is
/// left out here, in the server: after reading, the limit and `has_more` would count what is not given. Written with
/// `$not`, so that a document without a proper `expireAt` reaches the decoder, which reports it.
fn served(room: &RoomId, range: Document, now: Timestamp) -> Document {
    let mut filter = doc! { "roomId": room.as_str() };
    filter.extend(range);
    filter.insert("recalled", doc! { "$ne": true });
    filter.insert("expireAt", doc! { "$not": { "$lte": date(now) } });
    filter
}
