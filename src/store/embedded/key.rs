//! Keys in the embedded store. Pure.
//!
//! A key is the room id's length (one byte), the room id, the time (big-endian, sign bit flipped) and the 12 bytes of
//! the comment id. Compared byte by byte, which is all an ordered key-value engine can do, keys order a room's comments
//! by (time, id), exactly as MongoDB's index `{roomId, ts, _id}` does; the length in front keeps room `a` out of `aa`.

use std::ops::Bound;

use crate::model::{CommentId, Position, RoomId, Timestamp};

/// Time and id at the end of every key.
const TAIL: usize = 8 + 12;

/// A range of keys.
pub(super) type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The key of the comment at `position` in `room`.
pub(super) fn encode(room: &RoomId, position: Position) -> Vec<u8> {
    let room = room.as_str().as_bytes();
    let mut key = Vec::with_capacity(1 + room.len() + TAIL);
    // A room id has at most 64 bytes (`RoomId::MAX_BYTES`).
    key.push(u8::try_from(room.len()).unwrap_or(u8::MAX));
    key.extend_from_slice(room);
    key.extend_from_slice(&ordered(position.ts.millis()).to_be_bytes());
    key.extend_from_slice(&position.id.bytes());
    key
}

/// The position that a key ends with; `None` for bytes that are no key.
pub(super) fn decode_position(key: &[u8]) -> Option<Position> {
    let (rest, id) = key.split_last_chunk::<12>()?;
    let (_room, ts) = rest.split_last_chunk::<8>()?;
    let millis = disordered(u64::from_be_bytes(*ts));
    Some(Position { ts: Timestamp::from_millis(millis), id: CommentId::from_bytes(*id) })
}

/// The keys of the room's comments with `ts >= from`.
pub(super) fn since(room: &RoomId, from: Timestamp) -> KeyRange {
    let first = Position { ts: from, id: CommentId::MIN };
    let last = Position { ts: Timestamp::from_millis(i64::MAX), id: CommentId::from_bytes([u8::MAX; 12]) };
    (Bound::Included(encode(room, first)), Bound::Included(encode(room, last)))
}

/// The keys of the room's comments before `before`.
pub(super) fn before(room: &RoomId, before: Position) -> KeyRange {
    (Bound::Included(encode(room, Position::START)), Bound::Excluded(encode(room, before)))
}

/// The keys of the room's comments after `after` and before `before`; `None` when there can be none, for the engine
/// takes no range that ends before it begins.
pub(super) fn between(room: &RoomId, after: Position, before: Position) -> Option<KeyRange> {
    (after < before).then(|| (Bound::Excluded(encode(room, after)), Bound::Excluded(encode(room, before))))
}

/// Maps a signed number to an unsigned one of the same order.
fn ordered(millis: i64) -> u64 {
    millis.cast_unsigned() ^ (1 << 63)
}

fn disordered(key: u64) -> i64 {
    (key ^ (1 << 63)).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn position(ts: i64, id: [u8; 12]) -> Position {
        Position { ts: Timestamp::from_millis(ts), id: CommentId::from_bytes(id) }
    }

    proptest! {
        #[test]
        fn keys_order_as_room_time_and_id_do(
            rooms in prop::array::uniform2("[ab]{1,3}"),
            a: (i64, [u8; 12]),
            b: (i64, [u8; 12]),
            same_time: bool,
        ) {
            let b = if same_time { (a.0, b.1) } else { b };
            let [room_a, room_b] = rooms.map(|room| RoomId::parse(&room).unwrap());
            let (place_a, place_b) = (position(a.0, a.1), position(b.0, b.1));
            let (key_a, key_b) = (encode(&room_a, place_a), encode(&room_b, place_b));
            let by_length = |room: &RoomId| (room.as_str().len(), room.clone());
            prop_assert_eq!(key_a.cmp(&key_b), (by_length(&room_a), place_a).cmp(&(by_length(&room_b), place_b)));
            prop_assert_eq!(decode_position(&key_a), Some(place_a));
        }
    }

    #[test]
    fn bytes_that_are_no_key_have_no_position() {
        assert_eq!(decode_position(&[]), None);
        assert_eq!(decode_position(&[1; 19]), None);
    }
}
