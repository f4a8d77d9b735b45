//! How often the server has refused a document for a reason that may be the document's or the server's: plain data.
//!
//! A code that is not known to be of the document keeps it and is tried again, for an overload must not turn good comments
//! into refused ones. One that never goes in must not hold up the others for ever either.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::model::CommentId;

/// So many answers with the same code, while other documents of the same write are in the collection, show that the
/// reason is the document's: about five seconds by the waits between attempts of the flusher and the replayer.
const BESIDE_OTHERS: u32 = 8;

/// So many when no other document of the write went in, as when it was alone. This looks like an overload, and takes the
/// replayer two minutes of trying each half second, or the flusher eight with two seconds in between.
const ALONE: u32 = 240;

/// Most documents that are remembered. What comes beyond them is kept and tried as well, and counted once there is room.
const MOST: usize = 65_536;

/// Documents that were refused and may yet be taken.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    by_id: Mutex<HashMap<CommentId, Tries>>,
}

#[derive(Clone, Copy, Debug)]
struct Tries {
    code: i32,
    beside_others: u32,
    all: u32,
}

impl Undecided {
    /// Counts an answer with this code, and gives whether the document is to be tried no more. `are_others_in` says
    /// whether other documents of the same write are in the collection.
    pub(super) fn has_failed_enough(&self, id: CommentId, code: i32, are_others_in: bool) -> bool {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if by_id.len() >= MOST && !by_id.contains_key(&id) {
            return false;
        }
        let anew = Tries { code, beside_others: 0, all: 0 };
        let tries = by_id.entry(id).or_insert(anew);
        if tries.code != code {
            *tries = anew;
        }
        tries.all += 1;
        tries.beside_others += u32::from(are_others_in);
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
    fn answers(undecided: &Undecided, code: impl Fn(u32) -> i32, are_others_in: impl Fn(u32) -> bool) -> Option<u32> {
        (1..1000).find(|n| undecided.has_failed_enough(id(1), code(*n), are_others_in(*n)))
    }

    #[test]
    fn a_document_that_fails_while_others_go_in_has_failed_enough_after_eight() {
        assert_eq!(answers(&Undecided::default(), |_| 1, |_| true), Some(8));
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
        assert_eq!(answers(&Undecided::default(), |_| 1, |n| n > 100), Some(108));
    }

    #[test]
    fn another_code_begins_anew() {
        assert_eq!(answers(&Undecided::default(), |n| i32::from(n > 7), |_| true), Some(15));
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
