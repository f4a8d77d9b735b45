//! Appending: one write and one sync for as many records as the caller has.

use std::fs::File;
use std::io::{self, Write as _};

use super::error::AppendError;
use super::format::{Format, MAX_RECORD_BYTES, header_of, put_record, record_bytes};
use super::state::{Place, Target};
use super::{Inner, lock};

impl Inner {
    pub(super) fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Place, AppendError> {
        if records.is_empty() {
            return Ok(Place { segment: 0, first: 0, count: 0 });
        }
        let bytes = bytes_of(records)?;
        let mut active = lock(&self.active);
        let target = lock(&self.state).begin(bytes)?;
        let written = self.write(&mut active, target, &encode(target, bytes, records));
        match written {
            Ok(bytes) => Ok(lock(&self.state).commit(target, target.offset + bytes, records.len() as u64)),
            Err(source) => {
                *active = None;
                lock(&self.state).fail(target);
                drop(active);
                // All that the segment holds may have been released meanwhile.
                let _retried_at_the_next_release = self.delete_freed();
                Err(AppendError::Io { path: self.folder.path(target.segment), source })
            }
        }
    }

    /// Writes and syncs. A segment in which that failed is never written again: after a failed fsync the system takes
    /// its pages for clean though they are not on the disk, so a later fsync would prove nothing about them
    /// (<https://www.usenix.org/system/files/atc20-rebello.pdf>).
    fn write(&self, active: &mut Option<File>, target: Target, bytes: &[u8]) -> io::Result<u64> {
        if target.offset == 0 {
            // An existing file is refused and stays: this number was given to nobody.
            *active = Some(self.folder.create_segment(target.segment)?);
        }
        let file = active.as_mut().expect("the segment that the state calls active is open");
        let is_new = target.offset == 0;
        let written = file.write_all(bytes).and_then(|()| {
            if !is_new {
                return file.sync_data();
            }
            file.sync_all()?;
            self.folder.sync()
        });
        written.inspect_err(|_| self.take_back(target))?;
        Ok(bytes.len() as u64)
    }

    /// Tries to remove what a failed append may have left, so that it is not read after the next opening. Whether that
    /// works, the append has failed all the same.
    fn take_back(&self, target: Target) {
        let taken_back = match target.offset {
            0 => self.folder.delete(target.segment),
            offset => self.folder.cut(target.segment, offset),
        };
        if let Err(error) = taken_back {
            tracing::warn!(%error, "an append failed and may come back when its log is opened anew");
        }
    }
}

fn bytes_of<R: AsRef<[u8]>>(records: &[R]) -> Result<u64, AppendError> {
    let lengths = records.iter().map(|record| record.as_ref().len());
    let bytes = lengths.map(|bytes| {
        let is_short = bytes <= MAX_RECORD_BYTES;
        is_short.then_some(record_bytes(bytes)).ok_or(AppendError::TooLong { bytes })
    });
    bytes.sum()
}

fn encode<R: AsRef<[u8]>>(target: Target, bytes: u64, records: &[R]) -> Vec<u8> {
    // Some more than needed: a header may come first.
    let mut buffer = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default() + 64);
    if target.offset == 0 {
        buffer.extend_from_slice(&header_of(Format::Two, target.segment));
    }
    (target.first..).zip(records).for_each(|(number, record)| put_record(&mut buffer, number, record.as_ref()));
    buffer
}
