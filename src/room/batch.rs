//! A batch: comments that followed each other within one window, with their frames, encoded at most once for each kind
//! of viewer and shared by all of that kind.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::thin::{Share, Shares, pick};
use crate::model::{BatchEncoder, Cursor, Epoch, Format, FrameHead, Posted, Seq, Tier};

/// Most comments in a batch. It bounds a frame (256 comments of 300 bytes are 77 KB) and how far the ring overshoots its
/// capacity, for a batch is dropped as a whole.
pub const MAX_BATCH: usize = 256;

/// Kinds of viewers beside the usual one: every format, for all comments and for each tier.
const KINDS: usize = Format::ALL.len() * (Tier::RATES.len() + 1);

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

    /// The place of its frames among [`KINDS`]; `None` for the usual viewer.
    fn kind(&self) -> Option<usize> {
        let (format, tier) = (self.encoder.format(), self.tier);
        let column = tier.map_or(0, |tier| tier.index() + 1);
        (format != Format::Json || tier.is_some()).then_some(column * Format::ALL.len() + format as usize)
    }
}

/// Comments that followed each other within one window.
#[derive(Debug)]
pub struct Batch {
    epoch: Epoch,
    comments: Box<[Arc<Posted>]>,
    /// For the usual viewer: all comments, as JSON.
    usual: OnceLock<Bytes>,
    /// For every other kind, made when the first of them asks.
    others: OnceLock<Box<[OnceLock<Bytes>]>>,
    /// What each tier gets; all when this is none.
    shares: Option<Box<Shares>>,
}

impl Batch {
    pub(super) fn new(epoch: Epoch, comments: Vec<Arc<Posted>>, shares: Option<Box<Shares>>) -> Self {
        debug_assert!(!comments.is_empty());
        Self { epoch, comments: comments.into(), usual: OnceLock::new(), others: OnceLock::new(), shares }
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

    /// The ready-to-send bytes for a viewer of this taste, encoded by whoever asks first; empty when its tier gets
    /// nothing of this batch.
    pub fn frame(&self, taste: &Taste) -> &Bytes {
        let slot = match taste.kind() {
            None => &self.usual,
            Some(kind) => {
                let others = self.others.get_or_init(|| (0..KINDS).map(|_| OnceLock::new()).collect());
                others.get(kind).unwrap_or(&self.usual)
            }
        };
        slot.get_or_init(|| self.encode(taste))
    }

    fn share(&self, taste: &Taste) -> Option<Share> {
        self.shares.as_ref()?.get(taste.tier?.index()).copied()
    }

    fn encode(&self, taste: &Taste) -> Bytes {
        let share = self.share(taste);
        let comments = match share {
            Some(share) => pick(&self.comments, share),
            None => self.comments.iter().collect(),
        };
        match cursor_at(self.epoch, self.comments.last()) {
            Some(cursor) if !comments.is_empty() => {
                let left_out = taste.tier.map(|_| share.map_or(0, |share| share.left_out.into()));
                taste.encoder.comments(&FrameHead { cursor, left_out }, &comments)
            }
            _ => Bytes::new(),
        }
    }

    /// A frame of what a viewer of this taste has not had yet, which begins in the middle of the batch.
    pub(super) fn rest(&self, from: Seq, taste: &Taste) -> Bytes {
        let skip = usize::try_from(from.since(self.first())).unwrap_or(usize::MAX);
        let rest = Self::new(self.epoch, self.comments.get(skip..).unwrap_or_default().to_vec(), None);
        rest.encode(taste)
    }

    /// How many comments a viewer of this taste gets.
    pub(super) fn count_for(&self, taste: &Taste) -> u64 {
        self.share(taste).map_or(self.comments.len() as u64, |share| share.total.into())
    }
}

/// The cursor on a comment.
pub(super) fn cursor_at(epoch: Epoch, posted: Option<&Arc<Posted>>) -> Option<Cursor> {
    posted.map(|posted| Cursor { epoch, seq: posted.seq, position: posted.comment.position() })
}
