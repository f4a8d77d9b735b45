//! A batch: comments that followed each other within one window, with their frames, encoded at most once for each kind
//! of viewer and shared by all of that kind.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::thin::Shares;
use crate::model::{BatchEncoder, Cursor, Epoch, Format, FrameHead, Posted, Seq, Tier};

/// Most comments in a batch. It bounds a frame (256 comments of 300 bytes are 77 KB) and how far the ring overshoots its
/// capacity, for a batch is dropped as a whole.
pub const MAX_BATCH: usize = 256;

/// So many frames for viewers that are out of step are kept. After a restart a crowd comes back with a few cursors, in a
/// few kinds; who tries out cursors must not fill the memory.
const KEPT_PARTS: usize = 4;

/// What a viewer gets of a batch, and in which form.
#[derive(Clone)]
pub struct Taste {
    /// The form.
    pub encoder: Arc<dyn BatchEncoder>,
    /// At most so many comments; `None` for all.
    pub tier: Option<Tier>,
}

impl Taste {
    /// All comments in this form.
    #[must_use]
    pub fn all(encoder: Arc<dyn BatchEncoder>) -> Self {
        Self { encoder, tier: None }
    }

    /// What frames are shared by; 0 for the usual viewer.
    fn kind(&self) -> usize {
        let column = self.tier.map_or(0, |tier| tier.index() + 1);
        column * Format::ALL.len() + self.encoder.format() as usize
    }
}

/// Comments that followed each other within one window.
#[derive(Debug)]
pub struct Batch {
    epoch: Epoch,
    comments: Box<[Arc<Posted>]>,
    /// For the usual viewer: all comments, as JSON.
    usual: OnceLock<Bytes>,
    /// For every other kind, whole.
    others: Frames,
    /// For viewers of every kind that are out of step.
    parts: Frames,
    /// What each tier gets; none while nobody has asked for less.
    shares: OnceLock<Box<Shares>>,
}

/// What a viewer gets of a batch, and what it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub(super) comments: u64,
    pub(super) left_out: u64,
}

impl Portion {
    /// Comments that were left out and of which no frame has told, given as many before: a frame tells of all.
    pub(super) fn untold_after(self, before: u64) -> u64 {
        if self.comments > 0 { 0 } else { before + self.left_out }
    }
}

impl Batch {
    pub(super) fn new(epoch: Epoch, comments: Vec<Arc<Posted>>, shares: Option<Box<Shares>>) -> Self {
        debug_assert!(!comments.is_empty());
        let (others, parts) = (Frames::default(), Frames::default());
        let shares = shares.map_or_else(OnceLock::new, OnceLock::from);
        Self { epoch, comments: comments.into(), usual: OnceLock::new(), others, parts, shares }
    }

    /// Settles what the tiers get, before the first viewer of any comes.
    pub(super) fn settle(&self, shares: Box<Shares>) {
        let _first = self.shares.get_or_init(|| shares);
    }

    /// The comments, oldest first; at least one.
    #[must_use]
    pub fn comments(&self) -> &[Arc<Posted>] {
        &self.comments
    }

    /// The place of the first comment.
    #[must_use]
    pub fn first(&self) -> Seq {
        self.comments.first().map(|posted| posted.seq).unwrap_or_default()
    }

    /// The place after the last comment.
    #[must_use]
    pub fn end(&self) -> Seq {
        self.first().plus(self.comments.len())
    }

    /// The ready-to-send bytes for a viewer of this taste that is in step, encoded by whoever asks
    /// first; empty when its tier gets nothing of this batch.
    pub fn frame(&self, taste: &Taste) -> &Bytes {
        let carried = self.share(taste).map_or(0, |(shares, tier)| shares.carried(tier));
        let key = Key { kind: taste.kind(), from: self.first(), untold: carried };
        let slot = if key.kind == 0 { &self.usual } else { self.others.slot(key, usize::MAX).unwrap_or(&self.usual) };
        slot.get_or_init(|| self.encode(taste, 0, carried))
    }

