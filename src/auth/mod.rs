//! Who a connection speaks as. So far everybody is a guest: a viewer with a stable id derived from a key that only the
//! client knows.

use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::model::{Identity, Name, Role, TextError, UserId};

/// Why a connection has no identity.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AuthError {
    /// The guest key is too short to be a secret, or too long.
    #[error("a guest key is 16 to 128 printable ASCII characters")]
    GuestKey,
    /// The name breaks a rule of text.
    #[error("the name: {0}")]
    Name(#[from] TextError),
    /// A token was given, and this server cannot check tokens.
    #[error("this server knows guests only and takes no tokens")]
    Token,
}

impl AuthError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::GuestKey => "bad_guest",
            Self::Name(_) => "bad_name",
            Self::Token => "bad_token",
        }
    }
}

/// What a client says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credentials<'a> {
    /// A secret of the client's own making; the same key is the same guest.
    pub guest: Option<&'a str>,
    /// The name it wants to be shown by.
    pub name: Option<&'a str>,
    /// A token.
    pub token: Option<&'a str>,
}

/// Gives a client its identity.
///
/// The id is `g-` and the first 64 bits of SHA-256 over the key: others see the id and cannot find the key. Without a
/// key the guest is new each time.
///
/// # Errors
/// [`AuthError`] when what the client says of itself cannot be taken.
pub fn identify(credentials: &Credentials<'_>) -> Result<Identity, AuthError> {
    if credentials.token.is_some() {
        return Err(AuthError::Token);
    }
    let digest = match credentials.guest {
        Some(key) if !(16..=128).contains(&key.len()) || !key.bytes().all(|b| b.is_ascii_graphic()) => {
            return Err(AuthError::GuestKey);
        }
        Some(key) => Sha256::digest([b"danmakud guest ", key.as_bytes()].concat()),
        None => Sha256::digest(fastrand::u128(..).to_be_bytes()),
    };
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let name = match credentials.name.filter(|name| !name.is_empty()) {
        Some(name) => Name::parse(name)?,
        None => Name::parse(&format!("guest-{}", hex.get(..4).unwrap_or_default()))?,
    };
    Ok(Identity { uid: UserId::new(&format!("g-{hex}")), name, role: Role::Viewer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(key: Option<&str>, name: Option<&str>) -> Result<Identity, AuthError> {
        identify(&Credentials { guest: key, name, token: None })
    }

    #[test]
    fn the_same_key_is_the_same_guest_and_no_key_is_a_new_one() {
        let key = "0123456789abcdef";
        let first = guest(Some(key), Some("Ann")).unwrap();
        assert_eq!(first.uid, guest(Some(key), None).unwrap().uid);
        assert_eq!(first.name.as_str(), "Ann");
        assert!(!first.uid.as_str().contains("0123"));
        assert_ne!(guest(None, None).unwrap().uid, guest(None, None).unwrap().uid);
    }

    #[test]
    fn what_cannot_be_taken_is_refused_with_its_code() {
        for key in ["short", &"k".repeat(129), "0123456789 bcdef", "0123456789abcdé"] {
            assert_eq!(guest(Some(key), None).unwrap_err().code(), "bad_guest", "{key}");
        }
        assert_eq!(guest(None, Some("a\u{202e}b")).unwrap_err().code(), "bad_name");
        let token = Credentials { token: Some("x"), ..Credentials::default() };
        assert_eq!(identify(&token).unwrap_err().code(), "bad_token");
    }
}
