//! Which records stand in which segment, and which of them are settled. Plain data, no I/O.

use std::collections::BTreeMap;

use super::error::AppendError;
use super::format::HEADER_BYTES;

/// Where records stand in a log: one or more that follow each other in one segment. Means nothing to another log, nor
/// to the same folder opened anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) segment: u64,
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Place {
    /// How many records stand there.
    #[must_use]
    pub fn len(self) -> u64 {
        self.count
    }

    /// Whether none do: the place of an append of nothing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Whether this record is one of them.
    pub(super) fn has(self, segment: u64, record: u64) -> bool {
        self.segment == segment && record >= self.first && record - self.first < self.count
    }

    /// The place of each of them, in order.
    pub fn each(self) -> impl Iterator<Item = Self> + use<> {
        (self.first..self.first + self.count).map(move |first| Self { first, count: 1, ..self })
    }
}

/// How large a log may grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_bytes: u64,
    pub(super) segment_bytes: u64,
}

#[derive(Debug)]
struct Segment {
    bytes: u64,
    records: u64,
    /// How many of them are not settled.
    open: u64,
    /// By record; those beyond its end are not. Mostly one segment is settled at a time, so few of these are long.
    settled: Vec<bool>,
}

impl Segment {
    fn new(bytes: u64, records: u64) -> Self {
        Self { bytes, records, open: records, settled: Vec::new() }
    }

    fn is_settled(&self, record: u64) -> bool {
        usize::try_from(record).is_ok_and(|record| self.settled.get(record) == Some(&true))
    }

    /// Settles those of the place that it has, and gives how many were not settled before.
    fn settle(&mut self, place: Place) -> u64 {
        let end = place.first.saturating_add(place.count).min(self.records);
        let fits = |record| usize::try_from(record).expect("a record takes more than a byte of memory or disk");
        let (first, end) = (fits(place.first), fits(end));
        if self.settled.len() < end {
            self.settled.resize(end, false);
        }
        let records = self.settled.get_mut(first..end).unwrap_or_default();
        let newly = records.iter().filter(|is_settled| !**is_settled).count() as u64;
        records.fill(true);
        self.open -= newly;
        newly
    }
}

/// The segment that an append goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) segment: u64,
    /// The segment's length before; 0 if it is to be made.
    pub(super) offset: u64,
    /// The number of the next record.
    pub(super) first: u64,
}

/// Unsettled records that follow each other in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) place: Place,
    /// The segment's length.
    pub(super) end: u64,
    /// How many records the segment has, settled or not.
    pub(super) records: u64,
}

/// A segment that is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) segment: u64,
    bytes: u64,
}

/// The table of segments.
#[derive(Debug)]
pub(super) struct State {
    limits: Limits,
    segments: BTreeMap<u64, Segment>,
    /// The segment that the next append goes to, unless it is full.
    active: Option<u64>,
    /// The segment that an append is being written to. It is not freed: what it will hold is not settled yet.
    writing: Option<u64>,
    next: u64,
    records: u64,
    bytes: u64,
    /// To be deleted; until then they count as bytes.
    freed: Vec<Freed>,
}

impl State {
    /// A table without segments, whose first will be `next`.
    pub(super) fn new(limits: Limits, next: u64) -> Self {
        let (segments, freed) = (BTreeMap::new(), Vec::new());
        Self { limits, segments, active: None, writing: None, next, records: 0, bytes: 0, freed }
    }

    /// Enters a segment that was there before. It is not appended to any more.
    pub(super) fn insert(&mut self, segment: u64, bytes: u64, records: u64) {
        self.segments.insert(segment, Segment::new(bytes, records));
        self.bytes += bytes;
        self.records += records;
    }

