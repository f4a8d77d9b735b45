//! The bytes of a segment, format 2, and those of format 1, which are still read. Pure.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `dmkd-log` |
//! | 4 | version of this format: 2 |
//! | 8 | number of the segment, as in the file's name |
//! | 4 | CRC-32 of the 20 bytes before |
//! | … | records: length of the payload (4), CRC-32 of length, number and payload (4), number (8), payload |
//!
//! Integers are unsigned and little-endian; CRC-32 is that of IEEE 802.3. The length is under the checksum, so that a
//! page of zeros, which a crash may leave, is no record. A record's number counts from 0 in its segment: behind bytes
//! that are damaged it tells how many records were lost. Format 1 has no such number. A change of anything here is a new
//! version, and the old ones stay readable: `tests/data/log-v1` and `-v2` hold a segment as each format wrote it.

use std::io::{self, ErrorKind, Read};

use crc32fast::Hasher;

/// The version that this server writes.
pub(super) const VERSION: u32 = 2;
/// Bytes of a segment before its first record.
pub(super) const HEADER_BYTES: u64 = 24;
/// Most bytes in a record: a wrong length on disk makes nobody allocate more.
pub(super) const MAX_RECORD_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"dmkd-log";
/// Bytes of a record before its payload.
pub(super) const HEAD_BYTES: usize = 16;

/// The formats that this server reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    One,
    Two,
}

impl Format {
    const ALL: [Self; 2] = [Self::One, Self::Two];

    fn version(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => VERSION,
        }
    }

    /// Bytes of a record before its payload.
    pub(super) fn head_bytes(self) -> usize {
        match self {
            Self::One => 8,
            Self::Two => HEAD_BYTES,
        }
    }
}

/// What the first bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// The segment that the file's name says.
    Segment(Format),
    /// The segment of another number.
    Misnamed(u64),
    /// A segment of another format.
    Version(u32),
    /// Fewer bytes than a header: its segment's first append was cut off, and no record stands behind it.
    Short,
    /// All zeros, or one byte other than it should be, or a checksum that does not match. The records may be whole.
    Damaged(Format),
    /// Something else.
    Foreign,
}

/// Reads the header of what should be segment `number` from the first bytes of its file; more are not looked at.
pub(super) fn read_header(bytes: &[u8], number: u64) -> Header {
    let Some((header, _)) = bytes.split_first_chunk::<{ HEADER_BYTES as usize }>() else {
        let is_begun = |format| bytes.iter().zip(header_of(format, number)).all(|(byte, due)| [0, due].contains(byte));
        return if Format::ALL.into_iter().any(is_begun) { Header::Short } else { Header::Foreign };
    };
    for format in Format::ALL {
        match header.iter().zip(header_of(format, number)).filter(|(byte, due)| **byte != *due).count() {
            0 => return Header::Segment(format),
            1 => return Header::Damaged(format),
            _ => {}
        }
    }
    if header.iter().all(|byte| *byte == 0) {
        return Header::Damaged(Format::Two);
    }
    let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, n0, n1, n2, n3, n4, n5, n6, n7, ..] = *header;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    let by_itself = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
    if [m0, m1, m2, m3, m4, m5, m6, m7] != *MAGIC {
        return Header::Foreign;
    }
    match Format::ALL.into_iter().find(|format| format.version() == version) {
        None => Header::Version(version),
        Some(format) if header_of(format, by_itself) == *header => Header::Misnamed(by_itself),
        Some(format) => Header::Damaged(format),
    }
}

/// The header of segment `number`.
pub(super) fn header_of(format: Format, number: u64) -> [u8; HEADER_BYTES as usize] {
    let (version, number) = (format.version().to_le_bytes(), number.to_le_bytes());
    let checksum = sum(&[MAGIC, &version, &number]).to_le_bytes();
    let mut header = [0; HEADER_BYTES as usize];
    let parts = MAGIC.iter().chain(&version).chain(&number).chain(&checksum);
    header.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
    header
}

/// Bytes that a record takes on disk.
pub(super) const fn record_bytes(payload: usize) -> u64 {
    (HEAD_BYTES + payload) as u64
}

/// Writes record `number` of a segment, of at most [`MAX_RECORD_BYTES`].
pub(super) fn put_record(bytes: &mut Vec<u8>, number: u64, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a record has at most MAX_RECORD_BYTES").to_le_bytes();
    let number = number.to_le_bytes();
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&sum(&[&length, &number, payload]).to_le_bytes());
    bytes.extend_from_slice(&number);
    bytes.extend_from_slice(payload);
}

fn sum(parts: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// The length of the payload, by the head before it; `None` if no record is that long.
pub(super) fn payload_bytes(head: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
    (length <= MAX_RECORD_BYTES).then_some(length)
}

/// A record's number, by the head before it. Format 1 has none.
pub(super) fn number_in(head: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*head.get(8..)?.first_chunk()?))
}

/// Whether a payload is what its head says; `length` stands in for the one in the head.
pub(super) fn is_whole(head: &[u8], length: [u8; 4], payload: &[u8]) -> bool {
    let Some((_, [c0, c1, c2, c3, number @ ..])) = head.split_first_chunk::<4>() else { return false };
    sum(&[&length, number, payload]) == u32::from_le_bytes([*c0, *c1, *c2, *c3])
}

