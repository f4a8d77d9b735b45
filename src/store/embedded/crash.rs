//! Kill -9 in the middle of writing: what was acknowledged is there, once.
//!
//! The test starts its own binary again, with a filter that leaves only [`writes_until_it_is_killed`].

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::tests::{at, open, record, room};
use super::*;
use crate::model::{CommentId, test_comment as comment};

const DIR: &str = "DANMAKUD_TEST_CRASH_DIR";
const FIRST: &str = "DANMAKUD_TEST_CRASH_FIRST";
const BATCH: u32 = 50;

fn batch(store: &EmbeddedStore, number: u32) -> Vec<Record> {
    let numbers = number * BATCH..(number + 1) * BATCH;
    numbers.map(|n| record(store, comment("r", i64::from(n / 7), n, &format!("弹幕 {n}")))).collect()
}

/// The child: four writers at once, each printing the batches that were acknowledged. Does nothing in an ordinary run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_until_it_is_killed() {
    let (Ok(dir), Ok(first)) = (std::env::var(DIR), std::env::var(FIRST)) else { return };
    let store = open(Path::new(&dir), &at(0));
    let first: u32 = first.parse().unwrap();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in (first + writer..).step_by(4) {
                    store.write(&batch(&store, number)).await.unwrap();
                    // One call, so that lines do not mix.
                    println!("\nstored {number}");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_exactly_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeSet::new();
    for round in 0..3u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::embedded::crash::writes_until_it_is_killed", "--nocapture"])
            .env(DIR, dir.path())
            .env(FIRST, (round * 10_000).to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut seen = 0;
        for line in lines {
            let Some(number) = line.strip_prefix("stored ") else { continue };
            acknowledged.insert(number.parse::<u32>().unwrap());
            seen += 1;
            // Later lines are read too: they were acknowledged before the kill took effect.
            if seen == 12 + 5 * round {
                child.kill().unwrap();
            }
        }
        assert!(!child.wait().unwrap().success());
        assert!(seen >= 12 + 5 * round, "the child ended by itself after {seen}");

        let store = open(dir.path(), &at(0));
        let all = store.load_recent(&room(), Timestamp::from_millis(0), usize::MAX).await.unwrap().comments;
        // A batch is there whole or not at all.
        assert_eq!(all.len() % BATCH as usize, 0);
        let count = all.len();
        let by_id: HashMap<CommentId, Comment> = all.into_iter().map(|comment| (comment.id, comment)).collect();
        assert_eq!(by_id.len(), count, "some came twice");
        for record in acknowledged.iter().flat_map(|number| batch(&store, *number)) {
            let comment = &record.posted.comment;
            assert_eq!(by_id.get(&comment.id), Some(comment));
        }
        store.close().await;
    }
}
