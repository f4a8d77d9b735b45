//! What is in the server's frames.
//!
//! Viewers of a room who asked for the same get the same bytes, so a frame of comments is unpacked, decoded and checked whole
//! once ([`read`]) and after that only compared with; see [`Batches`](super::batches::Batches).

use std::borrow::Cow;
use std::io::Read as _;

use serde::Deserialize;

use super::frame::MAX_FRAME;
use crate::wire::Compression;

/// Every field of every frame that matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Raw<'a> {
    #[serde(borrow)]
    pub(super) r#type: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) room: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) cursor: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "self")]
    pub(super) me: Option<Me<'a>>,
    pub(super) resumed: Option<bool>,
    #[serde(borrow, default)]
    pub(super) recent: Vec<RawComment<'a>>,
    #[serde(borrow, default)]
    pub(super) comments: Vec<RawComment<'a>>,
    pub(super) left_out: Option<u64>,
    #[serde(borrow)]
    pub(super) nonce: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) level: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) code: Option<Cow<'a, str>>,
    pub(super) missed: Option<u64>,
    pub(super) exact: Option<bool>,
    pub(super) reconnect_after_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Me<'a> {
    #[serde(borrow)]
    pub(super) uid: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RawComment<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) uid: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Cow<'a, str>,
    pub(super) ts: i64,
}

/// Reads a frame's JSON; none if it is none of the protocol.
pub(super) fn read(json: &[u8]) -> Option<Raw<'_>> {
    serde_json::from_slice(json).ok()
}

/// The JSON in a binary frame; none if it is not one complete stream of that compression.
pub(super) fn unpack(compression: Compression, packed: &[u8]) -> Option<Vec<u8>> {
    let mut json = Vec::new();
    let limit = MAX_FRAME as u64;
    match compression {
        Compression::Zstd => {
            zstd::stream::read::Decoder::new(packed).ok()?.take(limit).read_to_end(&mut json).ok()?;
        }
        Compression::Brotli => {
            brotli::Decompressor::new(packed, 4096).take(limit).read_to_end(&mut json).ok()?;
        }
        Compression::Deflate => {
            flate2::read::ZlibDecoder::new(packed).take(limit).read_to_end(&mut json).ok()?;
        }
    }
    Some(json)
}

/// Where a comment stands in the order of the node that took it: the process that made its id, and a number that goes up with
/// time and, within a millisecond, with the ids, as the server sorts them. Ids are 4 bytes of seconds, 5 of the process and 3
/// of its counter, in hex; of another id the time alone counts.
pub(super) fn place(id: &str, ts: i64) -> (u64, u64) {
    let part = |range| id.get(range).and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let is_ours = id.len() == 24;
    let process = part(8..18).filter(|_| is_ours).unwrap_or(0);
    let counter = part(18..24).filter(|_| is_ours).unwrap_or(0);
    (process, ts.unsigned_abs() << 24 | counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_times_and_then_of_the_ids() {
        let (process, first) = place("0000000a0102030405000007", 1000);
        assert_eq!(process, 0x01_0203_0405);
        let later = [place("0000000a0102030405000008", 1000), place("0000000a0102030405000001", 1001)];
        assert!(first < later[0].1 && later[0].1 < later[1].1);
        assert_eq!(place("opaque", 5), (0, 5 << 24));
    }

    #[test]
    fn frames_of_the_readme_are_read() {
        let hello = r#"{"type":"hello","room":"r1","session":"s","cursor":"c","online":12,"self":{"uid":"u","name":"n",
            "role":"viewer"},"limits":{"maxChars":100},"resumed":false,"recent":[
            {"id":"i","uid":"u","name":"n","text":"\u54c8","mode":1,"color":1,"size":25,"ts":5}]}"#;
        let raw = read(hello.as_bytes()).unwrap();
        assert_eq!((raw.recent[0].text.as_ref(), raw.me.unwrap().uid.as_ref()), ("哈", "u"));
        let gap = read(br#"{"type":"gap","missed":3,"exact":false}"#).unwrap();
        assert_eq!((gap.missed, gap.exact), (Some(3), Some(false)));
        assert!(read(b"{\"type\":3}").is_none() && read(b"").is_none());
    }
}
