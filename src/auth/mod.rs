//! Who a connection speaks as, and what it may do.
//!
//! Tokens (JWT, RFC 7519) are checked by an [`Authenticator`], whose keys come from the configuration, a file, an address
//! or the data folder and may change while the server runs. Who has none is a [guest](identify). What either may do stands
//! in one table ([`rules`]). Only doors call this; they ask before they let anybody do anything.

mod authenticator;
mod claims;
mod crypto;
mod fetch;
mod guest;
mod issue;
mod keys;
pub mod rules;
mod source;

use thiserror::Error;

pub use authenticator::{Authenticator, MAX_TOKEN};
pub use claims::Pass;
pub use guest::{Credentials, identify};
pub use issue::{Grant, IssueError, issue};
pub use keys::{KeyError, LEAST_SECRET};
pub use source::{KeySource, SourceError};

use crate::model::TextError;

/// How tokens are checked.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// Where keys come from.
    pub source: KeySource,
    /// What `iss` has to be; not looked at without.
    pub issuer: Option<String>,
    /// What `aud` has to have; not looked at without.
    pub audience: Option<String>,
    /// How far the issuer's clock may be off.
    pub leeway: std::time::Duration,
    /// How often keys are fetched from an address.
    pub refresh: std::time::Duration,
    /// What of the table of rules is configured.
    pub policy: rules::Policy,
}

/// Why somebody may not.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AuthError {
    /// The guest key is too short to be a secret, or too long.
    #[error("a guest key is 16 to 128 printable ASCII characters")]
    GuestKey,
    /// The name breaks a rule of text.
    #[error("the name: {0}")]
    Name(#[from] TextError),
    /// The token is not one that this server takes; nothing of it is repeated.
    #[error("the token is refused: {0}")]
    Token(&'static str),
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// No key is there yet: their address has not answered since the start.
    #[error("the keys that tokens are checked with cannot be had at the moment")]
    NoKeys,
    /// Guests may not do this.
    #[error("this needs a token")]
    TokenRequired,
    /// The role does not allow it.
    #[error("the token's role does not allow this")]
    Forbidden,
    /// The token is for other rooms.
    #[error("the token is for other rooms")]
    WrongRoom,
}

impl AuthError {
    /// The codes that a request can be refused with for whom it came from, so that each can be counted from the start.
    pub const OF_ACCESS: [&'static str; 6] =
        ["bad_token", "token_expired", "keys_unavailable", "token_required", "forbidden", "wrong_room"];

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::GuestKey => "bad_guest",
            Self::Name(_) => "bad_name",
            Self::Token(_) => "bad_token",
            Self::Expired => "token_expired",
            Self::NoKeys => "keys_unavailable",
            Self::TokenRequired => "token_required",
            Self::Forbidden => "forbidden",
            Self::WrongRoom => "wrong_room",
        }
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
