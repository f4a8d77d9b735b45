//! A viewer: a cursor into the room's batches, and what is half-way out of its socket.
//!
//! A viewer owns no queue of comments. What its socket does not take stays in the ring, which all share; what is its own
//! (its hello, acknowledgements, errors) is bounded. Its outgoing side is driven from two places under one short lock:
//! the room's tick, which writes to sockets that have room, and the viewer's session, once its socket was full.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Room;
use super::batch::{Batch, Portion, Taste, Which};
use super::outgoing::{Flow, Outgoing, PARTS, Phase};
use crate::model::{Given, Seq, Socket};

/// Answers that share a write wait for each other up to so many bytes, which one vectored write of small ones is below.
const GATHERED_BYTES: usize = 16 * 1024;

/// What attempts to write have achieved, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames that went out or are half-way out.
    pub frames: u64,
    /// Comments in them.
    pub comments: u64,
    /// Comments that were left out because the viewer asked for fewer.
    pub left_out: u64,
    /// Comments that were told as missed.
    pub missed: u64,
}

impl Delivered {
    fn count(&mut self, portion: Portion) {
        self.frames += u64::from(portion.comments > 0);
        self.comments += portion.comments;
        self.left_out += portion.left_out;
    }

    pub(super) fn add(&mut self, other: Self) {
        self.frames += other.frames;
        self.comments += other.comments;
        self.left_out += other.left_out;
        self.missed += other.missed;
    }
}

/// One viewer of one room. Shared by the room and the viewer's session.
pub struct Viewer {
    taste: Taste,
    outgoing: Mutex<Outgoing>,
    blocked: Notify,
}

impl std::fmt::Debug for Viewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Viewer").finish_non_exhaustive()
    }
}

