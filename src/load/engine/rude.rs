//! Clients that misbehave, each in its own way. What the server does to them is right: their refusals and closes are counted
//! apart and are no errors.

use super::conn::{Manner, Stage};
use super::frame::{self, Kind};
use super::worker::{Job, Worker};

/// How often each does it, in microseconds.
const EVERY: u64 = 500_000;

/// How often one that floods does.
const FLOOD_EVERY: u64 = 10_000;

/// Frames of a flood at a time: a thousand a second, where servers take fifty.
const FLOOD: usize = 10;

/// Characters in a text that is too long, in a frame that is not.
const LONG: usize = 300;

/// A frame over every limit.
const HUGE: usize = 64 * 1024;

const WAYS: u32 = 8;

impl Worker {
    /// Has a client that misbehaves do so, and again after a while.
    pub(super) fn misbehave(&mut self, index: u32, generation: u32) {
        let Some(conn) = self.conns.get_mut(index as usize) else { return };
        let Manner::Rude(nth) = conn.manner else { return };
        if conn.generation != generation || conn.stage != Stage::Open {
            return;
        }
        let way = nth % WAYS;
        // What the server does not take it does not have to be given twice.
        if conn.unsent.is_empty() {
            conn.unsent = bad_frames(way);
        }
        self.flush(index);
        let at = self.hall.now() + if way == 1 { FLOOD_EVERY } else { EVERY };
        self.later(at, Job::Misbehave(index, generation));
    }
}

fn bad_frames(way: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut push = |kind, payload: &[u8]| frame::push(&mut out, kind, payload);
    let send = |text: &str| format!(r#"{{"type":"send","text":"{text}"}}"#);
    match way {
        0 => push(Kind::Text, send(&"长".repeat(LONG)).as_bytes()),
        1 => (0..FLOOD).for_each(|_| push(Kind::Text, br#"{"type":"ping"}"#)),
        2 => push(Kind::Text, br#"{"type":"send","text"#),
        3 => push(Kind::Binary, b"\x00\x01\x02"),
        4 => push(Kind::Text, b"{\"type\":\"send\",\"text\":\"\xff\xfe\"}"),
        5 => push(Kind::Text, br#"{"type":"shout","text":"x"}"#),
        6 => push(Kind::Text, send(&"x".repeat(HUGE)).as_bytes()),
        // A client's frame without a mask, and with reserved bits.
        _ => out.extend([0xf1, 0x01, b'x']),
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_way_is_another_and_bad() {
        let all: HashSet<_> = (0..WAYS).map(bad_frames).collect();
        assert_eq!(all.len(), WAYS as usize);
        assert!(all.iter().all(|frames| !frames.is_empty()));
    }
}
