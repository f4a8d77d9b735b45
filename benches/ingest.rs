//! Whether the write path is worth its place: three ways of bringing the same comments into the same MongoDB.
//!
//! `a` is what a server without a write path does, one insert a comment, here from 256 tasks at once. `b` is the path as
//! shipped: queue, flusher, store, until every comment knows its fate. `c` is the driver's bare unordered bulk with as
//! many in flight, of documents that are there already: what there is to gain at most. All wait for a majority, write
//! into the same two indexes, and begin each round with an empty collection. The rounds go a b c, a b c, …, so that a
//! machine that slows down meanwhile slows all three.
//!
//! ```text
//! cargo bench --bench ingest                    starts a mongod of its own
//! cargo bench --bench ingest -- --uri URI       uses that one, in a database of its own
//! cargo bench --bench ingest -- --quick         a few seconds; its figures mean little
//! ```

mod material;
#[allow(dead_code, reason = "tests need more of it")]
#[path = "../tests/suite/support/mongod/mod.rs"]
mod mongod;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{RawDocumentBuf, doc};
use clap::Parser;
use danmakud::clock::Clock;
use danmakud::metrics::Metrics;
use danmakud::model::{Comment, Fate, Posted, Seq};
use danmakud::store::{
    AsideFile, CommentStore as _, Flusher, FlusherConfig, FlusherParts, MongoConfig, MongoStore, WriteQueue,
};
use mongodb::options::{ClientOptions, WriteConcern};
use mongodb::{Client, Collection};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Tasks that insert at once in `a`.
const WRITERS: usize = 256;

/// What the queue must be worth, against an insert a comment.
const LEAST_OVER_SINGLES: f64 = 15.0;

/// What the queue may cost, against the bare bulk.
const LEAST_OF_BARE: f64 = 0.80;

/// The wait for room in a full queue. The flusher takes a thousand in about ten of these.
const FOR_ROOM: Duration = Duration::from_millis(1);

/// Compares the write path with single inserts and with bare bulks.
#[derive(Parser)]
struct Args {
    /// A MongoDB to write to; without it one is started.
    #[arg(long, env = "MONGODB_URI", hide_env_values = true)]
    uri: Option<String>,
    /// Comments in each measurement.
    #[arg(long, default_value_t = 100_000)]
    comments: usize,
    /// Measurements of each way.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// One short round.
    #[arg(long, alias = "test")]
    quick: bool,
    /// Given by `cargo bench`; without it the run is quick.
    #[arg(long, hide = true)]
    bench: bool,
    /// Runs only if this is a part of its name.
    #[arg(hide = true)]
    filter: Option<String>,
}

#[derive(Clone, Copy)]
enum Way {
    Singles,
    Path,
    Bare,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Singles => "a  insertOne from 256 tasks",
            Self::Path => "b  queue, flusher, store",
            Self::Bare => "c  bare insert_many",
        })
    }
}

