//! The load: viewers that read and check everything, and senders at an exact rate. One thread, one epoll.
//!
//! The model is open: what is sent when follows from the clock alone, and latency counts from the scheduled time, so a
//! server that slows down cannot slow its measurement down with it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};

use super::reader::{Found, Reader};
use super::sys::now_micros;

/// Events taken at a time; so few that sends stay on time while much is to be read.
const EVENTS: usize = 64;

/// A read takes at most so much.
const BUFFER: usize = 256 * 1024;

/// Viewers whose latency is recorded, at most, spread over all.
const SAMPLED: usize = 1000;

/// Nothing came for this long: nothing more comes.
const QUIET: Duration = Duration::from_secs(2);

/// A drain that takes longer is given up.
const DRAIN: Duration = Duration::from_secs(20);

/// A pong without payload, under a mask of zeros.
const PONG: [u8; 6] = [0x8a, 0x80, 0, 0, 0, 0];

struct Viewer {
    stream: TcpStream,
    reader: Reader,
    room: usize,
    /// The number of the next comment it should get.
    next: u64,
    is_sampled: bool,
    is_open: bool,
}

/// The first viewer of a room also sends.
struct Sender {
    viewer: usize,
    sent: u64,
    unsent: Vec<u8>,
}

/// What came of a run.
pub struct Tally {
    pub viewers: u64,
    pub sent: u64,
    pub comments: u64,
    pub frames: u64,
    pub bytes: u64,
    /// Comments that did not come, told as a gap or not.
    pub lost: u64,
    /// Comments that came twice or in the wrong order.
    pub doubled: u64,
    /// Comments that were told as missed.
    pub told: u64,
    pub acks: u64,
    pub errors: u64,
    /// Connections that the server closed.
    pub closed: u64,
    /// Seconds from the first send until the last comment came.
    pub seconds: f64,
    pub latency: Histogram<u64>,
}

impl Tally {
    fn new(viewers: usize) -> Self {
        let latency = Histogram::new_with_bounds(1, 120_000_000, 3).expect("the bounds are in order");
        let (sent, comments, frames, bytes, lost, doubled) = (0, 0, 0, 0, 0, 0);
        let (told, acks, errors, closed, seconds) = (0, 0, 0, 0, 0.0);
        let viewers = viewers as u64;
        Self { viewers, sent, comments, frames, bytes, lost, doubled, told, acks, errors, closed, seconds, latency }
    }

    /// Milliseconds below which this part of the latencies lies.
    pub fn ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1000.0
    }

    pub fn per_second(&self) -> f64 {
        self.comments as f64 / self.seconds
    }
}

/// Connections to a server.
pub struct Load {
    epoll: OwnedFd,
    viewers: Vec<Viewer>,
    senders: Vec<Sender>,
    buffer: Vec<u8>,
    frame_count: u64,
}

impl Load {
    /// Joins `rooms` rooms, whose names begin with `name`, with as many viewers each.
    pub fn join(address: SocketAddr, name: &str, rooms: usize, viewers: usize) -> Self {
        let mut load = Self::new(rooms * viewers);
        for room in 0..rooms {
            load.senders.push(Sender { viewer: load.viewers.len(), sent: 0, unsent: Vec::new() });
            for _ in 0..viewers {
                let (stream, early) = shake_hands(address, &format!("{name}-{room}"));
                load.add(stream, room, &early);
            }
        }
        load
    }

    /// Takes connections to a process that speaks frames without a handshake.
    pub fn attach(address: SocketAddr, sockets: usize) -> Self {
        let mut load = Self::new(sockets);
        for _ in 0..sockets {
            load.add(TcpStream::connect(address).expect("it listens"), 0, &[]);
        }
        load
    }

