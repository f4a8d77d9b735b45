//! A room: its recent comments in one ring, and the viewers that read it from different places.
//!
//! The room gives comments their time, id and place, keeps the newest, and writes them to its viewers' sockets. It knows
//! no wire format (it is handed encoders), no store (whether a comment can be kept is asked through a closure while the
//! order is held), and no other node. Callers are the hub, and sessions for their own viewer.

mod batch;
mod departed;
mod fanout;
mod hearing;
mod nonces;
mod online;
mod outgoing;
mod pace;
mod registry;
mod ring;
mod seat;
mod strays;
#[cfg(test)]
pub(crate) mod testing;
mod thin;
mod viewer;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

pub use batch::{Batch, MAX_BATCH, Taste};
pub use fanout::CutObserver;
pub use hearing::{Fetched, SETTLING};
pub use outgoing::Flow;
pub use registry::{Registry, TooManyRooms};
pub use ring::Ring;
pub use seat::{Begin, Joined, Reach, Seat};
pub use viewer::{Delivered, Viewer};

use crate::metrics::Metrics;
use crate::model::{
    Comment, CommentId, Cursor, Epoch, Nonce, Posted, Relayed, Role, RoomId, Seq, Socket, Timestamp, UserId,
};
use fanout::Audience;
use hearing::Hearing;
use nonces::Nonces;
use registry::Ids;
use strays::Strays;

/// What every room of a server has in common.
#[derive(Clone, Debug)]
pub struct RoomConfig {
    /// About how many recent comments a room keeps in memory.
    pub ring: usize,
    /// How many of them a viewer that joins is given.
    pub recent: usize,
    /// The longest time a room gathers comments before it writes them to its viewers.
    pub max_window: Duration,
    /// How long a room without viewers and comments stays in memory.
    pub evict_after: Duration,
    /// Most rooms in memory.
    pub max_rooms: usize,
}

/// The room was dropped from memory between being found and being used; find it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired;

/// Who publishes, as far as the room looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// Whose comments reach also those who asked for fewer.
    pub role: Role,
    /// By what a resent comment is known to be the same.
    pub mark: Option<(&'a UserId, &'a Nonce)>,
}

/// What came of a publish.
#[derive(Clone, Debug)]
pub enum Published {
    /// The comment is kept and on its way to the viewers.
    Accepted(Arc<Posted>),
    /// The sender had sent it before, under the same nonce; this is that comment.
    Resent(Arc<Posted>),
}

impl Published {
    /// The one comment, sent once or more often.
    #[must_use]
    pub fn posted(&self) -> &Arc<Posted> {
        match self {
            Self::Accepted(posted) | Self::Resent(posted) => posted,
        }
    }
}

/// What the ring holds of a stretch of time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Comments, oldest first.
    pub comments: Vec<Arc<Posted>>,
    /// The ring has every comment of the room from this moment on.
    pub whole_from: Timestamp,
    /// Since when comments of other nodes are heard without a break: [`Timestamp::MAX`] while they are not,
    /// [`Timestamp::MIN`] when nothing can be missing.
    pub hears_since: Timestamp,
    /// Comments that have left the ring and are not known to be in the store: neither can give them.
    pub overhang: usize,
    /// The place after the newest comment in the ring.
    pub end: Seq,
    /// The place of the oldest comment in the ring.
    pub start: Seq,
}

/// One room on this node.
#[derive(Debug)]
pub struct Room {
    id: RoomId,
    config: Arc<RoomConfig>,
    ids: Arc<Ids>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    overhang: Arc<AtomicUsize>,
    audience: Audience,
    dirty: Notify,
    /// Wakes who waits for the tick to have shown something.
    ticked: Notify,
    /// Done once the comments from before this life of the room were put in front of the ring.
    pub(crate) warmed: OnceCell<()>,
    /// Held while what other nodes accepted unheard is fetched, so that those who need it wait for one read.
    pub(crate) mending: tokio::sync::Mutex<()>,
    /// Held while it is asked how many viewers the room has elsewhere.
    pub(crate) counting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    nonces: Nonces,
    last_ts: Timestamp,
    last_id: CommentId,
    last_used: Instant,
    is_retired: bool,
    hearing: Hearing,
    /// What other nodes stored and did not pass on.
    strays: Option<Strays>,
}

