//! The note of what is released in segments that are still there, so that the next opening does not read it again.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `dmkd-rel` |
//! | 4 | version of this note: 1 |
//! | … | places: segment (8), number of the first record (8), how many (8) |
//! | 4 | CRC-32 of all before |
//!
//! A note may be old: what it says stays true, for what is released stays so, and no number that it names is given to
//! another segment. One that cannot be read is deleted, and records come twice.

use std::io::ErrorKind;

use super::error::LogError;
use super::folder::Folder;
use super::state::Place;

const MAGIC: &[u8; 12] = b"dmkd-rel\x01\0\0\0";

/// Writes the note anew.
pub(super) fn write(folder: &Folder, places: &[Place]) -> Result<(), LogError> {
    folder.replace(&folder.released(), &encode(places))
}

/// Reads the note. Empty if there is none, or none that can be read.
pub(super) fn read(folder: &Folder) -> Result<Vec<Place>, LogError> {
    let path = folder.released();
    match std::fs::read(&path) {
        Ok(bytes) => decode(&bytes).map_or_else(
            || {
                tracing::warn!(path = %path.display(), "the note of what was released is of no use: some comes twice");
                // It must not be there when its numbers are given again.
                std::fs::remove_file(&path).map_err(LogError::io("delete", &path))?;
                Ok(Vec::new())
            },
            Ok,
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(LogError::io("read", path)(error)),
    }
}

fn encode(places: &[Place]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for Place { segment, first, count } in places {
        [segment, first, count].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vec<Place>> {
    let (whole, checksum) = bytes.split_last_chunk::<4>()?;
    let places = whole.strip_prefix(MAGIC)?;
    if crc32fast::hash(whole) != u32::from_le_bytes(*checksum) || !places.len().is_multiple_of(24) {
        return None;
    }
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk()?));
    let place = |bytes: &[u8]| {
        Some(Place { segment: number(bytes)?, first: number(bytes.get(8..)?)?, count: number(bytes.get(16..)?)? })
    };
    places.chunks(24).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_it_was_given_and_nothing_when_a_byte_is_wrong() {
        let places = [Place { segment: 3, first: 0, count: 1 << 40 }, Place { segment: 4, first: 7, count: 2 }];
        let note = encode(&places);
        assert_eq!(decode(&note), Some(places.to_vec()));
        assert_eq!(decode(&encode(&[])), Some(vec![]));
        for at in 0..note.len() {
            let mut note = note.clone();
            note[at] ^= 1;
            assert_eq!(decode(&note), None, "{at}");
            assert_eq!(decode(&note[..at]), None, "{at}");
        }
    }

    /// A note as version 1 wrote it: of segment 7 the first two records.
    #[test]
    fn a_note_written_by_version_1_still_says_the_same() {
        let written = include_bytes!("../../../tests/data/log-v2/released");
        let places = [Place { segment: 7, first: 0, count: 2 }];
        assert_eq!((decode(written), encode(&places).as_slice()), (Some(places.to_vec()), written.as_slice()));
    }
}
