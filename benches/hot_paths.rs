//! What each step on a comment's way costs by itself: publish (also from the frame on), read the ring, encode, flush.
//!
//! ```text
//! cargo bench --bench hot_paths                 all of them, about two minutes
//! cargo bench --bench hot_paths -- publish      those with this in their name
//! cargo bench --bench hot_paths -- --quick      fewer samples
//! ```

mod material;

use std::hint::black_box;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use danmakud::admission::{Admission, AdmissionConfig};
use danmakud::clock::Clock;
use danmakud::hub::{Hub, HubParts};
use danmakud::load::trace::Line;
use danmakud::metrics::Metrics;
use danmakud::model::{
    BatchEncoder, Comment, Cursor, Draft, Epoch, Fate, FrameHead, Identity, Nonce, Position, Posted, Role, RoomId, Seq,
    Timestamp,
};
use danmakud::relay::Loopback;
use danmakud::room::{Registry, Ring, RoomConfig};
use danmakud::store::{
    AsideFile, CommentStore, EmbeddedConfig, EmbeddedStore, Flusher, FlusherParts, Page, Record, StoreError,
    WriteQueue, WriteReport,
};
use danmakud::wire::{ClientFrame, CompressedEncoder, Compression, JsonEncoder};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{Message, Role as Side, WebSocketConfig, WebSocketContext};

/// A store that has what it is given at once: what is left is the way to it.
struct AtOnce;

#[async_trait]
impl CommentStore for AtOnce {
    fn encode(&self, _comment: &Comment) -> Bytes {
        Bytes::new()
    }

    async fn write(&self, _batch: &[Record]) -> Result<WriteReport, StoreError> {
        Ok(WriteReport::default())
    }

    async fn load_recent(&self, _room: &RoomId, _from: Timestamp, _limit: usize) -> Result<Page, StoreError> {
        Ok(Page::default())
    }

    async fn load_before(&self, _room: &RoomId, _before: Position, _limit: usize) -> Result<Page, StoreError> {
        Ok(Page::default())
    }

    async fn count_between(
        &self,
        _room: &RoomId,
        _after: Position,
        _before: Position,
        _limit: u64,
    ) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// So many comments are published before the queue is emptied, with the clock standing still.
const PUBLISHED: u64 = 4_096;

/// A draft becomes a comment of a room that nobody watches, and waits for the store.
fn publish(c: &mut Criterion) {
    let mut group = c.benchmark_group("publish");
    group.throughput(Throughput::Elements(1));
    for (name, has_nonces) in [("without a nonce", false), ("with a nonce", true)] {
        let mut publisher = Publisher::new(has_nonces);
        group.bench_function(name, |b| b.iter_custom(|count| publisher.publish(count)));
    }
    group.finish();
}

/// Frames of one round: a bulk of the flusher.
const FRAMES: u64 = 1_000;

/// From a frame in the kernel's buffer to the write queue: read from a socket, unmasked and checked by the protocol
/// library, parsed, judged, given its place, queued.
fn frame_to_queue(c: &mut Criterion) {
    let mut publisher = Publisher::new(true);
    let (mut client, mut server) = socket_pair();
    let limits = WebSocketConfig::default().read_buffer_size(2048);
    let mut library = WebSocketContext::new(Side::Server, Some(limits));
    let mut group = c.benchmark_group("frame");
    group.throughput(Throughput::Elements(1));
    group.bench_function("to the write queue", |b| {
        b.iter_custom(|count| {
            let mut took = Duration::ZERO;
            for from in (0..count).step_by(FRAMES as usize) {
                let drafts = publisher.drafts(FRAMES.min(count - from));
                for (who, draft) in &drafts {
                    client.write_all(&masked(draft)).expect("the socket holds one frame");
                    let begun = Instant::now();
                    let Ok(Message::Text(text)) = library.read(&mut server) else { panic!("not a text") };
                    let Ok(ClientFrame::Send(draft)) = ClientFrame::parse(&text) else { panic!("not a send: {text}") };
                    let published = publisher.hub.publish(who, &publisher.room, &draft).expect("it is accepted");
                    took += begun.elapsed();
                    black_box(published);
                }
                publisher.empty(drafts.len());
            }
            took
        });
    });
    group.finish();
}

/// Both ends of a connection over loopback.
fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    client.set_nodelay(true).expect("TCP");
    (client, listener.accept().expect("the client has connected").0)
}