impl Room {
    fn new(id: RoomId, config: Arc<RoomConfig>, ids: Arc<Ids>, metrics: Arc<Metrics>, now: Timestamp) -> Self {
        let ring = Ring::new(ids.epoch(), config.ring, now);
        let ring = if ids.observer().is_some() { ring.among_others() } else { ring };
        let state = State {
            ring,
            nonces: Nonces::default(),
            last_ts: Timestamp::MIN,
            last_id: CommentId::MIN,
            last_used: Instant::now(),
            is_retired: false,
            strays: None,
            hearing: ids.observer().map_or_else(Hearing::default, |_| Hearing::not_yet(now)),
        };
        Self {
            id,
            config,
            ids,
            metrics,
            state: Mutex::new(state),
            overhang: Arc::default(),
            audience: Audience::default(),
            dirty: Notify::new(),
            ticked: Notify::new(),
            warmed: OnceCell::new(),
            mending: tokio::sync::Mutex::default(),
            counting: tokio::sync::Mutex::default(),
        }
    }

    /// The room's id.
    #[must_use]
    pub fn id(&self) -> &RoomId {
        &self.id
    }

    /// The epoch of this life of the room.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.lock().ring.epoch()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a comment its time, id and place, has it kept, and lets it out to the viewers, in this order and as one
    /// step: the order of the ring is the order in which comments were kept.
    ///
    /// `make` builds the comment from its time and id; `keep` pushes it into the write queue. What `keep` refuses nobody
    /// has seen, and it leaves no trace.
    ///
    /// # Errors
    /// The outer error is [`Retired`]: find the room again. The inner one is `keep`'s.
    pub fn publish<E>(
        self: &Arc<Self>,
        now: Timestamp,
        sender: &Sender<'_>,
        make: impl FnOnce(Timestamp, CommentId) -> Comment,
        keep: impl FnOnce(Arc<Posted>) -> Result<(), E>,
    ) -> Result<Result<Published, E>, Retired> {
        let mut state = self.lock();
        if state.is_retired {
            return Err(Retired);
        }
        if let Some(posted) = sender.mark.and_then(|(uid, nonce)| state.nonces.find(uid, nonce)) {
            return Ok(Ok(Published::Resent(posted)));
        }
        let (ts, id) = state.stamp(now, &self.ids);
        let posted = Posted::pending(make(ts, id), state.ring.next(), Arc::clone(&self.overhang));
        let posted = Arc::new(posted.sent_by(sender.role));
        if let Err(refused) = keep(Arc::clone(&posted)) {
            return Ok(Err(refused));
        }
        let at = Instant::now();
        (state.last_ts, state.last_id, state.last_used) = (ts, id, at);
        if let Some((uid, nonce)) = sender.mark {
            state.nonces.remember(uid, nonce, &posted);
        }
        if self.ids.observer().is_some_and(|observer| observer.wants_unwatched()) {
            fanout::ensure_running(self, &state);
        }
        state.ring.push(Arc::clone(&posted), at);
        drop(state);
        self.dirty.notify_one();
        Ok(Ok(Published::Accepted(posted)))
    }

    /// Takes comments that another node accepted and keeps, oldest first, in the order they come in.
    ///
    /// # Errors
    /// [`Retired`]: find the room again.
    pub fn deliver(&self, mut comments: Vec<Relayed>) -> Result<(), Retired> {
        let mut state = self.lock();
        if state.is_retired {
            return Err(Retired);
        }
        // The store may have been faster than the relay.
        state.ring.leave_out_known(&mut comments, |relayed| relayed.comment.position());
        state.last_used = Instant::now();
        let at = state.last_used;
        for Relayed { comment, sender } in comments {
            let posted = Posted::foreign(comment, state.ring.next()).sent_by(sender);
            state.ring.push(Arc::new(posted), at);
        }
        drop(state);
        self.dirty.notify_one();
        Ok(())
    }

