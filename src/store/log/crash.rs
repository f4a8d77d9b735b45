//! Kill -9 in the middle of appending: what was acknowledged is there, in order, and nothing else came.
//!
//! The test starts its own binary again, with a filter that leaves only [`appends_until_it_is_killed`].

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::tests::{MANY, config, names, open, read_all};
use super::*;

const DIR: &str = "DANMAKUD_TEST_LOG_DIR";
const FIRST: &str = "DANMAKUD_TEST_LOG_FIRST";
const BATCH: u32 = 50;

fn batch(number: u32) -> Vec<String> {
    (number * BATCH..(number + 1) * BATCH).map(|n| format!("{n} {}", "弹".repeat(n as usize % 90))).collect()
}

/// The child: appends without end and prints what was acknowledged. Does nothing in an ordinary run.
#[test]
fn appends_until_it_is_killed() {
    let (Ok(dir), Ok(first)) = (std::env::var(DIR), std::env::var(FIRST)) else { return };
    let (log, _) =
        Log::open(LogConfig { max_bytes: 1 << 30, segment_bytes: 20_000, ..config(Path::new(&dir)) }).unwrap();
    for number in first.parse().unwrap().. {
        log.append(&batch(number)).unwrap();
        // One call, so that lines do not mix.
        println!("\nappended {number}");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = 0;
    for round in 0..3u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::log::crash::appends_until_it_is_killed", "--nocapture"])
            .env(DIR, dir.path())
            .env(FIRST, first.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (mut seen, mut last) = (0, 0);
        for line in lines {
            let Some(number) = line.strip_prefix("appended ") else { continue };
            last = number.parse::<u32>().unwrap();
            seen += 1;
            if seen == 1 {
                let error = Log::open(config(dir.path())).unwrap_err();
                assert!(matches!(error, LogError::Locked { .. }), "a second process got in: {error}");
            }
            // Later lines are read too: they were acknowledged before the kill took effect.
            if seen == 6 + 3 * round {
                child.kill().unwrap();
            }
        }
        assert!(!child.wait().unwrap().success());
        assert!(seen >= 6 + 3 * round, "the child ended by itself after {seen}");

        let (log, recovered) = open(dir.path());
        assert_eq!(recovered.damaged.len(), 0);
        let read = read_all(&log);
        assert_eq!(log.len(), read.len() as u64);
        // The batch that was under way may be there too, whole or in part.
        let expected: Vec<String> = (first..last + 2).flat_map(batch).collect();
        let acknowledged = ((last + 1 - first) * BATCH) as usize;
        assert!(read.len() >= acknowledged && expected.starts_with(&read), "{} of {acknowledged}", read.len());
        assert!(names(dir.path(), ".log").len() > 1, "the kill should find more than one segment");
        log.rewind();
        while let Some(batch) = log.read(MANY, MANY).unwrap() {
            log.release([batch.place]).unwrap();
        }
        first = last + 1;
    }
}
