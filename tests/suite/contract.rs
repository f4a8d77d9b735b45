//! What every store must do, each fact a function. A store is held to all of them by [`hold_to_the_contract!`].
//!
//! A fact takes the store, its clock, and the beginning of room names that nobody else uses, so that many may run on
//! one database at the same time. Times are near the clock's, so that a real clock serves as well as a manual one.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use danmakud::clock::Clock;
use danmakud::model::{
    Color, Comment, CommentId, FontSize, Mode, Name, Position, Posted, RoomId, Seq, Style, Text, Timestamp, UserId,
};
use danmakud::store::{CommentStore, Page, Record, WriteReport};

/// A store to be held to the contract.
pub struct Subject {
    pub store: Arc<dyn CommentStore>,
    pub clock: Clock,
    /// Begins room names that this subject alone uses.
    pub rooms: String,
    /// What must live as long as the store, such as its folder.
    pub keep: Box<dyn Any + Send>,
}

/// Makes one test for each fact. `$open` is an async function that gives a [`Subject`].
macro_rules! hold_to_the_contract {
    ($open:path) => {
        $crate::contract::hold_to_the_contract! { $open:
            an_empty_room_has_an_empty_page
            comments_come_back_as_they_were_written
            texts_come_back_to_the_byte
            every_style_comes_back
            order_is_by_time_then_id
            recent_ones_begin_at_the_given_time
            paging_covers_everything_once
            has_more_is_exact
            any_limit_is_obeyed
            rooms_are_kept_apart
            duplicates_count_as_stored_and_make_no_copy
            one_batch_with_the_same_comment_twice_stores_it_once
            an_empty_batch_is_written
            expired_comments_are_never_given_back
            counts_leave_out_both_bounds
            counting_stops_at_its_limit
            concurrent_writes_are_all_stored
            the_probe_passes
        }
    };
    ($open:path: $($fact:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fact() {
                let subject = $open().await;
                $crate::contract::$fact(&*subject.store, &subject.clock, &subject.rooms).await;
                subject.store.close().await;
                drop(subject.keep);
            }
        )*
    };
}
pub(crate) use hold_to_the_contract;

const HUGE: usize = usize::MAX;
const RETENTION: Duration = Duration::from_secs(3600);

fn room(rooms: &str, name: &str) -> RoomId {
    RoomId::parse(&format!("{rooms}-{name}")).unwrap()
}

/// A comment `millis` after the clock's time, with the id counter `n`.
fn comment(clock: &Clock, room: &RoomId, millis: i64, n: u32) -> Comment {
    let ts = Timestamp::from_millis(clock.now().millis() + millis);
    Comment {
        id: CommentId::from_parts(ts, [7; 5], n),
        room: room.clone(),
        ts,
        uid: UserId::new("u1"),
        name: Name::from_store("阿明"),
        text: Text::from_store(&format!("comment {n}")),
        style: Style::default(),
        expire_at: ts.plus(RETENTION),
    }
}

/// Comments `0..count`, three in each millisecond.
fn comments(clock: &Clock, room: &RoomId, count: u32) -> Vec<Comment> {
    // One reading of the clock for all, as it may move on in between.
    let base = Clock::manual(clock.now());
    (0..count).map(|n| comment(&base, room, i64::from(n / 3), n)).collect()
}

fn records(store: &dyn CommentStore, comments: &[Comment]) -> Vec<Record> {
    let record = |comment: &Comment| Record {
        bytes: store.encode(comment),
        posted: Arc::new(Posted::pending(comment.clone(), Seq(1), Arc::default())),
    };
    comments.iter().map(record).collect()
}

async fn write(store: &dyn CommentStore, comments: &[Comment]) -> WriteReport {
    let report = store.write(&records(store, comments)).await.unwrap();
    assert_eq!(report.set_aside, []);
    report
}

async fn recent(store: &dyn CommentStore, room: &RoomId, limit: usize) -> Page {
    store.load_recent(room, Timestamp::from_millis(0), limit).await.unwrap()
}

async fn before(store: &dyn CommentStore, room: &RoomId, place: Position, limit: usize) -> Page {
    store.load_before(room, place, limit).await.unwrap()
}

async fn count(store: &dyn CommentStore, room: &RoomId, after: Position, before: Position, limit: u64) -> u64 {
    store.count_between(room, after, before, limit).await.unwrap()
}

/// After every comment of these tests, and within the dates that every store can hold.
fn end(clock: &Clock) -> Position {
    Position { ts: clock.now().plus(RETENTION), id: CommentId::MIN }
}

fn newest_first(mut comments: Vec<Comment>) -> Vec<Comment> {
    comments.sort_by_key(|comment| std::cmp::Reverse(comment.position()));
    comments
}

