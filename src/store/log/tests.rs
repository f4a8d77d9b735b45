//! What the model cannot see: folders, foreign files and disks that fail.

use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use proptest::prelude::*;

use super::format::{Format, HEADER_BYTES, record_bytes};
use super::*;

pub(super) const MANY: usize = usize::MAX;

pub(super) fn config(dir: &Path) -> LogConfig {
    LogConfig { dir: dir.join("log"), max_bytes: 1 << 20, segment_bytes: 4096 }
}

pub(super) fn open(dir: &Path) -> (Log, Recovered) {
    Log::open(config(dir)).unwrap()
}

/// All that is unread, in order.
pub(super) fn read_all(log: &Log) -> Vec<String> {
    let batches = std::iter::from_fn(|| log.read(MANY, MANY).unwrap());
    batches.flat_map(|batch| batch.records).map(|record| String::from_utf8(record.to_vec()).unwrap()).collect()
}

/// The names of the segments, or of what is damaged.
pub(super) fn names(dir: &Path, ending: &str) -> Vec<String> {
    let names = fs::read_dir(dir.join("log")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(ending)).collect();
    names.sort();
    names
}

/// A folder with one segment of these records, closed again.
fn folder_with(records: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).0.append(records).unwrap();
    dir
}

/// Changes the bytes of the first segment.
fn change(dir: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.join("log").join(&names(dir, ".log")[0]);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_log_gives_back_what_it_took_and_forgets_what_was_released() {
    let dir = tempfile::tempdir().unwrap();
    let (log, recovered) = open(dir.path());
    assert_eq!(recovered, Recovered::default());
    let place = log.append(&["one", "two"]).unwrap();
    assert_eq!((log.len(), log.bytes()), (2, HEADER_BYTES + 2 * 19));
    let batch = log.read(MANY, MANY).unwrap().unwrap();
    assert_eq!((batch.records.as_slice(), batch.place), (["one", "two"].map(bytes::Bytes::from).as_slice(), place));
    assert_eq!(log.read(MANY, MANY).unwrap(), None);
    log.release([place]).unwrap();
    assert_eq!((log.len(), log.bytes(), names(dir.path(), ".log").len()), (0, 0, 0));
    assert!(log.inner.active.lock().unwrap().is_none(), "a deleted file takes space while it is open");
    log.append(&["three"]).unwrap();
    assert_eq!(read_all(&log), ["three"]);
}

#[test]
fn what_was_read_and_not_released_is_read_again_after_a_rewind() {
    let dir = folder_with(&["one", "two", "three", "four"]);
    let (log, recovered) = open(dir.path());
    assert_eq!(recovered, Recovered { records: 4, bytes: log.bytes(), ..Recovered::default() });
    let batch = log.read(3, MANY).unwrap().unwrap();
    log.release(batch.place.each().take(1)).unwrap();
    log.release(batch.place.each().skip(2)).unwrap();
    log.rewind();
    // A gap ends a batch, so that its place can tell where its records stand.
    assert_eq!(log.read(MANY, MANY).unwrap().unwrap().records, ["two"]);
    assert_eq!(log.read(MANY, MANY).unwrap().unwrap().records, ["four"]);
    assert_eq!(log.len(), 2);
}

#[test]
fn a_segment_goes_when_it_is_settled_though_an_older_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(LogConfig { segment_bytes: 0, ..config(dir.path()) }).unwrap();
    let places = ["one", "two", "three"].map(|record| log.append(&[record]).unwrap());
    log.release([places[1]]).unwrap();
    assert_eq!(names(dir.path(), ".log"), ["0000000000000001.log", "0000000000000003.log"]);
    // Twice is as once.
    log.release([places[1], places[1]]).unwrap();
    assert_eq!((log.len(), read_all(&log)), (2, vec!["one".to_owned(), "three".to_owned()]));
}

