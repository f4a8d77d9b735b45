//! The fan-out side by side, in one run: this server, the obvious design, and the bare cost of the writes.
//!
//! ```text
//! cargo bench --bench fanout                         everything, about a quarter of an hour
//! cargo bench --bench fanout -- --quick              shorter spans, for a first look
//! cargo bench --bench fanout -- crowd rooms          some of: crowd peak writes rooms idle hostile publish
//! ```
//!
//! Whatever serves is a process of its own on core 0, and the load is this process on core 1. This server is the release
//! binary, made by `cargo build --release` first: a bench's own build would have features that only tests need.
//! Figures mean something beside each other, in one run on one idle machine.

mod bare;
mod child;
mod crowd;
mod hostile;
mod idle;
mod load;
mod obvious;
mod peak;
mod publish;
mod reader;
mod sys;
mod table;

use std::process::Command;
use std::time::Duration;

/// How thorough a run is.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    is_quick: bool,
}

impl Effort {
    /// How long to measure.
    pub fn span(self) -> Duration {
        Duration::from_secs(if self.is_quick { 4 } else { 10 })
    }

    /// How long to run before.
    pub fn warm_up(self) -> Duration {
        Duration::from_secs(if self.is_quick { 1 } else { 3 })
    }

    /// How often to measure what varies.
    pub fn rounds(self) -> usize {
        if self.is_quick { 1 } else { 5 }
    }

    /// A number of things, or a tenth of it.
    pub fn scale(self, number: usize) -> usize {
        if self.is_quick { number / 10 } else { number }
    }
}

type Scenario = (&'static str, fn(Effort));

const SCENARIOS: [Scenario; 7] = [
    ("crowd", crowd::one_room),
    ("peak", peak::run),
    ("writes", crowd::writes),
    ("rooms", crowd::many_rooms),
    ("idle", idle::run),
    ("hostile", hostile::run),
    ("publish", publish::run),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("obvious") => obvious::serve(),
        Some("bare") => bare::run(args.get(1..).unwrap_or_default()),
        _ if args.iter().any(|arg| arg == "--bench") => measure(&args),
        // So that `cargo test --all-targets`, which runs benches too, does not measure.
        _ => println!("to measure: cargo bench --bench fanout"),
    }
}

fn measure(args: &[String]) {
    let effort = Effort { is_quick: args.iter().any(|arg| arg == "--quick") };
    let wanted: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    if let Some(unknown) = wanted.iter().find(|wanted| !SCENARIOS.iter().any(|(name, _)| name == *wanted)) {
        panic!("there is no scenario {unknown:?}");
    }
    build_release();
    let files = sys::raise_file_limit();
    sys::pin(child::LOAD);
    println!("fanout at {}; {}; {files} open files", commit(), sys::machine());
    for (name, run) in SCENARIOS {
        if wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name) {
            let before = (sys::machine_and_own_seconds(), sys::now_micros());
            run(effort);
            tell_of_others(before);
        }
    }
}

/// Says how much of two cores others had meanwhile: with more than a little, latencies say nothing.
fn tell_of_others(((all, own), begun): ((f64, f64), u64)) {
    let (all_now, own_now) = sys::machine_and_own_seconds();
    let seconds = (sys::now_micros() - begun) as f64 / 1e6;
    let others = (all_now - all) - (own_now - own);
    println!("  ({seconds:.0} s; other processes took {:.0} % of two cores)", others * 50.0 / seconds);
}

fn build_release() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--bin", "danmakud"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // What cargo tells a bench of its package would make build scripts run anew that look at it, and half of all crates.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    assert!(command.status().is_ok_and(|status| status.success()), "{command:?} failed");
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let changed = if git(&["status", "--porcelain", "src", "Cargo.lock"]).is_empty() { "" } else { " with changes" };
    format!("{}{changed}", git(&["rev-parse", "--short", "HEAD"]))
}