/// The frame in which a client sends `draft`.
fn masked(draft: &Draft) -> Vec<u8> {
    let text = serde_json::json!({
        "type": "send", "nonce": draft.nonce.as_ref().map(Nonce::as_str), "text": draft.text,
        "mode": draft.mode, "color": draft.color, "size": draft.size,
    });
    let mut frame = Frame::message(text.to_string(), OpCode::Data(Data::Text), true);
    frame.header_mut().mask = Some([1, 2, 3, 4]);
    let mut bytes = Vec::new();
    frame.format(&mut bytes).expect("a buffer takes it");
    bytes
}

struct Publisher {
    hub: Hub,
    room: RoomId,
    queue: WriteQueue,
    lines: Vec<Line>,
    has_nonces: bool,
    /// Drafts made so far.
    made: u64,
}

impl Publisher {
    fn new(has_nonces: bool) -> Self {
        let defaults = material::defaults();
        let metrics = Arc::new(Metrics::default());
        let queue = WriteQueue::new(defaults.queue, defaults.flusher.batch, Arc::clone(&metrics));
        // Every user's rate is looked up, and nobody is too fast.
        let admission = AdmissionConfig { min_interval: Duration::from_nanos(1), ..defaults.admission };
        let parts = HubParts {
            admission: Admission::new(admission),
            queue: queue.clone(),
            store: Arc::new(AtOnce),
            relay: Arc::new(Loopback),
            clock: Clock::system(),
            metrics,
        };
        Self {
            hub: Hub::new(defaults.hub, parts),
            room: material::room(),
            queue,
            lines: material::lines(),
            has_nonces,
            made: 0,
        }
    }

    fn publish(&mut self, count: u64) -> Duration {
        let (mut took, mut left) = (Duration::ZERO, count);
        while left > 0 {
            let drafts = self.drafts(left.min(PUBLISHED));
            let begun = Instant::now();
            for (who, draft) in &drafts {
                black_box(self.hub.publish(who, &self.room, draft)).expect("it is accepted");
            }
            took += begun.elapsed();
            self.empty(drafts.len());
            left -= drafts.len() as u64;
        }
        took
    }

    /// Empties the queue of what was just published.
    fn empty(&self, published: usize) {
        let waiting = self.queue.take(usize::MAX);
        assert_eq!(waiting.len(), published, "each is a comment of its own");
        waiting.iter().for_each(|posted| posted.settle(Fate::Stored));
    }

    fn drafts(&mut self, count: u64) -> Vec<(Identity, Draft)> {
        let numbers = self.made..self.made + count;
        self.made = numbers.end;
        let skip = usize::try_from(numbers.start).expect("64 bits") % self.lines.len();
        let draft = |(number, line): (u64, &Line)| {
            let (uid, name) = material::sender(line);
            let nonce = self.has_nonces.then(|| Nonce::parse(&format!("n{number}")).expect("it keeps to the rules"));
            let Line { mode, size, color, .. } = *line;
            let draft = Draft { text: line.text.clone(), mode, color, size, nonce, ..Draft::default() };
            (Identity { uid, name, role: Role::Viewer }, draft)
        };
        numbers.zip(self.lines.iter().cycle().skip(skip)).map(draft).collect()
    }
}

fn posted(lines: &[Line], count: usize) -> Vec<Arc<Posted>> {
    let posted = |(seq, comment)| Arc::new(Posted::pending(comment, Seq(seq), Arc::default()));
    (1..).zip(material::comments(lines, count)).map(posted).collect()
}

/// Comments in the ring, as many as a room keeps by default or more.
const RING: usize = 1_024;

/// Comments in a batch of the ring that is read: a room at 80 comments a second and a window of 100 ms.
const BATCH: usize = 8;