#[test]
fn a_full_log_refuses_and_takes_again_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(LogConfig { max_bytes: HEADER_BYTES + 2 * 19, ..config(dir.path()) }).unwrap();
    let place = log.append(&["one", "two"]).unwrap();
    assert!(matches!(log.append(&[""]), Err(AppendError::Full { bytes: 16, max_bytes: 62 })));
    assert_eq!((log.len(), log.bytes()), (2, 62));
    log.release([place]).unwrap();
    log.append(&["six", "ten"]).unwrap();
    assert_eq!(read_all(&log), ["six", "ten"]);
}

#[test]
fn a_record_that_is_too_long_is_refused_with_all_that_come_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(LogConfig { max_bytes: 8 << 20, ..config(dir.path()) }).unwrap();
    let long = vec![0; (1 << 20) + 1];
    assert!(matches!(log.append(&[&long[..3], &long]), Err(AppendError::TooLong { bytes: 1_048_577 })));
    assert!(log.is_empty());
    log.append(&[&long[1..]]).unwrap();
    assert_eq!(log.read(1, 1).unwrap().unwrap().records[0].len(), 1 << 20);
}

#[test]
fn an_append_of_nothing_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append::<&str>(&[]).unwrap();
    assert!(place.is_empty());
    assert_eq!(names(dir.path(), ".log").len(), 0);
    log.release([place]).unwrap();
}

#[test]
fn a_folder_has_one_log_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let clone = log.clone();
    drop(log);
    let error = Log::open(config(dir.path())).unwrap_err();
    assert!(matches!(&error, LogError::Locked { dir: locked } if *locked == dir.path().join("log")), "{error}");
    drop(clone);
    open(dir.path());
}

#[test]
fn what_no_log_writes_is_left_alone() {
    let dir = folder_with(&["one"]);
    fs::write(dir.path().join("log/.nfs0000001"), "mine").unwrap();
    fs::create_dir(dir.path().join("log/lost+found")).unwrap();
    assert_eq!(read_all(&open(dir.path()).0), ["one"]);
    assert_eq!(fs::read(dir.path().join("log/.nfs0000001")).unwrap(), b"mine");
    assert!(dir.path().join("log/lost+found").is_dir());
}

#[test]
fn a_segment_that_is_none_of_ours_is_refused_and_stays_as_it_is() {
    let refusal = |make: fn(&mut Vec<u8>)| {
        let dir = folder_with(&["one"]);
        change(dir.path(), make);
        let before = fs::read(dir.path().join("log/0000000000000001.log")).unwrap();
        let error = Log::open(config(dir.path())).unwrap_err().to_string();
        assert_eq!(fs::read(dir.path().join("log/0000000000000001.log")).unwrap(), before);
        error.replace(dir.path().to_str().unwrap(), "")
    };
    assert_eq!(
        refusal(|bytes| bytes.splice(8..24, [3; 16]).for_each(drop)),
        "/log/0000000000000001.log is in format 50529027, and this server reads formats up to 2: let the server that wrote it empty \
         the log, or move the file away"
    );
    let foreign = "/log/0000000000000001.log is no part of a log: move it away, or name another folder";
    assert_eq!(refusal(|bytes| bytes[..2].fill(b'x')), foreign);
    assert_eq!(refusal(|bytes| *bytes = b"{}".to_vec()), foreign);
    let other = |bytes: &mut Vec<u8>| *bytes = format::header_of(Format::Two, 7).to_vec();
    assert_eq!(
        refusal(other),
        "/log/0000000000000001.log is segment 7 by its own words: give it back the name 0000000000000007.log, or move \
         it away"
    );
}

