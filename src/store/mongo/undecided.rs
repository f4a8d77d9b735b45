//! How often the server has refused a document for a reason that may be the document's or the server's: plain data.
//!
//! A code that is not known to be of the document keeps it and is tried again, for an overload must not turn good comments
//! into refused ones. One that never goes in must not hold up the others for ever either.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::model::CommentId;

/// So many answers with the same code, while others went in each time, show that the reason is the document's: about half
/// a minute by the waits between attempts of the flusher and the replayer. A server in trouble that takes every other bulk
/// refuses the same one as often in a row once in a million times.
const BESIDE_OTHERS: u32 = 20;

/// So many when no other document went in, as when nothing else is sent. This looks like an overload, and takes some
/// minutes by those waits.
const ALONE: u32 = 240;

/// Most documents that are remembered. What comes beyond them is kept and tried as well, and counted once there is room.
const MOST: usize = 65_536;

/// Documents that were refused and may yet be taken.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    by_id: Mutex<HashMap<CommentId, Tries>>,
    /// Answers by which documents went in.
    taken: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Tries {
    code: i32,
    beside_others: u32,
    all: u32,
    /// [`Undecided::taken`] at the last answer.
    taken: u64,
}

impl Undecided {
    /// Notes an answer by which documents went in. Those that were there before the write show nothing of the server now.
    pub(super) fn took_some(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer with this code, and gives whether the document is to be tried no more. `has_taken_others` says
    /// whether other documents went in by the same answer.
    pub(super) fn has_failed_enough(&self, id: CommentId, code: i32, has_taken_others: bool) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if by_id.len() >= MOST && !by_id.contains_key(&id) {
            return false;
        }
        let anew = Tries { code, beside_others: 0, all: 0, taken };
        let tries = by_id.entry(id).or_insert(anew);
        if tries.code != code {
            *tries = anew;
        }
        tries.all += 1;
        // Any bulk in between is as good as a neighbour.
        tries.beside_others += u32::from(has_taken_others || taken != tries.taken);
        tries.taken = taken;
        tries.beside_others >= BESIDE_OTHERS || tries.all >= ALONE
    }

    /// Forgets documents whose fate is known.
    pub(super) fn forget(&self, ids: &[CommentId]) {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        // Nearly always there is none, and thousands of comments a second need not be looked up.
        if by_id.is_empty() {
            return;
        }
        for id in ids {
            by_id.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;

    fn id(n: u32) -> CommentId {
        CommentId::from_parts(Timestamp::from_millis(1), [7; 5], n)
    }

    /// How many answers it takes.
    fn answers(undecided: &Undecided, code: impl Fn(u32) -> i32, has_taken: impl Fn(u32) -> bool) -> Option<u32> {
        (1..1000).find(|n| undecided.has_failed_enough(id(1), code(*n), has_taken(*n)))
    }

    #[test]
    fn a_document_that_fails_while_others_go_in_has_failed_enough_after_twenty() {
        assert_eq!(answers(&Undecided::default(), |_| 1, |_| true), Some(20));
        let others = Undecided::default();
        let between = |_| {
            others.took_some();
            false
        };
        assert_eq!(answers(&others, |_| 1, between), Some(21), "the first answer shows nothing yet");
        // It stays so until it is forgotten: the report may not have reached the caller.
        let undecided = Undecided::default();
        answers(&undecided, |_| 1, |_| true);
        assert!(undecided.has_failed_enough(id(1), 1, true));
        undecided.forget(&[id(1)]);
        assert!(!undecided.has_failed_enough(id(1), 1, true));
    }

    #[test]
    fn a_server_that_takes_nothing_has_more_time_but_not_for_ever() {
        assert_eq!(answers(&Undecided::default(), |_| 1, |_| false), Some(240));
        assert_eq!(answers(&Undecided::default(), |_| 1, |n| n > 100), Some(120));
    }

    #[test]
    fn another_code_begins_anew() {
        assert_eq!(answers(&Undecided::default(), |n| i32::from(n > 7), |_| true), Some(27));
        assert_eq!(answers(&Undecided::default(), |n| (n % 2).cast_signed(), |_| true), None);
    }

    #[test]
    fn the_number_of_documents_is_bounded() {
        let undecided = Undecided::default();
        for n in 0..70_000 {
            undecided.has_failed_enough(id(n), 1, true);
        }
        assert_eq!(undecided.by_id.lock().unwrap().len(), MOST);
        assert!((0..20).all(|_| !undecided.has_failed_enough(id(69_999), 1, true)));
    }
}