    /// The comment that `uid` sent under `nonce`, if the room remembers it.
    #[must_use]
    pub fn find_resent(&self, uid: &UserId, nonce: &Nonce) -> Option<Arc<Posted>> {
        self.lock().nonces.find(uid, nonce)
    }

    /// Puts a viewer into the room. Its place, the comments it is given and the cursor are from the same instant, so
    /// that there is neither a gap nor a double between them and what follows. What the ring has dropped since the
    /// viewer's cursor, the viewer is told as missed.
    ///
    /// # Errors
    /// [`Retired`]: find the room again.
    pub fn join(self: &Arc<Self>, socket: Arc<dyn Socket>, taste: Taste, begin: Begin) -> Result<Joined, Retired> {
        let mut state = self.lock();
        if state.is_retired {
            return Err(Retired);
        }
        let (place, had) = match begin {
            Begin::Newest => (None, None),
            Begin::From(place, had) => (Some(place), had),
            Begin::After(cursor) => {
                let place = state.resume(&cursor).unwrap_or_else(|| state.ring.start());
                // What it had here stands before its place.
                (Some(place), cursor.given.filter(|_| !state.ring.knows(&cursor)))
            }
        };
        let mut cursor = match begin {
            // With its own it may come back here and be known for what it had elsewhere.
            Begin::After(cursor) if place < Some(state.ring.cut_end()) || had.is_some() => cursor,
            Begin::From(place, _) if place < state.ring.cut_end() => state.ring.cursor_before(place),
            _ => state.ring.cursor(),
        };
        // It may have had more than this node has heard.
        if let (Some(given), Some(had)) = (&mut cursor.given, &had) {
            given.join(had);
        }
        let recent = if place.is_some() { Vec::new() } else { state.ring.latest(self.config.recent) };
        if taste.tier.is_some() {
            state.ring.thin();
        }
        state.last_used = Instant::now();
        // Still under the room's lock, so that an empty room cannot be dropped in between.
        let next = place.unwrap_or_else(|| state.ring.cut_end());
        let (seat, online) = Seat::take(self, Arc::new(Viewer::new(socket, taste, next, had)));
        fanout::ensure_running(self, &state);
        drop(state);
        Ok(Joined { seat, cursor, recent, is_resumed: place.is_some(), online })
    }

    /// Whether the ring alone can tell what followed `cursor`.
    #[must_use]
    pub fn reach(&self, cursor: &Cursor) -> Reach {
        let mut state = self.lock();
        if state.resume(cursor).is_some() {
            return Reach::Ring;
        }
        let oldest = state.ring.iter().next().map(|posted| posted.comment.position());
        Reach::Before { start: state.ring.start(), oldest }
    }

    /// Whether a viewer with this cursor may lack something that will not be told, as what it was given is in doubt.
    #[must_use]
    pub fn leaves_in_doubt(&self, cursor: &Cursor) -> bool {
        let state = self.lock();
        // On its own node it will be given what is found.
        !state.ring.knows(cursor) && cursor.given.is_some_and(|given| !state.ring.dispels(&given))
    }

    /// What the ring holds from `from` on, the newest included.
    #[must_use]
    pub fn snapshot(&self, from: Timestamp) -> Snapshot {
        let state = self.lock();
        let hears_since = state.hearing.hears_since();
        Snapshot {
            hears_since,
            comments: state.ring.iter().filter(|posted| posted.comment.ts >= from).cloned().collect(),
            whole_from: state.ring.whole_from().max(hears_since),
            overhang: self.overhang(),
            end: state.ring.next(),
            start: state.ring.start(),
        }
    }

    /// Puts comments from the store in front of the ring; see [`Ring::prepend`].
    pub fn prepend(&self, older: Vec<Comment>, is_all: bool) -> bool {
        let mut state = self.lock();
        state.go_on_from(&older);
        state.ring.prepend(older, is_all)
    }

    /// Shows comments from the store to who joins, while the store lacks some; see [`Ring::glimpse`].
    pub fn glimpse(&self, older: Vec<Comment>) {
        let mut state = self.lock();
        state.go_on_from(&older);
        state.ring.glimpse(older);
    }

