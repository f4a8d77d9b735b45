//! What is written can be read, on any node of any version; what is damaged harms nothing.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::model::test_comment;

fn room() -> RoomId {
    RoomId::parse("r1").unwrap()
}

prop_compose! {
    fn any_comment()(
        id: [u8; 12], ts in 0..=MAX_MILLIS, expire_at in 0..=MAX_MILLIS, uid in ".{0,40}", name in ".{0,20}", text in ".{0,200}",
        mode in prop::sample::select(vec![1, 4, 5]), color in 0i64..=0xFF_FFFF, size in 12i64..=64,
    ) -> Comment {
        Comment {
            id: CommentId::from_bytes(id),
            room: room(),
            ts: Timestamp::from_millis(ts),
            uid: UserId::new(&uid),
            name: Name::from_store(&name),
            text: Text::from_store(&text),
            style: Style::parse(Some(mode), Some(color), Some(size)).unwrap(),
            expire_at: Timestamp::from_millis(expire_at),
        }
    }
}

fn any_relayed() -> impl Strategy<Value = Relayed> {
    // Mostly viewers, so that there are messages of both versions.
    let role =
        prop_oneof![8 => Just(Role::Viewer), 1 => Just(Role::Moderator), 1 => Just(Role::Host), 1 => Just(Role::Admin)];
    (any_comment(), role).prop_map(|(comment, sender)| Relayed { comment, sender })
}

fn encode_all(node: NodeId, comments: &[Relayed]) -> Vec<u8> {
    encode(node, comments.iter().map(|relayed| (&relayed.comment, relayed.sender)))
}

proptest! {
    #[test]
    fn comments_survive_the_way(node: NodeId, seq: u64, comments in vec(any_relayed(), 0..20)) {
        let mut message = encode_all(node, &comments);
        set_seq(&mut message, seq);
        prop_assert_eq!(decode(&room(), &message), Ok(Message { node, seq, body: Body::Comments(comments) }));
    }

    #[test]
    fn damaged_messages_are_refused_or_read_but_never_panic(
        comments in vec(any_relayed(), 1..4), cut: prop::sample::Index, hit: prop::sample::Index, to: u8
    ) {
        let message = encode_all([1; 8], &comments);
        prop_assert!(decode(&room(), &message[..cut.index(message.len())]).is_err());
        let mut damaged = message.clone();
        damaged[hit.index(message.len())] = to;
        let _outcome = decode(&room(), &damaged);
        let longer = [message.as_slice(), &[0]].concat();
        prop_assert_eq!(decode(&room(), &longer), Err(CodecError::Trailing(1)));
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..300)) {
        let _outcome = decode(&room(), &noise);
        for version in [VIEWERS, ROLES, LOST] {
            let _outcome = decode(&room(), &[&[version], noise.as_slice()].concat());
        }
        let _outcome = unstamp(&[&[STAMPED], noise.as_slice()].concat());
    }
}

#[test]
fn claimed_lengths_reserve_nothing() {
    let head = |length: &[u8]| [&[ROLES], [0u8; 16].as_slice(), length].concat();
    assert_eq!(decode(&room(), &head(&[0xFF, 0xFF, 0xFF, 0x7F])), Err(CodecError::Short));
    assert_eq!(decode(&room(), &head(&[0xFF; 9])), Err(CodecError::Length));
    assert_eq!(decode(&room(), &[9, 1]), Err(CodecError::Version(9)));
}

fn fixture() -> Comment {
    Comment {
        id: CommentId::from_bytes(*b"comment-id-1"),
        room: room(),
        ts: Timestamp::from_millis(0x0102),
        uid: UserId::new("u"),
        name: Name::from_store("明"),
        text: Text::from_store("hi"),
        style: Style::parse(Some(5), Some(0x0A_0B0C), Some(25)).unwrap(),
        expire_at: Timestamp::from_millis(0x0304),
    }
}

fn fixture_bytes(version: u8, role: &[u8]) -> Vec<u8> {
    let expected: &[&[u8]] = &[
        &[version],
        b"node-id!",
        &[0; 8],
        &[1],
        b"comment-id-1",
        &[0, 0, 0, 0, 0, 0, 1, 2],
        &[0, 0, 0, 0, 0, 0, 3, 4],
        &[5, 25, 0x0A, 0x0B, 0x0C],
        role,
        b"\x01u\x03\xE6\x98\x8E\x02hi",
    ];
    expected.concat()
}

/// Nodes of different builds run side by side during an update, so a version's bytes never change.
#[test]
fn the_versions_with_comments_stay_as_they_are() {
    for (sender, version, role) in [
        (Role::Viewer, 1, &[][..]),
        (Role::Moderator, 2, &[1][..]),
        (Role::Host, 2, &[2][..]),
        (Role::Admin, 2, &[3][..]),
    ] {
        let (comments, bytes) = (vec![Relayed { comment: fixture(), sender }], fixture_bytes(version, role));
        assert_eq!(encode_all(*b"node-id!", &comments), bytes);
        assert_eq!(decode(&room(), &bytes).unwrap().body, Body::Comments(comments));
    }
}

#[test]
fn the_notice_and_the_stamp_stay_as_they_are() {
    let notice: &[&[u8]] = &[&[3], b"node-id!", &[0; 8], &[0xAC, 0x02], &[0, 0, 0, 0, 0, 0, 1, 2]];
    let notice = notice.concat();
    let since = Timestamp::from_millis(0x0102);
    assert_eq!(encode_lost(*b"node-id!", 300, since), notice);
    let stamped = [&[4, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4], notice.as_slice()].concat();
    let (id, message) = unstamp(&stamped).unwrap();
    assert_eq!(id, Some(EntryId { epoch: 0x0102, seq: 0x0304 }));
    let message = decode(&room(), message).unwrap();
    assert_eq!(message, Message { node: *b"node-id!", seq: 0, body: Body::Lost { count: 300, since } });
    assert_eq!(message.count(), 300);
    assert_eq!(unstamp(&notice), Ok((None, notice.as_slice())), "a bare one has no place");
    assert_eq!(unstamp(&stamped[..10]), Err(CodecError::Short));
    assert_eq!(decode(&room(), &stamped), Err(CodecError::Version(4)), "there are no stamps within");
    let many = decode(&room(), &encode_lost([0; 8], u64::MAX, since)).unwrap();
    assert_eq!(many.count(), (1 << 28) - 1);
}

#[test]
fn a_role_that_is_not_known_here_is_a_viewers() {
    let body = decode(&room(), &fixture_bytes(2, &[99])).unwrap().body;
    assert_eq!(body, Body::Comments(vec![Relayed { comment: fixture(), sender: Role::Viewer }]));
}

#[test]
fn a_time_that_no_clock_shows_is_refused() {
    let id = CommentId::from_parts(Timestamp::from_millis(1), [1; 5], 1);
    for (ts, expire_at) in [(i64::MAX, 1), (1, i64::MAX), (-1, 1), (1, -1), (MAX_MILLIS + 1, 1)] {
        let mut comment = test_comment("r1", 1, 1, "x");
        (comment.id, comment.ts, comment.expire_at) =
            (id, Timestamp::from_millis(ts), Timestamp::from_millis(expire_at));
        let message = encode_all([1; 8], &[comment.into()]);
        assert_eq!(decode(&room(), &message), Err(CodecError::Time), "{ts} {expire_at}");
    }
}
