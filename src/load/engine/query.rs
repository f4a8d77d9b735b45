//! Hosts who ask for the last 60 seconds of their rooms, at the plan's pace whatever the answers do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::figures::Times;
use super::hall::{micros, room_name};
use super::http;
use crate::load::client::Target;

/// Queries on their way at once; with more the asking stops, and what was not asked is counted.
const AT_ONCE: usize = 1000;

/// What came of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) times: Times,
    pub(super) answered: u64,
    /// Answered with a status other than 200, or not at all.
    pub(super) failed: u64,
}

/// Where it is counted; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Queries {
    asked: Arc<Mutex<Asked>>,
}

impl Queries {
    fn count(&self, due: Instant, is_answered: bool) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if is_answered {
            asked.answered += 1;
            asked.times.record(0, micros(due.elapsed()));
        } else {
            asked.failed += 1;
        }
    }

    /// What came of them so far.
    pub(super) fn asked(&self) -> Asked {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks `rate` times a second until it is dropped: the rooms in turn, the targets in turn.
    pub(super) async fn run(self, rate: f64, targets: Vec<(SocketAddr, Target)>, (prefix, rooms): (String, usize)) {
        if rate <= 0.0 || targets.is_empty() {
            return;
        }
        let begun = Instant::now();
        let mut open = JoinSet::new();
        for nth in 0_u32.. {
            let due = begun + Duration::from_secs_f64(f64::from(nth) / rate);
            sleep_until(due).await;
            while open.try_join_next().is_some() {}
            if open.len() >= AT_ONCE {
                self.count(due, false);
                continue;
            }
            let index = nth as usize;
            let Some((address, target)) = targets.get(index % targets.len()).cloned() else { return };
            let path = format!("/api/rooms/{}/comments?last=60s", room_name(&prefix, index % rooms.max(1)));
            let counts = self.clone();
            open.spawn(async move {
                let answer = http::get(address, &target, &path).await;
                counts.count(due, matches!(answer, Ok((200, _))));
            });
        }
    }
}
