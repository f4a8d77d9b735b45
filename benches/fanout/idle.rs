//! What viewers cost who only wait: resident memory, before and after a burst.

use std::time::Duration;

use super::Effort;
use super::child::{NO_LIMITS, Server};
use super::load::Load;
use super::table::{Goal, Table, goal};

struct Idle {
    before: f64,
    joined: f64,
    burst: f64,
    drained: f64,
}

fn measure(server: &Server, viewers: usize) -> Idle {
    // A first few, so that what the process sets up once is not charged to the many.
    let mut few = Load::join(server.address, "few", 1, 10);
    few.run(10.0, Duration::from_secs(1));
    let before = server.resident();
    let mut load = Load::join(server.address, "idle", 1, viewers);
    load.linger(Duration::from_secs(2));
    let joined = server.resident();
    load.run(100.0, Duration::from_secs(2));
    let burst = server.resident();
    load.linger(Duration::from_secs(3));
    Idle { before, joined, burst, drained: server.resident() }
}

pub fn run(effort: Effort) {
    let viewers = effort.scale(10_000);
    let title =
        format!("idle: {viewers} viewers in one room, resident memory; the burst is 200 comments in 2 s to all");
    let columns = ["server", "before MiB", "joined MiB", "KiB/viewer", "after burst", "drained MiB", "KiB/viewer"];
    let mut table = Table::new(title, &columns);
    let mut row = |name: &str, idle: &Idle| {
        let each = |kib: f64| format!("{:.2}", (kib - idle.before) / viewers as f64);
        let mib = |kib: f64| format!("{:.1}", kib / 1024.0);
        let Idle { before, joined, burst, drained } = *idle;
        table.row([name.into(), mib(before), mib(joined), each(joined), mib(burst), mib(drained), each(drained)]);
    };
    let ours = measure(&Server::danmakud(NO_LIMITS), viewers);
    row("danmakud", &ours);
    row("obvious", &measure(&Server::obvious(), viewers));
    table.print();
    goal("KiB a viewer", (ours.joined - ours.before) / viewers as f64, Goal::AtMost(4.0));
    goal("resident after the burst over before it", ours.drained / ours.joined, Goal::AtMost(1.1));
}
