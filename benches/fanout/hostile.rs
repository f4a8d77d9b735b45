//! Whether one viewer's bad manners are felt by the others.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::Effort;
use super::child::Server;
use super::load::{Load, Tally, upgrade};
use super::table::{Goal, Table, goal};

const VIEWERS: usize = 500;
const RATE: f64 = 50.0;

/// More than the server allows as shipped, for one connection sends for the whole room. The flood is far above it.
/// A guest whose socket is full is let go within a measurement, and comes back: the table shows that it was full.
const LIMITS: &str = "max_frames_per_sec = 1000\nstall_limit = \"12s\"";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manners {
    Good,
    StopsReading,
    ReadsAByteASecond,
    FloodsPings,
}

impl Manners {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "nobody",
            Self::StopsReading => "stops reading",
            Self::ReadsAByteASecond => "reads 1 byte/s",
            Self::FloodsPings => "floods pings",
        }
    }
}

/// A client with bad manners in a thread of its own; it leaves when this is dropped.
struct Guest {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// How often it had to come back because the server closed.
    returns: Arc<AtomicU64>,
}

impl Guest {
    fn invite(manners: Manners, address: SocketAddr) -> Self {
        let (is_over, returns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let shared = (Arc::clone(&is_over), Arc::clone(&returns));
        let thread = std::thread::spawn(move || {
            while !shared.0.load(Ordering::Relaxed) {
                // An error is the server's close: a hostile client comes back.
                let _closed = behave(manners, connect(address), &shared.0);
                shared.1.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { is_over, thread: Some(thread), returns }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// With the smallest window, so that the server's side fills soon.
fn connect(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).and_then(|()| socket.connect(&address.into())).expect("the server listens");
    upgrade(socket.into(), "manners-0").0
}

fn behave(manners: Manners, mut stream: TcpStream, is_over: &AtomicBool) -> std::io::Result<()> {
    // Pings without payload, with a mask of zeros.
    let pings = [0x89, 0x80, 0, 0, 0, 0].repeat(1000);
    stream.set_nonblocking(manners == Manners::FloodsPings)?;
    let mut tick = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
        tick += 1;
        match manners {
            Manners::ReadsAByteASecond if tick.is_multiple_of(100) && stream.read(&mut [0])? == 0 => return Ok(()),
            Manners::FloodsPings => {
                would_block(stream.write(&pings))?;
                if would_block(stream.read(&mut [0; 65_536]))? == Some(0) {
                    return Ok(());
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn would_block(outcome: std::io::Result<usize>) -> std::io::Result<Option<usize>> {
    match outcome {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

struct Felt {
    tally: Tally,
    resident: f64,
    cpu: f64,
    returns: u64,
}

fn measure(server: &Server, load: &mut Load, manners: Manners, effort: Effort) -> Felt {
    let resident = server.resident();
    let guest = (manners != Manners::Good).then(|| Guest::invite(manners, server.address));
    // So much that the guest's socket is full, and it has fallen off the ring, before the measurement begins.
    load.run(900.0, effort.warm_up() * 3);
    let cpu = server.cpu();
    let tally = load.run(RATE, effort.span());
    let returns = guest.as_ref().map_or(0, |guest| guest.returns.load(Ordering::Relaxed));
    Felt { tally, resident: server.resident() - resident, cpu: server.cpu() - cpu, returns }
}

/// The middle of some rounds, figure by figure.
struct Median {
    p50: f64,
    p99: f64,
    resident: f64,
    cpu: f64,
}

impl Median {
    fn of(rounds: &[Felt]) -> Self {
        let middle = |of: fn(&Felt) -> f64| {
            let mut values: Vec<_> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (p50, p99) = (middle(|felt| felt.tally.ms(0.5)), middle(|felt| felt.tally.ms(0.99)));
        Self { p50, p99, resident: middle(|felt| felt.resident), cpu: middle(|felt| felt.cpu) }
    }
}

pub fn run(effort: Effort) {
    let columns = [
        "guest",
        "p50 ms",
        "p99 ms",
        "from–to",
        "p99 ratio",
        "lost",
        "doubled",
        "closed",
        "CPU s",
        "+MiB",
        "came back",
    ];
    let title = "hostile: 500 viewers at 50 comments/s, with one more who …";
    let mut table = Table::new(title, &columns);
    let server = Server::danmakud(LIMITS);
    let mut load = Load::join(server.address, "manners", 1, VIEWERS);
    // The ring fills first: its memory is nobody's fault.
    load.run(900.0, Duration::from_secs(3));
    // The first one is not counted: allocators and caches find their size.
    let _uncounted = measure(&server, &mut load, Manners::Good, effort);
    let guests = [Manners::Good, Manners::StopsReading, Manners::ReadsAByteASecond, Manners::FloodsPings];
    // One after the other, again and again: what the machine does meanwhile is spread over all of them.
    let mut felt = guests.map(|manners| (manners, Vec::new()));
    for _ in 0..effort.rounds() {
        for (manners, felt) in &mut felt {
            felt.push(measure(&server, &mut load, *manners, effort));
        }
    }
    let felt = felt.map(|(manners, rounds)| (manners, Median::of(&rounds), rounds));
    // What grows with nobody there is the store's and the room's memory of comments.
    let [(_, Median { p99: base, resident: growth, .. }, _), ..] = &felt;
    let (mut slower, mut larger) = (0.0_f64, 0.0_f64);
    for (manners, median, rounds) in &felt {
        let more = (median.resident - growth) / 1024.0;
        if *manners != Manners::Good {
            (slower, larger) = (slower.max(median.p99 / base), larger.max(more));
        }
        let sum = |of: fn(&Felt) -> u64| rounds.iter().map(of).sum::<u64>().to_string();
        let p99 = rounds.iter().map(|felt| felt.tally.ms(0.99));
        let (least, most) = (p99.clone().fold(f64::MAX, f64::min), p99.fold(0.0, f64::max));
        table.row([
            manners.name().into(),
            format!("{:.1}", median.p50),
            format!("{:.1}", median.p99),
            format!("{least:.1}–{most:.1}"),
            format!("{:.2}", median.p99 / base),
            sum(|felt| felt.tally.lost),
            sum(|felt| felt.tally.doubled),
            sum(|felt| felt.tally.closed),
            format!("{:.2}", median.cpu),
            format!("{more:.2}"),
            sum(|felt| felt.returns),
        ]);
    }
    table.print();
    goal("p99 over that without, the worst", slower, Goal::AtMost(1.1));
    goal("MiB more, the worst", larger, Goal::AtMost(1.0));
}
