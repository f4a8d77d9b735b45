//! Steady loads: what a delivery costs in one room and in many, and what a write costs beside the bare loop.

use super::Effort;
use super::bare::Shape;
use super::child::{NO_LIMITS, Server};
use super::load::{Load, Tally};
use super::table::{Goal, Table, goal};

/// What a delivery may take on top of the room's window.
const MORE_MS: f64 = 15.0;

/// Rooms, viewers in each, comments a second in each.
#[derive(Clone, Copy)]
struct Shaped {
    rooms: usize,
    viewers: usize,
    rate: f64,
}

struct Run {
    tally: Tally,
    cpu: f64,
    writes: f64,
}

impl Run {
    /// Warms up, then measures from the first send until all has come.
    fn of(server: &Server, is_ours: bool, shaped: Shaped, effort: Effort) -> Self {
        let mut load = Load::join(server.address, "steady", shaped.rooms, shaped.viewers);
        load.run(shaped.rate, effort.warm_up());
        let frames = || if is_ours { server.metric("danmaku_frames_sent_total") } else { 0.0 };
        let (frames_before, cpu_before) = (frames(), server.cpu());
        let tally = load.run(shaped.rate, effort.span());
        let cpu = server.cpu() - cpu_before;
        let writes = if is_ours { frames() - frames_before } else { tally.frames as f64 };
        Self { tally, cpu, writes }
    }

    fn cpu_per_million(&self) -> f64 {
        self.cpu * 1e6 / self.tally.comments as f64
    }

    fn frames_per_viewer_second(&self) -> f64 {
        self.writes / self.tally.viewers as f64 / self.tally.seconds
    }

    fn row(&self, name: &str) -> Vec<String> {
        let Tally { comments, bytes, lost, doubled, errors, seconds, .. } = self.tally;
        vec![
            name.into(),
            format!("{:.0}", comments as f64 / seconds),
            format!("{:.2}", self.cpu),
            format!("{:.2}", self.cpu_per_million()),
            format!("{:.2}", self.frames_per_viewer_second()),
            format!("{:.0}", bytes as f64 / comments as f64),
            format!("{:.1}", self.tally.ms(0.5)),
            format!("{:.1}", self.tally.ms(0.99)),
            lost.to_string(),
            doubled.to_string(),
            errors.to_string(),
        ]
    }
}

const COLUMNS: [&str; 11] = [
    "server",
    "deliveries/s",
    "CPU s",
    "CPU-s/M",
    "frames/s/viewer",
    "B/comment",
    "p50 ms",
    "p99 ms",
    "lost",
    "doubled",
    "errors",
];

fn side_by_side(title: &str, shaped: Shaped, effort: Effort) -> (Run, Run) {
    let ours = Run::of(&Server::danmakud(NO_LIMITS), true, shaped, effort);
    let theirs = Run::of(&Server::obvious(), false, shaped, effort);
    let mut table = Table::new(title, &COLUMNS);
    table.row(ours.row("danmakud"));
    table.row(theirs.row("obvious"));
    table.print();
    (ours, theirs)
}

fn whole(run: &Run) {
    goal("lost and doubled", (run.tally.lost + run.tally.doubled) as f64, Goal::AtMost(0.0));
}

/// 1 room × 1,000 viewers × 100 comments/s.
pub fn one_room(effort: Effort) {
    let shaped = Shaped { rooms: 1, viewers: 1000, rate: 100.0 };
    let (ours, theirs) = side_by_side("crowd: 1 room × 1,000 viewers × 100 comments/s", shaped, effort);
    goal("CPU per delivery over obvious", ours.cpu_per_million() / theirs.cpu_per_million(), Goal::AtMost(0.4));
    // The window adapts: what it was is the time from frame to frame.
    goal("p99 ms", ours.tally.ms(0.99), Goal::AtMost(1e3 / ours.frames_per_viewer_second() + MORE_MS));
    whole(&ours);
}

/// 200 rooms × 25 viewers × 5 comments/s.
pub fn many_rooms(effort: Effort) {
    let shaped = Shaped { rooms: 200, viewers: 25, rate: 5.0 };
    let (ours, theirs) = side_by_side("rooms: 200 rooms × 25 viewers × 5 comments/s", shaped, effort);
    goal("CPU per delivery over obvious", ours.cpu_per_million() / theirs.cpu_per_million(), Goal::AtMost(0.6));
    goal("p99 ms", ours.tally.ms(0.99), Goal::AtMost(10.0));
    whole(&ours);
}

/// What a write costs beside a bare loop with the same bytes to the same number of sockets at the same pace.
pub fn writes(effort: Effort) {
    let columns = ["load", "sockets", "B/write", "writes/s/socket", "danmakud µs/write", "bare µs/write", "ratio"];
    let mut table = Table::new("writes: CPU of a write, beside a bare loop of write()", &columns);
    let mut worst: f64 = 0.0;
    for (viewers, rate) in [(1000, 10.0), (1000, 100.0), (5000, 200.0)] {
        let shaped = Shaped { rooms: 1, viewers, rate };
        let ours = Run::of(&Server::danmakud(NO_LIMITS), true, shaped, effort);
        // The sender's acknowledgements are bytes too, but one viewer's of a thousand.
        let shape = Shape {
            sockets: viewers,
            bytes: (ours.tally.bytes as f64 / ours.writes) as usize,
            rounds: (ours.writes / viewers as f64).round() as usize,
            every_micros: (ours.tally.seconds * 1e6 * viewers as f64 / ours.writes) as u64,
        };
        let bare = bare_micros(shape);
        let micros = ours.cpu * 1e6 / ours.writes;
        worst = worst.max(micros / bare);
        table.row([
            format!("1 × {viewers} × {rate}/s"),
            viewers.to_string(),
            shape.bytes.to_string(),
            format!("{:.1}", 1e6 / shape.every_micros as f64),
            format!("{micros:.2}"),
            format!("{bare:.2}"),
            format!("{:.2}", micros / bare),
        ]);
    }
    table.print();
    goal("CPU per write over bare, the worst", worst, Goal::AtMost(1.25));
}

/// CPU microseconds of a write in the bare loop.
fn bare_micros(shape: Shape) -> f64 {
    let mut server = Server::bare(shape);
    let mut load = Load::attach(server.address, shape.sockets);
    let before = server.cpu();
    server.go();
    let writes = (shape.sockets * shape.rounds) as u64;
    load.read_frames(writes);
    (server.cpu() - before) * 1e6 / writes as f64
}
