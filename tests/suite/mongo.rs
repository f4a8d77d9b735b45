//! The MongoDB store against a real server: documents, indexes, plans, and what becomes of each document of a batch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use danmakud::clock::Clock;
use danmakud::model::{Comment, CommentId, Name, Position, Posted, RoomId, Seq, Style, Text, Timestamp, UserId};
use danmakud::store::{CommentStore, MongoConfig, MongoStore, Record, StoreError};
use mongodb::Collection;

use crate::support::mongod::{ADMIN, Access, ReplicaSet, stages, until};

/// 2033-05-18, so that the TTL monitor leaves what tests write alone.
pub const NOW: i64 = 2_000_000_000_000;

pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(NOW + millis)
}

pub fn room(name: &str) -> RoomId {
    RoomId::parse(name).unwrap()
}

/// A comment made `millis` after [`NOW`] with a new id, kept for an hour.
pub fn comment(room: &RoomId, millis: i64) -> Comment {
    static IDS: AtomicU32 = AtomicU32::new(0);
    Comment {
        id: CommentId::from_parts(at(millis), [7; 5], IDS.fetch_add(1, Ordering::Relaxed)),
        room: room.clone(),
        ts: at(millis),
        uid: UserId::new("u1"),
        name: Name::parse("阿明").unwrap(),
        text: Text::from_store("前方高能"),
        style: Style::parse(Some(5), Some(0xFF_0000), Some(36)).unwrap(),
        expire_at: at(millis + 3_600_000),
    }
}

pub fn record(store: &MongoStore, comment: &Comment) -> Record {
    let bytes = store.encode(comment);
    Record { posted: Arc::new(Posted::pending(comment.clone(), Seq(1), Arc::default())), bytes }
}

pub fn records(store: &MongoStore, comments: &[Comment]) -> Vec<Record> {
    comments.iter().map(|comment| record(store, comment)).collect()
}

