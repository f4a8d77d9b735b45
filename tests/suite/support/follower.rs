//! A viewer that stays: it comes back when the server says so, and writes down everything it sees.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::server::PATIENCE;
use super::viewer::{Seen, Viewer};

/// What a follower has seen.
#[derive(Debug, Default)]
pub struct Diary {
    /// The ids of all comments, in the order they came.
    pub ids: Vec<String>,
    /// How many it was told it had missed.
    pub missed: u64,
    /// How often it was told good-bye, with a time to come back.
    pub byes: usize,
    /// Connections that ended without a close.
    pub cut: usize,
}

/// A follower at work.
pub struct Follower {
    /// Comments seen so far.
    pub seen: Arc<AtomicUsize>,
    task: JoinHandle<Diary>,
}

impl Follower {
    /// Joins `room` and stays until it has seen the comment with the id that `last` will hold.
    pub async fn start(address: SocketAddr, room: &str, last: Arc<tokio::sync::OnceCell<String>>) -> Self {
        let viewer = Viewer::join(address, room, "").await;
        let seen = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(follow(viewer, address, room.to_owned(), last, Arc::clone(&seen)));
        Self { seen, task }
    }

    /// Waits until it has seen everything; gives what it wrote down.
    pub async fn end(self) -> Diary {
        self.task.await.expect("the follower does not fail")
    }
}

async fn follow(
    mut viewer: Viewer,
    address: SocketAddr,
    room: String,
    last: Arc<tokio::sync::OnceCell<String>>,
    seen: Arc<AtomicUsize>,
) -> Diary {
    let mut diary = Diary::default();
    let mut wait = Duration::ZERO;
    loop {
        let is_over = last.get().is_some_and(|last| diary.ids.last() == Some(last));
        if is_over {
            return diary;
        }
        let see = tokio::select! {
            see = viewer.see() => see,
            // The last comment may have come before it was known to be the last.
            _ = wait_for(&last), if last.get().is_none() => continue,
        };
        match see {
            Seen::Frame(frame) => match frame["type"].as_str() {
                Some("comments") => {
                    write_down(&mut diary, &frame["comments"]);
                    seen.store(diary.ids.len(), Ordering::Release);
                }
                Some("gap") => diary.missed += frame["missed"].as_u64().expect("a number"),
                Some("bye") => {
                    diary.byes += 1;
                    wait = Duration::from_millis(frame["reconnectAfterMs"].as_u64().expect("a number"));
                }
                _ => {}
            },
            Seen::Close(_) => {
                sleep(wait).await;
                viewer = come_back(address, &room, &viewer.cursor).await;
                write_down(&mut diary, &viewer.hello["recent"]);
            }
            Seen::Gone => {
                diary.cut += 1;
                viewer = come_back(address, &room, &viewer.cursor).await;
            }
        }
    }
}

async fn wait_for(last: &tokio::sync::OnceCell<String>) {
    while last.get().is_none() {
        sleep(Duration::from_millis(50)).await;
    }
}

fn write_down(diary: &mut Diary, comments: &Value) {
    let comments = comments.as_array().expect("a list");
    diary.ids.extend(comments.iter().map(|comment| comment["id"].as_str().expect("an id").to_owned()));
}

async fn come_back(address: SocketAddr, room: &str, cursor: &str) -> Viewer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Viewer::try_join(address, room, &format!("since={cursor}")).await {
            Ok(viewer) => return viewer,
            Err(error) => assert!(Instant::now() < deadline, "cannot come back: {error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}