impl Viewer {
    /// A viewer that has had everything before `next`, and what it `had` of another node; comments wait until
    /// [`Viewer::open`].
    pub(super) fn new(socket: Arc<dyn Socket>, taste: Taste, next: Seq, had: Option<Given>) -> Self {
        let outgoing = Outgoing::new(socket, next, had);
        Self { taste, outgoing: Mutex::new(outgoing), blocked: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        // The lock only guards plain data that is valid between any two statements.
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets comments follow what was sent so far.
    pub fn open(&self, room: &Room) -> Flow {
        let mut out = self.lock();
        // One that is leaving or gone stays so.
        if out.phase == Phase::Held {
            out.phase = Phase::Live;
        }
        let (flow, delivered) = self.pump_and_tell(&mut out, room, &[]);
        room.count(&delivered);
        flow
    }

    /// Lets no further comment follow; `last`, such as the close, goes out behind what is its own, however much that is.
    pub fn leave(&self, room: &Room, last: Bytes) {
        let mut out = self.lock();
        if out.phase != Phase::Gone {
            out.phase = Phase::Leaving;
            out.push_own(last);
            self.flush_locked(&mut out, room);
        }
    }

    /// Lets go of the socket; nothing goes out any more.
    pub(super) fn end(&self) {
        self.lock().end();
    }

    /// Queues a frame of the viewer's own, behind what is half-way out and before comments that follow, and writes what
    /// the socket takes. Gives false, and queues nothing, when too much of its own waits already.
    #[must_use]
    pub fn send(&self, room: &Room, frame: Bytes) -> bool {
        self.send_locked(&mut self.lock(), room, frame)
    }

    /// Queues as [`Viewer::send`] does and leaves the writing to [`Viewer::flush`], so that several answers share a write;
    /// with much waiting, it writes first.
    #[must_use]
    pub fn queue(&self, room: &Room, frame: Bytes) -> bool {
        let mut out = self.lock();
        if out.own_bytes > GATHERED_BYTES {
            self.flush_locked(&mut out, room);
        }
        out.try_push_own(frame)
    }

    /// Writes what the socket takes of what was queued.
    pub fn flush(&self, room: &Room) {
        self.flush_locked(&mut self.lock(), room);
    }

    fn send_locked(&self, out: &mut Outgoing, room: &Room, frame: Bytes) -> bool {
        let is_queued = out.try_push_own(frame);
        self.flush_locked(out, room);
        is_queued
    }

    fn flush_locked(&self, out: &mut Outgoing, room: &Room) {
        if !out.is_blocked && !out.own.is_empty() {
            let (_, delivered) = self.pump_and_tell(out, room, &[]);
            room.count(&delivered);
        }
    }

    /// Writes news that all viewers get, then batches that were just cut; `fresh` is the newest run of them. For the
    /// room's tick.
    pub(super) fn offer(&self, room: &Room, news: Option<&Bytes>, fresh: &[Arc<Batch>]) -> Delivered {
        let mut out = self.lock();
        if let Some(news) = news {
            out.take_news(news.clone());
        }
        if out.is_blocked { Delivered::default() } else { self.pump_and_tell(&mut out, room, fresh).1 }
    }

    /// Goes on writing from where the socket was full. For the session, when the socket has room again.
    pub fn advance(&self, room: &Room) -> Flow {
        let mut out = self.lock();
        let (flow, delivered) = self.pump(&mut out, room, &[]);
        room.count(&delivered);
        flow
    }

    /// Goes on writing though the socket has told of no room. True when it took something all the same. For the session,
    /// before it gives the viewer up.
    pub fn prod(&self, room: &Room) -> bool {
        let mut out = self.lock();
        let before = out.written;
        out.is_straight = true;
        let (_, delivered) = self.pump(&mut out, room, &[]);
        out.is_straight = false;
        room.count(&delivered);
        out.written > before
    }

    /// Wakes the session, for a reason of its own.
    pub fn rouse(&self) {
        self.blocked.notify_one();
    }

    /// Waits until the socket was found full or gone by somebody else, or the session was roused. Cancellation-safe.
    pub async fn blocked(&self) {
        self.blocked.notified().await;
    }

    /// Whether the socket is full, and the bytes written so far.
    #[must_use]
    pub fn progress(&self) -> (bool, u64) {
        let out = self.lock();
        (out.is_blocked, out.written)
    }

    /// Pumps for somebody other than the session, which is told when it has to go on.
    fn pump_and_tell(&self, out: &mut Outgoing, room: &Room, fresh: &[Arc<Batch>]) -> (Flow, Delivered) {
        let (flow, delivered) = self.pump(out, room, fresh);
        if flow != Flow::Done {
            self.blocked.notify_one();
        }
        (flow, delivered)
    }

    fn pump(&self, out: &mut Outgoing, room: &Room, fresh: &[Arc<Batch>]) -> (Flow, Delivered) {
        let mut delivered = Delivered::default();
        let flow = self.pump_all(out, room, fresh, &mut delivered);
        out.is_blocked = flow == Flow::Blocked;
        if flow == Flow::Gone {
            out.end();
        }
        (flow, delivered)
    }

    fn pump_all(&self, out: &mut Outgoing, room: &Room, fresh: &[Arc<Batch>], delivered: &mut Delivered) -> Flow {
        let mut behind = Vec::new();
        loop {
            if out.phase == Phase::Gone {
                return Flow::Gone;
            }
            if let ControlFlow::Break(flow) = out.write_own() {
                return flow;
            }
            if out.phase != Phase::Live {
                return Flow::Done;
            }
            if let Some(news) = out.news.take() {
                out.push_own(news);
                continue;
            }
            // The common case: the viewer has had everything but the batches that were just cut. When it has had these
            // too, it is through: what is cut after them has a tick of its own.
            let mut cut_end = out.next;
            let run = match (fresh.first(), fresh.last()) {
                (_, Some(last)) if last.end() == out.next => return Flow::Done,
                (Some(first), _) if first.first() == out.next => fresh,
                _ => {
                    behind.clear();
                    cut_end = room.batches_from(out.next, PARTS, &mut behind);
                    &behind
                }
            };
            // What stands before the oldest batch is gone; with no batch, all that was cut by then is.
            let oldest = run.first().map_or(cut_end, |first| first.first());
            if out.next < oldest {
                let missed = oldest.since(out.next);
                delivered.missed += missed;
                out.next = oldest;
                out.push_own(self.taste.encoder.gap(missed));
                continue;
            }
            let Some(first) = run.first() else { return Flow::Done };
            let which = first.which(out.next, out.had.as_deref());
            if !self.is_shared(first, &which, out.untold, out.had.as_deref()) {
                // It joined in the middle of this batch, as only a resume by position can, had some of it on another
                // node or something there that is not known here, or was not told of the same comments before it: this
                // one frame is its own.
                let portion = first.portion(&self.taste, &which);
                if portion.comments > 0 {
                    out.push_own(first.part(&self.taste, which, out.untold, out.had.as_deref()));
                }
                out.pass(first, portion);
                delivered.count(portion);
                continue;
            }
            if let ControlFlow::Break(flow) = self.write_batches(out, run, delivered) {
                return flow;
            }
        }
    }

    /// The batches at the beginning of a run whose shared frames are right for this viewer, which had `untold` before it, and
    /// `had` this on another node. They follow each other: places that were skipped have to be told of.
    fn in_step<'a>(&self, run: &'a [Arc<Batch>], mut untold: u64, had: Option<&Given>) -> &'a [Arc<Batch>] {
        let mut next = run.first().map(|batch| batch.first());
        let takes_all = self.taste.tier.is_none() && had.is_none();
        let is_out = |batch: &Arc<Batch>| {
            let is_next = next.replace(batch.end()) == Some(batch.first());
            if takes_all {
                return !is_next;
            }
            let which = batch.which(batch.first(), had);
            let is_in_step = is_next && self.is_shared(batch, &which, untold, had);
            untold = batch.portion(&self.taste, &which).untold_after(untold);
            !is_in_step
        };
        let end = run.iter().position(is_out).unwrap_or(run.len());
        run.get(..end).unwrap_or_default()
    }

