//! Reading: the unsettled records behind the cursor, oldest first.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek as _, SeekFrom};

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
                Outcome::Batch(batch) => return Ok(Some(batch)),
                // All of them are settled: nothing is lost.
                Outcome::Damaged { behind } if behind.index <= run.place.first => *cursor = behind,
                Outcome::Damaged { behind } => self.lose(&mut cursor, behind)?,
                Outcome::Lost => self.give_up_behind(*cursor)?,
            }
        }
    }

    /// Takes out of the log what stands between the cursor and `behind`, and moves the cursor there. The bytes stay in
    /// their segment, so that all that was given a place keeps it.
    fn lose(&self, cursor: &mut Cursor, behind: Cursor) -> Result<(), LogError> {
        let Cursor { segment, index, offset } = *cursor;
        if !lock(&self.state).has_segment(segment) {
            return Ok(());
        }
        let kept = self.folder.copy_aside(segment, &(offset..behind.offset))?.path;
        *cursor = behind;
        match lock(&self.state).settle(Place { segment, first: index, count: behind.index - index }) {
            // They were settled meanwhile.
            0 => Ok(()),
            records => Err(LogError::Damaged { records, kept }),
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

/// What was found where a run is to be read.
enum Outcome {
    /// Records, and the cursor is behind them.
    Batch(Batch),
    /// The record at the cursor is damaged; `behind` is the next that is not, or the segment's end.
    Damaged { behind: Cursor },
    /// No way leads on from the cursor.
    Lost,
}

/// Reads the records of a run, which begins at the cursor or behind it, and moves the cursor behind those that it gives,
/// or to what stands in the way.
fn read_run(mut file: File, cursor: &mut Cursor, run: Run, limit_bytes: usize) -> io::Result<Outcome> {
    file.seek(SeekFrom::Start(cursor.offset))?;
    let mut found = Records::new(BufReader::new(file), cursor.offset, run.end);
    let (mut at, mut records, mut bytes) = (*cursor, Vec::new(), 0);
    while (records.len() as u64) < run.place.count {
        let payload = match found.read_next()? {
            Found::Record(payload) => payload,
            _ if !records.is_empty() => break,
            Found::Bad => {
                *cursor = at;
                let behind = find_behind(&mut found, at, run)?;
                return Ok(behind.map_or(Outcome::Lost, |behind| Outcome::Damaged { behind }));
            }
            Found::Torn | Found::End => {
                *cursor = at;
                return Ok(Outcome::Lost);
            }
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
    Ok(Outcome::Batch(Batch { records, place }))
}

/// Finds where good records go on behind a bad one that stood at `bad` and was just read. `None` if its length may be what
/// is damaged, as not just so many records follow as were appended: with one that leads to the head of another record,
/// a record would be settled in the name of its neighbour.
fn find_behind(found: &mut Records<impl Read>, bad: Cursor, run: Run) -> io::Result<Option<Cursor>> {
    let mut at = bad.next(found.offset());
    let mut behind = None;
    loop {
        match found.read_next()? {
            Found::Record(_) => {
                behind = behind.or(Some(at));
                at = at.next(found.offset());
            }
            Found::Bad => at = at.next(found.offset()),
            Found::End => return Ok((at.index == run.records).then(|| behind.unwrap_or(at))),
            Found::Torn => return Ok(None),
        }
    }
}
