//! Who a connection speaks as.

use super::ids::UserId;
use super::text::Name;

/// What a user may do in a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Watches and sends.
    Viewer,
    /// Keeps order in the room.
    Moderator,
    /// Runs the room.
    Host,
    /// Runs the server, and with it every room.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Moderator, Self::Host, Self::Admin];

    /// Reads the word on the wire.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word)
    }

    /// Whether its comments reach also those who asked for fewer.
    #[must_use]
    pub fn is_spared(self) -> bool {
        match self {
            Self::Viewer => false,
            Self::Moderator | Self::Host | Self::Admin => true,
        }
    }

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Moderator => "moderator",
            Self::Host => "host",
            Self::Admin => "admin",
        }
    }
}

/// A user as identity established it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Stable id.
    pub uid: UserId,
    /// The name as shown.
    pub name: Name,
    /// What it is in the room that it speaks in.
    pub role: Role,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A viewer for tests.
    pub(crate) fn identity(uid: &str) -> Identity {
        Identity { uid: UserId::new(uid), name: Name::from_store(uid), role: Role::Viewer }
    }
}
