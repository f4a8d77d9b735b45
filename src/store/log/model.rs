//! The log against a plain list, under random operations, reopenings and crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::format::{HEADER_BYTES, put_record, record_bytes};
use super::tests::names;
use super::*;

#[derive(Clone, Debug)]
enum Operation {
    Append(Vec<usize>),
    Read { limit_records: usize, limit_bytes: usize },
    Release(Vec<prop::sample::Index>),
    Rewind,
    WriteDown,
    Reopen,
    Crash(Crash),
}

/// What a crash leaves at the end of the last segment.
#[derive(Clone, Debug)]
enum Crash {
    /// The first bytes of a record, whose payload is this long.
    Part { payload: usize, cut: prop::sample::Index },
    /// Bytes that are no record.
    Noise(Vec<u8>),
    /// Pages that never reached the disk.
    Zeros(usize),
    /// So much less than was appended, as no disk should.
    Short(prop::sample::Index),
    /// One other bit than was appended, as no disk should.
    Flip(prop::sample::Index),
}

fn operation() -> impl Strategy<Value = Operation> {
    let index = any::<prop::sample::Index>();
    let crash = prop_oneof![
        (0..40usize, index).prop_map(|(payload, cut)| Crash::Part { payload, cut }),
        prop::collection::vec(any::<u8>(), 1..40).prop_map(Crash::Noise),
        (1..60usize).prop_map(Crash::Zeros),
        any::<prop::sample::Index>().prop_map(Crash::Short),
        any::<prop::sample::Index>().prop_map(Crash::Flip),
    ];
    prop_oneof![
        6 => prop::collection::vec(0..40usize, 0..6).prop_map(Operation::Append),
        4 => (0..8usize, 0..120usize)
            .prop_map(|(limit_records, limit_bytes)| Operation::Read { limit_records, limit_bytes }),
        4 => prop::collection::vec(any::<prop::sample::Index>(), 1..8).prop_map(Operation::Release),
        1 => Just(Operation::Rewind),
        1 => Just(Operation::WriteDown),
        1 => Just(Operation::Reopen),
        2 => crash.prop_map(Operation::Crash),
    ]
}

struct Entry {
    place: Place,
    payload: Vec<u8>,
    is_settled: bool,
    /// It is written down that it is settled.
    is_noted: bool,
    /// Its bytes are damaged and still there.
    is_damaged: bool,
}

/// What the log must look like.
#[derive(Default)]
struct Model {
    /// All of every segment that is not deleted, in order.
    entries: Vec<Entry>,
    /// Where the next record is read.
    cursor: (u64, u64),
    /// The segment that takes the next append.
    active: Option<u64>,
    appended: u8,
}

impl Model {
    fn bytes_by_segment(&self) -> BTreeMap<u64, u64> {
        self.entries.iter().fold(BTreeMap::new(), |mut bytes, entry| {
            *bytes.entry(entry.place.segment).or_insert(HEADER_BYTES) += record_bytes(entry.payload.len());
            bytes
        })
    }

    fn records_in(&self, segment: u64) -> u64 {
        self.entries.iter().filter(|entry| entry.place.segment == segment).count() as u64
    }

    fn bytes(&self) -> u64 {
        self.bytes_by_segment().values().sum()
    }

