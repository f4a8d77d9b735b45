//! What a comment costs when nobody else watches, all included, with the embedded store behind it.
//!
//! A sender is a viewer of its room, too, so each has a room of its own; its acknowledgements and its own comments coming
//! back are part of the figure, and so are the store's writes. What is due to the way to the write queue alone, the bench
//! `hot_paths` measures under `frame`.

use super::Effort;
use super::child::{NO_LIMITS, Server};
use super::load::Load;
use super::table::Table;

pub fn run(effort: Effort) {
    let columns =
        ["server", "sends/s", "CPU s", "µs/comment", "acks", "errors", "p50 ms", "p99 ms", "lost", "kept", "unsettled"];
    let mut table = Table::new("publish: 4 rooms with nobody but the sender, embedded store", &columns);
    for rate in [1000.0, 5000.0] {
        let server = Server::danmakud(NO_LIMITS);
        let mut load = Load::join(server.address, "alone", 4, 1);
        load.run(rate, effort.warm_up());
        let (stored, before) = (server.metric("danmaku_stored_total"), server.cpu());
        let tally = load.run(rate, effort.span());
        let cpu = server.cpu() - before;
        // What the store's full queue refused costs, too, and is charged to what was taken.
        let cost = cpu * 1e6 / tally.acks as f64;
        table.row([
            "danmakud".into(),
            format!("{:.0}", rate * 4.0),
            format!("{cpu:.2}"),
            format!("{cost:.1}"),
            tally.acks.to_string(),
            tally.errors.to_string(),
            format!("{:.1}", tally.ms(0.5)),
            format!("{:.1}", tally.ms(0.99)),
            tally.lost.to_string(),
            format!("{:.0}", server.metric("danmaku_stored_total") - stored),
            format!("{:.0}", server.metric("danmaku_unsettled")),
        ]);
    }
    table.print();
}