    fn new(connections: usize) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let viewers = Vec::with_capacity(connections);
        Self { epoll, viewers, senders: Vec::new(), buffer: vec![0; BUFFER], frame_count: 0 }
    }

    fn add(&mut self, stream: TcpStream, room: usize, early: &[u8]) {
        stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).expect("TCP");
        let data = epoll::EventData::new_u64(self.viewers.len() as u64);
        epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN).expect("epoll takes a socket");
        let mut reader = Reader::default();
        reader.feed(early, &mut |_| {});
        let step = self.viewers.capacity().div_ceil(SAMPLED);
        let is_sampled = self.viewers.len().is_multiple_of(step);
        self.viewers.push(Viewer { stream, reader, room, next: 0, is_sampled, is_open: true });
    }

    /// Sends at `rate` comments a second in each room for `span`, then reads until all of it has come or nothing comes.
    pub fn run(&mut self, rate: f64, span: Duration) -> Tally {
        let mut tally = Tally::new(self.viewers.len());
        let gap = 1e6 / (rate * self.senders.len() as f64);
        let total = (span.as_micros() as f64 / gap).round() as u64;
        let begun = now_micros();
        let mut last = begun;
        let due = |index: u64| begun + (index as f64 * gap) as u64;
        while tally.sent < total {
            while tally.sent < total && due(tally.sent) <= now_micros() {
                let room = (tally.sent % self.senders.len() as u64) as usize;
                self.say(room, due(tally.sent));
                tally.sent += 1;
            }
            let wait = due(tally.sent).saturating_sub(now_micros());
            last = self.read(Duration::from_micros(wait), &mut tally).unwrap_or(last);
        }
        let drained_by = now_micros() + DRAIN.as_micros() as u64;
        while !self.has_all(&tally) && now_micros() < drained_by {
            match self.read(QUIET, &mut tally) {
                Some(now) => last = now,
                None => break,
            }
        }
        tally.seconds = last.saturating_sub(begun).max(1) as f64 / 1e6;
        self.settle(&mut tally);
        tally
    }

    /// Reads until `frames` frames have come in all.
    pub fn read_frames(&mut self, frames: u64) {
        let mut tally = Tally::new(self.viewers.len());
        while tally.frames < frames && self.read(DRAIN, &mut tally).is_some() {}
    }

    /// Reads and checks for a while without sending.
    pub fn linger(&mut self, span: Duration) {
        let until = now_micros() + span.as_micros() as u64;
        let mut tally = Tally::new(self.viewers.len());
        while now_micros() < until {
            self.read(Duration::from_micros(until.saturating_sub(now_micros())), &mut tally);
        }
    }

    fn has_all(&self, tally: &Tally) -> bool {
        let owed = self.senders.first().map_or(0, |_| tally.sent * (self.viewers.len() / self.senders.len()) as u64);
        tally.comments >= owed && tally.acks + tally.errors >= tally.sent
    }

    /// Counts as lost what has not come, and begins anew behind it.
    fn settle(&mut self, tally: &mut Tally) {
        for viewer in &mut self.viewers {
            let sent = self.senders.get(viewer.room).map_or(0, |sender| sender.sent);
            tally.lost += sent.saturating_sub(viewer.next);
            tally.closed += u64::from(!viewer.is_open);
            viewer.next = viewer.next.max(sent);
        }
    }

    fn say(&mut self, room: usize, at_micros: u64) {
        let sender = &mut self.senders[room];
        let number = sender.sent;
        sender.sent += 1;
        self.frame_count += 1;
        let nonce = self.frame_count;
        let text = format!("这一波太精彩了哈哈哈 #{number}@{at_micros}; 666");
        let payload = format!(r#"{{"type":"send","nonce":"n{nonce}","text":"{text}"}}"#);
        // A mask of zeros leaves the payload as it is; every such frame is within 126 to 65,535 bytes or below.
        match payload.len() {
            short @ 0..=125 => sender.unsent.extend([0x81, 0x80 | short as u8]),
            long => {
                sender.unsent.extend([0x81, 0xfe]);
                sender.unsent.extend((long as u16).to_be_bytes());
            }
        }
        sender.unsent.extend([0; 4]);
        sender.unsent.extend(payload.as_bytes());
        self.push(room);
    }

    /// Writes what the sender's socket takes.
    fn push(&mut self, room: usize) {
        let sender = &mut self.senders[room];
        match (&self.viewers[sender.viewer].stream).write(&sender.unsent) {
            Ok(written) => drop(sender.unsent.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => sender.unsent.clear(),
        }
    }

    /// Waits at most so long for bytes and reads them; gives the time of it when there were any.
    fn read(&mut self, wait: Duration, tally: &mut Tally) -> Option<u64> {
        let mut events = Vec::with_capacity(EVENTS);
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("epoll: {error}"),
        }
        for room in 0..self.senders.len() {
            if !self.senders[room].unsent.is_empty() {
                self.push(room);
            }
        }
        for event in &events {
            self.viewers[event.data.u64() as usize].read(&mut self.buffer, &self.epoll, tally);
        }
        (!events.is_empty()).then(now_micros)
    }
}

impl Viewer {
    fn read(&mut self, buffer: &mut [u8], epoll: &OwnedFd, tally: &mut Tally) {
        let read = match self.stream.read(buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => 0,
        };
        if read == 0 {
            self.is_open = false;
            let _gone_already = epoll::delete(epoll, &self.stream);
            return;
        }
        tally.bytes += read as u64;
        let now = now_micros();
        let (next, is_sampled, mut stream) = (&mut self.next, self.is_sampled, &self.stream);
        self.reader.feed(&buffer[..read], &mut |found| match found {
            Found::Comment { number, at_micros } => {
                tally.comments += 1;
                if number < *next {
                    tally.doubled += 1;
                    return;
                }
                tally.lost += number - *next;
                *next = number + 1;
                if is_sampled {
                    tally.latency.saturating_record(now.saturating_sub(at_micros));
                }
            }
            Found::Gap(missed) => tally.told += missed,
            Found::Ack => tally.acks += 1,
            Found::Error => tally.errors += 1,
            // Not looked at: a socket without room for six bytes is about to be closed anyway.
            Found::Ping => drop(stream.write(&PONG)),
            Found::Frame => tally.frames += 1,
        });
    }
}

/// Opens a WebSocket; gives what came behind the handshake, too.
pub fn shake_hands(address: SocketAddr, room: &str) -> (TcpStream, Vec<u8>) {
    let stream = TcpStream::connect(address).expect("the server listens");
    upgrade(stream, room)
}

/// Makes a connection a WebSocket of the room.
pub fn upgrade(mut stream: TcpStream, room: &str) -> (TcpStream, Vec<u8>) {
    stream.set_read_timeout(Some(DRAIN)).expect("TCP");
    let request = format!(
        "GET /ws/{room} HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("the server reads");
    let mut answer = Vec::new();
    let end = loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).expect("the server answers");
        assert_ne!(read, 0, "the server refuses: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&part[..read]);
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    let early = answer.split_off(end);
    (stream, early)
}
