//! What the contract suite cannot see: folders, files and failures.

use std::path::Path;

use super::*;
use crate::model::{Posted, Seq, test_comment as comment};

pub(super) const HOUR: i64 = 3_600_000;

pub(super) fn open(dir: &Path, clock: &Clock) -> EmbeddedStore {
    try_open(dir, clock).unwrap()
}

fn try_open(dir: &Path, clock: &Clock) -> Result<EmbeddedStore, StoreError> {
    EmbeddedStore::open(EmbeddedConfig { dir: dir.into(), bucket: EmbeddedConfig::DEFAULT_BUCKET }, clock.clone())
}

pub(super) fn at(millis: i64) -> Clock {
    Clock::manual(Timestamp::from_millis(millis))
}

pub(super) fn record(store: &EmbeddedStore, comment: Comment) -> Record {
    Record { bytes: store.encode(&comment), posted: Arc::new(Posted::pending(comment, Seq(1), Arc::default())) }
}

pub(super) fn room() -> RoomId {
    RoomId::parse("r").unwrap()
}

async fn write(store: &EmbeddedStore, comments: impl IntoIterator<Item = Comment>) -> WriteReport {
    let batch: Vec<Record> = comments.into_iter().map(|comment| record(store, comment)).collect();
    store.write(&batch).await.unwrap()
}

async fn texts(store: &EmbeddedStore) -> Vec<String> {
    let page = store.load_recent(&room(), Timestamp::from_millis(i64::MIN), 1000).await.unwrap();
    page.comments.iter().map(|comment| comment.text.as_str().to_owned()).collect()
}

/// Bytes of all files under a folder. What the engine's threads take away meanwhile counts as nothing.
fn table_bytes(dir: &Path) -> u64 {
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => table_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(size).sum()
}

/// Waits until the engine's own threads have done what they were asked for.
async fn until(mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it never came about");
}

#[tokio::test]
async fn dropped_buckets_give_their_disk_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let (clock, tables) = (at(0), dir.path().join("keyspaces"));
    let store = open(dir.path(), &clock);
    let text = "哈".repeat(100);
    write(&store, (0..2000).map(|n| comment("r", 1, n, &text))).await;
    write(&store, [comment("r", 2 * HOUR, 1, "later")]).await;
    // The first pass finds the buckets warm, the second moves them to their files.
    assert_eq!(store.drop_expired().await.unwrap(), 0);
    let empty = table_bytes(&tables);
    assert_eq!(store.drop_expired().await.unwrap(), 0);
    until(|| table_bytes(&tables) > empty + 500_000).await;
    let folders = std::fs::read_dir(&tables).unwrap().count();

    clock.set(Timestamp::from_millis(HOUR + 5 * 60_000));
    assert_eq!(store.drop_expired().await.unwrap(), 1);
    // One folder less, and one more for the tip.
    let count = || std::fs::read_dir(&tables).unwrap().count();
    until(|| table_bytes(&tables) < empty + 100_000 && count() == folders).await;
    assert_eq!(texts(&store).await, ["later"]);
    store.close().await;
}

#[tokio::test]
async fn dropping_never_lets_a_keyspace_number_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let clock = at(0);
    let highest = || {
        let folders = std::fs::read_dir(dir.path().join("keyspaces")).unwrap();
        folders.map(|folder| folder.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap()).max().unwrap()
    };
    for hour in [10, 20, 30] {
        let store = open(dir.path(), &clock);
        write(&store, (0..20).map(|n| comment("r", hour * HOUR + i64::from(n) * 300_000, n, "x"))).await;
        let before = highest();
        clock.set(Timestamp::from_millis((hour + 5) * HOUR));
        assert!(store.drop_expired().await.unwrap() > 10);
        store.close().await;
        assert!(highest() > before);
    }
}

#[tokio::test]
async fn expired_comments_are_hidden_before_their_bucket_goes() {
    let dir = tempfile::tempdir().unwrap();
    let clock = at(0);
    let store = open(dir.path(), &clock);
    write(&store, [comment("r", 0, 1, "x")]).await;
    clock.set(Timestamp::from_millis(HOUR - 1));
    assert_eq!(texts(&store).await, ["x"]);
    clock.set(Timestamp::from_millis(HOUR));
    assert_eq!(store.drop_expired().await.unwrap(), 0);
    assert_eq!(texts(&store).await, Vec::<String>::new());
    clock.set(Timestamp::from_millis(HOUR - 1));
    assert_eq!(texts(&store).await, ["x"]);
}

#[tokio::test]
async fn a_comment_written_after_its_bucket_is_due_makes_no_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &at(10 * HOUR));
    assert_eq!(write(&store, [comment("r", 0, 1, "x")]).await, WriteReport::default());
    assert_eq!(store.drop_expired().await.unwrap(), 0);
}