    /// Whether the frame that others get is right for this viewer as well.
    fn is_shared(&self, batch: &Batch, which: &Which, untold: u64, had: Option<&Given>) -> bool {
        batch.is_whole(which) && batch.is_in_step(&self.taste, untold) && batch.given_with(had).is_none()
    }

    /// Writes batches straight from the shared frames, in one call. Goes on when the first [`PARTS`] of `run` are out.
    fn write_batches(&self, out: &mut Outgoing, run: &[Arc<Batch>], delivered: &mut Delivered) -> ControlFlow<Flow> {
        let run = run.get(..PARTS.min(run.len())).unwrap_or_default();
        let run = self.in_step(run, out.untold, out.had.as_deref());
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut total = 0;
        for (part, batch) in parts.iter_mut().zip(run) {
            let frame = batch.frame(&self.taste);
            total += frame.len();
            *part = IoSlice::new(frame);
        }
        let mut written = 0;
        // A viewer who asked for fewer comments may get nothing of all these.
        if total > 0 {
            written = out.write(parts.get(..run.len()).unwrap_or_default())?;
        }
        out.written += written as u64;
        for batch in run {
            let frame = batch.frame(&self.taste);
            if written == 0 && !frame.is_empty() {
                return ControlFlow::Break(Flow::Blocked);
            }
            let portion = batch.portion(&self.taste, &batch.all());
            out.pass(batch, portion);
            delivered.count(portion);
            if written < frame.len() {
                // The rest of this frame must go before anything else: it is the viewer's own from here on.
                out.push_own(frame.clone());
                out.offset = written;
                return ControlFlow::Break(Flow::Blocked);
            }
            written -= frame.len();
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
#[path = "viewer_tests.rs"]
mod tests;
