//! The outgoing side of one viewer: its socket, how far it is in the room's batches, and frames of its own that wait.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::batch::{Batch, Portion};
use crate::model::{Given, Seq, Socket};

/// Most parts of one vectored write; also how many batches a catch-up takes out of the ring at a time.
pub(super) const PARTS: usize = 16;

/// Most bytes of its own that a viewer may have waiting. A hello with 200 comments of the largest size is 280 KB.
pub(super) const MAX_OWN_BYTES: usize = 384 * 1024;

/// How a viewer stands after an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It has had everything there is.
    Done,
    /// Its socket is full; its session goes on when there is room again.
    Blocked,
    /// Its socket is gone, or the viewer was ended.
    Gone,
}

pub(super) struct Outgoing {
    /// `None` once the viewer has left the room: the room may remember it for a moment longer, its connection not.
    pub(super) socket: Option<Arc<dyn Socket>>,
    pub(super) phase: Phase,
    /// The place of the next comment it should have.
    pub(super) next: Seq,
    /// Comments before it that were left out and of which no frame has told yet.
    pub(super) untold: u64,
    /// What it had of another node, until nothing of that can come here any more.
    pub(super) had: Option<Box<Given>>,
    /// Frames of its own, behind the frame that is half-way out, if any.
    pub(super) own: VecDeque<Bytes>,
    /// How much of the first of them is out.
    pub(super) offset: usize,
    pub(super) own_bytes: usize,
    /// The latest announcement from before its hello.
    pub(super) news: Option<Bytes>,
    pub(super) is_blocked: bool,
    /// Set while writes go past what is remembered of the socket.
    pub(super) is_straight: bool,
    /// Bytes written, ever: by it a session sees whether a blocked viewer makes progress.
    pub(super) written: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Comments wait until the session has queued its hello.
    Held,
    Live,
    /// Comments are over; what is its own still goes out.
    Leaving,
    Gone,
}

impl Outgoing {
    /// One that has had everything before `next`, and what it `had` of another node; comments wait.
    pub(super) fn new(socket: Arc<dyn Socket>, next: Seq, had: Option<Given>) -> Self {
        Self {
            socket: Some(socket),
            phase: Phase::Held,
            next,
            untold: 0,
            had: had.map(Box::new),
            own: VecDeque::new(),
            offset: 0,
            own_bytes: 0,
            news: None,
            is_blocked: false,
            is_straight: false,
            written: 0,
        }
    }

    /// Writes what the socket takes at once: at least a byte, or it breaks off.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> ControlFlow<Flow, usize> {
        let Some(socket) = &self.socket else { return ControlFlow::Break(Flow::Gone) };
        loop {
            let written = match parts {
                [part, ..] if self.is_straight => socket.try_write_straight(part),
                [part] => socket.try_write(part),
                parts => socket.try_write_vectored(parts),
            };
            return match written {
                Ok(0) => ControlFlow::Break(Flow::Gone),
                Ok(written) => ControlFlow::Continue(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => ControlFlow::Break(Flow::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => ControlFlow::Break(Flow::Gone),
            };
        }
    }

    /// Writes what is the viewer's own. Goes on when all of it is out.
    pub(super) fn write_own(&mut self) -> ControlFlow<Flow> {
        while !self.own.is_empty() {
            let mut parts = [IoSlice::new(&[]); PARTS];
            let mut offset = self.offset;
            let mut count = 0;
            for (part, frame) in parts.iter_mut().zip(&self.own) {
                *part = IoSlice::new(frame.get(offset..).unwrap_or_default());
                offset = 0;
                count += 1;
            }
            let written = self.write(parts.get(..count).unwrap_or_default())?;
            self.own_written(written);
        }
        ControlFlow::Continue(())
    }

    pub(super) fn end(&mut self) {
        self.phase = Phase::Gone;
        self.socket = None;
        self.own = VecDeque::new();
        (self.offset, self.own_bytes) = (0, 0);
    }

    /// Queues news. A viewer that has not had its hello yet gets the latest right after it, and one with too much waiting
    /// once that is out; one that is leaving gets none, for nothing may follow its goodbye.
    pub(super) fn take_news(&mut self, news: Bytes) {
        if self.phase != Phase::Live || !self.try_push_own(news.clone()) {
            self.news = Some(news);
        }
    }

    /// Goes behind a batch of which the viewer gets this.
    pub(super) fn pass(&mut self, batch: &Batch, portion: Portion) {
        self.next = batch.end();
        self.untold = portion.untold_after(self.untold);
        if self.had.as_ref().is_some_and(|had| had.is_past(batch.earliest())) {
            self.had = None;
        }
    }

    /// Gives false, and queues nothing, when too much waits already, or nothing may follow any more.
    pub(super) fn try_push_own(&mut self, frame: Bytes) -> bool {
        let has_room = self.own_bytes <= MAX_OWN_BYTES && matches!(self.phase, Phase::Held | Phase::Live);
        if has_room {
            self.push_own(frame);
        }
        has_room
    }

    pub(super) fn push_own(&mut self, frame: Bytes) {
        self.own_bytes += frame.len();
        self.own.push_back(frame);
    }

    pub(super) fn own_written(&mut self, mut written: usize) {
        self.written += written as u64;
        while let Some(first) = self.own.front() {
            let left = first.len() - self.offset;
            if written < left {
                self.offset += written;
                return;
            }
            written -= left;
            self.own_bytes -= first.len();
            self.offset = 0;
            self.own.pop_front();
        }
        // An idle viewer keeps no room for frames.
        self.own = VecDeque::new();
    }
}