#[test]
fn a_segment_whose_first_append_was_cut_off_is_removed() {
    for length in [0, 10, HEADER_BYTES as usize, HEADER_BYTES as usize + 5] {
        let dir = folder_with(&["one"]);
        change(dir.path(), |bytes| bytes.truncate(length));
        let (log, recovered) = open(dir.path());
        assert_eq!((log.len(), recovered.records, recovered.damaged.len()), (0, 0, 0), "{length}");
        assert_eq!(recovered.torn_bytes, if length == 24 { 0 } else { length as u64 % 24 }, "{length}");
        assert_eq!(names(dir.path(), "").len(), 1, "only the lock stays");
    }
}

/// Flips one bit of the payload of the record that begins at `offset`.
fn damage(dir: &Path, offset: usize) {
    change(dir, |bytes| bytes[offset + 16] ^= 1);
}

#[test]
fn damage_in_the_middle_is_kept_aside_and_all_around_it_is_read() {
    let dir = folder_with(&["one", "two", "three"]);
    damage(dir.path(), 24 + 19);
    let record = fs::read(dir.path().join("log/0000000000000001.log")).unwrap()[24 + 19..24 + 38].to_vec();
    let kept = dir.path().join("log/0000000000000001-2b.damaged");
    // Told once, though the bytes stay where they are.
    for (lost, damaged) in [(1, vec![kept.clone()]), (0, vec![])] {
        let (log, recovered) = open(dir.path());
        assert_eq!(recovered, Recovered { records: 2, bytes: 24 + 38 + 21, torn_bytes: 0, lost, damaged });
        assert_eq!(
            (read_all(&log), log.len(), fs::read(&kept).unwrap()),
            (vec!["one".into(), "three".into()], 2, record.clone())
        );
    }
    // Its number is not given again.
    let (log, _) = open(dir.path());
    while let Some(batch) = log.read(MANY, MANY).unwrap() {
        log.release([batch.place]).unwrap();
    }
    assert_eq!((log.len(), log.bytes(), names(dir.path(), ".log").len()), (0, 0, 0));
    drop(log);
    assert_eq!(open(dir.path()).0.append(&["four"]).unwrap().segment, 2);
    assert_eq!(names(dir.path(), ".damaged"), ["0000000000000001-2b.damaged"]);
}

#[test]
fn neighbours_that_are_damaged_are_kept_in_one_file() {
    let dir = folder_with(&["one", "two", "three", "four"]);
    damage(dir.path(), 24);
    damage(dir.path(), 24 + 19);
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.lost, recovered.damaged.len(), log.len()), (2, 2, 1, 2));
    assert_eq!(read_all(&log), ["three", "four"]);
    assert_eq!(fs::metadata(dir.path().join("log/0000000000000001-18.damaged")).unwrap().len(), 38);
}

#[test]
fn a_damaged_record_at_the_end_of_an_older_segment_is_lost_alone() {
    let dir = folder_with(&["one", "two"]);
    open(dir.path()).0.append(&["three"]).unwrap();
    damage(dir.path(), 24 + 19);
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.torn_bytes, recovered.lost), (2, 0, 1));
    assert_eq!((read_all(&log), log.bytes()), (vec!["one".into(), "three".into()], 24 + 19 + 24 + 21));
}

#[test]
fn a_torn_end_of_an_older_segment_is_kept_aside() {
    let dir = folder_with(&["one", "two"]);
    open(dir.path()).0.append(&["three"]).unwrap();
    change(dir.path(), |bytes| bytes.truncate(24 + 19 + 10));
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.torn_bytes, recovered.lost, recovered.damaged.len()), (0, 1, 1));
    assert_eq!(read_all(&log), ["one", "three"]);
}

#[test]
fn a_segment_whose_header_is_damaged_gives_its_records_all_the_same() {
    for make in [|bytes: &mut Vec<u8>| bytes[3] ^= 1, |bytes: &mut Vec<u8>| bytes[..24].fill(0)] {
        let dir = folder_with(&["one"]);
        change(dir.path(), make);
        let (log, recovered) = open(dir.path());
        assert_eq!((log.len(), recovered.lost), (1, 0));
        assert_eq!(recovered.damaged, [dir.path().join("log/0000000000000001-0.damaged")]);
        drop(log);
        let (log, recovered) = open(dir.path());
        assert_eq!((read_all(&log), recovered.damaged.len()), (vec!["one".to_owned()], 0), "it is mended");
    }
}