pub async fn an_empty_room_has_an_empty_page(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "empty");
    assert_eq!(recent(store, &room, 10).await, Page::default());
    assert_eq!(before(store, &room, end(clock), 10).await, Page::default());
    assert_eq!(count(store, &room, Position::START, end(clock), 10).await, 0);
}

pub async fn comments_come_back_as_they_were_written(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "same");
    let style = Style { mode: Mode::Top, color: Color::parse(0xff_88_00).unwrap(), size: FontSize::parse(36).unwrap() };
    let written = Comment {
        uid: UserId::new("a user"),
        name: Name::from_store("小红"),
        text: Text::from_store("前方高能"),
        style,
        expire_at: clock.now().plus(Duration::from_millis(1_234_567)),
        ..comment(clock, &room, 5, 1)
    };
    assert_eq!(write(store, std::slice::from_ref(&written)).await.duplicates, 0);
    assert_eq!(recent(store, &room, 10).await, Page { comments: vec![written], has_more: false });
}

pub async fn texts_come_back_to_the_byte(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "texts");
    let long = "好".repeat(341);
    let texts = [
        "x",
        "哈哈哈哈",
        "👨‍👩‍👧‍👦 家",
        "ก็ดี",
        "שלום",
        "<b>\"bold\"</b> & 'more'",
        "naïve",
        "e\u{301}",
        "$where.a",
        "\u{10ffff}",
        &long,
    ];
    let texted = |(n, text): (u32, &&str)| Comment { text: Text::from_store(text), ..comment(clock, &room, 0, n) };
    let written: Vec<Comment> = (0..).zip(&texts).map(texted).collect();
    write(store, &written).await;
    assert_eq!(recent(store, &room, 100).await.comments, newest_first(written));
}

pub async fn every_style_comes_back(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "styles");
    let mut written = Vec::new();
    for mode in [1, 4, 5] {
        for color in [0, 1, 0x80_0000, 0xff_ffff] {
            for size in [12, 25, 64] {
                let style = Style::parse(Some(mode), Some(color), Some(size)).unwrap();
                let n = u32::try_from(written.len()).unwrap();
                written.push(Comment { style, ..comment(clock, &room, 0, n) });
            }
        }
    }
    write(store, &written).await;
    assert_eq!(recent(store, &room, 100).await.comments, newest_first(written));
}

pub async fn order_is_by_time_then_id(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "order");
    let written = comments(clock, &room, 30);
    // Written out of order, and in two batches that overlap in time.
    let (even, odd): (Vec<_>, Vec<_>) = written.iter().rev().cloned().enumerate().partition(|(n, _)| n % 2 == 0);
    for half in [odd, even] {
        write(store, &half.into_iter().map(|(_, comment)| comment).collect::<Vec<_>>()).await;
    }
    assert_eq!(recent(store, &room, 100).await.comments, newest_first(written));
}

pub async fn recent_ones_begin_at_the_given_time(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "from");
    let written = comments(clock, &room, 9);
    write(store, &written).await;
    let page = store.load_recent(&room, written[3].ts, 100).await.unwrap();
    assert_eq!(page, Page { comments: newest_first(written[3..].to_vec()), has_more: false });
}

pub async fn paging_covers_everything_once(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "paging");
    let written = comments(clock, &room, 50);
    write(store, &written).await;
    for limit in [1, 2, 7, 50] {
        let (mut place, mut seen) = (end(clock), Vec::new());
        loop {
            let page = before(store, &room, place, limit).await;
            let Some(last) = page.comments.last() else { break };
            place = last.position();
            seen.extend(page.comments);
            if !page.has_more {
                break;
            }
        }
        assert_eq!(seen, newest_first(written.clone()), "{limit} at a time");
    }
}

pub async fn has_more_is_exact(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "more");
    let written = comments(clock, &room, 6);
    write(store, &written).await;
    for (limit, has_more) in [(5, true), (6, false), (7, false)] {
        assert_eq!(recent(store, &room, limit).await.has_more, has_more, "{limit}");
        assert_eq!(before(store, &room, end(clock), limit).await.has_more, has_more, "{limit}");
    }
    // Only what lies in the direction of reading, and within the time that was asked for.
    assert!(!store.load_recent(&room, written[3].ts, 3).await.unwrap().has_more);
    assert!(!before(store, &room, written[2].position(), 2).await.has_more);
    assert!(before(store, &room, written[3].position(), 2).await.has_more);
}

pub async fn any_limit_is_obeyed(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "limits");
    let written = newest_first(comments(clock, &room, 3));
    write(store, &written).await;
    for (limit, wanted) in [(0, 0), (1, 1), (3, 3), (1_000_000, 3), (HUGE, 3)] {
        let wanted = Page { comments: written[..wanted].to_vec(), has_more: wanted < 3 };
        assert_eq!(recent(store, &room, limit).await, wanted, "{limit}");
        assert_eq!(before(store, &room, end(clock), limit).await, wanted, "{limit}");
    }
    assert_eq!(count(store, &room, Position::START, end(clock), 0).await, 0);
    assert_eq!(count(store, &room, Position::START, end(clock), u64::MAX).await, 3);
}

