//! Compressed frames: the JSON of a batch, compressed once for all who asked for that compression.
//!
//! Each frame is a complete stream of its own, so nothing is remembered for a connection: per-connection compression
//! state is what makes memory grow tenfold elsewhere. What is too small to gain goes out as JSON.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use super::frame::binary_frame;
use super::server::{comments_json, gap_json};
use crate::model::{BatchEncoder, Format, FrameHead, Posted};

/// Below this many bytes of JSON a frame is sent as it is. One comment of 200 bytes shrinks by a quarter, which saves
/// less than the receiver's work is worth; from three comments on it is half and more.
const WORTHWHILE: usize = 512;

/// zstd's own default; 1 to 22.
const ZSTD_LEVEL: i32 = 3;

/// Between 0 and 11; from 5 on Brotli takes several times as long for a few per cent.
const BROTLI_QUALITY: u32 = 4;

/// A window that holds the largest frames (2^18 = 256 KiB).
const BROTLI_WINDOW: u32 = 18;

/// Which compression a viewer asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// DEFLATE in a zlib wrapper (RFC 1950), as HTTP and browsers mean it.
    Deflate,
}

impl Compression {
    /// Reads the word in a query: `zstd`, `br` or `deflate`.
    #[must_use]
    pub fn parse(raw: &str) -> Option<Self> {
        match raw {
            "zstd" => Some(Self::Zstd),
            "br" => Some(Self::Brotli),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    /// The word that [`parse`](Self::parse) reads.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Deflate => "deflate",
        }
    }

    fn compress(self, json: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Zstd => zstd::bulk::compress(json, ZSTD_LEVEL),
            Self::Brotli => {
                let mut writer = brotli::CompressorWriter::new(Vec::new(), 4096, BROTLI_QUALITY, BROTLI_WINDOW);
                writer.write_all(json)?;
                Ok(writer.into_inner())
            }
            Self::Deflate => {
                let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                writer.write_all(json)?;
                writer.finish()
            }
        }
    }
}

/// Encodes for viewers that asked for a compression: binary frames, or JSON in text frames where that is as good.
#[derive(Clone, Copy, Debug)]
pub struct CompressedEncoder(pub Compression);

impl BatchEncoder for CompressedEncoder {
    fn format(&self) -> Format {
        match self.0 {
            Compression::Zstd => Format::Zstd,
            Compression::Brotli => Format::Brotli,
            Compression::Deflate => Format::Deflate,
        }
    }

    fn comments(&self, head: &FrameHead, comments: &[&Arc<Posted>]) -> Bytes {
        let json = comments_json(head, comments);
        let compressed = (json.len() >= WORTHWHILE).then(|| self.0.compress(json.payload()));
        match compressed {
            Some(Ok(compressed)) if compressed.len() < json.len() => binary_frame(&compressed),
            // Writing to memory does not fail; if it did, the JSON says the same.
            _ => json.into_frame(),
        }
    }

    fn gap(&self, missed: u64) -> Bytes {
        gap_json(missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Seq, test_comment};
    use std::io::Read as _;

    fn batch(count: u32) -> Vec<Arc<Posted>> {
        (0..count).map(|n| Arc::new(Posted::stored(test_comment("r", 1, n, "哈哈哈哈 233"), Seq(n.into())))).collect()
    }

    fn encode(encoder: &dyn BatchEncoder, batch: &[Arc<Posted>]) -> Bytes {
        let cursor = Cursor::at(batch.last().unwrap().comment.position());
        encoder.comments(&FrameHead { cursor, left_out: None }, &batch.iter().collect::<Vec<_>>())
    }

    /// The payload behind a header of four bytes, which frames of 126 to 65,535 bytes have.
    fn payload(frame: &Bytes) -> &[u8] {
        assert_eq!(frame[1], 126);
        &frame[4..]
    }

    #[test]
    fn every_compression_gives_the_json_back_and_halves_it() {
        let batch = batch(20);
        let json = encode(&super::super::server::JsonEncoder, &batch);
        for compression in [Compression::Zstd, Compression::Brotli, Compression::Deflate] {
            let frame = encode(&CompressedEncoder(compression), &batch);
            assert_eq!(frame[0], 0x82, "a binary frame");
            assert!(frame.len() * 2 < json.len(), "{compression:?}: {} of {}", frame.len(), json.len());
            let mut back = Vec::new();
            match compression {
                Compression::Zstd => back = zstd::bulk::decompress(payload(&frame), 1 << 20).unwrap(),
                Compression::Brotli => {
                    brotli::Decompressor::new(payload(&frame), 4096).read_to_end(&mut back).map(drop).unwrap();
                }
                Compression::Deflate => {
                    flate2::read::ZlibDecoder::new(payload(&frame)).read_to_end(&mut back).map(drop).unwrap();
                }
            }
            assert_eq!(back, payload(&json), "{compression:?}");
        }
    }

    #[test]
    fn what_is_too_small_to_gain_goes_out_as_it_is() {
        let batch = batch(1);
        let json = encode(&super::super::server::JsonEncoder, &batch);
        assert_eq!(encode(&CompressedEncoder(Compression::Zstd), &batch), json);
    }
}