    /// Whether the shared frame is right for a viewer that has had everything before this batch, but `untold` comments
    /// that were left out since its last frame. One that has just come, or was told of a gap, may have fewer of those.
    pub(super) fn is_in_step(&self, taste: &Taste, untold: u64) -> bool {
        self.share(taste).is_none_or(|(shares, tier)| shares.carried(tier) == untold)
    }

    /// The frame for a viewer that is not in step, or begins in the middle of the batch, at `from`. Shared, as far as a
    /// few of these are kept. Empty when it gets nothing.
    pub(super) fn part(&self, taste: &Taste, from: Seq, untold: u64) -> Bytes {
        let encode = || self.encode(taste, self.skipped(from), untold);
        match self.parts.slot(Key { kind: taste.kind(), from, untold }, KEPT_PARTS) {
            Some(slot) => slot.get_or_init(encode).clone(),
            None => encode(),
        }
    }

    /// What a viewer of this taste gets of the comments from `from` on.
    pub(super) fn portion(&self, taste: &Taste, from: Seq) -> Portion {
        let skipped = self.skipped(from);
        let all = (self.comments.len() - skipped) as u64;
        let comments = match self.share(taste) {
            None => all,
            Some((shares, tier)) if skipped == 0 => shares.count(tier),
            Some((shares, tier)) => {
                (skipped..self.comments.len()).filter(|place| shares.has(tier, *place)).count() as u64
            }
        };
        Portion { comments, left_out: all - comments }
    }

    /// How many comments stand before `from`.
    fn skipped(&self, from: Seq) -> usize {
        usize::try_from(from.since(self.first())).unwrap_or(usize::MAX).min(self.comments.len())
    }

    fn share(&self, taste: &Taste) -> Option<(&Shares, Tier)> {
        Some((self.shares.get()?.as_ref(), taste.tier?))
    }

    fn encode(&self, taste: &Taste, skipped: usize, untold: u64) -> Bytes {
        let share = self.share(taste);
        let is_taken = |place| share.is_none_or(|(shares, tier)| shares.has(tier, place));
        let from = self.comments.iter().enumerate().skip(skipped);
        let comments: Vec<_> = from.filter(|(place, _)| is_taken(*place)).map(|(_, posted)| posted).collect();
        match cursor_at(self.epoch, self.comments.last()) {
            Some(cursor) if !comments.is_empty() => {
                let left_out = (self.comments.len() - skipped - comments.len()) as u64;
                let left_out = taste.tier.map(|_| untold + left_out);
                taste.encoder.comments(&FrameHead { cursor, left_out }, &comments)
            }
            _ => Bytes::new(),
        }
    }
}

/// Frames of a batch, made and kept as they are asked for: a list that only grows, so that a frame can be read without a
/// lock. It has few elements, mostly one or none.
#[derive(Debug, Default)]
struct Frames(OnceLock<Box<Node>>);

#[derive(Debug)]
struct Node {
    key: Key,
    frame: OnceLock<Bytes>,
    next: Frames,
}

/// What makes two frames of a batch the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    kind: usize,
    from: Seq,
    untold: u64,
}

impl Frames {
    /// Where the frame is, or goes; `None` when it is not among the first `most`.
    fn slot(&self, key: Key, most: usize) -> Option<&OnceLock<Bytes>> {
        let mut frames = self;
        for _ in 0..most {
            let node = frames.0.get_or_init(|| Box::new(Node { key, frame: OnceLock::new(), next: Self::default() }));
            if node.key == key {
                return Some(&node.frame);
            }
            frames = &node.next;
        }
        None
    }
}

/// The cursor on a comment.
pub(super) fn cursor_at(epoch: Epoch, posted: Option<&Arc<Posted>>) -> Option<Cursor> {
    posted.map(|posted| Cursor { epoch, seq: posted.seq, position: posted.comment.position() })
}
