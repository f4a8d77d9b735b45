//! What stands in an address: checked, with a code for each thing that can be wrong.

use std::str::FromStr;
use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::model::RoomId;

/// The query of an address; what cannot be read is answered with a [`Problem`].
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|error| Problem::bad_query(error.body_text()))
    }
}

/// The room in the path of an address.
pub(super) struct InRoom(pub(super) RoomId);

impl<S: Send + Sync> FromRequestParts<S> for InRoom {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        // What is not even text is no room id either.
        let raw = Path::<String>::from_request_parts(parts, state).await.map_err(|_| Problem::bad_room())?;
        RoomId::parse(&raw).map(Self).map_err(|_| Problem::bad_room())
    }
}

/// Reads a number of digits alone. Rust also takes a sign, which in an address is what became of a space.
pub(super) fn number<T: FromStr>(raw: &str) -> Option<T> {
    raw.bytes().all(|byte| byte.is_ascii_digit()).then(|| raw.parse().ok())?
}

/// Reads a number of comments: 1 to `most`.
pub(super) fn limit(raw: Option<&str>, default: usize, most: usize) -> Result<usize, Problem> {
    let Some(raw) = raw else { return Ok(default) };
    let parsed = number(raw).filter(|limit| (1..=most).contains(limit));
    parsed.ok_or_else(|| {
        let message = format!("limit is a number from 1 to {most}");
        Problem::new(axum::http::StatusCode::BAD_REQUEST, "bad_limit", message)
    })
}

/// Reads a stretch of time such as `60s` or `5m`: more than nothing, at most `most`.
pub(super) fn last(raw: &str, most: Duration) -> Result<Duration, Problem> {
    let parsed = humantime::parse_duration(raw).ok().filter(|last| !last.is_zero() && *last <= most);
    parsed.ok_or_else(|| {
        let message = format!("last is a time such as 60s, at most {}", humantime::format_duration(most));
        Problem::new(axum::http::StatusCode::BAD_REQUEST, "bad_last", message)
    })
}
