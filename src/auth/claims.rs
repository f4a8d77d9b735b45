//! What a token says of its bearer, and what of it is taken.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Number;
use unicode_segmentation::UnicodeSegmentation as _;

use super::AuthError;
use super::guest::is_guest_id;
use super::rules::Standing;
use crate::model::{Identity, Name, Role, RoomId, TextError, Timestamp, UserId};

/// The longest id of a user, in bytes (all are printable ASCII).
const MAX_UID: usize = 128;

/// Claims (RFC 7519, 4.1), ours among them. Issuer and audience are checked by the library; unknown ones are ignored.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Claims {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) iss: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aud: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sub: Option<String>,
    /// Goes before `sub`, for issuers whose `sub` is not what viewers should see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rooms: Option<Vec<String>>,
    /// Seconds since 1970-01-01 UTC, as the next two.
    pub(super) exp: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nbf: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) iat: Option<Number>,
}

/// What a token that was checked gives its bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    uid: UserId,
    name: Option<Name>,
    role: Role,
    rooms: Vec<RoomId>,
    expires_at: Timestamp,
}

impl Claims {
    /// Takes the claims of a token whose signature is right, at this time by the clock or within `leeway` of it.
    pub(super) fn take(self, now: Timestamp, leeway: Duration) -> Result<Pass, AuthError> {
        let expires = self.exp.as_ref().ok_or(AuthError::Token("it has no exp"))?;
        let expires_at = moment(expires)?.plus(leeway);
        if expires_at <= now {
            return Err(AuthError::Expired);
        }
        if let Some(begins) = &self.nbf
            && moment(begins)?.minus(leeway) > now
        {
            return Err(AuthError::Token("its nbf is in the future"));
        }
        let uid = self.uid.or(self.sub).ok_or(AuthError::Token("it has neither uid nor sub"))?;
        let role = self.role.as_deref().map_or(Some(Role::Viewer), Role::parse);
        let rooms = self.rooms.unwrap_or_default();
        let rooms: Result<_, _> = rooms.iter().map(|room| RoomId::parse(room)).collect();
        Ok(Pass {
            uid: user(&uid)?,
            name: self.name.as_deref().map(shown).transpose()?,
            role: role.ok_or(AuthError::Token("its role is not viewer, moderator, host or admin"))?,
            rooms: rooms.map_err(|_| AuthError::Token("one of its rooms has no room id"))?,
            expires_at,
        })
    }
}

/// A moment from seconds, which may have a fraction; beyond the clock's range at its end.
fn moment(seconds: &Number) -> Result<Timestamp, AuthError> {
    let seconds = seconds.as_f64().ok_or(AuthError::Token("a time of it is no number"))?;
    // As a cast saturates, a time that no clock shows is the last or first one that it does.
    Ok(Timestamp::from_millis((seconds * 1000.0) as i64))
}

/// An id as it may stand in logs, addresses and the store. Not one that a guest could have: else the two would share
/// their rates and nonces.
pub(super) fn user(uid: &str) -> Result<UserId, AuthError> {
    if uid.is_empty() || uid.len() > MAX_UID || !uid.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(AuthError::Token("its uid or sub is not 1 to 128 printable ASCII characters"));
    }
    if is_guest_id(uid) {
        return Err(AuthError::Token("its uid or sub is an id of a guest"));
    }
    Ok(UserId::new(uid))
}

/// A name as it is shown: one that an issuer allows and we have no room for is cut.
pub(super) fn shown(name: &str) -> Result<Name, AuthError> {
    let parsed = match Name::parse(name) {
        Err(TextError::TooLong(_) | TextError::TooLarge(_)) => {
            let mut cut = String::new();
            for grapheme in name.trim().graphemes(true).take(Name::LIMITS.max_chars) {
                if cut.len() + grapheme.len() > Name::LIMITS.max_bytes {
                    break;
                }
                cut.push_str(grapheme);
            }
            Name::parse(&cut)
        }
        parsed => parsed,
    };
    parsed.map_err(|_| AuthError::Token("its name breaks a rule of names"))
}

impl Pass {
    /// When it ends; the clock's leeway is in it.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// What its bearer is in a room, or outside of all of them.
    #[must_use]
    pub fn standing(&self, room: Option<&RoomId>) -> Standing {
        let is_named = room.is_some_and(|room| self.rooms.contains(room));
        match self.role {
            Role::Admin => Standing::Admin,
            Role::Host if is_named => Standing::Host,
            Role::Moderator if is_named => Standing::Moderator,
            // Of another room, where they watch as anybody.
            Role::Host | Role::Moderator => Standing::Viewer,
            // A ticket for some rooms is none for others.
            Role::Viewer if !self.rooms.is_empty() && room.is_some() && !is_named => Standing::Outsider,
            Role::Viewer => Standing::Viewer,
        }
    }

    /// Who its bearer is in a room. The name is the token's; one that has none leaves it to its bearer.
    ///
    /// # Errors
    /// [`AuthError::Name`] when the name that is `wanted` breaks a rule.
    pub fn identity(&self, room: &RoomId, wanted: Option<&str>) -> Result<Identity, AuthError> {
        let name = match (&self.name, wanted.filter(|wanted| !wanted.is_empty())) {
            (Some(name), _) => name.clone(),
            (None, Some(wanted)) => Name::parse(wanted)?,
            (None, None) => shown(self.uid.as_str())?,
        };
        Ok(Identity { uid: self.uid.clone(), name, role: self.standing(Some(room)).role() })
    }
}
