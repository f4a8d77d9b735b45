//! Coming into a room, and having a place in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::time::Instant;

use super::Room;
use super::outgoing::Flow;
use super::viewer::Viewer;
use crate::model::{Cursor, Given, Position, Posted, Seq};

/// A viewer's place in the room, with what it should be told first. All of it is from one instant.
#[derive(Debug)]
pub struct Joined {
    /// The viewer, to be [opened](Viewer::open) when its hello is queued. It leaves the room when this is dropped.
    pub seat: Seat,
    /// Where it stands: everything up to here it has had, or gets in `recent`.
    pub cursor: Cursor,
    /// The newest comments, oldest first; none when it resumes, for then they follow as the room's frames.
    pub recent: Vec<Arc<Posted>>,
    /// Whether it goes on from its own cursor.
    pub is_resumed: bool,
    /// Viewers in the room on all nodes as far as it is known, this one included.
    pub online: usize,
}

/// Where a viewer that joins wants to begin.
#[derive(Clone, Copy, Debug)]
pub enum Begin {
    /// With the newest comments.
    Newest,
    /// After this cursor.
    After(Cursor),
    /// At this place: what lies between the viewer's cursor and here it has been told of. What it had of another node
    /// besides it does not get once more.
    From(Seq, Option<Given>),
}

/// Whether a cursor can be resumed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The ring knows what followed it: to the comment, or how many of them it has dropped.
    Ring,
    /// The cursor is of another life of the room and stands before the ring: the store may know what lies between.
    Before {
        /// The place of the oldest comment in the ring.
        start: Seq,
        /// That comment's position; `None` when the ring is empty.
        oldest: Option<Position>,
    },
}

/// A viewer's place in its room; dropping it leaves the room.
#[derive(Debug)]
pub struct Seat {
    room: Arc<Room>,
    viewer: Arc<Viewer>,
    place: usize,
    is_vacated: AtomicBool,
}

impl Seat {
    pub(super) fn take(room: &Arc<Room>, viewer: Arc<Viewer>) -> (Self, usize) {
        let (place, online) = room.audience.add(Arc::clone(&viewer));
        room.metrics.viewers.inc();
        (Self { room: Arc::clone(room), viewer, place, is_vacated: AtomicBool::new(false) }, online)
    }

    /// The room.
    #[must_use]
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// The viewer.
    #[must_use]
    pub fn viewer(&self) -> &Viewer {
        &self.viewer
    }

    /// Lets comments follow what was sent so far.
    pub fn open(&self) -> Flow {
        self.viewer.open(&self.room)
    }

    /// Queues a frame of the viewer's own; false when too much waits already.
    #[must_use]
    pub fn send(&self, frame: Bytes) -> bool {
        self.viewer.send(&self.room, frame)
    }

    /// Queues a frame of the viewer's own for the next [`Seat::flush`]; false when too much waits already.
    #[must_use]
    pub fn queue(&self, frame: Bytes) -> bool {
        self.viewer.queue(&self.room, frame)
    }

    /// Writes what was queued.
    pub fn flush(&self) {
        self.viewer.flush(&self.room);
    }

    /// Leaves the room with a last frame: the viewer counts no more, and only what is its own still goes out.
    pub fn leave(&self, last: Bytes) {
        self.viewer.leave(&self.room, last);
        self.vacate();
    }

    fn vacate(&self) {
        if !self.is_vacated.swap(true, Ordering::AcqRel) {
            self.room.metrics.viewers.dec();
            // Under the room's lock, so that it is not dropped as unused between the two.
            let mut state = self.room.lock();
            state.last_used = Instant::now();
            self.room.audience.remove(self.place);
        }
    }

    /// Goes on writing though the socket has told of no room; whether it took something all the same.
    #[must_use]
    pub fn prod(&self) -> bool {
        self.viewer.prod(&self.room)
    }

    /// Goes on writing where the socket was full.
    pub fn advance(&self) -> Flow {
        self.viewer.advance(&self.room)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.vacate();
        self.viewer.end();
    }
}
