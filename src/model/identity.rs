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
}

impl Role {
    /// Whether its comments reach also those who asked for fewer.
    #[must_use]
    pub fn is_spared(self) -> bool {
        match self {
            Self::Viewer => false,
            Self::Moderator | Self::Host => true,
        }
    }

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Moderator => "moderator",
            Self::Host => "host",
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
    /// What it may do.
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
