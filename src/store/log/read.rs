//! Reading: the unsettled records behind the cursor, oldest first.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Seek as _, SeekFrom};

use bytes::Bytes;

use super::error::LogError;
use super::format::{Found, HEADER_BYTES, Records};
use super::state::{Place, Run};
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
            let batch = file.and_then(|file| read_run(file, &mut cursor, run, limit_bytes));
            match batch.map_err(LogError::io("read", self.folder.path(segment)))? {
                Some(batch) => return Ok(Some(batch)),
                None => self.give_up_behind(*cursor)?,
            }
        }
    }

    /// Takes out of the log what stands at the cursor and behind it in its segment, since it cannot be read.
    fn give_up_behind(&self, cursor: Cursor) -> Result<(), LogError> {
        // Held so that nothing is being appended to what is cut.
        let _active = lock(&self.active);
        if !lock(&self.state).has_segment(cursor.segment) {
            return Ok(());
        }
        let kept = self.folder.set_aside(cursor.segment, cursor.offset)?;
        let records = lock(&self.state).cut(cursor.segment, cursor.index, cursor.offset);
        Err(LogError::Damaged { records, kept })
    }
}

/// Reads the records of a run, which begins at the cursor or behind it, and moves the cursor behind those that it gives.
/// `None` if the first of them cannot be read; then the cursor is at what stands in the way.
fn read_run(mut file: File, cursor: &mut Cursor, run: Run, limit_bytes: usize) -> io::Result<Option<Batch>> {
    file.seek(SeekFrom::Start(cursor.offset))?;
    let mut found = Records::new(BufReader::new(file), cursor.offset, run.end);
    let (mut at, mut records, mut bytes) = (*cursor, Vec::new(), 0);
    while (records.len() as u64) < run.place.count {
        let Found::Record(payload) = found.read_next()? else { break };
        if at.index >= run.place.first {
            bytes += payload.len();
            if bytes > limit_bytes && !records.is_empty() {
                break;
            }
            records.push(Bytes::from(payload));
        }
        at = Cursor { index: at.index + 1, offset: found.offset(), ..at };
    }
    *cursor = at;
    let place = Place { count: records.len() as u64, ..run.place };
    Ok((!records.is_empty()).then_some(Batch { records, place }))
}
