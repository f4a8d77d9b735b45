//! Reads a recorded stream: who said what, and when. Two formats, told apart by the file's extension.
//!
//! `.csv` has the header [`CSV_HEADER`] and numbers only; its texts are made from their numbers and lengths.
//! `.jsonl` and `.ndjson` have one object a line: `{"tMs":…, "user":…, "text":"…", "mode":1, "size":25, "color":…}`,
//! where `ts` (UTC milliseconds) may stand for `tMs`, and mode, size and colour may be absent.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::text::text_for;

/// The first line of a CSV trace.
pub const CSV_HEADER: &str = "t_ms,user,text,chars,utf8_bytes,mode,size,color";

/// The longest text that a CSV trace may ask for, in characters. Far above what a server takes, so that refusals can
/// be tried; low enough that a damaged file does not fill the memory.
const MAX_CHARS: u64 = 65_536;

/// One comment of a recorded stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When, from the start of the stream (with `ts`: from the first comment).
    pub at: Duration,
    /// Who, as a number.
    pub user: u64,
    /// What it says.
    pub text: String,
    /// Mode number as recorded; none means the server's default.
    pub mode: Option<i64>,
    /// Font size as recorded.
    pub size: Option<i64>,
    /// Colour as recorded.
    pub color: Option<i64>,
}

/// Why a trace cannot be read; mend the file or name another.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The extension names no format.
    #[error("{}: a trace is a file named .csv, .jsonl or .ndjson", path.display())]
    Extension {
        /// The file.
        path: PathBuf,
    },
    /// A line is not what it should be.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// There is nothing to send.
    #[error("{} has no comments", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a whole trace, in the order of its times; comments of one time keep the file's order.
///
/// # Errors
/// [`TraceError`] names the file, the line and what would be right.
pub fn load(path: &Path) -> Result<Vec<Line>, TraceError> {
    // The extension before the file: a wrong name is told as that.
    parser(path)?;
    let file = File::open(path).map_err(|source| TraceError::Read { path: path.into(), source })?;
    read(path, BufReader::new(file))
}

fn parser(path: &Path) -> Result<Box<dyn Parser>, TraceError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => Ok(Box::new(Csv { is_past_header: false })),
        Some("jsonl" | "ndjson") => Ok(Box::new(JsonLines::default())),
        _ => Err(TraceError::Extension { path: path.into() }),
    }
}

/// Reads a whole trace from what is in the file of this name, as [`load`] does.
///
/// # Errors
/// As [`load`].
pub fn read(path: &Path, content: impl BufRead) -> Result<Vec<Line>, TraceError> {
    let mut parser = parser(path)?;
    let unreadable = |source| TraceError::Read { path: path.into(), source };
    let mut lines = Vec::new();
    for (index, raw) in content.split(b'\n').enumerate() {
        let at_fault = |problem| TraceError::Line { path: path.into(), line: index + 1, problem };
        let raw = raw.map_err(unreadable)?;
        let text = std::str::from_utf8(&raw).map_err(|_| at_fault("is not UTF-8".to_owned()))?;
        // Editors on Windows put a byte order mark in front.
        let text = if index == 0 { text.trim_start_matches('\u{FEFF}') } else { text }.trim();
        if !text.is_empty() {
            lines.extend(parser.parse(text).map_err(at_fault)?);
        }
    }
    parser.finish(&mut lines);
    if lines.is_empty() {
        return Err(TraceError::Empty { path: path.into() });
    }
    lines.sort_by_key(|line| line.at);
    Ok(lines)
}

trait Parser {
    /// Reads a line that is not blank; none for a header.
    fn parse(&mut self, text: &str) -> Result<Option<Line>, String>;

    /// Has a last look at all lines.
    fn finish(&self, _lines: &mut [Line]) {}
}

struct Csv {
    is_past_header: bool,
}

impl Parser for Csv {
    fn parse(&mut self, text: &str) -> Result<Option<Line>, String> {
        if !self.is_past_header {
            self.is_past_header = true;
            return if text == CSV_HEADER { Ok(None) } else { Err(format!("the header must be {CSV_HEADER}")) };
        }
        let count = text.split(',').count();
        let numbers = text.split(',').zip(CSV_HEADER.split(',')).map(|(field, name)| {
            field.trim().parse::<u64>().map_err(|_| format!("{name} must be a whole number, not {field:?}"))
        });
        let numbers = <[u64; 8]>::try_from(numbers.collect::<Result<Vec<_>, _>>()?);
        let (8, Ok([t_ms, user, number, chars, utf8_bytes, mode, size, color])) = (count, numbers) else {
            return Err(format!("has {count} fields instead of the 8 of {CSV_HEADER}"));
        };
        if chars > MAX_CHARS {
            return Err(format!("chars must be at most {MAX_CHARS}, not {chars}"));
        }
        if utf8_bytes < chars || utf8_bytes > 4 * chars {
            return Err(format!("utf8_bytes must be {chars} to {} for {chars} chars, not {utf8_bytes}", 4 * chars));
        }
        let style = |number: u64| Some(i64::try_from(number).unwrap_or(i64::MAX));
        let length = |number: u64| usize::try_from(number).unwrap_or(0);
        Ok(Some(Line {
            at: Duration::from_millis(t_ms),
            user,
            text: text_for(number, length(chars), length(utf8_bytes)),
            mode: style(mode),
            size: style(size),
            color: style(color),
        }))
    }
}

/// Which of the two time fields the file uses; in one file they cannot be put on one axis.
#[derive(Clone, Copy, PartialEq)]
enum TimeField {
    FromStart,
    Utc,
}

