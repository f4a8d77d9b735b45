//! What an opening finds: the segments of before, mended where a crash or the disk left them torn.

use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use super::error::LogError;
use super::folder::{Folder, segment_name};
use super::format::{Found, HEADER_BYTES, Header, Records, read_header};
use super::state::{Limits, State};

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
    /// Files that this opening made of bytes that do not match their checksums: appended records may be lost. The log
    /// looks at them no more, and deletes none.
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
                let (end, records) = recover_segment(folder, number, last == Some(number), &mut recovered)?;
                if records == 0 {
                    folder.delete(number)?;
                } else {
                    state.insert(number, end, records);
                }
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

/// Finds where a segment's good records end and how many they are, and takes away what stands behind.
fn recover_segment(
    folder: &Folder,
    number: u64,
    is_last: bool,
    recovered: &mut Recovered,
) -> Result<(u64, u64), LogError> {
    let failed = || LogError::io("read", folder.path(number));
    let length = length(folder, number)?;
    let mut file = folder.open_segment(number).map_err(failed())?;
    if is_last {
        // Its end may have been written and never synced. What is told as recovered must not go with a power cut.
        file.sync_all().map_err(LogError::io("sync", folder.path(number)))?;
    }
    file.seek(SeekFrom::Start(HEADER_BYTES)).map_err(failed())?;
    let mut found = Records::new(BufReader::new(file), HEADER_BYTES, length);
    let mut records = 0;
    loop {
        let end = found.offset();
        match found.read_next().map_err(failed())? {
            Found::Record(_) => records += 1,
            Found::End => return Ok((end, records)),
            Found::Bad | Found::Torn if is_last && !is_followed(&mut found).map_err(failed())? => {
                recovered.torn_bytes += length - end;
                folder.cut(number, end)?;
                return Ok((end, records));
            }
            Found::Bad | Found::Torn => {
                recovered.damaged.push(folder.set_aside(number, end)?);
                return Ok((end, records));
            }
        }
    }
}

/// Whether a good record stands somewhere behind a bad one. Then more than the end may be broken, and the bytes are
/// worth keeping; a power cut during a long append looks the same, as pages reach the disk in any order.
fn is_followed(found: &mut Records<impl std::io::Read>) -> std::io::Result<bool> {
    loop {
        match found.read_next()? {
            Found::Record(_) => return Ok(true),
            Found::Bad => {}
            Found::Torn | Found::End => return Ok(false),
        }
    }
}
