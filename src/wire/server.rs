//! What the server sends, encoded and framed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::close::CloseReason;
use super::frame::{HEADER, finish_text};
use super::json::{CommentView, ErrorView};
use crate::model::{
    AckLevel, BatchEncoder, Comment, CommentId, Cursor, Format, FrameHead, Identity, Nonce, Posted, RoomId,
};

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum ServerFrame<'a> {
    Hello {
        room: &'a str,
        session: &'a str,
        cursor: String,
        online: usize,
        #[serde(rename = "self")]
        me: Me<'a>,
        limits: Limits,
        resumed: bool,
        recent: Vec<CommentView<'a>>,
    },
    Comments {
        cursor: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<u64>,
        comments: Vec<CommentView<'a>>,
    },
    Ack {
        #[serde(skip_serializing_if = "Option::is_none")]
        nonce: Option<&'a str>,
        id: String,
        level: &'static str,
    },
    Error {
        #[serde(skip_serializing_if = "Option::is_none")]
        nonce: Option<&'a str>,
        #[serde(flatten)]
        error: ErrorView<'a>,
    },
    Gap {
        missed: u64,
        #[serde(skip_serializing_if = "is_exact")]
        exact: bool,
    },
    Room {
        online: usize,
    },
    Pong,
    Bye {
        code: &'static str,
        reconnect_after_ms: u64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_exact(exact: &bool) -> bool {
    *exact
}

#[derive(Serialize)]
struct Me<'a> {
    uid: &'a str,
    name: &'a str,
    role: &'static str,
}

/// What a client must keep to, so that it can tell its user before the server does.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Most graphemes in a text.
    pub max_chars: usize,
    /// Milliseconds between two comments of one user, on average.
    pub min_interval_ms: u64,
}

impl ServerFrame<'_> {
    fn to_bytes(&self) -> Bytes {
        self.to_json().into_frame()
    }

    fn to_json(&self) -> Json {
        let mut frame = Vec::with_capacity(256);
        frame.resize(HEADER, 0);
        serde_json::to_writer(&mut frame, self).expect("the frame has no map with other keys than strings");
        Json(frame)
    }
}

/// JSON behind room for a frame's header.
pub(super) struct Json(Vec<u8>);

impl Json {
    pub(super) fn payload(&self) -> &[u8] {
        self.0.get(HEADER..).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.payload().len()
    }

    pub(super) fn into_frame(self) -> Bytes {
        finish_text(self.0)
    }
}

/// What a viewer is told first.
#[derive(Debug)]
pub struct Hello<'a> {
    /// The room.
    pub room: &'a RoomId,
    /// A name for this connection, for support and logs.
    pub session: &'a str,
    /// Where the viewer stands.
    pub cursor: &'a Cursor,
    /// Viewers in the room.
    pub online: usize,
    /// Who the viewer is.
    pub identity: &'a Identity,
    /// What it must keep to.
    pub limits: Limits,
    /// Whether it goes on from its own cursor.
    pub is_resumed: bool,
    /// The newest comments, oldest first.
    pub recent: &'a [Arc<Posted>],
}

impl Hello<'_> {
    /// The frame.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let Identity { uid, name, role } = self.identity;
        let me = Me { uid: uid.as_str(), name: name.as_str(), role: role.as_str() };
        ServerFrame::Hello {
            room: self.room.as_str(),
            session: self.session,
            cursor: self.cursor.to_text(),
            online: self.online,
            me,
            limits: self.limits,
            resumed: self.is_resumed,
            recent: views(self.recent),
        }
        .to_bytes()
    }
}

fn views<'a>(comments: impl IntoIterator<Item = &'a Arc<Posted>>) -> Vec<CommentView<'a>> {
    comments.into_iter().map(|posted| CommentView::from(&posted.comment as &Comment)).collect()
}

/// The frame of comments, not framed yet.
pub(super) fn comments_json(head: &FrameHead, comments: &[&Arc<Posted>]) -> Json {
    let (cursor, comments) = (head.cursor.to_text(), views(comments.iter().copied()));
    ServerFrame::Comments { cursor, left_out: head.left_out, comments }.to_json()
}

/// The frame that tells how many comments can no longer be delivered.
pub(super) fn gap_json(missed: u64) -> Bytes {
    ServerFrame::Gap { missed, exact: true }.to_bytes()
}

/// Encodes for viewers that read JSON in text frames.
#[derive(Clone, Copy, Debug)]
pub struct JsonEncoder;

impl BatchEncoder for JsonEncoder {
    fn format(&self) -> Format {
        Format::Json
    }

    fn comments(&self, head: &FrameHead, comments: &[&Arc<Posted>]) -> Bytes {
        comments_json(head, comments).into_frame()
    }

    fn gap(&self, missed: u64) -> Bytes {
        gap_json(missed)
    }
}

/// Tells that at least so many comments are missing; how many exactly, nobody can say.
#[must_use]
pub fn gap_at_least(missed: u64) -> Bytes {
    ServerFrame::Gap { missed, exact: false }.to_bytes()
}

