//! An error as HTTP: status, stable code, a sentence, and when to try again.

use std::time::Duration;

use axum::http::header::{RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::gate::Full;
use crate::auth::AuthError;
use crate::hub::{HistoryError, NotReady};
use crate::model::{CursorError, IdError, Refusal};
use crate::wire::{ErrorView, FrameError};

/// Every code that an HTTP client is answered with beyond those of [`Refusal::CODES`].
pub const CODES: [&str; 33] = [
    "bad_room",
    "bad_query",
    "bad_limit",
    "bad_last",
    "bad_cursor",
    "bad_guest",
    "bad_name",
    "bad_token",
    "token_expired",
    "token_required",
    "keys_unavailable",
    "forbidden",
    "wrong_room",
    "bad_compress",
    "bad_rate",
    "bad_json",
    "bad_field",
    "unknown_type",
    "bad_nonce",
    "not_websocket",
    "not_found",
    "method_not_allowed",
    "timeout",
    "too_big",
    "set_aside",
    "not_kept",
    "too_many_connections",
    "too_many_from_address",
    "too_many_handshakes",
    "store_unavailable",
    "store_blocked",
    "relay_unavailable",
    "not_probed",
];

/// Of these, what a draft can be refused with, on a WebSocket or over HTTP.
pub(super) const OF_DRAFTS: [&str; 15] = [
    "bad_json",
    "bad_field",
    "unknown_type",
    "bad_nonce",
    "bad_room",
    "bad_query",
    "bad_guest",
    "bad_name",
    "bad_token",
    "token_expired",
    "token_required",
    "keys_unavailable",
    "wrong_room",
    "too_big",
    "timeout",
];

/// The code of the problem that a response tells of, for those who count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code(pub(super) &'static str);

/// An error for an HTTP client.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
    retry_after: Option<Duration>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl ToString) -> Self {
        Self { status, code, message: message.to_string(), retry_after: None }
    }

    pub(super) fn bad_query(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_query", message)
    }

    pub(super) fn bad_room() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_room", IdError::Room)
    }

    pub(super) fn not_a_handshake() -> Self {
        let message = "this address takes WebSocket handshakes of version 13";
        Self::new(StatusCode::UPGRADE_REQUIRED, "not_websocket", message)
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "this address does not take this method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub(super) fn going_away() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "going_away", "the server is about to stop").wait(1)
    }

    pub(super) fn not_kept() -> Self {
        let message = "it is accepted and shown, but not on the disk yet; ask again with the same nonce";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_kept", message).wait(1)
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> &'static str {
        self.code
    }

    fn wait(self, secs: u64) -> Self {
        Self { retry_after: Some(Duration::from_secs(secs)), ..self }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        if let Some(wait) = self.retry_after {
            // The header counts in whole seconds; coming back too early would be refused again.
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs_f64().ceil() as u64));
        }
        if self.status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let view = ErrorView::new(self.code, &self.message, self.retry_after);
        (self.status, headers, Extension(Code(self.code)), Json(view)).into_response()
    }
}

impl From<Full> for Problem {
    fn from(full: Full) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, full.code(), full.message()).wait(full.retry_after_secs())
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Text(_) | Refusal::Style(_) => StatusCode::BAD_REQUEST,
            Refusal::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Busy { .. } | Refusal::TooManyRooms { .. } | Refusal::GoingAway { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self { retry_after: refusal.retry_after(), ..Self::new(status, refusal.code(), &refusal) }
    }
}

impl From<FrameError> for Problem {
    fn from(error: FrameError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.code(), error)
    }
}

impl From<CursorError> for Problem {
    fn from(error: CursorError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_cursor", error)
    }
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        let status = match error {
            AuthError::GuestKey | AuthError::Name(_) => StatusCode::BAD_REQUEST,
            AuthError::Token(_) | AuthError::Expired | AuthError::TokenRequired => StatusCode::UNAUTHORIZED,
            AuthError::Forbidden | AuthError::WrongRoom => StatusCode::FORBIDDEN,
            AuthError::NoKeys => {
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, error.code(), error).wait(10);
            }
        };
        Self::new(status, error.code(), error)
    }
}

impl From<HistoryError> for Problem {
    fn from(error: HistoryError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error).wait(1)
    }
}

impl From<&NotReady> for Problem {
    fn from(error: &NotReady) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.code(), error).wait(5)
    }
}
