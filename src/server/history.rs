//! `GET /api/rooms/{room}/comments`: the last seconds of a room, and older comments page by page.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;
use super::query::{InRoom, Params, last, limit};
use super::routes::AppState;
use crate::hub::{PageAnswer, WindowAnswer};
use crate::model::{Comment, Cursor, RoomId};
use crate::wire::CommentView;

/// Most comments in one answer.
const MOST: usize = 1000;

/// The longest window; older comments are read by page.
const LONGEST: Duration = Duration::from_secs(600);

/// Which comments.
#[derive(Debug, Default, Deserialize)]
pub(super) struct HistoryQuery {
    last: Option<String>,
    before: Option<String>,
    limit: Option<String>,
}

/// The comments of a room's last seconds.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Window<'a> {
    room: &'a str,
    /// Where the window begins, UTC milliseconds.
    from: i64,
    /// When it was read, UTC milliseconds.
    to: i64,
    /// Whether these are all comments of the window. False when there are more than `limit`, when the store did not
    /// answer, or when some are neither in memory any more nor in the store yet.
    complete: bool,
    /// `memory` or `store`.
    #[schema(example = "memory")]
    source: &'static str,
    /// Oldest first.
    comments: Vec<CommentView<'a>>,
}

/// A page of older comments.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Page<'a> {
    room: &'a str,
    /// Newest first, by time and id.
    comments: Vec<CommentView<'a>>,
    /// Ask for the next page with `before=` this; null on the last page.
    next: Option<String>,
    /// Whether no comment of this stretch is missing.
    complete: bool,
}

/// Gives a room's comments: with `last`, those of the last so many seconds; else a page of those before a cursor.
#[utoipa::path(
    get,
    path = "/api/rooms/{room}/comments",
    tag = "comments",
    params(
        ("room" = String, Path, description = "1–64 of A–Z, a–z, 0–9, _ and -"),
        ("last" = Option<String>, Query, description = "A stretch of time such as 60s, at most 10m"),
        ("before" = Option<String>, Query, description = "A cursor; without it the page has the newest comments"),
        ("limit" = Option<u32>, Query, description = "1–1000; 200 with `last`, else 50"),
    ),
    responses(
        (status = 200, description = "With `last` a window, oldest first, else a page, newest first",
            body = inline(OneOf<'_>)),
        (status = 400, description = "A parameter is wrong: `bad_room`, `bad_query`, `bad_last`, `bad_limit`, \
            `bad_cursor`", body = crate::wire::ErrorView<'_>),
        (status = 503, description = "`store_unavailable`: the page is in the store, which does not answer",
            body = crate::wire::ErrorView<'_>),
    ),
)]
pub(super) async fn comments(
    State(state): State<AppState>,
    InRoom(room): InRoom,
    Params(query): Params<HistoryQuery>,
) -> Result<Response, Problem> {
    let hub = &state.doors.hub;
    match (&query.last, &query.before) {
        (Some(_), Some(_)) => Err(Problem::bad_query("last and before exclude each other")),
        (Some(window), None) => {
            let (window, limit) = (last(window, LONGEST)?, limit(query.limit.as_deref(), 200, MOST)?);
            Ok(window_response(&room, &hub.recent(&room, window, limit).await))
        }
        (None, before) => {
            let before = before.as_deref().map(Cursor::parse).transpose()?;
            let limit = limit(query.limit.as_deref(), 50, MOST)?;
            let answer = hub.page(&room, before.map(|cursor| cursor.position), limit).await?;
            Ok(page_response(&room, &answer))
        }
    }
}

/// Either shape, for the API description.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes the answer, is never made")]
enum OneOf<'a> {
    Window(Window<'a>),
    Page(Page<'a>),
}

fn window_response(room: &RoomId, answer: &WindowAnswer) -> Response {
    let window = Window {
        room: room.as_str(),
        from: answer.from.millis(),
        to: answer.to.millis(),
        complete: answer.is_complete,
        source: if answer.is_from_memory { "memory" } else { "store" },
        comments: views(&answer.comments),
    };
    Json(window).into_response()
}

fn page_response(room: &RoomId, answer: &PageAnswer) -> Response {
    let page = Page {
        room: room.as_str(),
        comments: views(&answer.comments),
        next: answer.next.as_ref().map(Cursor::to_text),
        complete: answer.is_complete,
    };
    Json(page).into_response()
}

fn views(comments: &[Comment]) -> Vec<CommentView<'_>> {
    comments.iter().map(CommentView::from).collect()
}
