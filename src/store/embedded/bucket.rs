//! Which bucket a comment lies in, and when a bucket may go. Pure.

use std::time::Duration;

use crate::model::{Comment, Timestamp};

/// A lifetime spans at most this many buckets; when it would span more, buckets of twice the width are used.
const MOST_PER_LIFETIME: i64 = 16;

/// A span of expiry times, kept together so that it can be thrown away whole.
///
/// The bucket of a comment is a function of the comment alone, so that a write tried again finds its first copy.
/// Comments that live long go to wide buckets: the width is the narrowest one doubled until the lifetime spans at most
/// 16. So a lifetime, whatever its length, has 8 to 17 buckets open (each is a tree of files of its own, and a read
/// looks into all of them), and expired comments stay on disk at most an eighth of their lifetime longer, or the
/// narrowest width. Without the doubling, one room that keeps its comments for a year would open half a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BucketId {
    width: i64,
    start: i64,
}

impl BucketId {
    /// The bucket of `comment`, when the narrowest buckets are `narrowest` wide.
    pub(super) fn of(comment: &Comment, narrowest: Duration) -> Self {
        let expire_at = comment.expire_at.millis();
        let lifetime = expire_at.saturating_sub(comment.ts.millis());
        let mut width = i64::try_from(narrowest.as_millis()).unwrap_or(i64::MAX).max(1);
        while lifetime / width >= MOST_PER_LIFETIME {
            width = width.saturating_mul(2);
        }
        Self { width, start: expire_at.div_euclid(width).saturating_mul(width) }
    }

    /// Whether every comment in it has expired.
    pub(super) fn has_expired(self, now: Timestamp) -> bool {
        self.start.saturating_add(self.width) <= now.millis()
    }

    /// The name of its keyspace.
    pub(super) fn name(self) -> String {
        format!("b.{}.{}", self.width, self.start)
    }

    /// Reads the name of a keyspace; `None` when it is not the name of a bucket.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (width, start) = name.strip_prefix("b.")?.split_once('.')?;
        let id = Self { width: width.parse().ok()?, start: start.parse().ok()? };
        (id.width > 0).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::test_comment as comment;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn living(ts: i64, lifetime: i64) -> Comment {
        let ts = Timestamp::from_millis(ts);
        Comment {
            expire_at: Timestamp::from_millis(ts.millis().saturating_add(lifetime)),
            ..comment("r", ts.millis(), 1, "x")
        }
    }

    proptest! {
        #[test]
        fn a_bucket_goes_neither_before_its_comments_nor_much_later(ts in 0..i64::MAX / 4, lifetime in 0..i64::MAX / 4) {
            let comment = living(ts, lifetime);
            let bucket = BucketId::of(&comment, MINUTE);
            let late = Timestamp::from_millis(comment.expire_at.millis() + (lifetime / 8).max(60_000));
            prop_assert!(!bucket.has_expired(Timestamp::from_millis(comment.expire_at.millis() - 1)));
            prop_assert!(bucket.has_expired(late));
            prop_assert_eq!(BucketId::parse(&bucket.name()), Some(bucket));
        }

        #[test]
        fn no_time_makes_it_panic(ts: i64, expire_at: i64, narrowest: u64) {
            let comment = Comment { expire_at: Timestamp::from_millis(expire_at), ..living(ts, 0) };
            let bucket = BucketId::of(&comment, Duration::from_millis(narrowest));
            prop_assert_eq!(BucketId::parse(&bucket.name()), Some(bucket));
        }
    }

    #[test]
    fn a_lifetime_of_any_length_spans_few_buckets() {
        for lifetime in [60_000, 3_600_000, 86_400_000, 365 * 86_400_000] {
            let at = |step: i64| BucketId::of(&living(step * lifetime / 1000, lifetime), MINUTE);
            let open: BTreeSet<_> = (0..1000).map(at).collect();
            assert!(open.len() <= 17, "{lifetime}: {}", open.len());
        }
    }

    #[test]
    fn other_names_are_no_buckets() {
        for name in ["meta", "b.", "b.1", "b.0.5", "b.-4.5", "b.x.5", "tip.3"] {
            assert_eq!(BucketId::parse(name), None, "{name}");
        }
    }
}