/// A configuration for a database of this test's own.
pub fn config(uri: String) -> MongoConfig {
    static DATABASES: AtomicU32 = AtomicU32::new(0);
    let database = format!("t{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    MongoConfig { database, ..MongoConfig::new(uri) }
}

struct Bench {
    store: MongoStore,
    config: MongoConfig,
    clock: Clock,
    raw: Collection<Document>,
}

/// A configuration for the shared server, and the collection as another program sees it.
async fn shared() -> (MongoConfig, Collection<Document>) {
    let set = ReplicaSet::shared().await;
    let config = config(set.uri(None));
    let raw = set.client().await.database(&config.database).collection(&config.collection);
    (config, raw)
}

async fn bench() -> Bench {
    let (config, raw) = shared().await;
    let clock = Clock::manual(at(0));
    let (store, _) = MongoStore::connect(config.clone(), clock.clone()).await.unwrap();
    Bench { store, config, clock, raw }
}

async fn indexes(raw: &Collection<Document>) -> Vec<Document> {
    let database = raw.client().database(&raw.namespace().db);
    let reply = database.run_command(doc! { "listIndexes": raw.name() }).await.unwrap();
    let all = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    all.iter().map(|index| index.as_document().unwrap().clone()).collect()
}

#[tokio::test]
async fn documents_look_exactly_as_the_table_says() {
    let Bench { store, raw, .. } = bench().await;
    let comment = comment(&room("r1"), 123);
    let report = store.write(&[record(&store, &comment)]).await.unwrap();
    assert_eq!((report.duplicates, report.set_aside.len()), (0, 0));
    let found = raw.find_one(doc! {}).await.unwrap().unwrap();
    let expected = doc! {
        "_id": comment.id.object_id(),
        "roomId": "r1",
        "ts": DateTime::from_millis(NOW + 123),
        "uid": "u1",
        "name": "阿明",
        "content": "前方高能",
        "mode": Bson::Int32(5),
        "color": Bson::Int32(0xFF_0000),
        "size": Bson::Int32(36),
        "expireAt": DateTime::from_millis(NOW + 123 + 3_600_000),
    };
    assert_eq!(found, expected);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn indexes_are_made_once_and_a_second_start_changes_nothing() {
    let (config, raw) = shared().await;
    let (_, first) = MongoStore::connect(config.clone(), Clock::system()).await.unwrap();
    let said: Vec<_> = first.iter().map(ToString::to_string).collect();
    assert!(said.len() == 2 && said.iter().all(|change| change.contains("created as")), "{said:?}");
    let made = indexes(&raw).await;
    let expected = [
        doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" },
        doc! { "v": 2, "key": { "roomId": 1, "ts": -1, "_id": -1 }, "name": "roomId_1_ts_-1__id_-1" },
        doc! { "v": 2, "key": { "expireAt": 1 }, "name": "expireAt_1", "expireAfterSeconds": 0 },
    ];
    assert_eq!(made, expected);
    let (_, second) = MongoStore::connect(config, Clock::system()).await.unwrap();
    assert_eq!((second, indexes(&raw).await), (vec![], made));
}

#[tokio::test]
async fn a_differing_index_is_brought_to_what_it_must_be_and_old_and_new_are_told() {
    let ttl = |name: &str| doc! { "key": { "expireAt": 1 }, "name": name };
    let by_room = |name: &str| doc! { "key": { "roomId": 1, "ts": -1, "_id": -1 }, "name": name };
    let with = |mut index: Document, option: &str, value: Bson| {
        index.insert(option, value);
        index
    };
    let partial = Bson::Document(doc! { "mode": 1 });
    // What is there before, what start-up says of it, and under which name the right index is then.
    let table = [
        (with(ttl("expireAt_1"), "expireAfterSeconds", Bson::Int32(3600)), "altered in place", "3600", "expireAt_1"),
        (with(ttl("old_retention"), "expireAfterSeconds", Bson::Int32(60)), "altered in place", "60", "old_retention"),
        (ttl("expireAt_1"), "altered in place", "expireAt", "expireAt_1"),
        (with(ttl("x"), "partialFilterExpression", partial.clone()), "dropped", "partialFilter", "expireAt_1"),
        (with(by_room("hid"), "hidden", Bson::Boolean(true)), "altered in place", "hidden", "hid"),
        (with(by_room("few"), "partialFilterExpression", partial), "dropped", "partial", "roomId_1_ts_-1__id_-1"),
        (doc! { "key": { "other": 1 }, "name": "expireAt_1" }, "created", "expireAt", "danmakud_expireAt_1"),
    ];
    for (before, what, old, name) in table {
        let (config, raw) = shared().await;
        let database = raw.client().database(&config.database);
        database.run_command(doc! { "createIndexes": &config.collection, "indexes": [&before] }).await.unwrap();
        let (_, changes) = MongoStore::connect(config.clone(), Clock::system()).await.unwrap();
        let said: Vec<_> = changes.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|change| change.contains(what) && change.contains(old)), "{before}: {said:?}");
        let after = indexes(&raw).await;
        let found = after.iter().find(|index| index.get_str("name").is_ok_and(|found| found == name)).unwrap();
        let right = if name.contains("expireAt") || name == "old_retention" {
            doc! { "v": 2, "key": { "expireAt": 1 }, "name": name, "expireAfterSeconds": 0 }
        } else {
            doc! { "v": 2, "key": { "roomId": 1, "ts": -1, "_id": -1 }, "name": name }
        };
        assert_eq!(found, &right, "{before}");
        let (_, again) = MongoStore::connect(config, Clock::system()).await.unwrap();
        assert_eq!((again, indexes(&raw).await), (vec![], after), "{before}");
    }
}

