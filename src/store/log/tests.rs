//! What the model cannot see: folders, foreign files and disks that fail.

use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::format::HEADER_BYTES;
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
    assert_eq!((log.len(), log.bytes()), (2, HEADER_BYTES + 2 * 11));
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
    let (log, _) = Log::open(LogConfig { max_bytes: HEADER_BYTES + 2 * 11, ..config(dir.path()) }).unwrap();
    let place = log.append(&["one", "two"]).unwrap();
    assert!(matches!(log.append(&[""]), Err(AppendError::Full { bytes: 8, max_bytes: 46 })));
    assert_eq!((log.len(), log.bytes()), (2, 46));
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
fn a_foreign_file_is_named_and_nothing_is_put_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("log")).unwrap();
    let path = dir.path().join("log/notes.txt");
    fs::write(&path, "mine").unwrap();
    let error = Log::open(config(dir.path())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{} is no part of a log: move it away, or name another folder", path.display())
    );
    assert_eq!(fs::read_dir(dir.path().join("log")).unwrap().count(), 1);
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
        refusal(|bytes| bytes[8] = 2),
        "/log/0000000000000001.log is in format 2, and this server reads format 1: let the server that wrote it empty \
         the log, or move the file away"
    );
    let foreign = "/log/0000000000000001.log is no part of a log: move it away, or name another folder";
    assert_eq!(refusal(|bytes| bytes[0] = b'x'), foreign);
    assert_eq!(refusal(|bytes| *bytes = b"{}".to_vec()), foreign);
    let other = |bytes: &mut Vec<u8>| {
        bytes.clear();
        format::put_header(bytes, 7);
    };
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
    change(dir, |bytes| bytes[offset + 8] ^= 1);
}

#[test]
fn damage_in_the_middle_is_kept_aside_and_all_around_it_is_read() {
    let dir = folder_with(&["one", "two", "three"]);
    damage(dir.path(), 24 + 11);
    let record = fs::read(dir.path().join("log/0000000000000001.log")).unwrap()[24 + 11..24 + 22].to_vec();
    let kept = dir.path().join("log/0000000000000001-23.damaged");
    // Told once, though the bytes stay where they are.
    for damaged in [vec![kept.clone()], vec![]] {
        let (log, recovered) = open(dir.path());
        assert_eq!(recovered, Recovered { records: 2, bytes: 24 + 22 + 13, torn_bytes: 0, damaged });
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
    assert_eq!(names(dir.path(), ".damaged"), ["0000000000000001-23.damaged"]);
}

#[test]
fn neighbours_that_are_damaged_are_kept_in_one_file() {
    let dir = folder_with(&["one", "two", "three", "four"]);
    damage(dir.path(), 24);
    damage(dir.path(), 24 + 11);
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.damaged.len(), log.len()), (2, 1, 2));
    assert_eq!(read_all(&log), ["three", "four"]);
    assert_eq!(fs::metadata(dir.path().join("log/0000000000000001-18.damaged")).unwrap().len(), 22);
}

#[test]
fn a_damaged_record_at_the_end_of_an_older_segment_is_lost_alone() {
    let dir = folder_with(&["one", "two"]);
    open(dir.path()).0.append(&["three"]).unwrap();
    damage(dir.path(), 24 + 11);
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.torn_bytes, recovered.damaged.len()), (2, 0, 1));
    assert_eq!((read_all(&log), log.bytes()), (vec!["one".into(), "three".into()], 24 + 11 + 24 + 13));
}

#[test]
fn a_torn_end_of_an_older_segment_is_kept_aside() {
    let dir = folder_with(&["one", "two"]);
    open(dir.path()).0.append(&["three"]).unwrap();
    change(dir.path(), |bytes| bytes.truncate(24 + 11 + 10));
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.torn_bytes, recovered.damaged.len()), (0, 1));
    assert_eq!(read_all(&log), ["one", "three"]);
}