    fn open(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !entry.is_settled)
    }

    /// Forgets the segments that hold nothing unsettled.
    fn drop_settled(&mut self) {
        let kept: BTreeSet<u64> = self.open().map(|entry| entry.place.segment).collect();
        self.entries.retain(|entry| kept.contains(&entry.place.segment));
        self.active.take_if(|active| !kept.contains(active));
    }

    fn read(&mut self, limit_records: usize, limit_bytes: usize) -> Option<(Place, Vec<Vec<u8>>)> {
        let place = |entry: &Entry| (entry.place.segment, entry.place.first);
        let at = self.entries.iter().position(|entry| !entry.is_settled && place(entry) >= self.cursor)?;
        let first = self.entries[at].place;
        let mut payloads: Vec<Vec<u8>> = Vec::new();
        for entry in &self.entries[at..] {
            let bytes: usize = payloads.iter().map(Vec::len).sum();
            let has_room = payloads.len() < limit_records && bytes + entry.payload.len() <= limit_bytes;
            if entry.is_settled || entry.place.segment != first.segment || !(has_room || payloads.is_empty()) {
                break;
            }
            payloads.push(entry.payload.clone());
            self.cursor = (entry.place.segment, entry.place.first + 1);
        }
        Some((Place { count: payloads.len() as u64, ..first }, payloads))
    }

    fn reopen(&mut self) {
        self.drop_settled();
        self.entries.iter_mut().for_each(|entry| entry.is_settled = entry.is_damaged || entry.is_noted);
        self.drop_settled();
        self.cursor = (0, 0);
        self.active = None;
    }

    /// Loses what stands in the segment at `offset` or reaches beyond it, or of that the first record alone.
    fn lose(&mut self, segment: u64, offset: u64, is_one: bool) {
        let mut end = HEADER_BYTES;
        for entry in self.entries.iter_mut().filter(|entry| entry.place.segment == segment) {
            let begin = end;
            end += record_bytes(entry.payload.len());
            entry.is_damaged |= end > offset && !(is_one && begin > offset);
            entry.is_settled |= entry.is_damaged;
        }
        // What no good record follows is cut off.
        while self.entries.pop_if(|entry| entry.is_damaged && entry.place.segment == segment).is_some() {}
    }

    /// Where the record begins in which this byte of the segment stands, and whether it is damaged.
    fn record_at(&self, segment: u64, byte: u64) -> (u64, bool) {
        let mut end = HEADER_BYTES;
        let mut records = self.entries.iter().filter(|entry| entry.place.segment == segment).map(|entry| {
            let begin = end;
            end += record_bytes(entry.payload.len());
            (begin, end, entry.is_damaged)
        });
        let (begin, _, is_damaged) = records.find(|(_, end, _)| byte < *end).unwrap();
        (begin, is_damaged)
    }
}

/// Leaves in the last segment what a crash does; gives the offset at which the model loses, and whether one record alone.
fn crash(model: &Model, segment: u64, path: &Path, crash: &Crash) -> (u64, bool) {
    let mut bytes = fs::read(path).unwrap();
    let whole = bytes.len() as u64;
    let body = bytes.len() - HEADER_BYTES as usize;
    let from = match crash {
        Crash::Part { payload, cut } => {
            let mut record = Vec::new();
            put_record(&mut record, model.records_in(segment), &vec![7; *payload]);
            bytes.extend_from_slice(&record[..cut.index(record.len())]);
            whole
        }
        Crash::Noise(noise) => {
            bytes.extend_from_slice(noise);
            whole
        }
        Crash::Zeros(count) => {
            bytes.resize(bytes.len() + count, 0);
            whole
        }
        Crash::Short(cut) => {
            bytes.truncate(HEADER_BYTES as usize + cut.index(body));
            bytes.len() as u64
        }
        Crash::Flip(at) => {
            let at = HEADER_BYTES as usize + at.index(body);
            let (begin, is_damaged) = model.record_at(segment, at as u64);
            if is_damaged {
                // The same bit again would mend it.
                return (whole, false);
            }
            bytes[at] ^= 1;
            fs::write(path, bytes).unwrap();
            return (begin, true);
        }
    };
    fs::write(path, bytes).unwrap();
    (from, false)
}

const MAX_BYTES: u64 = 700;
const SEGMENT_BYTES: u64 = 120;

fn try_open(dir: &Path) -> (Log, Recovered) {
    let config = LogConfig { dir: dir.join("log"), max_bytes: MAX_BYTES, segment_bytes: SEGMENT_BYTES };
    Log::open(config).unwrap()
}

struct Run {
    dir: tempfile::TempDir,
    log: Option<Log>,
    model: Model,
    damaged: BTreeSet<PathBuf>,
}

impl Run {
    fn step(&mut self, operation: &Operation) {
        let log = self.log.clone().unwrap();
        match operation {
            Operation::Append(lengths) => self.append(&log, lengths),
            Operation::Read { limit_records, limit_bytes } => {
                let read = log.read(*limit_records, *limit_bytes).unwrap();
                let read = read.map(|batch| (batch.place, batch.records.iter().map(|r| r.to_vec()).collect()));
                assert_eq!(read, self.model.read((*limit_records).max(1), *limit_bytes));
            }
            Operation::Release(indices) => {
                // Any of them, settled or not, read or not.
                let count = self.model.entries.len();
                let chosen = indices.iter().filter(|_| count > 0).map(|index| index.index(count));
                let chosen: Vec<usize> = chosen.collect();
                log.release(chosen.iter().map(|at| self.model.entries[*at].place)).unwrap();
                chosen.iter().for_each(|at| self.model.entries[*at].is_settled = true);
                self.model.drop_settled();
            }
            Operation::Rewind => {
                log.rewind();
                self.model.cursor = (0, 0);
            }
            Operation::WriteDown => {
                log.write_down().unwrap();
                self.model.entries.iter_mut().for_each(|entry| entry.is_noted = entry.is_settled);
            }
            Operation::Reopen => self.reopen(log, None),
            Operation::Crash(how) => self.reopen(log, Some(how)),
        }
    }

