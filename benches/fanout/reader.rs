//! Reads what a server sends as cheaply as it can be read and still checked: frames by their headers, and in frames of
//! comments the marks `#<number>@<microseconds>;` that the senders put into the texts. Bytes may be cut anywhere.

use memchr::memchr;

/// Bytes of a frame that are kept to tell what it is; a gap's number is within them.
const HEAD: usize = 48;

/// Where the letter stands that tells a frame's type: behind `{"type":"`.
const KIND: usize = 9;

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Comment {
        number: u64,
        at_micros: u64,
    },
    Gap(u64),
    Ack,
    Error,
    /// A WebSocket ping; the servers' have no payload.
    Ping,
    Frame,
}

#[derive(Clone, Copy, Debug)]
enum Mark {
    Outside,
    Number(u64),
    Micros(u64, u64),
}

/// The state of one connection.
#[derive(Debug)]
pub struct Reader {
    header: [u8; 10],
    have: usize,
    left: usize,
    head: [u8; HEAD],
    seen: usize,
    mark: Mark,
}

impl Default for Reader {
    fn default() -> Self {
        Self { header: [0; 10], have: 0, left: 0, head: [0; HEAD], seen: 0, mark: Mark::Outside }
    }
}

impl Reader {
    /// Takes the next bytes and tells what was in them.
    pub fn feed(&mut self, mut bytes: &[u8], tell: &mut impl FnMut(Found)) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.left == 0 {
                self.header[self.have] = *first;
                self.have += 1;
                bytes = rest;
                if let Some(length) = self.length() {
                    if self.header[0] == 0x89 {
                        tell(Found::Ping);
                    }
                    (self.left, self.have, self.seen, self.mark) = (length, 0, 0, Mark::Outside);
                }
                continue;
            }
            let (part, rest) = bytes.split_at(self.left.min(bytes.len()));
            bytes = rest;
            self.left -= part.len();
            self.take(part, tell);
            if self.left == 0 {
                self.end(tell);
            }
        }
    }

    /// The payload's length, once all of the header is here. Servers do not mask.
    fn length(&self) -> Option<usize> {
        let [_, second, long @ ..] = self.header;
        match (second & 0x7f, self.have) {
            (short @ 0..=125, 2..) => Some(short.into()),
            (126, 4..) => Some(u16::from_be_bytes([long[0], long[1]]).into()),
            (127, 10..) => usize::try_from(u64::from_be_bytes(long)).ok(),
            _ => None,
        }
    }

    fn take(&mut self, part: &[u8], tell: &mut impl FnMut(Found)) {
        if self.seen < HEAD {
            let copied = part.len().min(HEAD - self.seen);
            self.head[self.seen..self.seen + copied].copy_from_slice(&part[..copied]);
            self.seen += copied;
        }
        if self.seen > KIND && self.head[KIND] == b'c' {
            self.scan(part, tell);
        }
    }

    fn scan(&mut self, mut part: &[u8], tell: &mut impl FnMut(Found)) {
        loop {
            if matches!(self.mark, Mark::Outside) {
                let Some(place) = memchr(b'#', part) else { return };
                part = &part[place + 1..];
                self.mark = Mark::Number(0);
            }
            let Some((byte, rest)) = part.split_first() else { return };
            part = rest;
            let digit = u64::from(byte.wrapping_sub(b'0'));
            self.mark = match (self.mark, byte) {
                (Mark::Number(number), b'0'..=b'9') => Mark::Number(number * 10 + digit),
                (Mark::Number(number), b'@') => Mark::Micros(number, 0),
                (Mark::Micros(number, at), b'0'..=b'9') => Mark::Micros(number, at * 10 + digit),
                (Mark::Micros(number, at_micros), b';') => {
                    tell(Found::Comment { number, at_micros });
                    Mark::Outside
                }
                _ => Mark::Outside,
            };
        }
    }

    fn end(&mut self, tell: &mut impl FnMut(Found)) {
        tell(Found::Frame);
        let head = &self.head[..self.seen];
        match head.get(KIND) {
            Some(b'a') => tell(Found::Ack),
            Some(b'e') => tell(Found::Error),
            Some(b'g') => {
                let digits = head.iter().filter(|byte| byte.is_ascii_digit());
                tell(Found::Gap(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))));
            }
            _ => {}
        }
    }
}
