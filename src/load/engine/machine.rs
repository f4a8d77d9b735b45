//! What the load test itself uses, and on what.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::LoadError;
use crate::load::outcome::Machine;

/// Processor time that this thread has used, in seconds.
pub(super) fn thread_cpu() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

/// Processor time that this process has used, in seconds.
pub(super) fn process_cpu() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory that this process has held so far, in bytes; 0 where Linux does not tell.
pub(super) fn peak_memory() -> u64 {
    kib_of("/proc/self/status", "VmHWM:") * 1024
}

/// Allows this process so many open files.
///
/// # Errors
/// [`LoadError::Files`] when the system does not grant as many.
pub(super) fn raise_file_limit(wanted: u64) -> Result<(), LoadError> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    // Beyond the hard limit, root alone may.
    let maximum = maximum.map(|maximum| maximum.max(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    raised.map_err(|_| LoadError::Files { wanted, allowed: getrlimit(Resource::Nofile).maximum.unwrap_or(0) })
}

/// A line such as `VmHWM:  1234 kB` of a file.
fn kib_of(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// The machine, as far as it tells.
pub(super) fn machine() -> Machine {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let kernel = read("/proc/sys/kernel/osrelease");
    Machine {
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
        cpu: model.map_or_else(String::new, |(_, model)| model.to_owned()),
        kernel: format!("{} {}", std::env::consts::OS, kernel.trim()),
        memory_bytes: kib_of("/proc/meminfo", "MemTotal:") * 1024,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_told() {
        let before = (thread_cpu(), process_cpu());
        let mut sum = 0_u64;
        while thread_cpu() < before.0 + 0.01 {
            sum = sum.wrapping_add(1);
        }
        assert!(sum > 0 && process_cpu() > before.1);
        assert!(peak_memory() > 1 << 20);
        let machine = machine();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 26, "{machine:?}");
    }
}
