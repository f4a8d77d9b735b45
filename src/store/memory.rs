//! A store in memory, for tests: no file, no time of its own, and a hook to do something just after a read.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{CommentStore, Page, Record, SetAside, StoreError, WriteReport};
use crate::clock::Clock;
use crate::model::{Comment, Position, RoomId, Timestamp};

/// A comment with this text is refused for good, every time.
pub(crate) const POISON: &str = "poison";

type Comments = BTreeMap<(RoomId, Position), Comment>;
type Hook = Box<dyn FnOnce() + Send>;

pub(crate) struct MemoryStore {
    comments: Mutex<Comments>,
    after_read: Mutex<Option<Hook>>,
    held: Mutex<Option<oneshot::Receiver<()>>>,
    clock: Clock,
}

impl MemoryStore {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { comments: Mutex::default(), after_read: Mutex::default(), held: Mutex::default(), clock }
    }

    /// Lets `hook` run once the next read has its answer and before it gives it.
    pub(crate) fn after_next_read(&self, hook: impl FnOnce() + Send + 'static) {
        *self.after_read.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// Lets the next read have its answer, but not give it before the sender is used or dropped.
    pub(crate) fn hold_next_read(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        *self.held.lock().unwrap() = Some(receiver);
        sender
    }

    /// Whether a read has come to be held.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.lock().unwrap().is_none()
    }

    async fn hold(&self, page: Page) -> Page {
        let held = self.held.lock().unwrap().take();
        if let Some(held) = held {
            let _sent_or_dropped = held.await;
        }
        page
    }

    /// Everything it has, in the order of rooms and positions.
    pub(crate) fn all(&self) -> Vec<Comment> {
        self.comments.lock().unwrap().values().cloned().collect()
    }

    /// Puts a comment in without any flusher.
    pub(crate) fn put(&self, comment: &Comment) {
        self.comments.lock().unwrap().insert((comment.room.clone(), comment.position()), comment.clone());
    }

    fn page(&self, room: &RoomId, is_wanted: impl Fn(&Comment) -> bool, limit: usize) -> Page {
        let now = self.clock.now();
        let all = self.all();
        let found = all.into_iter().rev().filter(|c| c.room == *room && c.expire_at > now && is_wanted(c));
        let mut comments: Vec<_> = found.take(limit.saturating_add(1)).collect();
        let has_more = comments.len() > limit;
        comments.truncate(limit);
        let hook = self.after_read.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
        Page { comments, has_more }
    }
}

#[async_trait]
impl CommentStore for MemoryStore {
    fn encode(&self, _comment: &Comment) -> Bytes {
        Bytes::new()
    }

    async fn write(&self, batch: &[Record]) -> Result<WriteReport, StoreError> {
        let mut report = WriteReport::default();
        for record in batch {
            let comment = &record.posted.comment;
            if comment.text.as_str() == POISON {
                report.set_aside.push(SetAside { id: comment.id, reason: "schema", detail: "as ordered".to_owned() });
            } else if self.all().iter().any(|known| known.id == comment.id) {
                report.duplicates += 1;
            } else {
                self.put(comment);
            }
        }
        Ok(report)
    }

    async fn load_recent(&self, room: &RoomId, from: Timestamp, limit: usize) -> Result<Page, StoreError> {
        Ok(self.hold(self.page(room, |comment| comment.ts >= from, limit)).await)
    }

    async fn load_before(&self, room: &RoomId, before: Position, limit: usize) -> Result<Page, StoreError> {
        Ok(self.hold(self.page(room, |comment| comment.position() < before, limit)).await)
    }

    async fn count_between(
        &self,
        room: &RoomId,
        after: Position,
        before: Position,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let is_between = |comment: &Comment| comment.position() > after && comment.position() < before;
        let count = self.page(room, is_between, usize::MAX).comments.len() as u64;
        Ok(count.min(limit))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self) {}
}