pub async fn rooms_are_kept_apart(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let names = ["a", "aa", "ab", "A", "a-", "a_"];
    let mut batch = Vec::new();
    for (n, name) in (0..).zip(names) {
        batch.push(comment(clock, &room(rooms, name), 0, n));
    }
    write(store, &batch).await;
    for written in batch {
        let room = written.room.clone();
        assert_eq!(count(store, &room, Position::START, end(clock), 10).await, 1, "{room}");
        let wanted = Page { comments: vec![written], has_more: false };
        assert_eq!(recent(store, &room, 10).await, wanted, "{room}");
        assert_eq!(before(store, &room, end(clock), 10).await, wanted, "{room}");
    }
}

pub async fn duplicates_count_as_stored_and_make_no_copy(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "twice");
    let written = comments(clock, &room, 10);
    assert_eq!(write(store, &written[..4]).await.duplicates, 0);
    assert_eq!(write(store, &written).await.duplicates, 4);
    assert_eq!(write(store, &written).await.duplicates, 10);
    assert_eq!(recent(store, &room, 100).await.comments, newest_first(written));
    assert_eq!(count(store, &room, Position::START, end(clock), 100).await, 10);
}

pub async fn one_batch_with_the_same_comment_twice_stores_it_once(
    store: &dyn CommentStore,
    clock: &Clock,
    rooms: &str,
) {
    let room = room(rooms, "within");
    let written = comment(clock, &room, 0, 1);
    assert_eq!(write(store, &[written.clone(), written.clone()]).await.duplicates, 1);
    assert_eq!(recent(store, &room, 10).await.comments, [written]);
}

pub async fn an_empty_batch_is_written(store: &dyn CommentStore, _clock: &Clock, _rooms: &str) {
    assert_eq!(write(store, &[]).await, WriteReport::default());
}

pub async fn expired_comments_are_never_given_back(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "expired");
    let written = comments(clock, &room, 12);
    let now = clock.now();
    // Every other one has expired, the last of them just now.
    let expiring = |(n, comment): (u64, Comment)| match n % 2 {
        0 => Comment { expire_at: now.minus(Duration::from_millis(11 - n - 1)), ..comment },
        _ => comment,
    };
    let written: Vec<Comment> = (0..).zip(written).map(expiring).collect();
    write(store, &written).await;
    let living: Vec<Comment> = written.into_iter().filter(|comment| comment.expire_at > now).collect();
    assert_eq!(living.len(), 6);
    assert_eq!(count(store, &room, Position::START, end(clock), 100).await, 6);
    let wanted = Page { comments: newest_first(living), has_more: false };
    assert_eq!(recent(store, &room, 6).await, wanted);
    assert_eq!(before(store, &room, end(clock), 6).await, wanted);
}

pub async fn counts_leave_out_both_bounds(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "count");
    let written = comments(clock, &room, 12);
    write(store, &written).await;
    let place = |n: usize| written[n].position();
    for (after, before) in [(0, 11), (0, 1), (0, 2), (2, 3), (4, 8), (5, 7)] {
        let wanted = u64::try_from(before - after - 1).unwrap();
        assert_eq!(count(store, &room, place(after), place(before), 100).await, wanted, "{after} to {before}");
    }
    for (after, before) in [(3, 3), (8, 2)] {
        assert_eq!(count(store, &room, place(after), place(before), 100).await, 0, "{after} to {before}");
    }
    assert_eq!(count(store, &room, Position::START, place(4), 100).await, 4);
}

pub async fn counting_stops_at_its_limit(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "stop");
    write(store, &comments(clock, &room, 12)).await;
    for (limit, wanted) in [(0, 0), (1, 1), (11, 11), (12, 12), (13, 12)] {
        assert_eq!(count(store, &room, Position::START, end(clock), limit).await, wanted);
    }
}

pub async fn concurrent_writes_are_all_stored(store: &dyn CommentStore, clock: &Clock, rooms: &str) {
    let room = room(rooms, "crowd");
    let written = comments(clock, &room, 400);
    // Each half of the crowd writes everything, so that every comment meets its double at about the same time.
    let batches: Vec<&[Comment]> = written.chunks(50).chain(written.chunks(80)).collect();
    futures_util::future::join_all(batches.into_iter().map(|batch| write(store, batch))).await;
    let page = recent(store, &room, 1000).await;
    let ids: BTreeSet<CommentId> = page.comments.iter().map(|comment| comment.id).collect();
    assert_eq!(ids.len(), 400);
    assert_eq!(page.comments, newest_first(written));
}

pub async fn the_probe_passes(store: &dyn CommentStore, _clock: &Clock, _rooms: &str) {
    store.probe().await.unwrap();
    store.probe().await.unwrap();
}
