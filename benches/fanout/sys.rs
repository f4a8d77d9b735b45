//! What the bench asks of Linux: a clock, a core to run on, and what another process has used.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Ticks a second in /proc/<pid>/stat: USER_HZ, which is 100 wherever Linux runs servers.
const TICKS: f64 = 100.0;

/// Microseconds of the monotonic clock. No clock that tests can pause: this is read for every batch of bytes.
pub fn now_micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Keeps this thread, and what it starts from now on, on one core.
pub fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("the machine has two cores for this process");
}

/// Allows as many open files as the machine grants; processes started from here inherit it.
pub fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _best_effort = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// CPU seconds that a process has used, the kernel's share included.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // proc(5): utime and stime are the 14th and 15th fields, and the third is the first after the name.
    let ticks: f64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS
}

/// KiB of a process that are resident.
pub fn resident_kib(pid: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process lives");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().expect("Rss is a number of kB")
}

/// CPU seconds that all processes of the machine have used, and this one with the children that it has waited for.
pub fn machine_and_own_seconds() -> (f64, f64) {
    let numbers = |text: &str, skip: usize, take: usize| {
        text.split_whitespace().skip(skip).take(take).filter_map(|field| field.parse::<f64>().ok()).collect::<Vec<_>>()
    };
    let all = fs::read_to_string("/proc/stat").expect("Linux");
    // user, nice, system, idle, iowait, irq, softirq
    let all = numbers(all.lines().next().unwrap_or_default(), 1, 7);
    let busy: f64 = all.iter().enumerate().filter(|(i, _)| !matches!(i, 3 | 4)).map(|(_, ticks)| ticks).sum();
    let own = fs::read_to_string("/proc/self/stat").expect("Linux");
    let own: f64 = numbers(own.rsplit_once(')').map_or("", |(_, rest)| rest), 11, 4).iter().sum();
    (busy / TICKS, own / TICKS)
}

/// The processor's name.
pub fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    format!("{}, {cores} cores, Linux {}, load average {load}", name.map_or("unknown", |(_, name)| name), kernel.trim())
}