#[tokio::test]
async fn expired_comments_are_not_served_and_leave_the_collection() {
    let Bench { store, clock, raw, .. } = bench().await;
    let room = room("r1");
    let mut comments: Vec<_> = (0..10).map(|n| comment(&room, n)).collect();
    for (n, comment) in (0..).zip(&mut comments) {
        // The odd ones go early.
        comment.expire_at = at(if n % 2 == 1 { 50 } else { 100 });
    }
    store.write(&records(&store, &comments)).await.unwrap();
    clock.set(at(50));
    let page = store.load_recent(&room, at(0), 4).await.unwrap();
    let times: Vec<_> = page.comments.iter().map(|comment| comment.ts.millis() - NOW).collect();
    assert_eq!((times, page.has_more), (vec![8, 6, 4, 2], true));
    let page = store.load_recent(&room, at(0), 5).await.unwrap();
    assert_eq!((page.comments.len(), page.has_more), (5, false));

    // By the server's own clock these are past; its monitor comes by each second.
    let mut gone = comment(&room, 0);
    gone.expire_at = Timestamp::from_millis(1_000);
    store.write(&[record(&store, &gone)]).await.unwrap();
    until("what has expired has left", async || {
        let left = raw.count_documents(doc! { "_id": gone.id.object_id() }).await.unwrap();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(raw.count_documents(doc! {}).await.unwrap(), 10);
}

#[tokio::test]
async fn both_queries_walk_the_index_and_touch_no_more_than_they_return() {
    let Bench { store, .. } = bench().await;
    let (busy, other) = (room("busy"), room("other"));
    // Among them a thousand of one millisecond, as when a clock was set back.
    let mut comments: Vec<_> =
        (0..6000).map(|n| comment(&busy, if (2000..3000).contains(&n) { 2000 } else { n })).collect();
    comments.extend((0..1000).map(|n| comment(&other, n)));
    store.write(&records(&store, &comments)).await.unwrap();
    let tied = comments.get(2500).unwrap().position();
    let deep = comments.get(1000).unwrap().position();
    let plans = [
        (store.explain_recent(&busy, at(0), 200).await.unwrap(), 201),
        (store.explain_recent(&busy, at(5990), 200).await.unwrap(), 10),
        (store.explain_before(&busy, tied, 50).await.unwrap(), 51),
        (store.explain_before(&busy, deep, 50).await.unwrap(), 51),
    ];
    for (explained, expected) in plans {
        let stats = explained.get_document("executionStats").unwrap();
        let count = |key: &str| stats.get_i32(key).unwrap();
        let stages: BTreeSet<_> = stages(stats.get_document("executionStages").unwrap()).into_iter().collect();
        assert!(stages.contains("IXSCAN"), "{stats}");
        assert!(!stages.contains("COLLSCAN") && !stages.contains("SORT"), "{stats}");
        assert_eq!(count("nReturned"), expected, "{stats}");
        assert!(count("totalDocsExamined") <= expected + 1, "{stats}");
        assert!(count("totalKeysExamined") <= expected + 2, "{stats}");
    }
}

#[tokio::test]
async fn pages_and_counts_agree_with_the_order_of_time_and_id() {
    let Bench { store, .. } = bench().await;
    let room = room("r1");
    let mut comments: Vec<_> = (0..120).map(|n| comment(&room, n / 7 * 10)).collect();
    store.write(&records(&store, &comments)).await.unwrap();
    comments.sort_by_key(|comment| std::cmp::Reverse(comment.position()));

    let (mut read, mut before) = (Vec::new(), Position { ts: at(1 << 30), id: CommentId::MIN });
    loop {
        let page = store.load_before(&room, before, 11).await.unwrap();
        before = page.comments.last().unwrap().position();
        read.extend(page.comments);
        if !page.has_more {
            break;
        }
    }
    assert_eq!(read, comments);
    let past_the_end = store.load_before(&room, before, 11).await.unwrap();
    assert_eq!((past_the_end.comments.len(), past_the_end.has_more), (0, false));

    let places: Vec<_> = comments.iter().rev().map(Comment::position).collect();
    for (a, b) in [(0, 1), (0, 2), (3, 6), (3, 13), (5, 100), (50, 50), (60, 10), (0, 119)] {
        let (after, before) = (*places.get(a).unwrap(), *places.get(b).unwrap());
        let expected = b.saturating_sub(a + 1) as u64;
        assert_eq!(store.count_between(&room, after, before, 1000).await.unwrap(), expected, "{a} {b}");
        assert_eq!(store.count_between(&room, after, before, 4).await.unwrap(), expected.min(4), "{a} {b}");
    }
    let last = *places.last().unwrap();
    assert_eq!(store.count_between(&room, Position::START, last, u64::MAX).await.unwrap(), 119);
    assert_eq!(store.count_between(&room, Position::START, last, 0).await.unwrap(), 0);
}

#[tokio::test]
async fn one_document_against_the_schema_is_named_and_the_other_499_are_stored() {
    let Bench { store, config, raw, .. } = bench().await;
    let schema = doc! { "$jsonSchema": { "properties": { "content": { "not": { "enum": ["毒"] } } } } };
    let database = raw.client().database(&config.database);
    database.run_command(doc! { "collMod": &config.collection, "validator": schema }).await.unwrap();
    let mut comments: Vec<_> = (0..500).map(|n| comment(&room("r1"), n)).collect();
    let poison = comments.get_mut(321).unwrap();
    poison.text = Text::from_store("毒");
    let poison = poison.id;
    let batch = records(&store, &comments);
    for duplicates in [0, 499] {
        let report = store.write(&batch).await.unwrap();
        assert_eq!(report.duplicates, duplicates);
        let named: Vec<_> = report.set_aside.iter().map(|set_aside| (set_aside.id, set_aside.reason)).collect();
        assert_eq!(named, [(poison, "schema")]);
        let detail = &report.set_aside.first().unwrap().detail;
        assert!(detail.contains("failed validation") && !detail.contains('毒'), "{detail}");
        assert_eq!(raw.count_documents(doc! {}).await.unwrap(), 499);
    }
}

#[tokio::test]
async fn a_retry_stores_what_is_missing_and_counts_the_rest_as_duplicates() {
    let Bench { store, raw, .. } = bench().await;
    let comments: Vec<_> = (0..100).map(|n| comment(&room("r1"), n)).collect();
    let batch = records(&store, &comments);
    store.write(batch.get(..60).unwrap()).await.unwrap();
    for duplicates in [60, 100] {
        let report = store.write(&batch).await.unwrap();
        assert_eq!((report.duplicates, report.set_aside), (duplicates, vec![]));
        assert_eq!(raw.count_documents(doc! {}).await.unwrap(), 100);
    }
}

#[tokio::test]
async fn a_duplicate_of_somebody_elses_unique_index_does_not_count_as_stored() {
    let Bench { store, config, raw, .. } = bench().await;
    let foreign = doc! { "key": { "content": 1 }, "name": "_id_1_content_1", "unique": true };
    let database = raw.client().database(&config.database);
    database.run_command(doc! { "createIndexes": &config.collection, "indexes": [foreign] }).await.unwrap();
    let (first, second) = (comment(&room("r1"), 1), comment(&room("r1"), 2));
    let report = store.write(&records(&store, &[first, second.clone()])).await.unwrap();
    let set_aside = report.set_aside.first().unwrap();
    assert_eq!((report.duplicates, set_aside.id, set_aside.reason), (0, second.id, "refused"));
    assert!(!set_aside.detail.contains("前方高能"), "{}", set_aside.detail);
}

/// Makes the server refuse the comments that `which` names with a code that is on no list: their text is no place on
/// earth (Location16755). Gives the name of the index that does it.
async fn refuse_texts(raw: &Collection<Document>, which: Document) -> &'static str {
    let index = doc! { "key": { "content": "2dsphere" }, "name": "where", "partialFilterExpression": which };
    let database = raw.client().database(&raw.namespace().db);
    database.run_command(doc! { "createIndexes": raw.name(), "indexes": [index] }).await.unwrap();
    "where"
}

#[tokio::test]
async fn one_document_that_never_goes_in_is_set_aside_in_the_end_and_its_neighbours_are_stored_at_once() {
    let Bench { store, raw, .. } = bench().await;
    refuse_texts(&raw, doc! { "content": "毒" }).await;
    let mut comments: Vec<_> = (0..50).map(|n| comment(&room("r1"), n)).collect();
    let poison = comments.get_mut(32).unwrap();
    poison.text = Text::from_store("毒");
    let poison = poison.id;
    let batch = records(&store, &comments);
    for others in 0..19 {
        let error = store.write(&batch).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("1 of 50"), "{error}");
        assert!(error.to_string().contains("16755") && !error.to_string().contains('毒'), "{error}");
        assert_eq!(raw.count_documents(doc! {}).await.unwrap(), 49 + others);
        // Meanwhile other bulks go in.
        store.write(&[record(&store, &comment(&room("r2"), 1))]).await.unwrap();
    }
    let report = store.write(&batch).await.unwrap();
    let named: Vec<_> = report.set_aside.iter().map(|set_aside| (set_aside.id, set_aside.reason)).collect();
    assert_eq!((report.duplicates, named), (49, vec![(poison, "refused")]));
    let detail = &report.set_aside.first().unwrap().detail;
    assert!(detail.contains("16755") && !detail.contains('毒'), "{detail}");
}

