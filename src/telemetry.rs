//! The log: to standard error, as text or JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::LogConfig;

/// Starts logging. The first call counts.
pub fn start(config: &LogConfig) {
    // The filter was judged with the configuration; a second start in one process (a test) keeps the first.
    let filter = EnvFilter::try_new(&config.filter).unwrap_or_default();
    let is_terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let log = log.with_target(false).with_ansi(is_terminal);
    let _first_counts = if config.is_json { log.json().try_init() } else { log.try_init() };
}