fn read_ring(c: &mut Criterion) {
    let comments = material::comments(&material::lines(), RING);
    let mut ring = Ring::new(Epoch(1), RING, Timestamp::MIN);
    for (number, comment) in (1..).zip(comments.iter().cloned()) {
        ring.push(Arc::new(Posted::stored(comment, ring.next())), Instant::now());
        if number % BATCH == 0 {
            ring.cut();
        }
    }
    let mut group = c.benchmark_group("ring");
    group.bench_function("200 for who joins", |b| b.iter(|| black_box(ring.latest(200)).len()));
    let mut batches = Vec::new();
    for (name, from) in
        [("16 batches from the start", ring.start()), ("the newest batch", ring.start().plus(RING - BATCH))]
    {
        group.bench_function(name, |b| {
            b.iter(|| {
                batches.clear();
                ring.batches_from(from, 16, &mut batches);
                assert!(!batches.is_empty(), "{name}");
            });
        });
    }
    let config = RoomConfig { ring: RING, ..material::defaults().hub.room };
    let rooms = Registry::new(config, Clock::system(), Arc::default(), None);
    let room = rooms.get_or_make(&material::room()).expect("there is room for one");
    room.deliver(comments.into_iter().map(Into::into).collect()).expect("the room is in use");
    assert_eq!(room.snapshot(Timestamp::MIN).comments.len(), RING);
    group.bench_function("1024 for a window", |b| b.iter(|| black_box(room.snapshot(Timestamp::MIN)).comments.len()));
    group.finish();
}

fn encode(c: &mut Criterion) {
    let comments = posted(&material::lines(), 256);
    let mut group = c.benchmark_group("encode");
    for count in [1, 16, 256] {
        let batch = comments.get(..count).expect("there are as many");
        let cursor = Cursor::at(batch.last().expect("there is one").comment.position());
        let (head, batch) = (FrameHead { cursor, left_out: None }, batch.iter().collect::<Vec<_>>());
        let json = JsonEncoder.comments(&head, &batch).len() as u64;
        group.throughput(Throughput::Bytes(json));
        let compressed = |compression| Arc::new(CompressedEncoder(compression)) as Arc<dyn BatchEncoder>;
        let encoders: [(&str, Arc<dyn BatchEncoder>); 4] = [
            ("json", Arc::new(JsonEncoder)),
            ("zstd", compressed(Compression::Zstd)),
            ("br", compressed(Compression::Brotli)),
            ("deflate", compressed(Compression::Deflate)),
        ];
        for (name, encoder) in encoders {
            let id = BenchmarkId::new(name, count);
            group.bench_function(id, |b| b.iter(|| black_box(encoder.comments(&head, black_box(&batch)))));
            let share = encoder.comments(&head, &batch).len() as f64 / json as f64;
            println!("encode/{name}/{count}: {share:.2} of the JSON's bytes");
        }
    }
    group.finish();
}

/// Comments that are flushed at a time: full batches, so that none waits for the flusher's tick.
const FLUSHED: usize = 20_000;

fn flush(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be had");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = EmbeddedConfig { dir: dir.path().join("store"), bucket: EmbeddedConfig::DEFAULT_BUCKET };
    let embedded = EmbeddedStore::open(config, Clock::system()).expect("the folder is ours");
    let stores: [(&str, Arc<dyn CommentStore>); 2] =
        [("into a store that has it at once", Arc::new(AtOnce)), ("into the embedded store", Arc::new(embedded))];
    let lines = material::lines();
    let mut group = c.benchmark_group("flush");
    group.sample_size(10).throughput(Throughput::Elements(FLUSHED as u64));
    for (name, store) in stores {
        let measure = |count: u64| {
            let flush = || runtime.block_on(flush_once(&store, posted(&lines, FLUSHED)));
            (0..count).map(|_| flush()).sum::<Duration>()
        };
        group.bench_function(name, |b| b.iter_custom(measure));
        runtime.block_on(store.close());
    }
    group.finish();
}

/// From the first push until every comment's fate is known.
async fn flush_once(store: &Arc<dyn CommentStore>, comments: Vec<Arc<Posted>>) -> Duration {
    let defaults = material::defaults();
    let metrics = Arc::new(Metrics::default());
    let queue = WriteQueue::new(defaults.queue, defaults.flusher.batch, Arc::clone(&metrics));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let aside = AsideFile::new(dir.path().join("set-aside.jsonl"));
    let flusher =
        Flusher::new(defaults.flusher, FlusherParts::new(queue.clone(), Arc::clone(store), aside, metrics)).spawn();
    // The interval's first tick comes at once and must not cut a batch short.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let begun = Instant::now();
    for posted in &comments {
        queue.try_push(Arc::clone(posted)).expect("the queue has room for all");
    }
    for posted in &comments {
        assert_eq!(posted.settled().await, Fate::Stored);
    }
    let took = begun.elapsed();
    queue.close().await;
    flusher.await.expect("the flusher ends");
    took
}

criterion_group!(hot_paths, publish, frame_to_queue, read_ring, encode, flush);
criterion_main!(hot_paths);