#[test]
fn a_segment_of_which_nothing_can_be_read_is_kept_aside_whole() {
    let dir = folder_with(&["one"]);
    damage(dir.path(), 24);
    let (log, recovered) = open(dir.path());
    assert_eq!((log.len(), recovered.lost), (0, 1));
    assert_eq!(recovered.damaged, [dir.path().join("log/0000000000000001-0.damaged")]);
    drop(log);
    // The next segment is another, also after a restart.
    assert_eq!(open(dir.path()).0.append(&["two"]).unwrap().segment, 2);
}

#[test]
fn a_damaged_length_costs_its_record_alone_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let numbers: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    let (log, _) = open(dir.path());
    let place = log.append(&numbers[..6]).unwrap();
    let offset = log.bytes() as usize - record_bytes(1) as usize;
    log.append(&numbers[6..]).unwrap();
    drop((log, place));
    change(dir.path(), |bytes| bytes[offset] ^= 1);
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.lost, recovered.torn_bytes), (499, 1, 0));
    assert_eq!((read_all(&log), recovered.damaged.len()), ([&numbers[..5], &numbers[6..]].concat(), 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn one_bit_costs_one_record_at_most_and_is_told(
        lengths in prop::collection::vec(0..60usize, 1..10), at: prop::sample::Index, bit in 0..8, is_before_opening: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let records: Vec<String> = lengths.iter().enumerate().map(|(n, length)| format!("{n}{}", "x".repeat(*length))).collect();
        let (log, _) = open(dir.path());
        log.append(&records).unwrap();
        let log = (!is_before_opening).then_some(log);
        let mut at_byte = 0;
        change(dir.path(), |bytes| {
            at_byte = at.index(bytes.len());
            bytes[at_byte] ^= 1u8 << bit;
        });
        let (log, mut lost) = log.map_or_else(|| {
            let (log, recovered) = open(dir.path());
            assert!(!recovered.damaged.is_empty() && recovered.torn_bytes == 0, "{recovered:?}");
            (log, recovered.lost)
        }, |log| (log, 0));
        let mut read = Vec::new();
        loop {
            match log.read(3, MANY) {
                Ok(Some(batch)) => read.extend(batch.records.iter().map(|record| String::from_utf8(record.to_vec()).unwrap())),
                Ok(None) => break,
                Err(LogError::Damaged { records, .. }) => lost += records,
                Err(error) => panic!("{error}"),
            }
        }
        let begins = records.iter().scan(24, |end, record| Some(std::mem::replace(end, *end + 16 + record.len())));
        let hit = begins.filter(|begin| *begin <= at_byte).count().checked_sub(1);
        let others: Vec<String> =
            records.iter().enumerate().filter(|(n, _)| Some(*n) != hit).map(|(_, record)| record.clone()).collect();
        prop_assert_eq!(read, others);
        prop_assert_eq!(lost, u64::from(hit.is_some()));
    }
}

#[test]
fn what_was_released_before_a_clean_end_is_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append(&["one", "two", "three", "four", "five"]).unwrap();
    log.release(place.each().take(2)).unwrap();
    log.release(place.each().skip(3).take(1)).unwrap();
    log.write_down().unwrap();
    // As after a kill: it comes again.
    log.release(place.each().skip(4)).unwrap();
    drop(log);
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.records, read_all(&log)), (2, vec!["three".to_owned(), "five".to_owned()]));
    // What was released is no loss when it is damaged.
    drop(log);
    damage(dir.path(), 24);
    assert_eq!(open(dir.path()).1, Recovered { records: 2, bytes: 24 + 80 + 19, ..Recovered::default() });
}

