//! What an opening finds: the segments of before, mended where a crash or the disk left them torn.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use super::error::LogError;
use super::folder::{Folder, segment_name};
use super::format::{Found, HEADER_BYTES, Header, Records, read_header};
use super::state::{Limits, Place, State};

/// What was in a log when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records that wait to be read, among them those that were settled in a segment that was not.
    pub records: u64,
    /// Bytes that they and their segments take on disk.
    pub bytes: u64,
    /// Bytes that an append had left when it was cut off, and that were cut from the end of the last segment. No append
    /// that succeeded lost anything by it.
    pub torn_bytes: u64,
    /// Files that this opening made of bytes that do not match their checksums: appended records may be lost, and those
    /// that can be read behind them in their segment are not. The log looks at these files no more than to see whether
    /// the same bytes are kept already, and deletes none.
    pub damaged: Vec<PathBuf>,
}

/// Reads the folder and mends it. Refuses before it changes anything.
pub(super) fn recover(folder: &Folder, limits: Limits) -> Result<(State, Recovered), LogError> {
    let listing = folder.list()?;
    let mut headers = Vec::with_capacity(listing.segments.len());
    for number in listing.segments {
        headers.push((number, check_header(folder, number)?));
    }
    let mut state = State::new(limits, listing.next);
    let mut recovered = Recovered::default();
    let last = headers.last().map(|(number, _)| *number);
    for (number, header) in headers {
        match header {
            Header::Segment(_) => {
                recover_segment(folder, number, last == Some(number), &mut state, &mut recovered)?;
            }
            Header::Short => {
                recovered.torn_bytes += length(folder, number)?;
                folder.delete(number)?;
            }
            _ => recovered.damaged.push(folder.set_aside(number, 0)?),
        }
    }
    folder.sync().map_err(LogError::io("sync", folder.dir()))?;
    recovered.records = state.records();
    recovered.bytes = state.bytes();
    Ok((state, recovered))
}

fn length(folder: &Folder, number: u64) -> Result<u64, LogError> {
    let meta = folder.path(number).metadata();
    Ok(meta.map_err(LogError::io("look at", folder.path(number)))?.len())
}

fn check_header(folder: &Folder, number: u64) -> Result<Header, LogError> {
    let path = folder.path(number);
    let mut bytes = Vec::new();
    let file = folder.open_segment(number);
    let read = file.and_then(|file| file.take(HEADER_BYTES).read_to_end(&mut bytes));
    read.map_err(LogError::io("read", &path))?;
    match read_header(&bytes) {
        Header::Foreign => Err(LogError::Foreign { path }),
        Header::Version(version) => Err(LogError::Version { path, version }),
        Header::Segment(other) if other != number => {
            Err(LogError::Misnamed { path, number: other, name: segment_name(other) })
        }
        header => Ok(header),
    }
}

/// Enters what can be read of a segment, keeps aside what is damaged, and takes away what no good record follows.
fn recover_segment(
    folder: &Folder,
    number: u64,
    is_last: bool,
    state: &mut State,
    recovered: &mut Recovered,
) -> Result<(), LogError> {
    let length = length(folder, number)?;
    let surveyed = folder.open_segment(number).and_then(|file| {
        if is_last {
            // Its end may have been written and never synced. What is told as recovered must not go with a power cut.
            file.sync_all()?;
        }
        survey(file, number, length)
    });
    let Survey { end, records, damaged } = surveyed.map_err(LogError::io("read", folder.path(number)))?;
    for Damage { bytes, .. } in &damaged {
        let copy = folder.copy_aside(number, bytes)?;
        recovered.damaged.extend(copy.is_new.then_some(copy.path));
    }
    if end < length && is_last {
        recovered.torn_bytes += length - end;
        folder.cut(number, end)?;
    } else if end < length {
        recovered.damaged.push(folder.set_aside(number, end)?);
    }
    if records == 0 {
        return folder.delete(number);
    }
    state.insert(number, end, records);
    for Damage { place, .. } in damaged {
        state.settle(place);
    }
    Ok(())
}

/// What a segment holds.
struct Survey {
    /// Where its last good record ends.
    end: u64,
    /// How many records stand before that, the damaged ones among them.
    records: u64,
    /// Those that are damaged.
    damaged: Vec<Damage>,
}

/// Damaged records that follow each other, and are followed by a good one. If it is a length that is damaged, they may be
/// more than it seems; their bytes are what stands between two good records in any case.
struct Damage {
    place: Place,
    bytes: Range<u64>,
}

/// Reads a segment through. A power cut during a long append may leave bad records before good ones as well, since pages
/// reach the disk in any order.
fn survey(mut file: File, segment: u64, length: u64) -> io::Result<Survey> {
    file.seek(SeekFrom::Start(HEADER_BYTES))?;
    let mut found = Records::new(BufReader::new(file), HEADER_BYTES, length);
    let mut survey = Survey { end: HEADER_BYTES, records: 0, damaged: Vec::new() };
    let mut bad = 0;
    loop {
        let begin = found.offset();
        match found.read_next()? {
            Found::Record(_) => {
                let Survey { end, records, damaged } = &mut survey;
                if bad > 0 {
                    let place = Place { segment, first: *records, count: bad };
                    damaged.push(Damage { place, bytes: *end..begin });
                }
                *records += bad + 1;
                *end = found.offset();
                bad = 0;
            }
            Found::Bad => bad += 1,
            Found::Torn | Found::End => return Ok(survey),
        }
    }
}
