//! Guests: viewers with a stable id that is derived from a key which only the client knows.

use sha2::{Digest as _, Sha256};

use super::AuthError;
use crate::model::{Identity, Name, Role, UserId};

/// What a client without a token says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credentials<'a> {
    /// A secret of the client's own making; the same key is the same guest.
    pub guest: Option<&'a str>,
    /// The name it wants to be shown by.
    pub name: Option<&'a str>,
}

/// Hexadecimal digits of a guest's id.
const DIGITS: usize = 16;

/// Gives a guest its identity.
///
/// The id is `g-` and the first 64 bits of SHA-256 over the key: others see the id and cannot find the key. Without a
/// key the guest is new each time.
///
/// # Errors
/// [`AuthError`] when what the client says of itself cannot be taken.
pub fn identify(credentials: &Credentials<'_>) -> Result<Identity, AuthError> {
    let digest = match credentials.guest {
        Some(key) if !(16..=128).contains(&key.len()) || !key.bytes().all(|b| b.is_ascii_graphic()) => {
            return Err(AuthError::GuestKey);
        }
        Some(key) => Sha256::digest([b"danmakud guest ", key.as_bytes()].concat()),
        None => Sha256::digest(fastrand::u128(..).to_be_bytes()),
    };
    let hex: String = digest.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    let name = match credentials.name.filter(|name| !name.is_empty()) {
        Some(name) => Name::parse(name)?,
        None => Name::parse(&format!("guest-{}", hex.get(..4).unwrap_or_default()))?,
    };
    Ok(Identity { uid: UserId::new(&format!("g-{hex}")), name, role: Role::Viewer })
}

/// Whether an id is one that a guest could have.
pub(super) fn is_guest_id(uid: &str) -> bool {
    uid.strip_prefix("g-").is_some_and(|hex| hex.len() == DIGITS && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(key: Option<&str>, name: Option<&str>) -> Result<Identity, AuthError> {
        identify(&Credentials { guest: key, name })
    }

    #[test]
    fn the_same_key_is_the_same_guest_and_no_key_is_a_new_one() {
        let key = "0123456789abcdef";
        let first = guest(Some(key), Some("Ann")).unwrap();
        assert_eq!(first.uid, guest(Some(key), None).unwrap().uid);
        assert_eq!(first.name.as_str(), "Ann");
        assert!(!first.uid.as_str().contains("0123") && is_guest_id(first.uid.as_str()));
        assert_ne!(guest(None, None).unwrap().uid, guest(None, None).unwrap().uid);
    }

    #[test]
    fn what_cannot_be_taken_is_refused_with_its_code() {
        for key in ["short", &"k".repeat(129), "0123456789 bcdef", "0123456789abcdé"] {
            assert_eq!(guest(Some(key), None).unwrap_err().code(), "bad_guest", "{key}");
        }
        assert_eq!(guest(None, Some("a\u{202e}b")).unwrap_err().code(), "bad_name");
    }
}