#[tokio::test]
async fn a_server_that_takes_no_document_for_a_reason_unknown_keeps_them_all() {
    let Bench { store, raw, .. } = bench().await;
    let index = refuse_texts(&raw, doc! {}).await;
    let comments: Vec<_> = (0..50).map(|n| comment(&room("r1"), n)).collect();
    let batch = records(&store, &comments);
    for _ in 0..20 {
        assert!(store.write(&batch).await.unwrap_err().is_transient());
    }
    raw.drop_index(index).await.unwrap();
    let report = store.write(&batch).await.unwrap();
    assert_eq!((report.duplicates, report.set_aside), (0, vec![]));
    assert_eq!(raw.count_documents(doc! {}).await.unwrap(), 50);
}

#[tokio::test]
async fn comments_of_a_bulk_that_went_in_by_half_are_kept_while_the_server_takes_nothing() {
    let Bench { store, raw, .. } = bench().await;
    let index = refuse_texts(&raw, doc! { "content": "后" }).await;
    let mut comments: Vec<_> = (0..50).map(|n| comment(&room("r1"), n)).collect();
    comments.iter_mut().skip(25).for_each(|comment| comment.text = Text::from_store("后"));
    let batch = records(&store, &comments);
    for _ in 0..30 {
        let error = store.write(&batch).await.expect_err("the duplicates of the first half prove nothing");
        assert!(error.is_transient() && error.to_string().contains("25 of 50"), "{error}");
    }
    raw.drop_index(index).await.unwrap();
    let report = store.write(&batch).await.unwrap();
    assert_eq!((report.duplicates, report.set_aside), (25, vec![]));
}