#[derive(Default)]
struct JsonLines {
    time_field: Option<TimeField>,
    users: HashMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonLine {
    t_ms: Option<u64>,
    ts: Option<u64>,
    user: JsonUser,
    text: String,
    mode: Option<i64>,
    size: Option<i64>,
    color: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "user must be a text or a whole number of at least 0")]
enum JsonUser {
    Number(u64),
    Name(String),
}

impl Parser for JsonLines {
    fn parse(&mut self, text: &str) -> Result<Option<Line>, String> {
        let line: JsonLine = serde_json::from_str(text).map_err(|error| {
            format!(r#"must be an object like {{"tMs":1200,"user":"ann","text":"hello"}}: {error}"#)
        })?;
        let (field, millis) = match (line.t_ms, line.ts) {
            (Some(millis), None) => (TimeField::FromStart, millis),
            (None, Some(millis)) => (TimeField::Utc, millis),
            _ => return Err("must have tMs (milliseconds from the start) or ts (UTC milliseconds), one of them".into()),
        };
        if *self.time_field.get_or_insert(field) != field {
            return Err("must give its time as the lines before do: all with tMs or all with ts".into());
        }
        let user = match line.user {
            JsonUser::Number(number) => number,
            JsonUser::Name(name) => {
                let next = self.users.len() as u64;
                *self.users.entry(name).or_insert(next)
            }
        };
        let JsonLine { text, mode, size, color, .. } = line;
        Ok(Some(Line { at: Duration::from_millis(millis), user, text, mode, size, color }))
    }

    fn finish(&self, lines: &mut [Line]) {
        if self.time_field == Some(TimeField::Utc) {
            let first = lines.iter().map(|line| line.at).min().unwrap_or_default();
            lines.iter_mut().for_each(|line| line.at -= first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_text(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<Line>, TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        load(&path)
    }

    #[test]
    fn the_recorded_stream_is_read_whole() {
        let lines = load(Path::new("tests/data/live-trace-a.csv")).unwrap();
        assert_eq!(lines.len(), 48_512);
        assert_eq!(lines[0].at, Duration::from_millis(19_574));
        assert_eq!((lines[1].text.chars().count(), lines[1].text.len()), (5, 15));
        assert!(lines.is_sorted_by_key(|line| line.at));
    }

    #[test]
    fn json_lines_take_both_kinds_of_time_and_of_user() {
        let lines = load_text(
            "t.jsonl",
            "\u{FEFF}{\"ts\":1700000000500,\"user\":\"ann\",\"text\":\"后\",\"mode\":5}\r\n\n\
             {\"ts\":1700000000000,\"user\":\"bob\",\"text\":\"first\",\"extra\":true}\n",
        );
        let lines = lines.unwrap();
        let told: Vec<_> = lines.iter().map(|l| (l.at.as_millis(), l.user, l.text.as_str(), l.mode)).collect();
        assert_eq!(told, [(0, 1, "first", None), (500, 0, "后", Some(5))]);
        let lines = load_text("t.ndjson", r#"{"tMs":30,"user":7,"text":"x"}"#).unwrap();
        assert_eq!((lines[0].at, lines[0].user), (Duration::from_millis(30), 7));
    }

    #[test]
    fn a_bad_file_is_named_with_its_line_and_what_would_be_right() {
        let row = |row: &str| format!("{CSV_HEADER}\n0,0,0,2,6,1,25,0\n{row}\n").into_bytes();
        let json = |line: &str| format!("{{\"tMs\":1,\"user\":1,\"text\":\"x\"}}\n{line}\n").into_bytes();
        let corpus = [
            ("a.txt", Vec::new(), "a trace is a file named .csv, .jsonl or .ndjson"),
            ("a.csv", Vec::new(), "a.csv has no comments"),
            ("a.csv", CSV_HEADER.as_bytes().to_vec(), "a.csv has no comments"),
            ("a.csv", b"t,user\n1,2\n".to_vec(), "line 1: the header must be t_ms,user,text,"),
            ("a.csv", row("1,2,3"), "line 3: has 3 fields instead of the 8"),
            ("a.csv", row("1,2,3,2,6,1,25,0,9"), "line 3: has 9 fields instead of the 8"),
            ("a.csv", row("1,x,3,2,6,1,25,0"), "line 3: user must be a whole number, not \"x\""),
            ("a.csv", row("-1,2,3,2,6,1,25,0"), "line 3: t_ms must be a whole number, not \"-1\""),
            ("a.csv", row("1,2,3,2,9,1,25,0"), "line 3: utf8_bytes must be 2 to 8 for 2 chars, not 9"),
            ("a.csv", row("1,2,3,99999999,99999999,1,25,0"), "line 3: chars must be at most 65536"),
            ("a.csv", [row("").as_slice(), b"\xFF\n"].concat(), "line 4: is not UTF-8"),
            ("a.jsonl", json("{"), "line 2: must be an object like"),
            ("a.jsonl", json(r#"{"tMs":1,"text":"x"}"#), "missing field `user`"),
            ("a.jsonl", json(r#"{"tMs":1,"user":-1,"text":"x"}"#), "user must be a text or a whole number"),
            ("a.jsonl", json(r#"{"user":1,"text":"x"}"#), "line 2: must have tMs"),
            ("a.jsonl", json(r#"{"tMs":1,"ts":1,"user":1,"text":"x"}"#), "one of them"),
            ("a.jsonl", json(r#"{"ts":1,"user":1,"text":"x"}"#), "all with tMs or all with ts"),
        ];
        for (name, content, expected) in corpus {
            let error = load_text(name, content).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
        let error = load(Path::new("no/such.csv")).unwrap_err();
        // What the system says is told by whoever prints the chain, and by nobody else.
        assert_eq!(error.to_string(), "no/such.csv cannot be read");
        assert!(std::error::Error::source(&error).is_some());
    }
}
