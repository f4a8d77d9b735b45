//! The routes, and their description: one list for both, so that they cannot drift apart.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json, Router};
use tokio_util::task::TaskTracker;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::gate::Place;
use super::problem::{Code, Problem};
use super::{Doors, access, history, ops, page, post, room, upgrade};
use crate::auth::rules::{self, Right};

/// What handlers have at hand.
#[derive(Clone)]
pub(super) struct AppState {
    pub(super) doors: Doors,
    /// Sessions run as tasks of these, so that the server waits for them when it stops.
    pub(super) tasks: TaskTracker,
}

fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(utoipa::openapi::OpenApi::new(
        utoipa::openapi::InfoBuilder::new()
            .title("danmakud")
            .description(Some("A server for live-stream danmaku. The WebSocket protocol is described in the README."))
            .version(env!("CARGO_PKG_VERSION"))
            .build(),
        utoipa::openapi::Paths::new(),
    ))
    .routes(routes!(upgrade::upgrade))
    .routes(routes!(room::online))
    .routes(routes!(history::comments, post::comment))
    .routes(routes!(ops::healthz))
    .routes(routes!(ops::readyz))
    .routes(routes!(ops::ledger))
    .routes(routes!(ops::metrics))
    .routes(routes!(description))
    .routes(routes!(page::index))
    .routes(routes!(page::room))
    .routes(routes!(page::asset))
}

/// The description of every route (OpenAPI 3.1).
#[must_use]
pub fn openapi() -> OpenApi {
    let mut api = described().split_for_parts().1;
    for (path, item) in &mut api.paths.paths {
        for (method, operation) in [("GET", &mut item.get), ("POST", &mut item.post)] {
            let Some(operation) = operation else { continue };
            let guards: &[_] = match rules::right(method, path) {
                Some(Right::Public) | None => &[],
                Some(Right::Operate) => {
                    &[GUARDED, [("403", "`forbidden`: the token's role does not allow it")].as_slice()]
                }
                Some(Right::Read | Right::Join | Right::Send) => {
                    &[GUARDED, [("403", "`wrong_room`: the token is for other rooms")].as_slice()]
                }
            };
            if !guards.is_empty() {
                // The first is none: guests may what is configured.
                let schemes = [SecurityRequirement::default()]
                    .into_iter()
                    .chain(SCHEMES.map(|name| SecurityRequirement::new(name, std::iter::empty::<&str>())));
                operation.security = Some(schemes.collect());
            }
            for (status, told) in guards.iter().copied().flatten().chain(&ANYWHERE) {
                tell(operation, status, told);
            }
        }
    }
    let components = api.components.get_or_insert_default();
    let [bearer, query] = SCHEMES;
    let http = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
    components.add_security_scheme(bearer, SecurityScheme::Http(http));
    let value = ApiKeyValue::with_description("token", "For WebSockets of browsers, which send no such header");
    components.add_security_scheme(query, SecurityScheme::ApiKey(ApiKey::Query(value)));
    api
}

/// Adds to what an operation says of itself how it can be answered besides.
fn tell(operation: &mut Operation, status: &str, told: &str) {
    let response = operation.responses.responses.entry(status.to_owned()).or_insert_with(|| {
        let error = Content::new(Some(Ref::from_schema_name("Error")));
        ResponseBuilder::new().content("application/json", error).build().into()
    });
    if let RefOr::T(response) = response {
        let own = std::mem::take(&mut response.description);
        response.description = if own.is_empty() { told.to_owned() } else { format!("{own}; {told}") };
    }
}

/// How a token can be shown: in the `Authorization` header or in the query.
const SCHEMES: [&str; 2] = ["bearer", "token"];

/// How a request can be answered that is asked for a token.
const GUARDED: &[(&str, &str)] = &[
    ("401", "the identity cannot be established: `bad_token`, `token_expired`; or guests may not: `token_required`"),
    ("503", "`keys_unavailable`: the token cannot be checked at the moment"),
];

/// How any request can be answered, whatever it asks for: added to what a route says of itself.
const ANYWHERE: [(&str, &str); 2] = [
    ("408", "`timeout`: the request was not finished in time"),
    (
        "503",
        "as many connections as may be are open (`too_many_connections`), from this address \
         (`too_many_from_address`), or in a handshake or another request (`too_many_handshakes`)",
    ),
];

/// This description.
#[utoipa::path(get, path = "/api/openapi.json", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1, as JSON", body = Object)))]
async fn description() -> Json<OpenApi> {
    Json(openapi())
}

/// The routes.
pub(super) fn router(doors: Doors, tasks: TaskTracker) -> Router {
    let (max_body, patience) = (doors.config.max_message, doors.config.request_timeout);
    let (routes, _) = described().split_for_parts();
    routes
        .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this address") })
        .layer(middleware::from_fn_with_state(doors.clone(), access::admit))
        .layer(middleware::map_response(name_the_problem))
        .layer(middleware::from_fn_with_state(patience, within))
        .layer(middleware::from_fn_with_state(doors.clone(), count_refused))
        .layer(middleware::from_fn(in_its_place))
        .layer(middleware::map_response(forbid_guessing))
        .layer(DefaultBodyLimit::max(max_body))
        .with_state(AppState { doors, tasks })
}

/// Handles a request when there is a place for one more.
async fn in_its_place(Extension(place): Extension<Arc<Place>>, request: Request, next: Next) -> Response {
    if let Err(full) = place.begin_request() {
        return Problem::from(full).into_response();
    }
    let response = next.run(request).await;
    place.answered();
    response
}

/// Ends a request that takes too long, such as one whose body never comes. A handshake is over long before.
async fn within(State(patience): State<Duration>, request: Request, next: Next) -> Response {
    tokio::time::timeout(patience, next.run(request)).await.unwrap_or_else(|_| {
        let message = "the request was not finished in time";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", message).into_response()
    })
}

/// Counts drafts that a POST brought and that were refused, for whatever reason.
async fn count_refused(State(doors): State<Doors>, request: Request, next: Next) -> Response {
    let is_draft = request.method() == Method::POST
        && request.extensions().get::<MatchedPath>().is_some_and(|path| path.as_str() == post::PATH);
    let response = next.run(request).await;
    // What the store refused later was accepted first, and is counted as set aside.
    if is_draft
        && response.status() != StatusCode::UNPROCESSABLE_ENTITY
        && let Some(Code(code)) = response.extensions().get()
    {
        doors.count_refused(code);
    }
    response
}

/// Gives what the framework itself refuses the shape that every error has.
async fn name_the_problem(response: Response) -> Response {
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_big", "the body is too large").into_response();
    }
    response
}

/// Whatever a comment says, no browser takes an answer for another kind than it is.
async fn forbid_guessing(mut response: Response) -> Response {
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
