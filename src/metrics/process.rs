//! The process itself, under the names that Prometheus' own client libraries use.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

/// Reads them when they are asked for.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let cpu = ConstCounter::new(cpu_seconds());
        let help = "Processor time that the process has used, the kernel's share included.";
        cpu.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), cpu.metric_type())?)?;
        let Some(bytes) = resident_bytes() else { return Ok(()) };
        let memory = ConstGauge::new(bytes);
        let help = "Memory of the process that is resident.";
        memory.encode(encoder.encode_descriptor(
            "process_resident_memory",
            help,
            Some(&Unit::Bytes),
            memory.metric_type(),
        )?)
    }
}

fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// None where there is no /proc.
fn resident_bytes() -> Option<i64> {
    // proc(5): the second number is the resident set, in pages.
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(i64::try_from(page_size()).ok()?)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn the_process_is_told_under_the_names_that_tools_know() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
        };
        assert!(value("process_cpu_seconds_total") > 0.0);
        assert!(value("process_resident_memory_bytes") > f64::from(1 << 20));
    }
}
