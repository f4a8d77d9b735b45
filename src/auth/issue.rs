//! Makes tokens, for hosts of servers that have no issuer of their own.

use std::time::Duration;

use jsonwebtoken::{Header, encode};
use thiserror::Error;

use super::claims::{Claims, shown, user};
use super::keys::KeySet;
use super::source::{self, SourceError};
use super::{AuthConfig, AuthError, KeySource};
use crate::clock::Clock;
use crate::model::{Role, RoomId};

/// What a token is to give.
#[derive(Clone, Debug)]
pub struct Grant {
    /// To whom; named after what it gives when nothing is said.
    pub uid: Option<String>,
    /// The name to be shown by; left to the bearer when nothing is said.
    pub name: Option<String>,
    /// What it makes its bearer.
    pub role: Role,
    /// In which rooms.
    pub rooms: Vec<RoomId>,
    /// For how long.
    pub ttl: Duration,
}

/// Why no token was made.
#[derive(Debug, Error)]
pub enum IssueError {
    /// There are no keys.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// What is there can check tokens and not make them.
    #[error("the keys are {0}: with them tokens can be checked and not made; ask their issuer for one")]
    CannotSign(String),
    /// The data folder has no secret.
    #[error("{0} has no secret yet; the server makes one with its first start there")]
    NoSecret(String),
    /// A host or moderator is one of certain rooms.
    #[error("a {0} is one of certain rooms; name them with --room")]
    NoRoom(&'static str),
    /// The id or the name cannot be had.
    #[error(transparent)]
    Claim(#[from] AuthError),
    /// The key does not sign.
    #[error("the key does not sign: {0}")]
    Signing(#[from] jsonwebtoken::errors::Error),
}

/// Makes a token.
///
/// # Errors
/// [`IssueError`] when it cannot be made, or would be good for nothing.
pub fn issue(config: &AuthConfig, clock: &Clock, grant: &Grant) -> Result<String, IssueError> {
    let keys = match &config.source {
        KeySource::Secret(secret) => {
            KeySet::secrets(secret).map_err(|problem| SourceError::Keys { place: "auth.secret".to_owned(), problem })?
        }
        KeySource::File(path) => source::read(path)?.1,
        KeySource::DataFolder(dir) if !source::secret_file(dir).exists() => {
            return Err(IssueError::NoSecret(dir.display().to_string()));
        }
        KeySource::DataFolder(dir) => source::read(&source::secret_file(dir))?.1,
        other @ (KeySource::Nowhere | KeySource::Address(_)) => return Err(IssueError::CannotSign(other.to_string())),
    };
    let (key, own) = keys.signing().ok_or_else(|| IssueError::CannotSign(config.source.to_string()))?;
    let needs_room = matches!(grant.role, Role::Host | Role::Moderator);
    if needs_room && grant.rooms.is_empty() {
        return Err(IssueError::NoRoom(grant.role.as_str()));
    }
    let place = grant.rooms.first().map(|room| format!("-{room}")).unwrap_or_default();
    let uid = grant.uid.clone().unwrap_or_else(|| format!("{}{place}", grant.role.as_str()));
    user(&uid)?;
    grant.name.as_deref().map(shown).transpose()?;
    let text = |value: &Option<String>| value.clone().map(serde_json::Value::String);
    let now = clock.now().millis() / 1000;
    let ttl = i64::try_from(grant.ttl.as_secs()).unwrap_or(i64::MAX);
    let claims = Claims {
        iss: text(&config.issuer),
        aud: text(&config.audience),
        sub: Some(uid),
        name: grant.name.clone(),
        role: Some(grant.role.as_str().to_owned()),
        rooms: Some(grant.rooms.iter().map(ToString::to_string).collect()),
        exp: Some(now.saturating_add(ttl).into()),
        iat: Some(now.into()),
        ..Claims::default()
    };
    let head = Header { kid: own.id().map(str::to_owned), ..Header::new(own.algorithm) };
    Ok(encode(&head, &claims, key)?)
}
