//! What the benches send: the comments of a recorded live stream, again from its start when it runs out.
//!
//! The recording holds lengths; the texts are made from them, so that bytes and characters are spread as in life.

use std::path::Path;
use std::time::Duration;

use danmakud::clock::Clock;
use danmakud::config::{Config, Layers};
use danmakud::load::trace::{self, Line};
use danmakud::model::{Comment, CommentId, Name, RoomId, Style, Text, UserId};

/// Comments that follow each other share a millisecond by so many, as at the peak of a large room.
const PER_MILLISECOND: u64 = 50;

/// The configuration of a server that was told nothing.
pub fn defaults() -> Config {
    Config::load(&Layers::default()).expect("the defaults are valid")
}

/// The recorded stream, without what a server would refuse.
pub fn lines() -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/live-trace-a.csv");
    let limits = defaults().admission.text;
    let mut lines = trace::load(&path).expect("the trace is there and can be read");
    lines.retain(|line| Text::parse(&line.text, &limits).is_ok());
    assert!(lines.len() > 1_000, "the trace has {} lines", lines.len());
    lines
}

/// The one room of the stream.
pub fn room() -> RoomId {
    RoomId::parse("live-trace-a").expect("it keeps to the rules")
}

/// The sender of a line.
pub fn sender(line: &Line) -> (UserId, Name) {
    let name = Name::parse(&format!("观众{}", line.user)).expect("it keeps to the rules");
    (UserId::new(&format!("u{:08}", line.user)), name)
}

/// So many accepted comments of one room, from now on, each with an id of its own.
pub fn comments(lines: &[Line], count: usize) -> Vec<Comment> {
    let (begin, retention) = (Clock::system().now(), defaults().hub.retention);
    let comment = |(number, line): (u32, &Line)| {
        let ts = begin.plus(Duration::from_millis(u64::from(number) / PER_MILLISECOND));
        let (uid, name) = sender(line);
        Comment {
            id: CommentId::from_parts(ts, [7; 5], number),
            room: room(),
            ts,
            uid,
            name,
            text: Text::from_store(&line.text),
            style: Style::parse(line.mode, line.color, line.size).unwrap_or_default(),
            expire_at: ts.plus(retention),
        }
    };
    (0..).zip(lines.iter().cycle()).take(count).map(comment).collect()
}
