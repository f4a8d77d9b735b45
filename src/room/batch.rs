//! A batch: comments that followed each other within one window, with their frames, encoded at most once for each kind
//! of viewer and shared by all of that kind.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::thin::Shares;
use crate::model::{BatchEncoder, Cursor, Epoch, Format, FrameHead, Given, Posted, Seq, Tier, Timestamp};

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
    /// What a viewer was given that has had everything up to the end; none on a node that is alone.
    given: Option<Box<Given>>,
}

/// Which comments of a batch are meant: those from a place on, but the ones that a viewer had on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which {
    from: Seq,
    /// A bit for each comment.
    had: [u64; MAX_BATCH.div_ceil(64)],
}

impl Which {
    fn has(&self, place: usize) -> bool {
        self.had.get(place / 64).is_some_and(|bits| bits >> (place % 64) & 1 == 0)
    }
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
    pub(super) fn new(
        epoch: Epoch,
        comments: Vec<Arc<Posted>>,
        shares: Option<Box<Shares>>,
        given: Option<Given>,
    ) -> Self {
        debug_assert!(!comments.is_empty());
        let (others, parts) = (Frames::default(), Frames::default());
        let shares = shares.map_or_else(OnceLock::new, OnceLock::from);
        let given = given.map(Box::new);
        Self { epoch, comments: comments.into(), usual: OnceLock::new(), others, parts, shares, given }
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

    /// The moment of the earliest comment, which need not be the first.
    pub(super) fn earliest(&self) -> Timestamp {
        self.comments.iter().map(|posted| posted.comment.ts).min().unwrap_or(Timestamp::MAX)
    }

    /// The cursor on the last comment.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        let last = self.comments.last()?;
        let given = self.given.as_deref().copied();
        Some(Cursor { epoch: self.epoch, seq: last.seq, position: last.comment.position(), given })
    }

    /// What a viewer was given that has had everything up to the end; none on a node that is alone.
    pub(super) fn given(&self) -> Option<Given> {
        self.given.as_deref().copied()
    }

    /// What a viewer was given that has had everything up to the end, and has `had` this on another node; `None` when that is
    /// no more than what is given here.
    pub(super) fn given_with(&self, had: Option<&Given>) -> Option<Given> {
        let given = self.given.as_deref()?;
        let mut with = *given;
        with.join(had?);
        (with != *given).then_some(with)
    }

    /// The comments from `from` on that a viewer lacks which has `had` this on another node.
    pub(super) fn which(&self, from: Seq, had: Option<&Given>) -> Which {
        let mut which = Which { from: from.max(self.first()), had: Default::default() };
        for (place, posted) in had.iter().flat_map(|_| self.comments.iter().enumerate()) {
            if had.is_some_and(|had| had.has(posted.comment.position()))
                && let Some(bits) = which.had.get_mut(place / 64)
            {
                *bits |= 1 << (place % 64);
            }
        }
        which
    }

    /// All comments.
    pub(super) fn all(&self) -> Which {
        self.which(self.first(), None)
    }

    /// Whether all comments are meant.
    pub(super) fn is_whole(&self, which: &Which) -> bool {
        *which == self.all()
    }

    /// The ready-to-send bytes for a viewer of this taste that is in step, encoded by whoever asks
    /// first; empty when its tier gets nothing of this batch.
    pub fn frame(&self, taste: &Taste) -> &Bytes {
        let carried = self.share(taste).map_or(0, |(shares, tier)| shares.carried(tier));
        let all = self.all();
        let key = Key { kind: taste.kind(), which: all, untold: carried, given: None };
        let slot = if key.kind == 0 { &self.usual } else { self.others.slot(key, usize::MAX).unwrap_or(&self.usual) };
        slot.get_or_init(|| self.encode(taste, &key))
    }

    /// Whether the shared frame is right for a viewer that has had everything before this batch, but `untold` comments
    /// that were left out since its last frame. One that has just come, or was told of a gap, may have fewer of those.
    pub(super) fn is_in_step(&self, taste: &Taste, untold: u64) -> bool {
        self.share(taste).is_none_or(|(shares, tier)| shares.carried(tier) == untold)
    }

    /// The frame for a viewer that is not in step, lacks but these comments of the batch, or has `had` more on another node.
    /// Shared, as far as a few of these are kept. Empty when it gets nothing.
    pub(super) fn part(&self, taste: &Taste, which: Which, untold: u64, had: Option<&Given>) -> Bytes {
        let key = Key { kind: taste.kind(), which, untold, given: self.given_with(had) };
        let encode = || self.encode(taste, &key);
        match self.parts.slot(key, KEPT_PARTS) {
            Some(slot) => slot.get_or_init(encode).clone(),
            None => encode(),
        }
    }

    /// What a viewer of this taste gets of these comments.
    pub(super) fn portion(&self, taste: &Taste, which: &Which) -> Portion {
        if let Some((shares, tier)) = self.share(taste).filter(|_| self.is_whole(which)) {
            return self.portion_of(shares.count(tier), self.comments.len());
        }
        let comments = self.places(which).filter(|place| self.is_taken(taste, *place)).count() as u64;
        self.portion_of(comments, self.places(which).count())
    }

    fn portion_of(&self, comments: u64, of: usize) -> Portion {
        Portion { comments, left_out: of as u64 - comments }
    }

    fn places(&self, which: &Which) -> impl Iterator<Item = usize> {
        (self.skipped(which.from)..self.comments.len()).filter(|place| which.has(*place))
    }

    fn is_taken(&self, taste: &Taste, place: usize) -> bool {
        self.share(taste).is_none_or(|(shares, tier)| shares.has(tier, place))
    }

    /// How many comments stand before `from`.
    fn skipped(&self, from: Seq) -> usize {
        usize::try_from(from.since(self.first())).unwrap_or(usize::MAX).min(self.comments.len())
    }

    fn share(&self, taste: &Taste) -> Option<(&Shares, Tier)> {
        Some((self.shares.get()?.as_ref(), taste.tier?))
    }

    fn encode(&self, taste: &Taste, Key { which, untold, given, .. }: &Key) -> Bytes {
        let taken = self.places(which).filter(|place| self.is_taken(taste, *place));
        let comments: Vec<_> = taken.filter_map(|place| self.comments.get(place)).collect();
        match self.cursor() {
            Some(cursor) if !comments.is_empty() => {
                let left_out = (self.places(which).count() - comments.len()) as u64;
                let left_out = taste.tier.map(|_| untold + left_out);
                let cursor = Cursor { given: given.or(cursor.given), ..cursor };
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
    which: Which,
    untold: u64,
    /// What else the cursor tells that was given.
    given: Option<Given>,
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
