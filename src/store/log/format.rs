//! The bytes of a segment, format 1. Pure.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `dmkd-log` |
//! | 4 | version of this format: 1 |
//! | 8 | number of the segment, as in the file's name |
//! | 4 | CRC-32 of the 20 bytes before |
//! | … | records: length of the payload (4), CRC-32 of length and payload (4), payload |
//!
//! Numbers are unsigned and little-endian; CRC-32 is that of IEEE 802.3. The length is under the checksum, so that a
//! page of zeros, which a crash may leave, is no record. A change of anything here is a new version, and the old one
//! stays readable: `tests/data/log-v1` holds a segment as format 1 wrote it.

use std::io::{self, ErrorKind, Read};

use crc32fast::Hasher;

/// The version that this server reads and writes.
pub(super) const VERSION: u32 = 1;
/// Bytes of a segment before its first record.
pub(super) const HEADER_BYTES: u64 = 24;
/// Most bytes in a record: a wrong length on disk makes nobody allocate more.
pub(super) const MAX_RECORD_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"dmkd-log";
/// Bytes of a record before its payload.
const HEAD_BYTES: u64 = 8;

/// What the first bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// A segment of this format, and its number.
    Segment(u64),
    /// A segment of another format.
    Version(u32),
    /// Fewer bytes than a header: its segment's first append was cut off, and no record stands behind it.
    Short,
    /// All zeros, or a checksum that does not match.
    Damaged,
    /// Something else.
    Foreign,
}

/// Reads a header from the first bytes of a file; more than a header's are not looked at.
pub(super) fn read_header(bytes: &[u8]) -> Header {
    let Some((header, _)) = bytes.split_first_chunk::<{ HEADER_BYTES as usize }>() else {
        let expected = MAGIC.iter().copied().chain(VERSION.to_le_bytes());
        let is_ours = bytes.iter().zip(expected).all(|(byte, expected)| *byte == expected || *byte == 0);
        return if is_ours { Header::Short } else { Header::Foreign };
    };
    if header.iter().all(|byte| *byte == 0) {
        return Header::Damaged;
    }
    let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, n0, n1, n2, n3, n4, n5, n6, n7, s0, s1, s2, s3] = *header;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
    if [m0, m1, m2, m3, m4, m5, m6, m7] != *MAGIC {
        Header::Foreign
    } else if version != VERSION {
        Header::Version(version)
    } else if u32::from_le_bytes([s0, s1, s2, s3]) != header_sum(number) {
        Header::Damaged
    } else {
        Header::Segment(number)
    }
}

/// Writes the header of segment `number`.
pub(super) fn put_header(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&header_sum(number).to_le_bytes());
}

fn header_sum(number: u64) -> u32 {
    sum(&[MAGIC, &VERSION.to_le_bytes(), &number.to_le_bytes()])
}

/// Bytes that a record takes on disk.
pub(super) const fn record_bytes(payload: usize) -> u64 {
    HEAD_BYTES + payload as u64
}

/// Writes a record of at most [`MAX_RECORD_BYTES`].
pub(super) fn put_record(bytes: &mut Vec<u8>, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a record has at most MAX_RECORD_BYTES").to_le_bytes();
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&sum(&[&length, payload]).to_le_bytes());
    bytes.extend_from_slice(payload);
}

fn sum(parts: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// What stands next in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A whole record.
    Record(Vec<u8>),
    /// Bytes that contradict their checksum. What follows them can still be read.
    Bad,
    /// Bytes from which no way leads on: they end too early or have an impossible length.
    Torn,
    /// Nothing more.
    End,
}

/// Reads the records of a segment one by one.
pub(super) struct Records<R> {
    source: R,
    offset: u64,
    end: u64,
}

impl<R: Read> Records<R> {
    /// Reads from `source`, which stands at `offset` of the segment, up to `end` of it.
    pub(super) fn new(source: R, offset: u64, end: u64) -> Self {
        Self { source, offset, end }
    }

    /// Where the next record begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads one step on.
    pub(super) fn read_next(&mut self) -> io::Result<Found> {
        match self.read_record() {
            // Shorter than it was said to be: somebody cut it.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Found::Torn),
            outcome => outcome,
        }
    }