    fn append(&mut self, log: &Log, lengths: &[usize]) {
        let model = &mut self.model;
        let payload = |length: &usize| {
            model.appended = model.appended.wrapping_add(1);
            vec![model.appended; *length]
        };
        let payloads: Vec<Vec<u8>> = lengths.iter().map(payload).collect();
        let by_segment = model.bytes_by_segment();
        let active = model.active.filter(|active| by_segment[active] < SEGMENT_BYTES);
        let header = if active.is_none() { HEADER_BYTES } else { 0 };
        let bytes = header + lengths.iter().map(|length| record_bytes(*length)).sum::<u64>();
        match log.append(&payloads) {
            _ if lengths.is_empty() => {}
            Ok(place) => {
                assert!(model.bytes() + bytes <= MAX_BYTES, "it should be full");
                assert!(active.map_or(place.first == 0, |active| active == place.segment));
                assert_eq!(place.len(), lengths.len() as u64);
                let entries = place.each().zip(payloads);
                model.entries.extend(entries.map(|(place, payload)| Entry {
                    place,
                    payload,
                    is_settled: false,
                    is_noted: false,
                    is_damaged: false,
                }));
                model.active = Some(place.segment);
            }
            Err(AppendError::Full { .. }) => assert!(model.bytes() + bytes > MAX_BYTES, "it should not be full"),
            Err(error) => panic!("{error}"),
        }
    }

    fn reopen(&mut self, log: Log, how: Option<&Crash>) {
        drop((self.log.take(), log));
        self.model.reopen();
        // Damage that was told is told again when what stands behind it goes as well.
        let had_damage = self.model.entries.iter().any(|entry| entry.is_damaged);
        if let (Some(how), Some(last)) = (how, self.model.entries.last()) {
            let segment = last.place.segment;
            let path: PathBuf = self.dir.path().join("log").join(folder::segment_name(segment));
            let (offset, is_one) = crash(&self.model, segment, &path, how);
            self.model.lose(segment, offset, is_one);
            self.model.drop_settled();
        }
        let (log, recovered) = try_open(self.dir.path());
        let told = recovered.damaged.len();
        self.damaged.extend(recovered.damaged.iter().cloned());
        // What an append leaves that was cut off is no damage.
        assert!(told == 0 || had_damage || matches!(how, Some(Crash::Flip(_) | Crash::Noise(_))), "{recovered:?}");
        assert_eq!(told > 0, recovered.lost > 0, "{recovered:?}");
        assert_eq!((recovered.records, recovered.bytes), (log.len(), log.bytes()));
        self.log = Some(log);
    }

    fn check(&self) {
        let log = self.log.as_ref().unwrap();
        assert_eq!((log.len(), log.bytes()), (self.model.open().count() as u64, self.model.bytes()));
        let segments = names(self.dir.path(), ".log");
        assert_eq!(segments.len(), self.model.bytes_by_segment().len());
        let on_disk = segments.iter().map(|name| self.dir.path().join("log").join(name).metadata().unwrap().len());
        assert_eq!(on_disk.sum::<u64>(), log.bytes());
        assert_eq!(names(self.dir.path(), ".damaged").len(), self.damaged.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_log_is_a_list_that_keeps_what_was_acknowledged(operations in prop::collection::vec(operation(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let log = Some(try_open(dir.path()).0);
        let mut run = Run { dir, log, model: Model::default(), damaged: BTreeSet::new() };
        for operation in &operations {
            run.step(operation);
            run.check();
        }
        let log = run.log.clone().unwrap();
        log.rewind();
        run.model.cursor = (0, 0);
        while let Some(batch) = log.read(usize::MAX, usize::MAX).unwrap() {
            let read = (batch.place, batch.records.iter().map(|record| record.to_vec()).collect());
            prop_assert_eq!(Some(read), run.model.read(usize::MAX, usize::MAX));
        }
        prop_assert_eq!(run.model.read(1, 1), None);
    }
}