/// What stands next in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The whole record that is due.
    Record(Vec<u8>),
    /// Something else; where records go on must be searched for.
    Bad,
}

/// Reads the records of a segment of format 2 one by one.
pub(super) struct Records<R> {
    source: R,
    number: u64,
    offset: u64,
    end: u64,
}

impl<R: Read> Records<R> {
    /// Reads from `source`, which stands at `offset` of the segment, where record `number` should be, up to `end`.
    pub(super) fn new(source: R, number: u64, offset: u64, end: u64) -> Self {
        Self { source, number, offset, end }
    }

    /// Where the next record begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads one step on; nothing is to be read behind what is bad.
    pub(super) fn read_next(&mut self) -> io::Result<Found> {
        match self.read_record() {
            // Shorter than it was said to be: somebody cut it.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Found::Bad),
            outcome => outcome,
        }
    }

    fn read_record(&mut self) -> io::Result<Found> {
        let left = self.end.saturating_sub(self.offset);
        if left < HEAD_BYTES as u64 {
            return Ok(Found::Bad);
        }
        let mut head = [0; HEAD_BYTES];
        self.source.read_exact(&mut head)?;
        let Some(length) = payload_bytes(&head).filter(|length| record_bytes(*length) <= left) else {
            return Ok(Found::Bad);
        };
        let mut payload = vec![0; length];
        self.source.read_exact(&mut payload)?;
        let [l0, l1, l2, l3, ..] = head;
        if number_in(&head) != Some(self.number) || !is_whole(&head, [l0, l1, l2, l3], &payload) {
            return Ok(Found::Bad);
        }
        self.offset += record_bytes(length);
        self.number += 1;
        Ok(Found::Record(payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        (0..).zip(payloads).for_each(|(number, payload)| put_record(&mut bytes, number, payload));
        bytes
    }

    fn read_all(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Records::new(bytes, 0, 0, bytes.len() as u64);
        let next = || match records.read_next().unwrap() {
            Found::Record(payload) => Some(payload),
            Found::Bad => None,
        };
        std::iter::from_fn(next).collect()
    }

    fn payloads() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6)
    }

    proptest! {
        #[test]
        fn records_survive_their_bytes(payloads in payloads()) {
            prop_assert_eq!(read_all(&segment(&payloads)), payloads);
        }

        #[test]
        fn a_changed_byte_is_noticed_in_its_own_record(payloads in payloads(), at: prop::sample::Index, by in 1..=255u8) {
            let mut bytes = segment(&payloads);
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            let ends = payloads.iter().scan(0, |end, payload| { *end += HEAD_BYTES + payload.len(); Some(*end) });
            let whole = ends.take_while(|end| *end <= at).count();
            prop_assert_eq!(&read_all(&bytes), &payloads[..whole]);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut records = Records::new(bytes.as_slice(), 0, 0, bytes.len() as u64 + 9);
            prop_assert_eq!(records.read_next().unwrap(), Found::Bad);
        }
    }

    #[test]
    fn zeros_are_no_record_nor_is_one_of_another_number() {
        assert_eq!(read_all(&[0; 64]), Vec::<Vec<u8>>::new());
        let mut bytes = Vec::new();
        put_record(&mut bytes, 1, b"one");
        assert_eq!(read_all(&bytes), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn an_impossible_length_allocates_nothing() {
        let mut bytes = u32::MAX.to_le_bytes().to_vec();
        bytes.resize(1000, 0);
        assert_eq!(Records::new(bytes.as_slice(), 0, 0, u64::MAX).read_next().unwrap(), Found::Bad);
    }

    #[test]
    fn a_length_above_the_bound_is_refused_though_all_its_bytes_are_there() {
        let (length, payload) = ((MAX_RECORD_BYTES as u32 + 1).to_le_bytes(), vec![0; MAX_RECORD_BYTES + 1]);
        let checksum = sum(&[&length, &[0; 8], &payload]).to_le_bytes();
        let bytes = [&length, &checksum, [0; 8].as_slice(), payload.as_slice()].concat();
        assert_eq!(read_all(&bytes), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_header_says_what_its_file_is() {
        for format in Format::ALL {
            let header = header_of(format, 7);
            assert_eq!(read_header(&header, 7), Header::Segment(format));
            for short in 0..header.len() {
                assert_eq!(read_header(&header[..short], 7), Header::Short, "{short}");
            }
            for (at, bit) in (0..header.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut header = header;
                header[at] ^= 1 << bit;
                assert_eq!(read_header(&header, 7), Header::Damaged(format), "{at} {bit}");
            }
        }
        assert_eq!(read_header(&header_of(Format::Two, 8), 7), Header::Misnamed(8));
        assert_eq!(read_header(b"dmkd-log\x03\0\0\0some other header", 7), Header::Version(3));
        assert_eq!(read_header(b"dmkd-log\x02\0\0\0some other header", 7), Header::Damaged(Format::Two));
        assert_eq!(read_header(&[0; 24], 7), Header::Damaged(Format::Two));
        assert_eq!(read_header(b"{\"a\": 1}", 7), Header::Foreign);
        assert_eq!(read_header(b"somebody's own file, of some length", 7), Header::Foreign);
    }
}
