//! The frames of comments that came lately to one room, each decoded once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::decode::{RawComment, place, read, unpack};
use super::mark::Mark;
use super::sent::Sent;
use crate::load::outcome::Fault;
use crate::wire::Compression;

/// Frames that are remembered of a room: viewers that are further behind have theirs decoded anew.
const FRAMES: usize = 64;

/// Bytes that all of them may have.
const BYTES: usize = 4 << 20;

/// One comment of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) number: u32,
    /// When it was to be sent; none if that is forgotten.
    pub(super) due: Option<u64>,
}

/// A comment that is wrong for whomever gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) fault: Fault,
    pub(super) id: String,
    pub(super) detail: String,
}

/// One decoded frame.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Box<[u8]>,
    is_packed: bool,
    /// The run's comments, in the frame's order.
    pub(super) items: Vec<Item>,
    pub(super) wrong: Vec<Wrong>,
    pub(super) cursor: Option<Arc<str>>,
    pub(super) left_out: u64,
}

/// Who takes part, to tell the run's comments from others'.
#[derive(Debug, Default)]
pub(super) struct Cast {
    pub(super) run: u32,
    /// The name that all are shown by.
    pub(super) name: String,
    /// What the server calls the senders.
    pub(super) uids: HashMap<Box<str>, u32>,
}

/// Those of one room.
#[derive(Debug, Default)]
pub(super) struct Batches {
    recent: VecDeque<Arc<Batch>>,
    bytes: usize,
}

impl Batches {
    /// The frame with these bytes, decoded now if it is a new one; none if it is no frame of comments.
    pub(super) fn get(
        &mut self,
        bytes: &[u8],
        packed: Option<Compression>,
        (room, sent, cast): (u32, &mut Sent, &Cast),
    ) -> Option<Arc<Batch>> {
        let is_same = |batch: &&Arc<Batch>| batch.is_packed == packed.is_some() && *batch.bytes == *bytes;
        // The newest is what most viewers are about to have.
        if let Some(known) = self.recent.iter().rev().find(is_same) {
            return Some(Arc::clone(known));
        }
        let batch = Arc::new(decode(bytes, packed, (room, sent, cast))?);
        self.bytes += bytes.len();
        self.recent.push_back(Arc::clone(&batch));
        while self.recent.len() > FRAMES || self.bytes > BYTES && self.recent.len() > 1 {
            self.bytes -= self.recent.pop_front().map_or(0, |old| old.bytes.len());
        }
        Some(batch)
    }
}

fn decode(bytes: &[u8], packed: Option<Compression>, (room, sent, cast): (u32, &mut Sent, &Cast)) -> Option<Batch> {
    let unpacked = match packed {
        Some(compression) => Some(unpack(compression, bytes)?),
        None => None,
    };
    let raw = read(unpacked.as_deref().unwrap_or(bytes)).filter(|raw| raw.r#type == "comments")?;
    let (items, wrong) = sort(&raw.comments, (room, sent, cast));
    Some(Batch {
        bytes: bytes.into(),
        is_packed: packed.is_some(),
        items,
        wrong,
        cursor: raw.cursor.map(|cursor| Arc::from(&*cursor)),
        left_out: raw.left_out.unwrap_or(0),
    })
}

/// Tells the run's comments, and those that are wrong.
pub(super) fn sort(
    comments: &[RawComment<'_>],
    (room, sent, cast): (u32, &mut Sent, &Cast),
) -> (Vec<Item>, Vec<Wrong>) {
    let (mut items, mut wrong) = (Vec::with_capacity(comments.len()), Vec::new());
    for comment in comments {
        let mut refuse = |fault, detail| wrong.push(Wrong { fault, id: comment.id.to_string(), detail });
        let is_ours = cast.uids.contains_key(&*comment.uid);
        let Some(mark) = Mark::read(cast.run, &comment.text) else {
            if is_ours {
                refuse(Fault::Damaged, format!("the text {:?} is not as it was sent", comment.text));
            }
            continue;
        };
        if mark.room != room {
            refuse(Fault::WrongRoom, format!("it was sent to room {}", mark.room));
            continue;
        }
        if !is_ours || comment.name != cast.name {
            refuse(
                Fault::Damaged,
                format!("it was sent by none of the name {:?} and id {:?}", comment.name, comment.uid),
            );
        }
        if mark.number >= sent.next() {
            refuse(Fault::Damaged, format!("number {} was never sent", mark.number));
            continue;
        }
        let (process, place) = place(&comment.id, comment.ts);
        let node = sent.node(process);
        let info = sent.get_mut(mark.number);
        let due = info.map(|info| {
            (info.node, info.place) = (node, place);
            info.due
        });
        items.push(Item { number: mark.number, due });
    }
    (items, wrong)
}
