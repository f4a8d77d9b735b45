//! What the bytes of a segment hold, damaged or not: every whole record is found, wherever it stands. Pure.

use std::ops::Range;

use super::format::{Format, HEADER_BYTES, is_whole, number_in, payload_bytes};

/// Of so many zeros at the end of a file a power cut may be the reason: pages that never reached the disk. A sector's.
const ZEROS: usize = 512;

/// What a segment holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Survey {
    /// Where its last good record ends.
    pub(super) end: usize,
    /// How many records stand before that, the damaged ones among them.
    pub(super) records: u64,
    /// What is damaged between good records.
    pub(super) damaged: Vec<Damage>,
    /// Where the payload of each good record is.
    pub(super) payloads: Vec<Range<usize>>,
}

/// Records that follow each other and cannot be read, though a good one behind them can.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// The number of the first.
    pub(super) first: u64,
    /// How many. In format 1, in which nothing tells, one: the least.
    pub(super) count: u64,
    /// What stands there.
    pub(super) bytes: Range<usize>,
}

/// Reads a whole segment. A power cut during a long append may leave bad records before good ones as well, since pages
/// reach the disk in any order.
pub(super) fn survey(bytes: &[u8], format: Format) -> Survey {
    let begin = (HEADER_BYTES as usize).min(bytes.len());
    let mut survey = Survey { end: begin, records: 0, damaged: Vec::new(), payloads: Vec::new() };
    while survey.end < bytes.len() {
        let (begin, first) = (survey.end, survey.records);
        let is_due = |number: u64| number == first;
        let (at, number, payload) = match record_at(bytes, begin, format, is_due) {
            Some((_, payload)) => (begin, first, payload),
            None => match find(bytes, begin, format, first) {
                Some(found) => found,
                None => break,
            },
        };
        if at > begin {
            survey.damaged.push(Damage { first, count: number - first, bytes: begin..at });
        }
        survey.end = payload.end;
        survey.records = number + 1;
        survey.payloads.push(payload);
    }
    survey
}

/// Finds the first whole record behind `begin`, where record `due` should be and is not: where it stands, its number and
/// its payload. What is lost before it takes some bytes each, so that chance would have to guess a number as well as a
/// checksum to be taken for a record.
pub(super) fn find(bytes: &[u8], begin: usize, format: Format, due: u64) -> Option<(usize, u64, Range<usize>)> {
    (begin + 1..bytes.len()).find_map(|at| {
        let most = due.saturating_add(((at - begin) / format.head_bytes()).max(1) as u64);
        let (number, payload) = record_at(bytes, at, format, |number| (due + 1..=most).contains(&number))?;
        Some((at, number.unwrap_or(due + 1), payload))
    })
}

/// The whole record that begins at `at`, if its number will do: the number, unless the format has none, and the payload.
fn record_at(
    bytes: &[u8],
    at: usize,
    format: Format,
    will_do: impl Fn(u64) -> bool,
) -> Option<(Option<u64>, Range<usize>)> {
    let begin = at + format.head_bytes();
    let head = bytes.get(at..begin)?;
    let number = number_in(head);
    let payload = begin..begin + payload_bytes(head)?;
    if !number.is_none_or(will_do) {
        return None;
    }
    is_whole(head, *head.first_chunk()?, bytes.get(payload.clone())?).then_some((number, payload))
}

/// Whether what stands behind the last good record is what a crash leaves of an append that it cut off: nothing but
/// zeros, or a record of which the end is missing, or zeros. Otherwise something that was appended is damaged.
pub(super) fn is_torn(tail: &[u8], format: Format) -> bool {
    let written = tail.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let tail = if written == 0 || tail.len() - written >= ZEROS { &tail[..written] } else { tail };
    let Some((head, payload)) = tail.split_at_checked(format.head_bytes()) else { return true };
    // All of it may be there, and its length be what is wrong.
    let whole = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
    payload_bytes(head).is_some_and(|length| length > payload.len()) && !is_whole(head, whole, payload)
}

