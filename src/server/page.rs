//! The page, built into the binary.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

const INDEX: &str = include_str!("../../web/index.html");
const SCRIPT: &str = include_str!("../../web/app.js");
const STYLE: &str = include_str!("../../web/style.css");

/// Nothing from elsewhere, nothing inline: what a comment says can never become code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

fn file(kind: &'static str, content: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, content).into_response()
}

/// The page.
#[utoipa::path(get, path = "/", tag = "page", responses((status = 200, description = "The page", body = String)))]
pub(super) async fn index() -> Response {
    file("text/html; charset=utf-8", INDEX)
}

/// The page, in a room.
#[utoipa::path(get, path = "/rooms/{room}", tag = "page",
    params(("room" = String, Path, description = "1–64 of A–Z, a–z, 0–9, _ and -")),
    responses((status = 200, description = "The page", body = String)))]
pub(super) async fn room() -> Response {
    index().await
}

/// What the page needs.
#[utoipa::path(get, path = "/assets/{file}", tag = "page",
    params(("file" = String, Path, description = "`app.js` or `style.css`")),
    responses(
        (status = 200, description = "The file", body = String),
        (status = 404, description = "There is none of this name", body = crate::wire::ErrorView<'_>),
    ))]
pub(super) async fn asset(name: Result<Path<String>, PathRejection>) -> Result<Response, Problem> {
    match name.as_ref().map_or("", |name| name.as_str()) {
        "app.js" => Ok(file("text/javascript; charset=utf-8", SCRIPT)),
        "style.css" => Ok(file("text/css; charset=utf-8", STYLE)),
        _ => Err(Problem::new(StatusCode::NOT_FOUND, "not_found", "there is no such file")),
    }
}
