//! A comment as MongoDB keeps it. The table of fields is in the README; these names and types must stay.

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bson::{DateTime, oid::ObjectId};
use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::model::{Comment, Name, RoomId, Style, Text, Timestamp, UserId};

/// A document of more bytes is refused by every server
/// (`maxBsonObjectSize`, <https://www.mongodb.com/docs/manual/reference/limits/>).
pub(super) const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Encodes a comment.
pub(in crate::store) fn encode(comment: &Comment) -> Bytes {
    let mut raw = RawDocumentBuf::new();
    raw.append(cstr!("_id"), comment.id.object_id());
    raw.append(cstr!("roomId"), comment.room.as_str());
    raw.append(cstr!("ts"), date(comment.ts));
    raw.append(cstr!("uid"), comment.uid.as_str());
    raw.append(cstr!("name"), comment.name.as_str());
    raw.append(cstr!("content"), comment.text.as_str());
    raw.append(cstr!("mode"), comment.style.mode.number());
    raw.append(cstr!("color"), comment.style.color.number());
    raw.append(cstr!("size"), comment.style.size.number());
    raw.append(cstr!("expireAt"), date(comment.expire_at));
    raw.into_bytes().into()
}

/// A moment as the driver's type.
pub(super) fn date(at: Timestamp) -> DateTime {
    DateTime::from_millis(at.millis())
}

/// Bytes that are a document already. The driver copies them as they are and does not walk through their fields.
pub(super) struct Encoded<'a>(pub(super) &'a RawDocument);

impl Serialize for Encoded<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Reads a document of `room` back.
///
/// # Errors
/// The name of the field that is missing or holds what no comment of ours would: another program wrote it.
pub(super) fn decode(raw: &RawDocument, room: &RoomId) -> Result<Comment, &'static str> {
    let (mut id, mut ts, mut expire_at) = (None::<ObjectId>, None, None);
    let (mut uid, mut name, mut text) = (None, None, None);
    let (mut mode, mut color, mut size) = (None, None, None);
    for field in raw.iter() {
        let (key, value) = field.map_err(|_| "document")?;
        match key.as_str() {
            "_id" => id = value.as_object_id(),
            "ts" => ts = moment(value),
            "expireAt" => expire_at = moment(value),
            "uid" => uid = value.as_str(),
            "name" => name = value.as_str(),
            "content" => text = value.as_str(),
            "mode" => mode = whole(value),
            "color" => color = whole(value),
            "size" => size = whole(value),
            _ => {}
        }
    }
    let style = Style::parse(Some(mode.ok_or("mode")?), Some(color.ok_or("color")?), Some(size.ok_or("size")?));
    Ok(Comment {
        id: id.ok_or("_id")?.into(),
        room: room.clone(),
        ts: ts.ok_or("ts")?,
        uid: UserId::new(uid.ok_or("uid")?),
        name: Name::from_store(name.ok_or("name")?),
        text: Text::from_store(text.ok_or("content")?),
        style: style.map_err(|_| "mode, color or size")?,
        expire_at: expire_at.ok_or("expireAt")?,
    })
}

/// Reads a document back, whatever its room.
///
/// # Errors
/// As [`decode`].
pub(in crate::store) fn decode_any(bytes: &[u8]) -> Result<Comment, &'static str> {
    let raw = RawDocument::from_bytes(bytes).map_err(|_| "document")?;
    let room = raw.get_str("roomId").ok().and_then(|room| RoomId::parse(room).ok()).ok_or("roomId")?;
    decode(raw, &room)
}

fn moment(value: RawBsonRef<'_>) -> Option<Timestamp> {
    value.as_datetime().map(|at| Timestamp::from_millis(at.timestamp_millis()))
}

/// A whole number of either width; shells and other drivers write the wider one.
fn whole(value: RawBsonRef<'_>) -> Option<i64> {
    value.as_i32().map(i64::from).or_else(|| value.as_i64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, doc};

    use crate::model::CommentId;

    fn comment() -> Comment {
        let ts = Timestamp::from_millis(1_700_000_000_123);
        Comment {
            id: CommentId::from_parts(ts, [7; 5], 1),
            room: RoomId::parse("r1").unwrap(),
            ts,
            uid: UserId::new("u1"),
            name: Name::parse("阿明").unwrap(),
            text: Text::from_store("哈哈\u{0}👨‍👩‍👧‍👦"),
            style: Style::parse(Some(5), Some(0xFF_FFFF), Some(64)).unwrap(),
            expire_at: Timestamp::from_millis(1_700_003_600_123),
        }
    }

    #[test]
    fn a_comment_survives_its_document() {
        let bytes = encode(&comment());
        assert_eq!(decode(RawDocument::from_bytes(&bytes).unwrap(), &comment().room), Ok(comment()));
        assert_eq!(decode_any(&bytes), Ok(comment()));
        assert_eq!(decode_any(&bytes[1..]), Err("document"));
    }

    #[test]
    fn a_malformed_document_is_named_by_its_field() {
        let good: bson::Document = bson::deserialize_from_slice(&encode(&comment())).unwrap();
        for key in ["_id", "ts", "uid", "name", "content", "mode", "color", "size", "expireAt"] {
            for bad in [Bson::Null, Bson::Boolean(true), Bson::Document(doc! { "a": 1 })] {
                let mut document = good.clone();
                document.insert(key, bad);
                let raw = RawDocumentBuf::try_from(&document).unwrap();
                assert_eq!(decode(&raw, &comment().room), Err(key));
                document.remove(key);
                let raw = RawDocumentBuf::try_from(&document).unwrap();
                assert_eq!(decode(&raw, &comment().room), Err(key));
            }
        }
        let mut document = good;
        document.insert("mode", 7);
        let raw = RawDocumentBuf::try_from(&document).unwrap();
        assert_eq!(decode(&raw, &comment().room), Err("mode, color or size"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(cut in 0usize..200, at in 0usize..200, byte: u8) {
            let mut bytes = encode(&comment()).to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Ok(raw) = RawDocument::from_bytes(&bytes) {
                let _outcome = decode(raw, &comment().room);
            }
        }
    }
}