    fn read_record(&mut self) -> io::Result<Found> {
        let left = self.end.saturating_sub(self.offset);
        if left == 0 {
            return Ok(Found::End);
        }
        if left < HEAD_BYTES {
            return Ok(Found::Torn);
        }
        let (mut length, mut checksum) = ([0; 4], [0; 4]);
        self.source.read_exact(&mut length)?;
        self.source.read_exact(&mut checksum)?;
        let payload_bytes = u32::from_le_bytes(length) as usize;
        if payload_bytes > MAX_RECORD_BYTES || record_bytes(payload_bytes) > left {
            // Told again if asked again.
            self.end = self.offset + HEAD_BYTES - 1;
            return Ok(Found::Torn);
        }
        let mut payload = vec![0; payload_bytes];
        self.source.read_exact(&mut payload)?;
        self.offset += record_bytes(payload_bytes);
        let is_whole = sum(&[&length, &payload]) == u32::from_le_bytes(checksum);
        Ok(if is_whole { Found::Record(payload) } else { Found::Bad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        payloads.iter().for_each(|payload| put_record(&mut bytes, payload));
        bytes
    }

    fn read_all(bytes: &[u8]) -> (Vec<Vec<u8>>, Found) {
        let mut records = Records::new(bytes, 0, bytes.len() as u64);
        let mut payloads = Vec::new();
        loop {
            match records.read_next().unwrap() {
                Found::Record(payload) => payloads.push(payload),
                found => return (payloads, found),
            }
        }
    }

    fn payloads() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6)
    }

    proptest! {
        #[test]
        fn records_survive_their_bytes(payloads in payloads()) {
            prop_assert_eq!(read_all(&segment(&payloads)), (payloads, Found::End));
        }

        #[test]
        fn a_changed_byte_is_noticed_in_its_own_record(payloads in payloads(), at: prop::sample::Index, by in 1..=255u8) {
            let mut bytes = segment(&payloads);
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            let ends = payloads.iter().scan(0, |end, payload| { *end += 8 + payload.len(); Some(*end) });
            let whole = ends.take_while(|end| *end <= at).count();
            let (read, found) = read_all(&bytes);
            prop_assert_eq!(&read, &payloads[..whole]);
            prop_assert!(matches!(found, Found::Bad | Found::Torn), "{found:?}");
        }

        #[test]
        fn no_bytes_make_the_reader_panic_or_go_on_for_ever(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut records = Records::new(bytes.as_slice(), 0, bytes.len() as u64 + 9);
            let steps = (0..100).map(|_| records.read_next().unwrap());
            prop_assert!(steps.take_while(|found| !matches!(found, Found::Torn | Found::End)).count() < 100);
        }
    }

    #[test]
    fn zeros_are_no_record() {
        assert_eq!(read_all(&[0; 64]), (vec![], Found::Bad));
    }

    #[test]
    fn what_follows_a_bad_record_can_be_read() {
        let mut bytes = segment(&[b"one".to_vec(), b"two".to_vec()]);
        bytes[8] = b'O';
        let mut records = Records::new(bytes.as_slice(), 0, bytes.len() as u64);
        assert_eq!(records.read_next().unwrap(), Found::Bad);
        assert_eq!(records.read_next().unwrap(), Found::Record(b"two".to_vec()));
    }

    #[test]
    fn an_impossible_length_allocates_nothing() {
        let mut bytes = u32::MAX.to_le_bytes().to_vec();
        bytes.resize(1000, 0);
        let mut records = Records::new(bytes.as_slice(), 0, u64::MAX);
        assert_eq!(records.read_next().unwrap(), Found::Torn);
        assert_eq!(records.read_next().unwrap(), Found::Torn);
    }

    #[test]
    fn a_length_above_the_bound_is_refused_though_all_its_bytes_are_there() {
        let (length, payload) = ((MAX_RECORD_BYTES as u32 + 1).to_le_bytes(), vec![0; MAX_RECORD_BYTES + 1]);
        let bytes = [&length, &sum(&[&length, &payload]).to_le_bytes(), payload.as_slice()].concat();
        assert_eq!(read_all(&bytes), (vec![], Found::Torn));
    }

    #[test]
    fn a_header_says_what_its_file_is() {
        let mut header = Vec::new();
        put_header(&mut header, 7);
        assert_eq!(header.len() as u64, HEADER_BYTES);
        assert_eq!(read_header(&header), Header::Segment(7));
        for short in 0..header.len() {
            assert_eq!(read_header(&header[..short]), Header::Short, "{short}");
        }
        let changed = |at: usize, to: u8| {
            let mut header = header.clone();
            header[at] = to;
            read_header(&header)
        };
        assert_eq!(changed(0, b'D'), Header::Foreign);
        assert_eq!(changed(8, 2), Header::Version(2));
        assert_eq!(changed(12, 8), Header::Damaged);
        assert_eq!(changed(23, !header[23]), Header::Damaged);
        assert_eq!(read_header(&[0; 24]), Header::Damaged);
        assert_eq!(read_header(b"{\"a\": 1}"), Header::Foreign);
    }
}
