//! The gate of every route: whose token it is, and whether its bearer may.
//!
//! What may be done stands in [`rules`]; here it is applied, once, before any handler runs.

use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, Query, RawPathParams, Request, State};
use axum::http::HeaderValue;
use axum::http::header::{ALLOW, AUTHORIZATION, HeaderMap};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use tokio::time::Instant;

use super::Doors;
use super::problem::Problem;
use crate::auth::rules::{self, ROUTES, Right, Standing};
use crate::auth::{AuthError, Authenticator, Credentials, Pass, identify};
use crate::model::{Identity, RoomId};

/// Who asks, and what it may beyond what it asks for now.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// `None` for a guest.
    pub(super) pass: Option<Arc<Pass>>,
    pub(super) may_send: bool,
}

impl Caller {
    /// Who it is in a room.
    pub(super) fn identity(&self, room: &RoomId, says: &Credentials<'_>) -> Result<Identity, AuthError> {
        match &self.pass {
            Some(pass) => pass.identity(room, says.name),
            None => identify(says),
        }
    }
}

/// What a session keeps of its caller: nothing that grows, for there are many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) may_send: bool,
    /// When its token expires; `None` for never.
    pub(super) until: Option<Instant>,
}

impl Access {
    pub(super) fn of(caller: &Caller, auth: &Authenticator) -> Self {
        // A time beyond what the clock can show is as good as none.
        let until = caller.pass.as_ref().and_then(|pass| Instant::now().checked_add(auth.time_left(pass)));
        Self { may_send: caller.may_send, until }
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

#[derive(Deserialize)]
struct TokenQuery {
    token: Option<String>,
}

/// Lets a request through to its handler, with its [`Caller`] beside it, if the table of rules does.
pub(super) async fn admit(
    State(doors): State<Doors>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else {
        // There is nothing at this address.
        return next.run(request).await;
    };
    let Some(right) = rules::right(request.method().as_str(), path.as_str()) else {
        return no_such_method(path.as_str());
    };
    if right != Right::Public {
        // What is no room id is refused by the handler, which has nothing to show for it.
        let raw = params.iter().flatten().find_map(|(name, value)| (name == "room").then_some(value));
        let room = raw.and_then(|raw| RoomId::parse(raw).ok());
        let token = match token(&request) {
            Ok(token) => token,
            Err(problem) => return problem.into_response(),
        };
        match caller(&doors, right, room.as_ref(), token).await {
            Ok(caller) => drop(request.extensions_mut().insert(caller)),
            Err(refused) => {
                doors.metrics.access_refused.get_or_create(&[("code", refused.code())]).inc();
                return Problem::from(refused).into_response();
            }
        }
    }
    next.run(request).await
}

/// The token that a request shows: in its query, else in its header.
fn token(request: &Request) -> Result<Option<String>, Problem> {
    let query = Query::<TokenQuery>::try_from_uri(request.uri());
    let Query(TokenQuery { token }) = query.map_err(|error| Problem::bad_query(error.body_text()))?;
    Ok(token.or_else(|| bearer(request.headers()).map(str::to_owned)))
}

async fn caller(
    doors: &Doors,
    right: Right,
    room: Option<&RoomId>,
    token: Option<String>,
) -> Result<Caller, AuthError> {
    let pass = match token {
        Some(token) => Some(Arc::new(doors.auth.verify(&token).await?)),
        None => None,
    };
    let (standing, policy) = (pass.as_ref().map_or(Standing::Guest, |pass| pass.standing(room)), doors.auth.policy());
    rules::allow(right, standing, policy)?;
    Ok(Caller { pass, may_send: rules::allow(Right::Send, standing, policy).is_ok() })
}

/// The token in the `Authorization` header (RFC 6750, 2.1). Other schemes are a proxy's and none of ours.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    // What is not text is no token, and is refused as one.
    let mut words = headers.get(AUTHORIZATION)?.as_bytes().splitn(2, |byte| *byte == b' ');
    let is_ours = words.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"));
    is_ours.then(|| str::from_utf8(words.next().unwrap_or_default()).unwrap_or_default().trim())
}

fn no_such_method(path: &str) -> Response {
    let mut response = Problem::method_not_allowed().into_response();
    let methods: Vec<_> = ROUTES.iter().filter(|(_, at, _)| *at == path).map(|(method, _, _)| *method).collect();
    if let Ok(allowed) = HeaderValue::try_from(methods.join(",").replace("GET", "GET,HEAD")) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}
