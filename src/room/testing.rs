//! What the tests of a room share: a socket and an encoder that know no network and no wire format.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{Begin, Joined, Registry, Room, RoomConfig, Sender, Taste};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::model::{
    BatchEncoder, Comment, CommentId, Format, FrameHead, Nonce, Posted, Role, RoomId, Socket, Timestamp, UserId,
    test_comment,
};

/// The moment at which the tests' rooms are made.
pub(crate) const BEGUN: i64 = 1_700_000_000_000;

/// A frame as [`PlainEncoder`] writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The places of the comments.
    Comments(Vec<u64>),
    Gap(u64),
    Own(u32),
}

/// Writes frames that can be told apart and read back.
#[derive(Debug, Default)]
pub(crate) struct PlainEncoder {
    pub(crate) encoded: AtomicUsize,
}

impl BatchEncoder for PlainEncoder {
    fn format(&self) -> Format {
        Format::Json
    }

    fn comments(&self, head: &FrameHead, comments: &[&Arc<Posted>]) -> Bytes {
        assert_eq!(Some(head.cursor.seq), comments.last().map(|posted| posted.seq));
        self.encoded.fetch_add(1, Ordering::SeqCst);
        let mut frame = BytesMut::new();
        frame.put_u8(b'C');
        frame.put_u32(u32::try_from(comments.len()).unwrap());
        comments.iter().for_each(|posted| frame.put_u64(posted.seq.0));
        frame.freeze()
    }

    fn gap(&self, missed: u64) -> Bytes {
        let mut frame = BytesMut::new();
        frame.put_u8(b'G');
        frame.put_u64(missed);
        frame.freeze()
    }
}

/// A frame of a viewer's own, `padding` bytes longer than the shortest.
pub(crate) fn own_frame(n: u32, padding: usize) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(b'O');
    frame.put_u32(n);
    frame.put_u32(u32::try_from(padding).unwrap());
    frame.put_bytes(b'.', padding);
    frame.freeze()
}

/// Reads whole frames; fails at anything else, such as one frame inside another.
pub(crate) fn parse(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let number = |bytes: &mut &[u8], len: usize| {
        let (head, rest) = bytes.split_at_checked(len).expect("a frame is cut short");
        *bytes = rest;
        head.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    while !bytes.is_empty() {
        frames.push(match u8::try_from(number(&mut bytes, 1)).unwrap() {
            b'C' => Frame::Comments((0..number(&mut bytes, 4)).map(|_| number(&mut bytes, 8)).collect()),
            b'G' => Frame::Gap(number(&mut bytes, 8)),
            b'O' => {
                let n = u32::try_from(number(&mut bytes, 4)).unwrap();
                let padding = usize::try_from(number(&mut bytes, 4)).unwrap();
                assert!(bytes[..padding].iter().all(|byte| *byte == b'.'), "something is inside an own frame");
                bytes = &bytes[padding..];
                Frame::Own(n)
            }
            other => panic!("no frame begins with {other}"),
        });
    }
    frames
}

/// A connection that takes as many bytes as it is allowed to.
#[derive(Debug)]
pub(crate) struct FakeSocket(Mutex<Pipe>);

#[derive(Debug, Default)]
struct Pipe {
    received: Vec<u8>,
    allowed: usize,
    most_a_call: usize,
    is_dead: bool,
    calls: usize,
}

impl FakeSocket {
    /// Takes everything.
    pub(crate) fn open() -> Arc<Self> {
        Self::stalled(usize::MAX, usize::MAX)
    }

    /// Takes `allowed` bytes until it is allowed more, and at most `most_a_call` in one call.
    pub(crate) fn stalled(allowed: usize, most_a_call: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Pipe { allowed, most_a_call, ..Pipe::default() })))
    }

    fn pipe(&self) -> MutexGuard<'_, Pipe> {
        self.0.lock().unwrap()
    }

    pub(crate) fn allow(&self, more: usize) {
        let mut pipe = self.pipe();
        pipe.allowed = pipe.allowed.saturating_add(more);
    }

    pub(crate) fn allow_a_call(&self, most: usize) {
        self.pipe().most_a_call = most;
    }

    pub(crate) fn die(&self) {
        self.pipe().is_dead = true;
    }

    pub(crate) fn revive(&self) {
        self.pipe().is_dead = false;
    }

    pub(crate) fn calls(&self) -> usize {
        self.pipe().calls
    }

    pub(crate) fn received(&self) -> Vec<u8> {
        self.pipe().received.clone()
    }

    /// Everything received, which must be whole frames.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        parse(&self.received())
    }

    /// The places of the comments received.
    pub(crate) fn places(&self) -> Vec<u64> {
        let places = |frame| if let Frame::Comments(places) = frame { places } else { Vec::new() };
        self.frames().into_iter().flat_map(places).collect()
    }
}

impl Socket for FakeSocket {
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut pipe = self.pipe();
        pipe.calls += 1;
        if pipe.is_dead {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let offered = parts.iter().map(|part| part.len()).sum::<usize>();
        let taken = offered.min(pipe.allowed).min(pipe.most_a_call);
        if taken == 0 && offered > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(taken).collect();
        pipe.received.extend(bytes);
        if pipe.allowed != usize::MAX {
            pipe.allowed -= taken;
        }
        Ok(taken)
    }
}

pub(crate) fn config(ring: usize) -> RoomConfig {
    RoomConfig {
        ring,
        recent: 50,
        max_window: Duration::from_millis(100),
        evict_after: Duration::from_secs(60),
        max_rooms: 100,
    }
}

pub(crate) fn registry(config: RoomConfig) -> (Registry, Clock) {
    let clock = Clock::manual(Timestamp::from_millis(BEGUN));
    (Registry::new(config, clock.clone(), Arc::new(Metrics::default()), None), clock)
}

pub(crate) fn room_id() -> RoomId {
    RoomId::parse("r").unwrap()
}

pub(crate) fn made(ts: Timestamp, id: CommentId) -> Comment {
    Comment { id, ..test_comment("r", ts.millis(), 0, "x") }
}

/// Publishes a comment that is kept.
pub(crate) fn say(room: &Arc<Room>, ts: i64) -> Arc<Posted> {
    let published = room.publish(Timestamp::from_millis(ts), &by(None), made, |_| Ok::<_, ()>(()));
    Arc::clone(published.unwrap().unwrap().posted())
}

/// Lets a viewer in that takes frames of [`PlainEncoder`].
pub(crate) fn enter(room: &Arc<Room>, socket: &Arc<FakeSocket>, begin: Begin) -> Joined {
    room.join(Arc::clone(socket) as Arc<dyn Socket>, Taste::all(Arc::new(PlainEncoder::default())), begin).unwrap()
}

/// A viewer who publishes.
pub(crate) fn by<'a>(mark: Option<(&'a UserId, &'a Nonce)>) -> Sender<'a> {
    Sender { role: Role::Viewer, mark }
}

impl Room {
    /// The cursor of a viewer that has had everything.
    pub(crate) fn newest_cursor(&self) -> crate::model::Cursor {
        self.lock().ring.cursor()
    }
}
