//! What an opening finds: the segments of before, mended where a crash or the disk left them torn.

use std::path::PathBuf;

use super::error::LogError;
use super::folder::{Folder, segment_name};
use super::format::{Format, HEADER_BYTES, Header, header_of, put_record, read_header};
use super::released;
use super::state::{Limits, Place, State};
use super::survey::{Damage, Survey, is_torn, survey};

/// What was in a log when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records that wait to be read.
    pub records: u64,
    /// Bytes that they and their segments take on disk.
    pub bytes: u64,
    /// Bytes that an append had left when it was cut off, and that were cut from the end of the last segment. No append
    /// that succeeded lost anything by it, as long as the disk gives back what it was given.
    pub torn_bytes: u64,
    /// Records that were appended, not released, and are damaged: so many at least, and just so many but where damage is
    /// the last thing in a segment, for how many stood there nothing tells, or the segment is one of format 1.
    pub lost: u64,
    /// Files that this opening made of bytes that do not match their checksums; all whole records around them are read.
    /// The log looks at these files no more than to see whether the same bytes are kept already, and deletes none.
    pub damaged: Vec<PathBuf>,
}

/// Reads the folder and mends it. Refuses before it changes anything.
pub(super) fn recover(folder: &Folder, limits: Limits) -> Result<(State, Recovered), LogError> {
    let listing = folder.list()?;
    let mut headers = Vec::with_capacity(listing.segments.len());
    for number in listing.segments {
        headers.push((number, check_header(folder, number)?));
    }
    let released = released::read(folder)?;
    // A number that the note speaks of is not given again: what it says is said of that segment alone.
    let next = released.iter().map(|place| place.segment.saturating_add(1)).fold(listing.next, u64::max);
    let (state, recovered) = (State::new(limits, next), Recovered::default());
    let mut recovery = Recovery { folder, released, state, recovered };
    let last = headers.last().map(|(number, _)| *number);
    for (number, header) in headers {
        recovery.take_in(number, header, last == Some(number))?;
    }
    recovery.finish()
}

fn check_header(folder: &Folder, number: u64) -> Result<Header, LogError> {
    let path = folder.path(number);
    let begin = folder.read(number, 0..HEADER_BYTES)?;
    match read_header(&begin.bytes, number) {
        _ if begin.has_holes => Ok(Header::Damaged(Format::Two)),
        Header::Foreign => Err(LogError::Foreign { path }),
        Header::Version(version) => Err(LogError::Version { path, version }),
        Header::Misnamed(other) => Err(LogError::Misnamed { path, number: other, name: segment_name(other) }),
        header => Ok(header),
    }
}

struct Recovery<'a> {
    folder: &'a Folder,
    /// What was released before, as far as it was written down.
    released: Vec<Place>,
    state: State,
    recovered: Recovered,
}

impl Recovery<'_> {
    fn take_in(&mut self, number: u64, header: Header, is_last: bool) -> Result<(), LogError> {
        let (format, is_header_good) = match header {
            Header::Segment(format) => (format, true),
            Header::Damaged(format) => (format, false),
            _ => {
                self.recovered.torn_bytes += self.folder.length(number)?;
                return self.folder.delete(number);
            }
        };
        if is_last {
            // Its end may have been written and never synced. What is told as recovered must not go with a power cut.
            self.folder.sync_segment(number)?;
        }
        let read = self.folder.read(number, 0..self.folder.length(number)?)?;
        let found = survey(&read.bytes, format);
        let tail = read.bytes.get(found.end..).unwrap_or_default();
        let is_torn = tail.is_empty() || (is_last && !read.has_holes && is_torn(tail, format));
        if is_torn {
            self.recovered.torn_bytes += tail.len() as u64;
        }
        if found.records == 0 {
            return if is_torn { self.folder.delete(number) } else { self.give_up(number) };
        }
        self.keep_damaged(number, &read.bytes, &found, is_torn)?;
        if !is_header_good {
            let header = read.bytes.get(..HEADER_BYTES as usize).unwrap_or_default();
            self.recovered.damaged.extend(self.folder.keep(number, 0, header)?);
        }
        match format {
            Format::One => self.write_anew(number, &read.bytes, &found),
            Format::Two => self.mend(number, &read.bytes, &found, is_header_good),
        }
    }

    /// Sets a segment aside in which no record can be read.
    fn give_up(&mut self, number: u64) -> Result<(), LogError> {
        self.recovered.damaged.push(self.folder.set_aside(number)?);
        self.recovered.lost += 1;
        Ok(())
    }

    /// Copies to files of their own what is damaged of a segment and was not released.
    fn keep_damaged(&mut self, number: u64, bytes: &[u8], found: &Survey, is_torn: bool) -> Result<(), LogError> {
        let at_the_end = Damage { first: found.records, count: 1, bytes: found.end..bytes.len() };
        let at_the_end = (!is_torn).then_some(&at_the_end);
        for Damage { first, count, bytes: range } in found.damaged.iter().chain(at_the_end) {
            let is_open = |record: &u64| !self.released.iter().any(|place| place.has(number, *record));
            let lost = (*first..first + count).filter(is_open).count() as u64;
            let bytes = bytes.get(range.clone()).unwrap_or_default();
            // Told and counted once, though what stands between good records stays where it is.
            if lost > 0
                && let Some(path) = self.folder.keep(number, range.start as u64, bytes)?
            {
                self.recovered.damaged.push(path);
                self.recovered.lost += lost;
            }
        }
        Ok(())
    }

    /// Enters a segment without what stands behind its last good record. Each record keeps its number.
    fn mend(&mut self, number: u64, bytes: &[u8], found: &Survey, is_header_good: bool) -> Result<(), LogError> {
        if !is_header_good {
            let records = bytes.get(HEADER_BYTES as usize..found.end).unwrap_or_default();
            self.folder.replace(&self.folder.path(number), &[&header_of(Format::Two, number), records].concat())?;
        } else if found.end < bytes.len() {
            self.folder.cut(number, found.end as u64)?;
        }
        self.state.insert(number, found.end as u64, found.records);
        for Damage { first, count, .. } in &found.damaged {
            self.state.settle(Place { segment: number, first: *first, count: *count });
        }
        Ok(())
    }

    /// Brings the good records of a segment of format 1 into format 2, so that nobody else need know format 1.
    fn write_anew(&mut self, number: u64, bytes: &[u8], found: &Survey) -> Result<(), LogError> {
        let mut anew = header_of(Format::Two, number).to_vec();
        for (record, payload) in (0..).zip(&found.payloads) {
            put_record(&mut anew, record, bytes.get(payload.clone()).unwrap_or_default());
        }
        self.folder.replace(&self.folder.path(number), &anew)?;
        self.state.insert(number, anew.len() as u64, found.payloads.len() as u64);
        Ok(())
    }

    fn finish(mut self) -> Result<(State, Recovered), LogError> {
        for place in &self.released {
            self.state.settle(*place);
        }
        for freed in self.state.take_freed() {
            self.folder.delete(freed.segment)?;
            self.state.has_deleted(freed, true);
        }
        self.folder.sync().map_err(LogError::io("sync", self.folder.dir()))?;
        self.recovered.records = self.state.records();
        self.recovered.bytes = self.state.bytes();
        Ok((self.state, self.recovered))
    }
}
