//! Reading and writing: what the network has, and when comments are due.

use std::io::{ErrorKind, Read as _, Write as _};

use mio::event::Event;

use super::conn::{Manner, Stage};
use super::frame::{self, Kind};
use super::hall::{micros, nonce};
use super::joins::kind_of;
use super::mark::Mark;
use super::worker::{Phase, Worker};
use crate::load::client::SendFrame;
use crate::load::outcome::NOBODY_TO_SEND;
use crate::load::plan::Due;

/// A read takes at most so much; then it is others' turn.
const READ: usize = 256 * 1024;

/// Bytes that a server may leave unread before no more is sent to it.
const MAX_UNSENT: usize = 1 << 20;

/// What is kept of an empty buffer.
const KEPT: usize = 512;

impl Worker {
    /// The network has something for a connection, or takes something.
    pub(super) fn take_event(&mut self, event: &Event) {
        let index = u32::try_from(event.token().0).unwrap_or(u32::MAX);
        let Some(conn) = self.conns.get_mut(index as usize) else { return };
        if conn.stage == Stage::Connecting && (event.is_writable() || event.is_error()) {
            let error = conn.stream.as_ref().map(|stream| stream.take_error());
            if let Some(Ok(Some(error)) | Err(error)) = error {
                return self.has_failed(index, &kind_of(&error));
            }
            conn.stage = Stage::Shaking;
        }
        if event.is_writable() {
            self.flush(index);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read(index);
        }
    }

    /// Reads what has come.
    pub(super) fn read(&mut self, index: u32) {
        let conn = self.conns.get(index as usize);
        // A slow viewer reads by the clock.
        if conn.is_some_and(|conn| conn.manner == Manner::Slow && conn.stage == Stage::Open) {
            return;
        }
        if self.read_upto(index, READ) {
            self.again.push(index);
        }
    }

    /// Reads so many bytes at most; tells whether there may be more.
    pub(super) fn read_upto(&mut self, index: u32, most: usize) -> bool {
        let Some(conn) = self.conns.get_mut(index as usize) else { return false };
        let Some(stream) = conn.stream.as_mut() else { return false };
        let held = conn.partial.len();
        if self.buffer.len() < held + most {
            self.buffer.resize(held + most, 0);
        }
        let Some((head, room)) = self.buffer.split_at_mut_checked(held) else { return false };
        head.copy_from_slice(&conn.partial);
        let read = match stream.read(room.get_mut(..most).unwrap_or_default()) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return false,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted) => return true,
            Err(_) => 0,
        };
        if read == 0 {
            self.has_ended(index, None);
            return false;
        }
        self.hall.figures.counts.bytes_received += read as u64;
        let was_open = conn.stage == Stage::Open;
        let bytes = self.buffer.get(..held + read).unwrap_or_default();
        match conn.take(bytes, &mut self.hall) {
            Ok(taken) => {
                conn.partial.clear();
                conn.partial.extend_from_slice(bytes.get(taken..).unwrap_or_default());
                if conn.partial.is_empty() && conn.partial.capacity() > KEPT {
                    conn.partial = Vec::new();
                }
            }
            Err(end) => {
                self.has_ended(index, Some(end));
                return false;
            }
        }
        let has_come = !was_open && conn.stage == Stage::Open;
        if !conn.unsent.is_empty() {
            self.flush(index);
        }
        if has_come {
            self.has_come(index);
        }
        read == most
    }

    /// Writes what the socket takes.
    pub(super) fn flush(&mut self, index: u32) {
        let Some(conn) = self.conns.get_mut(index as usize) else { return };
        let Some(stream) = conn.stream.as_mut() else { return };
        while !conn.unsent.is_empty() {
            match stream.write(&conn.unsent) {
                Ok(written) => drop(conn.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Its end is seen by reading.
                Err(_) => return,
            }
        }
        if conn.unsent.capacity() > KEPT {
            conn.unsent = Vec::new();
        }
    }

    /// Sends all comments whose time has come.
    pub(super) fn send_due(&mut self) {
        let Phase::Sending(origin) = self.phase else { return };
        loop {
            let now = self.hall.now();
            let Some(due) = self.schedule.next_if(|due| origin + micros(due.at) <= now) else { return };
            self.hall.figures.counts.scheduled += 1;
            self.say(&due, origin + micros(due.at));
        }
    }

    fn say(&mut self, due: &Due, at: u64) {
        let Some(room) = self.hall.rooms.get_mut(due.room) else { return };
        let senders = room.senders.len();
        let first = match due.user {
            Some(user) => usize::try_from(user % senders.max(1) as u64).unwrap_or(0),
            None => room.turn,
        };
        let can_send = |index: &u32| {
            let conn = self.conns.get(*index as usize);
            conn.is_some_and(|conn| conn.stage == Stage::Open && conn.unsent.len() < MAX_UNSENT)
        };
        let mut in_turn = (0..senders).map(|nth| (first + nth) % senders);
        let in_turn =
            in_turn.find_map(|place| Some((place, *room.senders.get(place).filter(|index| can_send(index))?)));
        let Some((place, sender)) = in_turn else {
            room.unsent.push(at);
            return self.hall.figures.error(NOBODY_TO_SEND);
        };
        // Behind who sent, not behind whose turn it was: else one would speak for all who are not there yet.
        room.turn = (place + 1) % senders.max(1);
        let number = room.sent.push(at, sender);
        let run = self.hall.cast.run;
        let text = Mark { room: due.room as u32, number }.text(run, due.chars, due.bytes);
        let [mode, color, size] = due.style;
        let nonce = nonce(due.room, number);
        let level = self.hall.plan.ack.level(number);
        let send = SendFrame { r#type: "send", nonce: &nonce, text: &text, mode, color, size, ack: level.as_str() };
        // Strings and numbers always have a JSON form.
        let json = serde_json::to_vec(&send).unwrap_or_default();
        let Some(conn) = self.conns.get_mut(sender as usize) else { return };
        frame::push(&mut conn.unsent, Kind::Text, &json);
        self.hall.figures.counts.sent += 1;
        let now = self.hall.now();
        self.hall.figures.lateness.record(at, now);
        self.flush(sender);
    }
}