fn main() {
    let mut args = Args::parse();
    if args.filter.as_ref().is_some_and(|filter| !"ingest".contains(filter.as_str())) {
        return;
    }
    if args.quick || !args.bench {
        (args.comments, args.rounds) = (5_000, 1);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be had");
    runtime.block_on(run(&args));
}

async fn run(args: &Args) {
    let (_own, uri) = match &args.uri {
        Some(uri) => (None, uri.clone()),
        None => {
            let own = mongod::ReplicaSet::start(1, mongod::Access::Open).await;
            let uri = own.uri(None);
            (Some(own), uri)
        }
    };
    let bench = Bench::prepare(&uri, args.comments).await;
    bench.introduce(args).await;
    let mut rates = [(Way::Singles, vec![]), (Way::Path, vec![]), (Way::Bare, vec![])];
    for _round in 0..args.rounds {
        for (way, rates) in &mut rates {
            rates.push(bench.measure(*way).await);
        }
    }
    report(&rates);
    bench.database_is_dropped().await;
}

struct Bench {
    client: Client,
    collection: Collection<RawDocumentBuf>,
    store: MongoStore,
    flusher: FlusherConfig,
    queue: usize,
    comments: Vec<Comment>,
    documents: Arc<Vec<RawDocumentBuf>>,
}

impl Bench {
    async fn prepare(uri: &str, count: usize) -> Self {
        let defaults = material::defaults();
        let config = MongoConfig { database: "danmakud_bench".into(), ..MongoConfig::new(uri) };
        let mut options = ClientOptions::parse(uri).await.expect("the URI can be read");
        options.write_concern = Some(WriteConcern::majority());
        // With the default of ten connections most writers of `a` would wait for one; so it is faster.
        options.max_pool_size = u32::try_from(WRITERS).ok();
        let client = Client::with_options(options).expect("the URI can be used");
        let collection = client.database(&config.database).collection(&config.collection);
        let store = MongoStore::open(config, Clock::system()).await.expect("the URI can be used");
        let comments = material::comments(&material::lines(), count);
        let document = |comment| RawDocumentBuf::from_bytes(store.encode(comment).to_vec()).expect("it is a document");
        let documents = Arc::new(comments.iter().map(document).collect());
        Self { client, collection, store, flusher: defaults.flusher, queue: defaults.queue, comments, documents }
    }

    async fn introduce(&self, args: &Args) {
        let info =
            self.client.database("admin").run_command(doc! { "buildInfo": 1 }).await.expect("the server answers");
        let bytes: usize = self.documents.iter().map(|document| document.as_bytes().len()).sum();
        println!("{}", machine());
        println!("mongod {}, write concern majority", info.get_str("version").unwrap_or("of unknown version"));
        println!(
            "{} rounds of {} comments, {} bytes a document; batches of {}, {} in flight",
            args.rounds,
            args.comments,
            bytes / self.documents.len().max(1),
            self.flusher.batch,
            self.flusher.in_flight,
        );
    }

    /// Comments a second, from the first to the acknowledgement of the last.
    async fn measure(&self, way: Way) -> f64 {
        self.begin_anew().await;
        let took = match way {
            Way::Singles => self.singles().await,
            Way::Path => self.path().await,
            Way::Bare => self.bare().await,
        };
        let stored = self.collection.count_documents(doc! {}).await.expect("the server counts");
        assert_eq!(stored, self.documents.len() as u64, "{way}");
        per_second(self.documents.len(), took)
    }

    /// An empty collection with its indexes, and nothing of the round before left to write down.
    async fn begin_anew(&self) {
        self.collection.drop().await.expect("the collection is ours");
        self.store.prepare().await.expect("the indexes can be made");
        let sync = self.client.database("admin").run_command(doc! { "fsync": 1 }).await;
        sync.expect("the server writes a checkpoint");
    }

    async fn singles(&self) -> Duration {
        let next = Arc::new(AtomicUsize::new(0));
        let mut writers = JoinSet::new();
        let begun = Instant::now();
        for _writer in 0..WRITERS {
            let (next, documents, collection) =
                (Arc::clone(&next), Arc::clone(&self.documents), self.collection.clone());
            writers.spawn(async move {
                while let Some(document) = documents.get(next.fetch_add(1, Ordering::Relaxed)) {
                    collection.insert_one(document).await.expect("it is stored");
                }
            });
        }
        writers.join_all().await;
        begun.elapsed()
    }

    async fn path(&self) -> Duration {
        let metrics = Arc::new(Metrics::default());
        let queue = WriteQueue::new(self.queue, self.flusher.batch, Arc::clone(&metrics));
        let dir = tempfile::tempdir().expect("a temporary folder");
        let aside = AsideFile::new(dir.path().join("set-aside.jsonl"));
        let store = Arc::new(self.store.clone());
        let flusher =
            Flusher::new(self.flusher.clone(), FlusherParts::new(queue.clone(), store, aside, metrics)).spawn();
        let posted = |(seq, comment): (u64, &Comment)| Posted::pending(comment.clone(), Seq(seq), Arc::default());
        let all: Vec<_> = (1..).zip(&self.comments).map(posted).map(Arc::new).collect();
        let pusher = queue.clone();
        let pushed = tokio::spawn(async move {
            let begun = Instant::now();
            for posted in &all {
                while pusher.try_push(Arc::clone(posted)).is_err() {
                    sleep(FOR_ROOM).await;
                }
            }
            for posted in &all {
                assert_eq!(posted.settled().await, Fate::Stored);
            }
            begun.elapsed()
        });
        let took = pushed.await.expect("every comment is stored");
        queue.close().await;
        flusher.await.expect("the flusher ends");
        took
    }

    async fn bare(&self) -> Duration {
        let next = Arc::new(AtomicUsize::new(0));
        let mut writers = JoinSet::new();
        let begun = Instant::now();
        for _writer in 0..self.flusher.in_flight {
            let (next, documents, collection) =
                (Arc::clone(&next), Arc::clone(&self.documents), self.collection.clone());
            let batch = self.flusher.batch;
            writers.spawn(async move {
                while let Some(batch) = documents.chunks(batch).nth(next.fetch_add(1, Ordering::Relaxed)) {
                    collection.insert_many(batch).ordered(false).await.expect("it is stored");
                }
            });
        }
        writers.join_all().await;
        begun.elapsed()
    }

    async fn database_is_dropped(&self) {
        self.client.database("danmakud_bench").drop().await.expect("the database is ours");
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn per_second(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

fn report(rates: &[(Way, Vec<f64>); 3]) {
    println!("\n{:<30} {:>10} {:>10} {:>10}   comments/s", "", "min", "median", "max");
    for (way, rates) in rates {
        let [min, median, max] = spread(rates.clone());
        println!("{way:<30} {min:>10.0} {median:>10.0} {max:>10.0}");
    }
    println!();
    let [(_, singles), (_, path), (_, bare)] = rates;
    verdict("b/a", path, singles, LEAST_OVER_SINGLES);
    verdict("b/c", path, bare, LEAST_OF_BARE);
}

/// The smallest, the median and the largest.
fn spread(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied().unwrap_or_default();
    let last = figures.len().saturating_sub(1);
    [at(0), at(last / 2).midpoint(at(figures.len() / 2)), at(last)]
}

/// The medians' ratio, beside those of each round, whose three measurements met the same weather.
fn verdict(name: &str, ours: &[f64], others: &[f64], goal: f64) {
    let [_, our_median, _] = spread(ours.to_vec());
    let [_, other_median, _] = spread(others.to_vec());
    let [min, median, max] = spread(ours.iter().zip(others).map(|(ours, other)| ours / other).collect());
    let ratio = our_median / other_median;
    let word = if ratio >= goal { "met" } else { "MISSED" };
    println!("{name} {ratio:>6.2}   goal {goal:.2} or more: {word}   (round by round {min:.2} {median:.2} {max:.2})");
}

fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown");
    format!("{model}, {cores} cores for server and client, load average before the run {load}")
}
