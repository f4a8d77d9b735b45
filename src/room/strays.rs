//! Strays: comments that another node accepted and stored, and did not live to pass on. Nobody who hears that node well
//! can know of them, but that its viewers come here tells that it may be gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Room, SETTLING, State};
use crate::model::{Comment, Posted, Timestamp};

/// How far back strays are looked for. A dead node's viewers come within that, or find it in the ring when they do.
const BACK: Duration = Duration::from_secs(15);

/// What is not heard after this long is not on its way any more: the relay takes milliseconds.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// The room expects strays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strays {
    /// When the last viewer has come from another node.
    since: Timestamp,
    /// When the store was last asked for them.
    asked: Option<Timestamp>,
}

impl Room {
    /// Notes that a viewer has come from another node; true when the room did not expect strays before.
    pub fn expect_strays(&self, now: Timestamp) -> bool {
        let mut state = self.lock();
        let asked = state.strays.and_then(|strays| strays.asked);
        state.strays.replace(Strays { since: now, asked }).is_none()
    }

    /// From when on the store should be asked for strays; `None` when none are expected any more.
    #[must_use]
    pub fn strays_from(&self) -> Option<Timestamp> {
        let state = self.lock();
        let Strays { since, asked } = state.strays?;
        // What was asked for before need not be read again, but for what was stored or due since.
        let from = asked.map_or(since.minus(BACK), |asked| asked.minus(SETTLING));
        Some(from.max(state.ring.known_from()))
    }

    /// Leaves the strays of these, when the store was asked `at`: what other nodes accepted and was never heard, though it
    /// has been long enough.
    pub fn retain_strays(&self, at: Timestamp, comments: &mut Vec<Comment>) {
        self.lock().retain_strays(at, self.ids.process(), comments);
    }

    /// Lets out the strays among what the store had from [`Room::strays_from`] on, oldest first, when it was asked `at`.
    /// Gives them.
    pub fn take_strays(&self, at: Timestamp, mut comments: Vec<Comment>) -> Vec<Arc<Posted>> {
        let mut state = self.lock();
        let is_open = |strays: &Strays| strays.since >= at.minus(HEARD_WITHIN);
        state.strays = state.strays.filter(is_open).map(|strays| Strays { asked: Some(at), ..strays });
        state.retain_strays(at, self.ids.process(), &mut comments);
        let (mut strays, came) = (Vec::new(), Instant::now());
        for comment in comments {
            let posted = Arc::new(Posted::foreign(comment, state.ring.next()));
            state.ring.push(Arc::clone(&posted), came);
            strays.push(posted);
        }
        drop(state);
        self.dirty.notify_one();
        strays
    }
}

impl State {
    fn retain_strays(&self, at: Timestamp, here: [u8; 5], comments: &mut Vec<Comment>) {
        // Of what is older nobody knows any more whether it was heard.
        let may_stray = self.ring.known_from()..at.minus(HEARD_WITHIN);
        comments.retain(|comment| may_stray.contains(&comment.ts) && comment.id.process() != here);
        self.ring.leave_out_known(comments, Comment::position);
    }
}
