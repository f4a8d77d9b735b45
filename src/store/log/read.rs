//! Reading: the unsettled records behind the cursor, oldest first.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Seek as _, SeekFrom};
use std::path::PathBuf;

use bytes::Bytes;

use super::error::LogError;
use super::folder::{self, is_unreadable};
use super::format::{Format, Found, HEADER_BYTES, Records};
use super::state::{Place, Run};
use super::survey::find;
use super::{Inner, lock};

/// Records that were read together. They stand in one segment, each behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The records, oldest first; at least one.
    pub records: Vec<Bytes>,
    /// Where they stand, to be released once they are settled.
    pub place: Place,
}

/// Where the next record is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    segment: u64,
    index: u64,
    offset: u64,
}

impl Cursor {
    /// Before the oldest segment.
    pub(super) const START: Self = Self { segment: 0, index: 0, offset: HEADER_BYTES };

    /// Behind the record at which it stands, whose end is at `offset`.
    fn next(self, offset: u64) -> Self {
        Self { index: self.index + 1, offset, ..self }
    }

    fn enter(self, segment: u64) -> Self {
        if self.segment == segment { self } else { Self { segment, ..Self::START } }
    }
}

impl Inner {
    pub(super) fn read(&self, limit_records: usize, limit_bytes: usize) -> Result<Option<Batch>, LogError> {
        let mut cursor = lock(&self.cursor);
        loop {
            let run = lock(&self.state).next_run(cursor.segment, cursor.index, limit_records.max(1) as u64);
            let Some(run) = run else { return Ok(None) };
            let segment = run.place.segment;
            *cursor = cursor.enter(segment);
            let file = match self.folder.open_segment(segment) {
                // All of it was released since.
                Err(error) if error.kind() == ErrorKind::NotFound && !lock(&self.state).has_segment(segment) => {
                    continue;
                }
                opened => opened,
            };
            let found = file.and_then(|file| read_run(file, &mut cursor, run, limit_bytes));
            match found.map_err(LogError::io("read", self.folder.path(segment)))? {
                Some(batch) => return Ok(Some(batch)),
                None => self.pass_over(&mut cursor, run)?,
            }
        }
    }

    /// Moves the cursor behind what stands there and cannot be read, and takes that out of the log. The bytes stay in their
    /// segment, so that all that was given a place keeps it.
    fn pass_over(&self, cursor: &mut Cursor, run: Run) -> Result<(), LogError> {
        let Cursor { segment, index, offset } = *cursor;
        let read = self.folder.read(segment, offset..run.end);
        let folder::Bytes { mut bytes, has_holes } = match read {
            Err(_) if !lock(&self.state).has_segment(segment) => return Ok(()),
            read => read?,
        };
        let behind = match find(&bytes, 0, Format::Two, index) {
            Some((at, number, _)) if number < run.records => {
                bytes.truncate(at);
                Cursor { segment, index: number, offset: offset + at as u64 }
            }
            _ => Cursor { segment, index: run.records, offset: run.end },
        };
        let lost = Place { segment, first: index, count: behind.index - index };
        if behind.index <= run.place.first {
            // All of them are settled: nothing is lost.
            *cursor = behind;
            return Ok(());
        }
        if has_holes {
            // It may be a cable. They stay in the log, and the next opening sees whether they can be read then.
            *cursor = behind;
            let source =
                io::Error::other(format!("the disk does not give {} records, which are passed over", lost.len()));
            return Err(LogError::io("read", self.folder.path(segment))(source));
        }
        self.folder.keep(segment, offset, &bytes)?;
        *cursor = behind;
        self.lose(lost, self.folder.damaged(segment, offset), behind.index == run.records)
    }

    fn lose(&self, lost: Place, kept: PathBuf, is_end: bool) -> Result<(), LogError> {
        // Held so that nothing is being appended to what is sealed.
        let _active = lock(&self.active);
        let mut state = lock(&self.state);
        if is_end {
            // Who knows where the file ends.
            state.seal(lost.segment);
        }
        match state.settle(lost) {
            // They were settled meanwhile.
            0 => Ok(()),
            records => Err(LogError::Damaged { records, kept }),
        }
    }
}

/// Reads the records of a run, which begins at the cursor or behind it, and moves the cursor behind those that it gives,
/// or to what stands in the way. `None` if that is the next that is due.
fn read_run(mut file: File, cursor: &mut Cursor, run: Run, limit_bytes: usize) -> io::Result<Option<Batch>> {
    file.seek(SeekFrom::Start(cursor.offset))?;
    let mut found = Records::new(BufReader::new(file), cursor.index, cursor.offset, run.end);
    let (mut at, mut records, mut bytes) = (*cursor, Vec::new(), 0);
    while (records.len() as u64) < run.place.count {
        let payload = match found.read_next() {
            Ok(Found::Record(payload)) => payload,
            Err(error) if !is_unreadable(&error) => return Err(error),
            Ok(Found::Bad) | Err(_) if records.is_empty() => {
                *cursor = at;
                return Ok(None);
            }
            Ok(Found::Bad) | Err(_) => break,
        };
        if at.index >= run.place.first {
            bytes += payload.len();
            if bytes > limit_bytes && !records.is_empty() {
                break;
            }
            records.push(Bytes::from(payload));
        }
        at = at.next(found.offset());
    }
    *cursor = at;
    let place = Place { count: records.len() as u64, ..run.place };
    Ok(Some(Batch { records, place }))
}