#[test]
fn a_note_of_what_was_released_is_not_taken_for_one_of_another_segment() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append(&["one", "two"]).unwrap();
    log.release(place.each().take(1)).unwrap();
    log.write_down().unwrap();
    // The segment goes, and the note of it stays.
    log.release([place]).unwrap();
    drop(log);
    let (log, _) = open(dir.path());
    assert_eq!(log.append(&["three"]).unwrap().segment, 2);
    drop(log);
    assert_eq!(read_all(&open(dir.path()).0), ["three"]);
}

#[test]
fn a_note_that_cannot_be_read_or_says_too_much_takes_nothing_away() {
    let dir = folder_with(&["one", "two"]);
    for note in [b"".as_slice(), b"nonsense, of some length, that nobody wrote"] {
        fs::write(dir.path().join("log/released"), note).unwrap();
        assert_eq!(read_all(&open(dir.path()).0), ["one", "two"]);
        assert!(!dir.path().join("log/released").exists(), "it would be believed when it is whole again");
    }
    let (log, _) = open(dir.path());
    let place = |segment, first, count| Place { segment, first, count };
    let too_much = [place(9, 0, 5), place(1, 1, u64::MAX), place(1, u64::MAX, 7)];
    released::write(&log.inner.folder, &too_much).unwrap();
    drop(log);
    assert_eq!(read_all(&open(dir.path()).0), ["one"]);
}

#[test]
fn what_the_disk_cannot_read_stays_and_all_behind_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(LogConfig { segment_bytes: 0, ..config(dir.path()) }).unwrap();
    for record in ["one", "two", "three"] {
        log.append(&[record]).unwrap();
    }
    // Reading there fails with EIO.
    let path = dir.path().join("log/0000000000000001.log");
    fs::rename(&path, dir.path().join("away")).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
    let error = log.read(MANY, MANY).unwrap_err();
    assert!(error.to_string().contains("the disk does not give 1 records"), "{error}");
    assert_eq!((read_all(&log), log.len()), (vec!["two".to_owned(), "three".to_owned()], 3));
    drop(log);
    fs::rename(dir.path().join("away"), &path).unwrap();
    assert_eq!(read_all(&open(dir.path()).0), ["one", "two", "three"]);
}

#[test]
fn damage_that_comes_later_is_told_once_and_reading_goes_on_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append(&["one", "two", "three"]).unwrap();
    damage(dir.path(), 24 + 19);
    assert_eq!(log.read(MANY, MANY).unwrap().unwrap().records, ["one"]);
    let error = log.read(MANY, MANY).unwrap_err();
    assert!(matches!(&error, LogError::Damaged { records: 1, kept } if kept.ends_with("0000000000000001-2b.damaged")));
    assert_eq!((log.len(), log.bytes()), (2, 24 + 38 + 21));
    log.append(&["four"]).unwrap();
    assert_eq!(read_all(&log), ["three", "four"]);
    log.rewind();
    assert_eq!(read_all(&log), ["one", "three", "four"], "and it is told once");
    // The places of the others are what they were; that of what was lost is passed over.
    log.release(place.each()).unwrap();
    assert_eq!((log.len(), log.bytes()), (1, 24 + 38 + 21 + 20));
    log.rewind();
    assert_eq!(read_all(&log), ["four"]);
}

#[test]
fn damage_to_what_is_settled_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append(&["one", "two", "three"]).unwrap();
    log.release(place.each().take(2)).unwrap();
    damage(dir.path(), 24);
    damage(dir.path(), 24 + 19);
    assert_eq!((read_all(&log), log.len()), (vec!["three".to_owned()], 1));
    assert_eq!(names(dir.path(), ".damaged"), [""; 0]);
}