#[tokio::test]
async fn a_document_too_large_for_any_server_is_set_aside_alone() {
    let Bench { store, raw, .. } = bench().await;
    let mut comments: Vec<_> = (0..3).map(|n| comment(&room("r1"), n)).collect();
    let huge = comments.get_mut(1).unwrap();
    huge.text = Text::from_store(&"a".repeat(16 * 1024 * 1024));
    let huge = huge.id;
    let mut batch = records(&store, &comments);
    // And one that is no document at all, as a damaged outbox might hold it.
    let mut damaged = record(&store, &comment(&room("r1"), 9));
    damaged.bytes = damaged.bytes.slice(..20);
    let damaged_id = damaged.posted.comment.id;
    batch.push(damaged);
    let report = store.write(&batch).await.unwrap();
    let named: Vec<_> = report.set_aside.iter().map(|set_aside| (set_aside.id, set_aside.reason)).collect();
    assert_eq!(named, [(huge, "too_large"), (damaged_id, "refused")]);
    assert_eq!(raw.count_documents(doc! {}).await.unwrap(), 2);
    assert_eq!(store.write(&[]).await.unwrap(), danmakud::store::WriteReport::default());
}

#[tokio::test]
async fn malformed_and_recalled_documents_are_passed_over_and_the_page_goes_on() {
    let Bench { store, raw, .. } = bench().await;
    let room = room("r1");
    let comments: Vec<_> = (0..20).map(|n| comment(&room, n)).collect();
    store.write(&records(&store, &comments)).await.unwrap();
    let ids = |range: std::ops::Range<usize>| -> Vec<_> {
        comments.get(range).unwrap().iter().map(|comment| comment.id.object_id()).collect()
    };
    let update = async |range, update: Document| {
        raw.update_many(doc! { "_id": { "$in": ids(range) } }, update).await.unwrap();
    };
    update(18..20, doc! { "$set": { "recalled": true } }).await;
    update(6..14, doc! { "$set": { "color": "red" } }).await;
    update(14..15, doc! { "$unset": { "expireAt": 1 } }).await;
    let foreign = doc! { "_id": "not an ObjectId", "roomId": "r1", "ts": DateTime::from_millis(NOW + 16) };
    raw.insert_one(foreign).await.unwrap();

    let page = store.load_recent(&room, at(0), 5).await.unwrap();
    let times: Vec<_> = page.comments.iter().map(|comment| comment.ts.millis() - NOW).collect();
    assert_eq!((times, page.has_more), (vec![17, 16, 15, 5, 4], true));
    let page = store.load_before(&room, comments.get(15).unwrap().position(), 6).await.unwrap();
    assert_eq!((page.comments.len(), page.has_more), (6, false));
}

