//! The highest rate that one core bears in a room of 5,000, and what happens at twice that rate.

use super::Effort;
use super::child::{NO_LIMITS, Server};
use super::load::{Load, Tally};
use super::table::{Goal, Table, goal};

const VIEWERS: usize = 5000;

/// A rate is borne when nothing is lost and p99 stays below.
const BEARABLE_MS: f64 = 200.0;

/// The search ends when the rates borne and not borne are this near to each other.
const NEAR: f64 = 1.2;

/// The load gives up above so many comments a second: it could not tell the server's limit from its own.
const MOST: f64 = 6400.0;

fn attempt(server: &Server, rate: f64, effort: Effort, table: &mut Table, name: &str) -> (bool, Tally) {
    // A room of its own, so that nothing is left in it from the last attempt.
    let mut load = Load::join(server.address, &format!("peak-{rate:.0}-{}", super::sys::now_micros()), 1, VIEWERS);
    load.run(rate, effort.warm_up());
    let before = (server.cpu(), super::sys::cpu_seconds(std::process::id()));
    let tally = load.run(rate, effort.span() / 2);
    let cpu = |now: f64, before: f64| format!("{:.0}", (now - before) * 100.0 / tally.seconds);
    let is_borne = tally.lost + tally.doubled + tally.closed == 0 && tally.ms(0.99) < BEARABLE_MS;
    table.row([
        name.to_owned(),
        format!("{rate:.0}"),
        format!("{:.0}", tally.per_second()),
        format!("{:.1}", tally.ms(0.5)),
        format!("{:.1}", tally.ms(0.99)),
        tally.lost.to_string(),
        tally.told.to_string(),
        tally.doubled.to_string(),
        tally.closed.to_string(),
        cpu(server.cpu(), before.0),
        cpu(super::sys::cpu_seconds(std::process::id()), before.1),
        if is_borne { "yes" } else { "no" }.to_owned(),
    ]);
    (is_borne, tally)
}

/// The deliveries a second at the highest rate that is borne, and at twice that rate.
fn search(server: &Server, from: f64, effort: Effort, table: &mut Table, name: &str) -> (f64, Tally) {
    let (mut rate, mut borne, mut too_much) = (from, None, f64::INFINITY);
    while too_much / borne.as_ref().map_or(0.0, |(rate, _)| *rate) > NEAR && (1.0..=MOST).contains(&rate) {
        let (is_borne, tally) = attempt(server, rate, effort, table, name);
        if is_borne {
            borne = Some((rate, tally.per_second()));
        } else {
            too_much = rate;
        }
        rate = match &borne {
            Some((borne, _)) if too_much.is_finite() => (borne * too_much).sqrt(),
            Some((borne, _)) => borne * 2.0,
            None => rate / 2.0,
        };
    }
    let (rate, per_second) = borne.unwrap_or((1.0, 0.0));
    let (_, doubled) = attempt(server, rate * 2.0, effort, table, &format!("{name}, twice"));
    (per_second, doubled)
}

pub fn run(effort: Effort) {
    let columns = [
        "server",
        "rate/s",
        "deliveries/s",
        "p50 ms",
        "p99 ms",
        "lost",
        "told",
        "doubled",
        "closed",
        "CPU %",
        "load %",
        "borne",
    ];
    let mut table =
        Table::new("peak: 1 room × 5,000 viewers, the highest rate with p99 < 200 ms and nothing lost", &columns);
    let (ours, twice) = search(&Server::danmakud(NO_LIMITS), 200.0, effort, &mut table, "danmakud");
    let (theirs, _) = search(&Server::obvious(), 8.0, effort, &mut table, "obvious");
    table.print();
    // With nothing borne there is no ratio, and no goal reached.
    let over = |base: f64, value: f64| if base > 0.0 { value / base } else { f64::NAN };
    goal("deliveries/s over obvious", over(theirs, ours), Goal::AtLeast(50.0));
    goal(
        "at twice the rate, deliveries/s over those at the highest",
        over(ours, twice.per_second()),
        Goal::AtLeast(1.0),
    );
    goal("of what was left out then, the part not told", untold(&twice), Goal::AtMost(0.0));
}

fn untold(tally: &Tally) -> f64 {
    tally.lost.saturating_sub(tally.told) as f64 / tally.lost.max(1) as f64
}