#[test]
fn a_segment_all_of_which_is_damaged_is_given_up_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    log.append(&["one", "two"]).unwrap();
    damage(dir.path(), 24);
    damage(dir.path(), 24 + 19);
    assert!(matches!(log.read(MANY, MANY), Err(LogError::Damaged { records: 2, .. })));
    assert_eq!((log.len(), log.bytes(), names(dir.path(), ".log").len()), (0, 0, 0));
    assert_eq!(log.read(MANY, MANY).unwrap(), None);
}

#[test]
fn a_length_that_leads_to_another_record_settles_nobody_in_its_neighbours_name() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    // 24 bytes each on the disk: a record of 32 ends where the next one does.
    let place = log.append(&["record 1", "record 2", "record 3", "record 4"]).unwrap();
    change(dir.path(), |bytes| bytes[24] ^= 32 ^ 8);
    assert!(matches!(log.read(MANY, MANY), Err(LogError::Damaged { records: 1, .. })));
    let batch = log.read(MANY, MANY).unwrap().unwrap();
    assert_eq!(batch.records, ["record 2", "record 3", "record 4"]);
    assert_eq!((batch.place, log.len()), (Place { first: 1, count: 3, ..place }, 3));
}

/// Stands `file` in for the active segment's.
fn break_active(log: &Log, file: impl Into<OwnedFd>) {
    *log.inner.active.lock().unwrap() = Some(File::from(file.into()));
}

#[test]
fn a_failed_write_is_taken_back_and_the_next_one_begins_a_segment() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    log.append(&["one"]).unwrap();
    let path = dir.path().join("log/0000000000000001.log");
    // Half a record, as a disk that fills up leaves it, and a handle that takes no more.
    change(dir.path(), |bytes| bytes.extend_from_slice(&[3, 0, 0, 0, 1]));
    break_active(&log, File::open(&path).unwrap());
    let error = log.append(&["two"]).unwrap_err();
    assert!(matches!(&error, AppendError::Io { path: named, .. } if *named == path), "{error}");
    assert_eq!((log.len(), log.bytes(), fs::metadata(&path).unwrap().len()), (1, 43, 43));
    assert_eq!(log.append(&["three"]).unwrap().segment, 2);
    assert_eq!(read_all(&log), ["one", "three"]);
    drop(log);
    assert_eq!(read_all(&open(dir.path()).0), ["one", "three"]);
}

#[test]
fn a_failed_sync_fails_the_append() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    log.append(&["one"]).unwrap();
    // A pipe takes what is written and cannot be synced.
    let (_reader, writer) = std::io::pipe().unwrap();
    break_active(&log, writer);
    assert!(matches!(log.append(&["two"]), Err(AppendError::Io { .. })));
    assert_eq!(log.append(&["three"]).unwrap().segment, 2);
    assert_eq!(read_all(&log), ["one", "three"]);
}

#[test]
fn a_segment_that_was_released_during_an_append_that_fails_is_deleted_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append(&["one"]).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    break_active(&log, writer);
    let appending = {
        let log = log.clone();
        // More than a pipe holds: the write waits for the reader.
        std::thread::spawn(move || log.append(&[vec![0; 500_000]]))
    };
    reader.read_exact(&mut [0]).unwrap();
    log.release([place]).unwrap();
    assert_eq!((log.len(), log.bytes()), (0, 43));
    drop(reader);
    assert!(matches!(appending.join().unwrap(), Err(AppendError::Io { .. })));
    assert_eq!((log.bytes(), names(dir.path(), ".log").len()), (0, 0));
}

#[test]
fn a_folder_that_is_gone_fails_appends_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    fs::rename(dir.path().join("log"), dir.path().join("away")).unwrap();
    assert!(matches!(log.append(&["one"]), Err(AppendError::Io { .. })));
    assert_eq!((log.len(), log.bytes()), (0, 0));
    fs::rename(dir.path().join("away"), dir.path().join("log")).unwrap();
    log.append(&["two"]).unwrap();
    assert_eq!(read_all(&log), ["two"]);
}

