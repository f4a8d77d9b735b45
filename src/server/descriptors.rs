//! File descriptors: every connection needs one, and the limit that a shell gives is far below what a server needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

use super::refuser::MOST_LINGERING;

/// What the server needs besides connections: those that it has refused, and 256 for listener, store, log, database and
/// relay connections.
const SPARE: u64 = MOST_LINGERING as u64 + 256;

/// Raises this process's limit as far as it may, and tells when it is too low for so many connections.
pub fn raise_limit(max_connections: usize) {
    let before = getrlimit(Resource::Nofile);
    // What cannot be raised stays as it is; the message below tells.
    let _best_effort = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    let Some(limit) = getrlimit(Resource::Nofile).current else { return };
    let needed = (max_connections as u64).saturating_add(SPARE);
    if limit < needed {
        let takes = limit.saturating_sub(SPARE);
        warn!(
            limit,
            needed, takes, "the limit of open files is too low for server.max_connections; raise it (ulimit -n)"
        );
    } else {
        info!(limit, "open files");
    }
}
