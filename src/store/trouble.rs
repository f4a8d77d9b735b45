//! Trouble that comes again and again: told the first time, then after pauses that double, and when it is over.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after it was told first.
const FIRST: Duration = Duration::from_secs(1);

/// The longest pause.
const MOST: Duration = Duration::from_secs(300);

/// One kind of trouble.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    now: Option<Now>,
}

#[derive(Debug)]
struct Now {
    count: u64,
    pause: Duration,
    tell_at: Instant,
}

impl Trouble {
    /// Notes that so many more are in trouble. Gives how many have been since it began, when that is to be told.
    pub(super) fn meet(&mut self, count: u64) -> Option<u64> {
        let at = Instant::now();
        let now = self.now.get_or_insert(Now { count: 0, pause: FIRST / 2, tell_at: at });
        now.count += count;
        if at < now.tell_at {
            return None;
        }
        now.pause = (now.pause * 2).min(MOST);
        now.tell_at = at + now.pause;
        Some(now.count)
    }

    /// Notes that all is well. Gives how many were in trouble, if it was not before.
    pub(super) fn end(&mut self) -> Option<u64> {
        self.now.take().map(|now| now.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_told_at_once_then_ever_more_rarely_and_at_its_end() {
        let mut trouble = Trouble::default();
        let mut told = Vec::new();
        for tenth in 0..600u64 {
            told.extend(trouble.meet(2).map(|count| (tenth, count)));
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(told, [(0, 2), (10, 22), (30, 62), (70, 142), (150, 302), (310, 622)]);
        assert_eq!((trouble.end(), trouble.end()), (Some(1200), None));
        assert_eq!(trouble.meet(1), Some(1), "the next is told at once again");
    }
}
