//! What senders' nonces a room remembers, so that a resent comment is one comment.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Nonce, Posted, UserId};

/// How long a nonce is remembered: longer than a client waits before it gives a connection up and resends.
const KEEP: Duration = Duration::from_secs(120);

/// Most nonces remembered in a room; with more, the oldest go before their time. 8,192 last two minutes at 68 comments a
/// second.
const MOST: usize = 8192;

type Key = (UserId, Nonce);

/// The nonces of one room, oldest first.
#[derive(Debug, Default)]
pub(super) struct Nonces {
    known: HashMap<Key, Arc<Posted>>,
    order: VecDeque<(Instant, Key)>,
}

impl Nonces {
    /// The comment that was sent under this nonce, if it is remembered.
    pub(super) fn find(&self, uid: &UserId, nonce: &Nonce) -> Option<Arc<Posted>> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&(uid.clone(), nonce.clone())).cloned()
    }

    /// Remembers a comment that was accepted, and forgets those whose time is over.
    pub(super) fn remember(&mut self, uid: &UserId, nonce: &Nonce, posted: &Arc<Posted>) {
        let now = Instant::now();
        while let Some((at, _)) = self.order.front()
            && (self.order.len() >= MOST || now.duration_since(*at) > KEEP)
        {
            if let Some((_, key)) = self.order.pop_front() {
                self.known.remove(&key);
            }
        }
        let key = (uid.clone(), nonce.clone());
        self.order.push_back((now, key.clone()));
        self.known.insert(key, Arc::clone(posted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Seq, test_comment};

    fn posted(n: u32) -> Arc<Posted> {
        Arc::new(Posted::pending(test_comment("r", 1, n, "x"), Seq(u64::from(n)), Arc::default()))
    }

    fn nonce(n: u32) -> Nonce {
        Nonce::parse(&format!("n{n}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_nonce_is_remembered_for_its_time_and_for_its_sender_alone() {
        let (mut nonces, uid) = (Nonces::default(), UserId::new("u"));
        nonces.remember(&uid, &nonce(1), &posted(1));
        assert_eq!(nonces.find(&uid, &nonce(1)).unwrap().seq, Seq(1));
        assert!(nonces.find(&UserId::new("other"), &nonce(1)).is_none());
        tokio::time::advance(KEEP + Duration::from_secs(1)).await;
        nonces.remember(&uid, &nonce(2), &posted(2));
        assert!(nonces.find(&uid, &nonce(1)).is_none());
        assert_eq!((nonces.known.len(), nonces.order.len()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_nonces_is_bounded() {
        let (mut nonces, uid) = (Nonces::default(), UserId::new("u"));
        for n in 0..(MOST as u32 + 10) {
            nonces.remember(&uid, &nonce(n), &posted(n));
        }
        assert_eq!((nonces.known.len(), nonces.order.len()), (MOST, MOST));
        assert!(nonces.find(&uid, &nonce(9)).is_none() && nonces.find(&uid, &nonce(10)).is_some());
    }
}