#[tokio::test]
async fn the_retention_task_drops_and_ends_with_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let clock = at(0);
    let store = open(dir.path(), &clock);
    write(&store, [comment("r", 0, 1, "x")]).await;
    clock.set(Timestamp::from_millis(3 * HOUR));
    store.spawn_retention(Duration::from_millis(1));
    let buckets = || std::fs::read_dir(dir.path().join("keyspaces")).unwrap().count();
    // The engine's own, `meta` and the tip are left.
    let tip = dir.path().join("keyspaces/3");
    until(|| tip.exists() && buckets() == 3).await;
    let weak = Arc::downgrade(&store.inner);
    drop(store);
    until(|| weak.upgrade().is_none()).await;
}

#[tokio::test]
async fn a_closed_store_refuses_and_its_folder_opens_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &at(0));
    write(&store, [comment("r", 1, 1, "x")]).await;
    let refused = try_open(dir.path(), &at(0)).err().unwrap();
    assert!(!refused.is_transient() && refused.to_string().contains("in use by another server"), "{refused}");
    store.close().await;
    assert!(!store.probe().await.unwrap_err().is_transient());
    let again = open(dir.path(), &at(0));
    assert_eq!(texts(&again).await, ["x"]);
}

#[tokio::test]
async fn a_folder_of_another_format_or_owner_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (mark, word) in [(Some("2"), "in format 2"), (Some("x"), "in format x"), (None, "does not belong to danmakud")]
    {
        let folder = dir.path().join(mark.unwrap_or("other"));
        let db = fjall::Database::builder(&folder).open().unwrap();
        let keyspace = db.keyspace(if mark.is_some() { "meta" } else { "theirs" }, Default::default).unwrap();
        keyspace.insert("format", mark.unwrap_or("1")).unwrap();
        drop((keyspace, db));
        let refused = try_open(&folder, &at(0)).err().unwrap();
        assert!(!refused.is_transient() && refused.to_string().contains(word), "{refused}");
    }
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.doc"), "years of work").unwrap();
    let refused = try_open(&foreign, &at(0)).err().unwrap();
    assert!(refused.to_string().contains("thesis.doc"), "{refused}");
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1);
}

#[tokio::test]
async fn after_a_failed_write_the_folder_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &at(0));
    write(&store, [comment("r", 1, 1, "x")]).await;
    let poison = |engine: &Engine| Err::<(), _>(engine.failed("writing", fjall::Error::Poisoned));
    assert!(store.run(poison).await.unwrap_err().is_transient());
    assert!(store.run(|engine| Ok(engine.is_poisoned())).await.is_ok_and(|is_poisoned| !is_poisoned));
    assert_eq!(write(&store, [comment("r", 1, 1, "x"), comment("r", 2, 2, "y")]).await.duplicates, 1);
    assert_eq!(texts(&store).await, ["y", "x"]);
}

#[tokio::test]
async fn a_disk_that_fails_to_sync_is_not_believed_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &at(0));
    let failing = || fjall::Error::Io(std::io::Error::from_raw_os_error(5));
    let refused =
        store.run(move |engine| Err::<(), _>(engine.failed_for_good("syncing", failing()))).await.unwrap_err();
    assert!(!refused.is_transient());
    assert!(!store.probe().await.unwrap_err().is_transient());
}

#[tokio::test]
async fn a_changed_bucket_width_shows_no_comment_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &at(0));
    write(&store, [comment("r", 1, 1, "x"), comment("r", 2, 2, "y")]).await;
    store.close().await;
    let config = EmbeddedConfig { dir: dir.path().into(), bucket: Duration::from_secs(7) };
    let store = EmbeddedStore::open(config, at(0)).unwrap();
    write(&store, [comment("r", 1, 1, "x"), comment("r", 3, 3, "z")]).await;
    assert_eq!(texts(&store).await, ["z", "y", "x"]);
    let count = store.count_between(&room(), Position::START, comment("r", 9, 9, "").position(), 10).await;
    assert_eq!(count.unwrap(), 3);
}

#[tokio::test]
async fn rooms_of_different_retention_share_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let clock = at(0);
    let store = open(dir.path(), &clock);
    let living = |n: u32, lifetime: i64| Comment {
        expire_at: Timestamp::from_millis(i64::from(n) + lifetime),
        ..comment("r", i64::from(n), n, &n.to_string())
    };
    let lifetimes = [1, 60_000, HOUR, 24 * HOUR, 365 * 24 * HOUR];
    write(&store, (0..50).map(|n| living(n, lifetimes[n as usize % 5]))).await;
    for (left, lifetime) in [(40, 60_000), (20, HOUR + 100), (10, 24 * HOUR + 100), (0, 365 * 24 * HOUR + 100)] {
        clock.set(Timestamp::from_millis(lifetime));
        if left != 40 {
            store.drop_expired().await.unwrap();
        }
        assert_eq!(texts(&store).await.len(), left, "{lifetime}");
    }
}