    /// Records that are not settled.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of all segments that are not deleted.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says where `bytes` of records go, if there is room. [`State::commit`] or [`State::fail`] must follow.
    pub(super) fn begin(&mut self, bytes: u64) -> Result<Target, AppendError> {
        let active = self.active.and_then(|segment| Some((segment, self.segments.get(&segment)?)));
        let target = match active.filter(|(_, found)| found.bytes < self.limits.segment_bytes) {
            Some((segment, found)) => Target { segment, offset: found.bytes, first: found.records },
            None => Target { segment: self.next, offset: 0, first: 0 },
        };
        let bytes = if target.offset == 0 { bytes + HEADER_BYTES } else { bytes };
        let Limits { max_bytes, .. } = self.limits;
        if self.bytes.saturating_add(bytes) > max_bytes {
            return Err(AppendError::Full { bytes, max_bytes });
        }
        if target.offset == 0 {
            self.active = None;
            self.next = self.next.saturating_add(1);
        }
        self.writing = Some(target.segment);
        Ok(target)
    }

    /// Enters what is on the disk now: the segment's new length, and how many records came to it.
    pub(super) fn commit(&mut self, target: Target, end: u64, count: u64) -> Place {
        let segment = self.segments.entry(target.segment).or_insert_with(|| Segment::new(0, 0));
        let place = Place { segment: target.segment, first: segment.records, count };
        segment.bytes = end;
        segment.records += count;
        segment.open += count;
        self.bytes += end - target.offset;
        self.records += count;
        self.active = Some(target.segment);
        self.writing = None;
        place
    }

    /// The append came to nothing; its segment is not appended to any more.
    pub(super) fn fail(&mut self, target: Target) {
        self.active = None;
        self.writing = None;
        self.free_if_settled(target.segment);
    }

    /// Settles records and gives how many. Those that are settled already, or gone, are passed over.
    pub(super) fn settle(&mut self, place: Place) -> u64 {
        let Some(segment) = self.segments.get_mut(&place.segment) else { return 0 };
        let newly = segment.settle(place);
        self.records -= newly;
        self.free_if_settled(place.segment);
        newly
    }

    fn free_if_settled(&mut self, number: u64) {
        let is_settled = self.segments.get(&number).is_some_and(|segment| segment.open == 0);
        if !is_settled || self.writing == Some(number) {
            return;
        }
        if let Some(Segment { bytes, .. }) = self.segments.remove(&number) {
            self.freed.push(Freed { segment: number, bytes });
        }
        self.active.take_if(|active| *active == number);
    }

    /// Takes the segments that are to be deleted.
    pub(super) fn take_freed(&mut self) -> Vec<Freed> {
        std::mem::take(&mut self.freed)
    }

    /// Says that one of them is deleted, or that it could not be and is to be taken again.
    pub(super) fn has_deleted(&mut self, freed: Freed, is_deleted: bool) {
        if is_deleted {
            self.bytes -= freed.bytes;
        } else {
            self.freed.push(freed);
        }
    }

    /// Finds the first unsettled records at or after record `index` of `segment`, at most `limit`.
    pub(super) fn next_run(&self, segment: u64, index: u64, limit: u64) -> Option<Run> {
        let mut segments = self.segments.range(segment..);
        segments.find_map(|(&number, found)| {
            let from = if number == segment { index } else { 0 };
            let first = (from..found.records).find(|record| !found.is_settled(*record))?;
            let run = (first..found.records).take_while(|record| !found.is_settled(*record));
            let count = run.take(usize::try_from(limit).unwrap_or(usize::MAX)).count() as u64;
            Some(Run { place: Place { segment: number, first, count }, end: found.bytes, records: found.records })
        })
    }

    /// Whether there is a segment that may be appended to.
    pub(super) fn has_active(&self) -> bool {
        self.active.is_some()
    }

    /// Whether the segment is still there.
    pub(super) fn has_segment(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Says that a segment is not appended to any more. No append may be under way.
    pub(super) fn seal(&mut self, segment: u64) {
        self.active.take_if(|active| *active == segment);
    }

    /// The settled records of the segments that are not freed.
    pub(super) fn settled(&self) -> Vec<Place> {
        let runs = self.segments.iter().flat_map(|(&segment, found)| {
            let mut first = 0;
            found.settled.chunk_by(|one, next| one == next).filter_map(move |run| {
                let place = Place { segment, first, count: run.len() as u64 };
                first += place.count;
                (run.first() == Some(&true)).then_some(place)
            })
        });
        runs.collect()
    }
}