/// Acknowledges a send at its level.
#[must_use]
pub fn ack(nonce: Option<&Nonce>, id: CommentId, level: AckLevel) -> Bytes {
    let nonce = nonce.map(Nonce::as_str);
    ServerFrame::Ack { nonce, id: id.to_string(), level: level.as_str() }.to_bytes()
}

/// Refuses a frame.
#[must_use]
pub fn error(nonce: Option<&Nonce>, error: ErrorView<'_>) -> Bytes {
    ServerFrame::Error { nonce: nonce.map(Nonce::as_str), error }.to_bytes()
}

/// Tells how many viewers the room has.
#[must_use]
pub fn online(online: usize) -> Bytes {
    ServerFrame::Room { online }.to_bytes()
}

/// Answers a ping.
#[must_use]
pub fn pong() -> Bytes {
    ServerFrame::Pong.to_bytes()
}

/// Says good-bye before a close, with when to come back.
#[must_use]
pub fn bye(reason: CloseReason, reconnect_after: Duration) -> Bytes {
    let reconnect_after_ms = u64::try_from(reconnect_after.as_millis()).unwrap_or(u64::MAX);
    ServerFrame::Bye { code: reason.word(), reconnect_after_ms }.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Name, Role, Seq, UserId, test_comment};
    use serde_json::{Value, json};

    fn parsed(frame: &Bytes) -> Value {
        let payload = frame.iter().position(|byte| *byte == b'{').unwrap();
        serde_json::from_slice(&frame[payload..]).unwrap()
    }

    fn posted() -> Arc<Posted> {
        Arc::new(Posted::stored(test_comment("r1", 1_700_000_000_000, 1, "\"<b>\" 哈"), Seq(5)))
    }

    fn comment_json(posted: &Posted) -> Value {
        json!({
            "id": posted.comment.id.to_string(), "uid": "u1", "name": "阿明", "text": "\"<b>\" 哈",
            "mode": 1, "color": 16_777_215, "size": 25, "ts": 1_700_000_000_000_i64,
        })
    }

    #[test]
    fn frames_have_the_names_of_the_protocol() {
        let posted = posted();
        let cursor = Cursor::at(posted.comment.position());
        let comments = JsonEncoder.comments(&FrameHead { cursor, left_out: None }, &[&posted]);
        let expected = json!({"type": "comments", "cursor": cursor.to_text(), "comments": [comment_json(&posted)]});
        assert_eq!(parsed(&comments), expected);
        let thinned = JsonEncoder.comments(&FrameHead { cursor, left_out: Some(7) }, &[&posted]);
        assert_eq!(parsed(&thinned)["leftOut"], 7);
        assert_eq!(parsed(&JsonEncoder.gap(123)), json!({"type": "gap", "missed": 123}));
        assert_eq!(parsed(&gap_at_least(0)), json!({"type": "gap", "missed": 0, "exact": false}));
        assert_eq!(parsed(&pong()), json!({"type": "pong"}));
        assert_eq!(parsed(&online(12)), json!({"type": "room", "online": 12}));
        let nonce = Nonce::parse("n1").unwrap();
        let id = posted.comment.id;
        let expected = json!({"type": "ack", "nonce": "n1", "id": id.to_string(), "level": "stored"});
        assert_eq!(parsed(&ack(Some(&nonce), id, AckLevel::Stored)), expected);
        let refused = ErrorView::new("rate_limited", &"wait", Some(Duration::from_millis(800)));
        let expected = json!({
            "type": "error", "nonce": "n1", "code": "rate_limited", "message": "wait", "retryAfterMs": 800,
        });
        assert_eq!(parsed(&error(Some(&nonce), refused)), expected);
        let expected = json!({"type": "bye", "code": "going_away", "reconnectAfterMs": 1234});
        assert_eq!(parsed(&bye(CloseReason::GoingAway, Duration::from_millis(1234))), expected);
    }

    #[test]
    fn hello_tells_who_and_where_one_is() {
        let posted = posted();
        let cursor = Cursor::at(posted.comment.position());
        let identity = Identity { uid: UserId::new("g-1"), name: Name::parse("Ann").unwrap(), role: Role::Viewer };
        let hello = Hello {
            room: &posted.comment.room,
            session: "s1",
            cursor: &cursor,
            online: 3,
            identity: &identity,
            limits: Limits { max_chars: 100, min_interval_ms: 1000 },
            is_resumed: false,
            recent: std::slice::from_ref(&posted),
        };
        let expected = json!({
            "type": "hello", "room": "r1", "session": "s1", "cursor": cursor.to_text(), "online": 3,
            "self": {"uid": "g-1", "name": "Ann", "role": "viewer"},
            "limits": {"maxChars": 100, "minIntervalMs": 1000}, "resumed": false, "recent": [comment_json(&posted)],
        });
        assert_eq!(parsed(&hello.to_bytes()), expected);
    }
}