#[cfg(test)]
mod tests {
    use super::super::format::{header_of, put_record};
    use super::*;
    use proptest::prelude::*;

    /// A segment, and where each of its records begins.
    fn segment(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header_of(Format::Two, 1).to_vec();
        let put = |(number, payload): (u64, &Vec<u8>)| {
            let begin = bytes.len();
            put_record(&mut bytes, number, payload);
            begin
        };
        let begins = (0..).zip(payloads).map(put).collect();
        (bytes, begins)
    }

    fn payloads() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Zeros and records within records are what could mislead.
        let inner = prop::collection::vec(any::<u8>(), 0..20).prop_map(|payload| {
            let mut bytes = Vec::new();
            put_record(&mut bytes, 0, &payload);
            bytes
        });
        let payload =
            prop_oneof![prop::collection::vec(any::<u8>(), 0..40), (0..40usize).prop_map(|n| vec![0; n]), inner];
        prop::collection::vec(payload, 1..8)
    }

    proptest! {
        #[test]
        fn one_bit_costs_one_record_wherever_it_is(payloads in payloads(), at: prop::sample::Index, bit in 0..8) {
            let (mut bytes, begins) = segment(&payloads);
            let at = HEADER_BYTES as usize + at.index(bytes.len() - HEADER_BYTES as usize);
            bytes[at] ^= 1u8 << bit;
            let hit = begins.iter().filter(|begin| **begin <= at).count() - 1;
            let Survey { end, damaged, payloads: found, .. } = survey(&bytes, Format::Two);
            let found: Vec<_> = found.into_iter().map(|range| bytes[range].to_vec()).collect();
            let others: Vec<_> = payloads.iter().enumerate().filter(|(n, _)| *n != hit).map(|(_, p)| p.clone()).collect();
            prop_assert_eq!(found, others);
            if hit + 1 == payloads.len() {
                prop_assert_eq!((damaged.len(), end), (0, begins[hit]));
                prop_assert!(!is_torn(&bytes[end..], Format::Two), "a changed bit passes for a torn end");
            } else {
                let bytes = begins[hit]..begins[hit + 1];
                prop_assert_eq!(damaged, vec![Damage { first: hit as u64, count: 1, bytes }]);
            }
        }

        #[test]
        fn an_end_that_is_cut_anywhere_is_torn_and_no_damage(
            payloads in payloads(), at: prop::sample::Index, zeros in prop_oneof![Just(0), 512..5000usize],
        ) {
            let (mut bytes, begins) = segment(&payloads);
            let whole = bytes.len();
            let at = HEADER_BYTES as usize + at.index(whole - HEADER_BYTES as usize + 1);
            bytes.truncate(at);
            bytes.resize(at + zeros, 0);
            let Survey { end, damaged, payloads: found, .. } = survey(&bytes, Format::Two);
            let ends = begins.iter().skip(1).chain([&whole]);
            prop_assert!(found.len() >= ends.filter(|end| **end <= at).count());
            prop_assert_eq!(damaged, vec![]);
            prop_assert!(is_torn(&bytes[end..], Format::Two));
        }

        #[test]
        fn lost_sectors_cost_just_what_stood_in_them(payloads in payloads(), from: prop::sample::Index, count in 1..200usize) {
            let (mut bytes, begins) = segment(&payloads);
            let whole = bytes.len();
            let from = HEADER_BYTES as usize + from.index(whole - HEADER_BYTES as usize);
            let to = (from + count).min(whole);
            bytes[from..to].fill(0xa5);
            let ends: Vec<_> = begins.iter().skip(1).copied().chain([whole]).collect();
            let hit = |n: usize| begins[n] < to && ends[n] > from;
            let survey = survey(&bytes, Format::Two);
            prop_assert_eq!(survey.payloads.len(), (0..payloads.len()).filter(|n| !hit(*n)).count());
            let lost: u64 = survey.damaged.iter().map(|damage| damage.count).sum();
            prop_assert_eq!(lost + survey.payloads.len() as u64, survey.records);
        }
    }
}
