//! Counts the fragments of a client's message. The protocol library bounds a message's bytes but not its frames, and
//! an endless row of empty ones would keep it busy for ever.

use thiserror::Error;

/// A message came in more fragments than allowed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a message in more than {0} fragments")]
pub struct TooManyFragments(pub u32);

/// Follows the frame headers (RFC 6455, 5.2) in a client's bytes, however they are cut.
#[derive(Debug)]
pub struct FragmentMeter {
    limit: u32,
    fragments: u32,
    header: [u8; 10],
    have: usize,
    /// Bytes of mask and payload still to come.
    skip: u64,
}

impl FragmentMeter {
    /// Allows `limit` frames a message.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { limit, fragments: 0, header: [0; 10], have: 0, skip: 0 }
    }

    /// Whether the bytes so far end with a whole message.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.have == 0 && self.skip == 0 && self.fragments == 0
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`TooManyFragments`] when a message has more frames than allowed; the connection should end.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), TooManyFragments> {
        loop {
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
            self.skip -= skipped as u64;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let Some((byte, rest)) = bytes.split_first() else { return Ok(()) };
            bytes = rest;
            if let Some(slot) = self.header.get_mut(self.have) {
                *slot = *byte;
                self.have += 1;
            }
            if let Some(body) = self.body() {
                self.have = 0;
                self.skip = body;
                self.count()?;
            }
        }
    }

    /// Bytes after the header, once all of the header is here.
    fn body(&self) -> Option<u64> {
        let [_, second, length @ ..] = self.header;
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        let payload = match (second & 0x7f, self.have) {
            (short @ 0..=125, 2..) => u64::from(short),
            (126, 4..) => u64::from(u16::from_be_bytes([length[0], length[1]])),
            (127, 10..) => u64::from_be_bytes(length),
            _ => return None,
        };
        Some(payload.saturating_add(mask))
    }

    fn count(&mut self) -> Result<(), TooManyFragments> {
        let [first, ..] = self.header;
        let (is_final, is_control) = (first & 0x80 != 0, first & 0x08 != 0);
        if is_control {
            return Ok(());
        }
        self.fragments += 1;
        if self.fragments > self.limit {
            return Err(TooManyFragments(self.limit));
        }
        if is_final {
            self.fragments = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![first];
        match payload {
            0..=125 => bytes.push(0x80 | payload as u8),
            126..=65535 => {
                bytes.push(0x80 | 126);
                bytes.extend((payload as u16).to_be_bytes());
            }
            _ => {
                bytes.push(0x80 | 127);
                bytes.extend((payload as u64).to_be_bytes());
            }
        }
        bytes.extend(std::iter::repeat_n(0x81, payload + 4));
        bytes
    }

    proptest! {
        #[test]
        fn fragments_are_counted_however_the_bytes_are_cut(
            messages in prop::collection::vec(prop::collection::vec((0usize..300, prop::bool::ANY), 1..7), 1..6),
            cut in 1usize..50,
        ) {
            let (mut bytes, mut longest) = (Vec::new(), 0);
            for message in &messages {
                longest = longest.max(message.len() as u32);
                for (i, (payload, has_ping)) in message.iter().enumerate() {
                    let opcode = if i == 0 { 0x01 } else { 0x00 };
                    bytes.extend(frame(opcode | if i + 1 == message.len() { 0x80 } else { 0 }, *payload));
                    if *has_ping {
                        bytes.extend(frame(0x89, 3));
                    }
                }
            }
            let run = |limit| {
                let mut meter = FragmentMeter::new(limit);
                bytes.chunks(cut).try_for_each(|chunk| meter.feed(chunk))
            };
            prop_assert_eq!(run(longest), Ok(()));
            prop_assert_eq!(run(longest - 1), Err(TooManyFragments(longest - 1)));
        }

        #[test]
        fn no_bytes_make_the_meter_panic(bytes: Vec<u8>) {
            let _outcome = FragmentMeter::new(3).feed(&bytes);
        }
    }

    #[test]
    fn a_large_frame_is_one_fragment() {
        assert_eq!(FragmentMeter::new(1).feed(&frame(0x81, 70_000)), Ok(()));
    }
}
