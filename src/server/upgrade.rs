//! `GET /ws/{room}`: from an HTTP request to a session.
//!
//! The handshake is answered by hand (RFC 6455, 4.2), for the session needs the TCP stream itself.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::http::header::{CONNECTION, HeaderMap, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tracing::{Instrument as _, debug, debug_span};

use super::access::{Access, Caller};
use super::gate::Place;
use super::http_socket::HttpSocket;
use super::problem::Problem;
use super::query::{InRoom, Params, number};
use super::routes::AppState;
use super::session::{Connection, Opening, Session};
use crate::auth::Credentials;
use crate::model::{BatchEncoder, Cursor, Tier};
use crate::room::Taste;
use crate::wire::{CompressedEncoder, Compression, JsonEncoder};

/// What a client says in the query of its handshake.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SocketQuery {
    since: Option<String>,
    guest: Option<String>,
    name: Option<String>,
    compress: Option<String>,
    rate: Option<String>,
}

/// Becomes a WebSocket of the room.
#[utoipa::path(
    get,
    path = "/ws/{room}",
    tag = "websocket",
    params(
        ("room" = String, Path, description = "1–64 of A–Z, a–z, 0–9, _ and -"),
        ("since" = Option<String>, Query, description = "A cursor: go on after it"),
        ("guest" = Option<String>, Query, description = "A secret of the client's own making, 16–128 printable ASCII \
            characters; the same key is the same guest"),
        ("name" = Option<String>, Query, description = "The name to be shown by, 1–20 characters"),
        ("compress" = Option<String>, Query, description = "`zstd`, `br` or `deflate`: comments come compressed, in binary \
            frames, where that pays"),
        ("rate" = Option<u32>, Query, description = "At most so many comments a second"),
    ),
    responses(
        (status = 101, description = "The connection speaks protocol v1 from here on"),
        (status = 400, description = "A parameter is wrong: `bad_room`, `bad_query`, `bad_cursor`, `bad_guest`, \
            `bad_name`, `bad_compress`, `bad_rate`", body = crate::wire::ErrorView<'_>),
        (status = 426, description = "`not_websocket`: not a handshake of version 13", body = crate::wire::ErrorView<'_>),
        (status = 503, description = "`going_away`: the server is about to stop", body = crate::wire::ErrorView<'_>),
    ),
)]
pub(super) async fn upgrade(
    State(state): State<AppState>,
    Extension(place): Extension<Arc<Place>>,
    Extension(caller): Extension<Caller>,
    InRoom(room): InRoom,
    Params(query): Params<SocketQuery>,
    mut request: Request,
) -> Result<Response, Problem> {
    let SocketQuery { guest, name, .. } = &query;
    let identity = caller.identity(&room, &Credentials { guest: guest.as_deref(), name: name.as_deref() })?;
    let since = query.since.as_deref().map(Cursor::parse).transpose()?;
    let opening =
        Opening { room, identity, access: Access::of(&caller, &state.doors.auth), since, taste: taste(&query)? };
    let accept = derive_accept_key(handshake_key(request.headers())?.as_bytes());
    let accept = HeaderValue::try_from(accept).map_err(|_| Problem::not_a_handshake())?;
    if state.doors.shutdown.has_begun() {
        return Err(Problem::going_away());
    }
    let Some(upgraded) = request.extensions_mut().remove::<OnUpgrade>() else {
        return Err(Problem::not_a_handshake());
    };
    let span = debug_span!("session", conn = %place.address(), room = %opening.room);
    let (doors, tasks) = (Arc::new(state.doors.clone()), state.tasks.clone());
    let task = async move {
        let connection = match upgraded.await.map(|upgraded| upgraded.downcast::<TokioIo<HttpSocket>>()) {
            // A copy, for even an empty part of hyper's buffer would keep its 8 KiB for as long as the session.
            Ok(Ok(parts)) => Connection {
                stream: parts.io.into_inner().into_stream(),
                early: Bytes::copy_from_slice(&parts.read_buf),
            },
            Ok(Err(_)) => return debug!("the connection is not one of the listener's"),
            Err(error) => return debug!(%error, "the handshake was not finished"),
        };
        place.settle();
        let Some(mut session) = Session::begin(doors, opening, connection).await else { return };
        // A task of its own, for it lives long and needs less room than what led to it.
        let run = async move {
            session.run().await;
            drop((session, place));
        };
        tasks.spawn(run.in_current_span());
    };
    state.tasks.spawn(task.instrument(span));
    let headers = [
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (UPGRADE, HeaderValue::from_static("websocket")),
        (SEC_WEBSOCKET_ACCEPT, accept),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// In which form a viewer wants its comments, and how many.
fn taste(query: &SocketQuery) -> Result<Taste, Problem> {
    let bad = |code, message| Problem::new(StatusCode::BAD_REQUEST, code, message);
    let compression = query.compress.as_deref().map(|raw| {
        Compression::parse(raw).ok_or_else(|| bad("bad_compress", "compress is one of zstd, br and deflate"))
    });
    let tier = query.rate.as_deref().map(|raw| {
        let tier = number(raw).and_then(Tier::at_most);
        tier.ok_or_else(|| bad("bad_rate", "rate is a number of comments a second, from 1 to 4294967295"))
    });
    let encoder: Arc<dyn BatchEncoder> = match compression.transpose()? {
        Some(compression) => Arc::new(CompressedEncoder(compression)),
        None => Arc::new(JsonEncoder),
    };
    Ok(Taste { encoder, tier: tier.transpose()? })
}

fn handshake_key(headers: &HeaderMap) -> Result<&str, Problem> {
    let has = |name: &str, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(wanted))
    };
    let is_handshake =
        has("connection", "upgrade") && has("upgrade", "websocket") && has("sec-websocket-version", "13");
    let key = headers.get(SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()).filter(|key| key.len() == 24);
    key.filter(|_| is_handshake).ok_or_else(Problem::not_a_handshake)
}