#[test]
fn a_segment_that_cannot_be_deleted_counts_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append(&["one"]).unwrap();
    // A folder in its place: unlink refuses it, also for root.
    let path = dir.path().join("log/0000000000000001.log");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(log.release([place]), Err(LogError::Io { doing: "delete", .. })));
    assert_eq!((log.len(), log.bytes()), (0, 43));
    fs::remove_dir(&path).unwrap();
    log.release([]).unwrap();
    assert_eq!(log.bytes(), 0);
}

#[test]
fn a_segment_that_is_being_written_to_is_not_freed_under_the_writer() {
    let mut state = State::new(Limits { max_bytes: 1000, segment_bytes: 1000 }, 1);
    let target = state.begin(11).unwrap();
    let first = state.commit(target, 35, 1);
    let target = state.begin(11).unwrap();
    assert_eq!((target.segment, target.offset), (1, 35));
    state.settle(first);
    assert_eq!((state.take_freed(), state.records()), (vec![], 0));
    let second = state.commit(target, 46, 1);
    assert_eq!((second.first, state.records()), (1, 1));
    // Nor when the append fails; then it goes.
    let target = state.begin(11).unwrap();
    state.settle(second);
    assert_eq!(state.take_freed(), []);
    state.fail(target);
    assert_eq!(state.take_freed().len(), 1);
}

#[test]
fn many_threads_append_read_and_release_and_nothing_stays_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let log = log.clone();
            std::thread::spawn(move || {
                for n in 0..60 {
                    log.append(&[format!("{writer} {n:0200}"), String::new()]).unwrap();
                }
            })
        })
        .collect();
    let mut seen = Vec::new();
    while seen.len() < 360 {
        let Some(batch) = log.read(7, MANY).unwrap() else { continue };
        seen.extend(batch.records);
        log.release([batch.place]).unwrap();
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for writer in 0..3 {
        let of_writer = seen.iter().filter(|record| record.starts_with(format!("{writer} ").as_bytes()));
        assert!(of_writer.is_sorted());
    }
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), log.len(), log.bytes(), names(dir.path(), ".log").len()), (181, 0, 0, 0));
}

/// Segments of both formats, put together from their descriptions and not by this code.
#[test]
fn a_segment_written_by_either_format_still_reads_the_same() {
    let first = include_bytes!("../../../tests/data/log-v1/0000000000000007.log").as_slice();
    let second = include_bytes!("../../../tests/data/log-v2/0000000000000007.log").as_slice();
    for written in [first, second] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        fs::write(dir.path().join("log/0000000000000007.log"), written).unwrap();
        let (log, recovered) = open(dir.path());
        assert_eq!(recovered, Recovered { records: 3, bytes: 95, ..Recovered::default() });
        let records = log.read(MANY, MANY).unwrap().unwrap().records;
        assert_eq!(records, ["弹幕".as_bytes(), b"", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 254, 255, 10]]);
        assert_eq!(log.append(&["next"]).unwrap().segment, 8);
        assert_eq!(fs::read(dir.path().join("log/0000000000000007.log")).unwrap(), second);
    }
}

#[test]
fn of_a_damaged_segment_of_format_1_all_else_is_read_and_kept_in_format_2() {
    let written = include_bytes!("../../../tests/data/log-v1/0000000000000007.log");
    for at in 0..written.len() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        let mut bytes = written.to_vec();
        bytes[at] ^= 1;
        fs::write(dir.path().join("log/0000000000000007.log"), bytes).unwrap();
        let (log, recovered) = open(dir.path());
        let lost = u64::from(at >= 24);
        assert_eq!((recovered.records, recovered.lost, recovered.damaged.len()), (3 - lost, lost, 1), "{at}");
        drop(log);
        assert_eq!(open(dir.path()).1, Recovered { lost: 0, damaged: vec![], ..recovered });
    }
}
