//! `GET /api/rooms/{room}`: how many are in a room.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::query::InRoom;
use super::routes::AppState;
use crate::hub::Online;

/// How many are in a room.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RoomView {
    room: String,
    /// Viewers on all nodes; those on other nodes as they were some seconds ago.
    online: usize,
    /// Viewers on the node that answers.
    online_here: usize,
    /// Whether other nodes' viewers are counted. False while they cannot be asked for.
    complete: bool,
}

/// Tells how many are in a room. There is no room that does not exist: nobody is in one that was never used.
#[utoipa::path(
    get,
    path = "/api/rooms/{room}",
    tag = "rooms",
    params(("room" = String, Path, description = "1–64 of A–Z, a–z, 0–9, _ and -")),
    responses(
        (status = 200, description = "How many are in the room", body = inline(RoomView)),
        (status = 400, description = "`bad_room`", body = crate::wire::ErrorView<'_>),
    ),
)]
pub(super) async fn online(State(state): State<AppState>, InRoom(room): InRoom) -> Json<RoomView> {
    let Online { here, elsewhere } = state.doors.hub.online(&room).await;
    Json(RoomView {
        room: room.as_str().to_owned(),
        online: here + elsewhere.unwrap_or(0),
        online_here: here,
        complete: elsewhere.is_some(),
    })
}