    /// Whether comments are shown that [`Room::prepend`] has yet to put in front.
    #[must_use]
    pub fn has_glimpse(&self) -> bool {
        self.lock().ring.has_glimpse()
    }

    /// Comments that have left the ring and are not known to be in the store.
    #[must_use]
    pub fn overhang(&self) -> usize {
        self.overhang.load(Ordering::Acquire)
    }

    /// Sends a frame of its own to every viewer, beside the comments and with the next tick; of two that come sooner the
    /// later.
    pub fn announce(&self, frame: Bytes) {
        self.audience.announce(frame);
        self.dirty.notify_one();
    }

    /// Waits until the tick, if one runs, has shown what has come in by now. Cancellation-safe.
    pub async fn shown(&self) {
        let end = self.lock().ring.next();
        loop {
            let ticked = self.ticked.notified();
            if self.audience.has_shown(end) {
                return;
            }
            ticked.await;
        }
    }

    /// Lets go of comments that have expired.
    pub fn drop_expired(&self, now: Timestamp) {
        self.lock().ring.drop_expired(now);
    }

    /// Drops the room from use if nobody is in it, nothing happened for the eviction time, and all it has is safe.
    fn try_retire(&self) -> bool {
        let mut state = self.lock();
        // What waits in the outbox does not hold the room: through a long outage all rooms ever used would stay, and at
        // `max_rooms` new ones be refused. Nor does it make the room's next life claim too much, for while anything is
        // parked a room is not warmed.
        let is_safe = || state.ring.iter().all(|posted| posted.is_safe());
        let is_over = self.audience.is_empty()
            && state.last_used.elapsed() >= self.config.evict_after
            && self.overhang() == 0
            && is_safe();
        state.is_retired |= is_over;
        is_over
    }

    /// Cuts what has come, and gives what was cut after `shown`, which moves to the end.
    fn cut_after(&self, shown: &mut Seq) -> Vec<Arc<Batch>> {
        let mut fresh = Vec::new();
        let mut state = self.lock();
        state.ring.cut();
        state.ring.batches_from(*shown, usize::MAX, &mut fresh);
        *shown = state.ring.next();
        fresh
    }

    /// Takes at most `limit` batches from the one that has `from`; gives the place after the last cut comment at that
    /// moment.
    fn batches_from(&self, from: Seq, limit: usize, into: &mut Vec<Arc<Batch>>) -> Seq {
        let state = self.lock();
        state.ring.batches_from(from, limit, into);
        state.ring.cut_end()
    }

    fn count(&self, delivered: &Delivered) {
        self.metrics.frames_sent.inc_by(delivered.frames);
        self.metrics.deliveries.inc_by(delivered.comments);
        self.metrics.left_out.inc_by(delivered.left_out);
        self.metrics.missed.inc_by(delivered.missed);
    }
}

impl State {
    fn resume(&mut self, cursor: &Cursor) -> Option<Seq> {
        if !self.ring.knows(cursor) {
            // Its place may lie among comments that are not cut yet.
            self.ring.cut();
        }
        self.ring.resume(cursor)
    }

    /// Lets no comment stand before these, which the store has.
    fn go_on_from(&mut self, stored: &[Comment]) {
        if let Some(newest) = stored.last()
            && self.last_ts < newest.ts
        {
            // The clock may have been set back while the server was down; the room's time does not follow it.
            (self.last_ts, self.last_id) = (newest.ts, newest.id);
        }
    }

    /// The time and id of the next comment. Time never goes back, and within a millisecond ids rise.
    fn stamp(&self, now: Timestamp, ids: &Ids) -> (Timestamp, CommentId) {
        let ts = now.max(self.last_ts);
        let counter = ids.count();
        let id = CommentId::from_parts(ts, ids.process(), counter);
        if ts > self.last_ts || id > self.last_id {
            return (ts, id);
        }
        // The counter of ids has come round, or the last id is another process's: the order goes on in the next
        // millisecond.
        let ts = ts.plus(Duration::from_millis(1));
        (ts, CommentId::from_parts(ts, ids.process(), counter))
    }
}

#[cfg(test)]
mod rate_tests;
#[cfg(test)]
mod tests;