#[test]
fn a_segment_whose_header_is_damaged_is_kept_aside_whole() {
    for make in [|bytes: &mut Vec<u8>| bytes[23] ^= 1, |bytes: &mut Vec<u8>| bytes[..24].fill(0)] {
        let dir = folder_with(&["one"]);
        change(dir.path(), make);
        let (log, recovered) = open(dir.path());
        assert_eq!((log.len(), recovered.damaged), (0, vec![dir.path().join("log/0000000000000001-0.damaged")]));
        drop(log);
        // The next segment is another, also after a restart.
        assert_eq!(open(dir.path()).0.append(&["two"]).unwrap().segment, 2);
    }
}

#[test]
fn damage_that_comes_later_is_told_once_and_reading_goes_on_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let place = log.append(&["one", "two", "three"]).unwrap();
    damage(dir.path(), 24 + 11);
    assert_eq!(log.read(MANY, MANY).unwrap().unwrap().records, ["one"]);
    let error = log.read(MANY, MANY).unwrap_err();
    assert!(matches!(&error, LogError::Damaged { records: 1, kept } if kept.ends_with("0000000000000001-23.damaged")));
    assert_eq!((log.len(), log.bytes()), (2, 24 + 22 + 13));
    log.append(&["four"]).unwrap();
    assert_eq!(read_all(&log), ["three", "four"]);
    log.rewind();
    assert_eq!(read_all(&log), ["one", "three", "four"], "and it is told once");
    // The places of the others are what they were; that of what was lost is passed over.
    log.release(place.each()).unwrap();
    assert_eq!((log.len(), log.bytes()), (1, 24 + 22 + 13 + 12));
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
    damage(dir.path(), 24 + 11);
    assert_eq!((read_all(&log), log.len()), (vec!["three".to_owned()], 1));
    assert_eq!(names(dir.path(), ".damaged"), [""; 0]);
}

#[test]
fn a_segment_all_of_which_is_damaged_is_given_up_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    log.append(&["one", "two"]).unwrap();
    damage(dir.path(), 24);
    damage(dir.path(), 24 + 11);
    assert!(matches!(log.read(MANY, MANY), Err(LogError::Damaged { records: 2, .. })));
    assert_eq!((log.len(), log.bytes(), names(dir.path(), ".log").len()), (0, 0, 0));
    assert_eq!(log.read(MANY, MANY).unwrap(), None);
}

#[test]
fn a_length_that_leads_to_another_record_settles_nobody_in_its_neighbours_name() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    // 16 bytes each on the disk: a record of 24 ends where the next one does.
    let place = log.append(&["record 1", "record 2", "record 3", "record 4"]).unwrap();
    change(dir.path(), |bytes| bytes[24] ^= 16);
    assert!(matches!(log.read(MANY, MANY), Err(LogError::Damaged { records: 4, .. })));
    assert_eq!((log.len(), log.read(MANY, MANY).unwrap()), (0, None));
    log.release([place]).unwrap();
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
    assert_eq!((log.len(), log.bytes(), fs::metadata(&path).unwrap().len()), (1, 35, 35));
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
    assert_eq!((log.len(), log.bytes()), (0, 35));
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
    assert_eq!((log.len(), log.bytes()), (0, 35));
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

/// A segment of format 1, put together from its description and not by this code.
#[test]
fn a_segment_written_by_format_1_still_reads_the_same() {
    let written = include_bytes!("../../../tests/data/log-v1/0000000000000007.log");
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("log")).unwrap();
    fs::write(dir.path().join("log/0000000000000007.log"), written).unwrap();
    let (log, recovered) = open(dir.path());
    assert_eq!(recovered, Recovered { records: 3, bytes: 71, ..Recovered::default() });
    let records = log.read(MANY, MANY).unwrap().unwrap().records;
    assert_eq!(records, ["弹幕".as_bytes(), b"", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 254, 255, 10]]);
    assert_eq!(log.append(&["next"]).unwrap().segment, 8);
    let mut again = Vec::new();
    format::put_header(&mut again, 7);
    records.iter().for_each(|record| format::put_record(&mut again, record));
    assert_eq!(again, written);
}
