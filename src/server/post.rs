//! `POST /api/rooms/{room}/comments`: for bots and back ends; the same rules and acknowledgements as on the WebSocket.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::ToSchema;

use super::access::Caller;
use super::problem::Problem;
use super::query::{InRoom, Params};
use super::routes::AppState;
use crate::auth::Credentials;
use crate::hub::acknowledged;
use crate::model::{AckLevel, Posted};
use crate::wire::ClientFrame;

/// Where comments are posted.
pub(super) const PATH: &str = "/api/rooms/{room}/comments";

/// Who sends.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SenderQuery {
    guest: Option<String>,
    name: Option<String>,
}

/// A comment to be said. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "describes the body; it is read by the WebSocket's own codec")]
pub(super) struct NewComment {
    /// What it says, at most 100 characters by default.
    #[schema(example = "哈哈哈哈")]
    text: String,
    /// The client's mark, 1–64 printable ASCII characters: sent again, it is the same comment.
    nonce: Option<String>,
    /// 1 scrolls, 4 stands at the bottom, 5 at the top.
    #[schema(default = 1)]
    mode: Option<i32>,
    /// RGB, 0–16777215.
    #[schema(default = 16_777_215)]
    color: Option<i32>,
    /// Font size, 12–64.
    #[schema(default = 25)]
    size: Option<i32>,
    /// When to answer: `accepted` or `stored`.
    #[schema(default = "accepted")]
    ack: Option<String>,
}

/// What became of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Accepted {
    /// The comment's id.
    id: String,
    /// The level that it has reached.
    #[schema(example = "accepted")]
    level: &'static str,
    /// Server time of acceptance, UTC milliseconds.
    ts: i64,
}

/// Says a comment in a room.
#[utoipa::path(
    post,
    path = "/api/rooms/{room}/comments",
    tag = "comments",
    params(
        ("room" = String, Path, description = "1–64 of A–Z, a–z, 0–9, _ and -"),
        ("guest" = Option<String>, Query, description = "A secret of the client's own making, 16–128 printable ASCII \
            characters; the same key is the same guest"),
        ("name" = Option<String>, Query, description = "The name to be shown by, 1–20 characters"),
    ),
    request_body = NewComment,
    responses(
        (status = 201, description = "It has reached the level that was asked for", body = Accepted),
        (status = 202, description = "It is accepted, on the disk too where `store.durability` is `disk`, and will be \
            stored, but the store is slow: `stored` was asked for and not reached yet", body = Accepted),
        (status = 400, description = "It breaks a rule: `text_blank`, `text_invisible`, `text_control`, `text_bidi`, \
            `text_combining`, `text_too_long`, `text_too_large`, `bad_mode`, `bad_color`, `bad_size`, `bad_nonce`, \
            `bad_json`, `bad_field`; or a parameter does: `bad_room`, `bad_query`, `bad_guest`, `bad_name`", body = crate::wire::ErrorView<'_>),
        (status = 413, description = "`too_big`: the body is too large", body = crate::wire::ErrorView<'_>),
        (status = 422, description = "`set_aside`: it was accepted and shown, but the store refused it for good",
            body = crate::wire::ErrorView<'_>),
        (status = 429, description = "`rate_limited`: the sender is too fast", body = crate::wire::ErrorView<'_>),
        (status = 503, description = "It cannot be kept now: `busy`, `too_many_rooms`, `going_away`; or \
            `not_kept`: it is shown and will be stored, but `store.durability` is `disk` and it is not on the disk yet; \
            sent again by the same guest with the same nonce, it is the same comment", body = crate::wire::ErrorView<'_>),
    ),
)]
pub(super) async fn comment(
    State(state): State<AppState>,
    InRoom(room): InRoom,
    Params(query): Params<SenderQuery>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    let SenderQuery { guest, name } = &query;
    let who = caller.identity(&room, &Credentials { guest: guest.as_deref(), name: name.as_deref() })?;
    let text = str::from_utf8(&body).map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "bad_json", "not UTF-8"))?;
    let draft = ClientFrame::parse_draft(text)?;
    let published = state.doors.hub.publish(&who, &room, &draft)?;
    let posted = published.posted();
    let reached = timeout(state.doors.config.request_timeout / 2, acknowledged(posted, draft.ack)).await;
    let (status, level) = answer(posted, reached.ok())?;
    let (id, ts) = (posted.comment.id.to_string(), posted.comment.ts.millis());
    Ok((status, Json(Accepted { id, level: level.as_str(), ts })))
}

/// What is told of a comment that has `reached` this, or is still on its way. `accepted` is a promise that a crash must
/// not break, so it is said of nothing that the disk does not have when it is asked to have it.
fn answer(posted: &Posted, reached: Option<Option<AckLevel>>) -> Result<(StatusCode, AckLevel), Problem> {
    match reached {
        Some(Some(level)) => Ok((StatusCode::CREATED, level)),
        Some(None) => {
            let message = "the store refused this comment";
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "set_aside", message))
        }
        None if posted.is_kept() => Ok((StatusCode::ACCEPTED, AckLevel::Accepted)),
        None => Err(Problem::not_kept()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Seq, test_comment as comment};

    #[test]
    fn accepted_is_said_only_of_what_is_kept() {
        let posted = Posted::pending(comment("r1", 1, 1, "x"), Seq(1), std::sync::Arc::default());
        let told = |reached| answer(&posted, reached).map_err(|problem| problem.code());
        assert_eq!(told(None), Ok((StatusCode::ACCEPTED, AckLevel::Accepted)), "in memory is enough by default");
        posted.hold();
        assert_eq!(told(None), Err("not_kept"));
        posted.keep();
        assert_eq!(told(None), Ok((StatusCode::ACCEPTED, AckLevel::Accepted)));
        assert_eq!(told(Some(Some(AckLevel::Stored))), Ok((StatusCode::CREATED, AckLevel::Stored)));
        assert_eq!(told(Some(None)), Err("set_aside"));
    }
}