#[tokio::test]
async fn the_first_connections_are_open_when_the_store_is_ready() {
    let set = ReplicaSet::start(1, Access::Open).await;
    let config = MongoConfig { min_pool_size: 6, ..config(set.uri(None)) };
    let (store, _) = MongoStore::connect(config, Clock::system()).await.unwrap();
    let admin = set.client().await.database("admin");
    let current = doc! { "$currentOp": { "allUsers": true, "idleConnections": true } };
    let ours = doc! { "$match": { "appName": "danmakud" } };
    let mut connections = admin.aggregate([current, ours]).await.unwrap();
    let mut open = 0;
    while connections.advance().await.unwrap() {
        open += 1;
    }
    // The driver's monitor has two of its own.
    assert!(open >= 6, "{open}");
    store.probe().await.unwrap();
    store.close().await;
    assert!(store.probe().await.unwrap_err().is_transient());
}

#[tokio::test]
async fn wrong_passwords_and_missing_rights_block_and_no_password_is_shown() {
    let set = ReplicaSet::start(1, Access::Password).await;
    let admin = set.client().await.database("admin");
    let create = doc! { "createUser": "reader", "pwd": "hunter2", "roles": ["readAnyDatabase"] };
    admin.run_command(create).await.unwrap();
    // A failed login makes the driver look for another server for so long.
    let may_write = MongoConfig { server_selection_timeout: Duration::from_secs(1), ..config(set.uri(Some(ADMIN))) };
    let (store, _) = MongoStore::connect(may_write.clone(), Clock::system()).await.unwrap();
    store.probe().await.unwrap();

    let shown = |error: &StoreError| {
        let shown = format!("{error} {error:?}");
        assert!(!error.is_transient(), "{shown}");
        assert!(!shown.contains("hunter") && !shown.contains("admin-pass"), "{shown}");
        shown
    };
    for wrong in ["reader:hunter3", "nobody:hunter2"] {
        let config = MongoConfig { uri: set.uri(Some(wrong)), ..may_write.clone() };
        let (store, error) = (
            MongoStore::open(config.clone(), Clock::system()).await.unwrap(),
            MongoStore::connect(config, Clock::system()).await.unwrap_err(),
        );
        assert!(shown(&error).contains("uthentication failed"), "{error}");
        // Several at once: one fails to log in, and the driver tells the others that it emptied the pool.
        let (a, b, c) = tokio::join!(store.probe(), store.probe(), store.prepare());
        for error in [a.unwrap_err(), b.unwrap_err(), c.unwrap_err()] {
            shown(&error);
        }
        let batch = [record(&store, &comment(&room("r1"), 1))];
        shown(&store.write(&batch).await.unwrap_err());
    }
    let config = MongoConfig { uri: set.uri(Some("reader:hunter2")), ..may_write.clone() };
    let reader = MongoStore::open(config, Clock::system()).await.unwrap();
    let batch = [record(&reader, &comment(&room("r1"), 1))];
    let said = shown(&reader.write(&batch).await.unwrap_err());
    assert!(said.contains("not authorized"), "{said}");
    assert_eq!(reader.load_recent(&room("r1"), at(0), 5).await.unwrap().comments, []);
    let anonymous = MongoConfig { uri: set.uri(None), ..may_write };
    shown(&MongoStore::connect(anonymous, Clock::system()).await.unwrap_err());
    tokio::time::timeout(Duration::from_secs(10), store.close()).await.unwrap();
}
