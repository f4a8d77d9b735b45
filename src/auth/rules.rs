//! Who may do what: the one table. A right for every route, and a row for every right.
//!
//! A route without a row is refused, and a test walks every route that the API description names.

use super::AuthError;
use crate::model::Role;

/// What somebody is, in the room that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Has no token.
    Guest,
    /// Has a viewer's token for other rooms.
    Outsider,
    /// Has a viewer's token, or is host or moderator of other rooms.
    Viewer,
    /// Keeps order in this room.
    Moderator,
    /// Runs this room.
    Host,
    /// Runs the server.
    Admin,
}

impl Standing {
    /// The role that goes with it.
    pub(super) fn role(self) -> Role {
        match self {
            Self::Guest | Self::Outsider | Self::Viewer => Role::Viewer,
            Self::Moderator => Role::Moderator,
            Self::Host => Role::Host,
            Self::Admin => Role::Admin,
        }
    }
}

/// What can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// What everybody may, and nobody is asked for a token.
    Public,
    /// To read over HTTP what was said in a room, be it the last seconds or page by page, and how many are there.
    Read,
    /// To come into a room: to be shown what is said, by WebSocket.
    Join,
    /// To say something, by either way.
    Send,
    /// To see how the server is doing.
    Operate,
}

/// What guests may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anonymous {
    /// Nothing.
    None,
    /// Watch and read.
    Read,
    /// All that viewers may.
    Send,
}

/// What of the table is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What guests may.
    pub anonymous: Anonymous,
    /// Whether everybody may see how the server is doing.
    pub is_operation_open: bool,
}

#[derive(Clone, Copy)]
enum Cell {
    Yes,
    /// When guests may at least this.
    From(Anonymous),
    /// When it is open to all.
    Open,
    /// Its token is for other rooms.
    Elsewhere,
}

use Cell::{Elsewhere, Open, Yes};

const READ: Cell = Cell::From(Anonymous::Read);
const SEND: Cell = Cell::From(Anonymous::Send);

#[rustfmt::skip]
const TABLE: [(Right, [Cell; 6]); 5] = [
    //                 guest  outsider   viewer moderator host  admin
    (Right::Public,  [ Yes,   Yes,       Yes,   Yes,      Yes,  Yes ]),
    (Right::Read,    [ READ,  Elsewhere, Yes,   Yes,      Yes,  Yes ]),
    (Right::Join,    [ READ,  Elsewhere, Yes,   Yes,      Yes,  Yes ]),
    (Right::Send,    [ SEND,  Elsewhere, Yes,   Yes,      Yes,  Yes ]),
    (Right::Operate, [ Open,  Open,      Open,  Open,     Open, Yes ]),
];

/// Every route: its method, its path as the router has it, and the right that it takes.
pub const ROUTES: [(&str, &str, Right); 12] = [
    ("GET", "/ws/{room}", Right::Join),
    ("GET", "/api/rooms/{room}", Right::Read),
    ("GET", "/api/rooms/{room}/comments", Right::Read),
    ("POST", "/api/rooms/{room}/comments", Right::Send),
    ("GET", "/api/ledger", Right::Operate),
    ("GET", "/metrics", Right::Operate),
    ("GET", "/healthz", Right::Public),
    ("GET", "/readyz", Right::Public),
    ("GET", "/api/openapi.json", Right::Public),
    ("GET", "/", Right::Public),
    ("GET", "/rooms/{room}", Right::Public),
    ("GET", "/assets/{file}", Right::Public),
];

/// The right that a route takes; `None` for a method that the path does not have.
#[must_use]
pub fn right(method: &str, path: &str) -> Option<Right> {
    // Answered by whatever answers GET.
    let method = if method == "HEAD" { "GET" } else { method };
    ROUTES.iter().find(|(own, at, _)| *own == method && *at == path).map(|(_, _, right)| *right)
}

/// Whether somebody may.
///
/// # Errors
/// [`AuthError`] with what would be needed.
pub fn allow(right: Right, standing: Standing, policy: Policy) -> Result<(), AuthError> {
    let row = TABLE.iter().find(|(row, _)| *row == right);
    let is_allowed = match row.and_then(|(_, cells)| cells.get(standing as usize)) {
        Some(Yes) => true,
        Some(Cell::From(least)) => policy.anonymous >= *least,
        Some(Open) => policy.is_operation_open,
        Some(Elsewhere) => return Err(AuthError::WrongRoom),
        None => false,
    };
    match standing {
        _ if is_allowed => Ok(()),
        Standing::Guest => Err(AuthError::TokenRequired),
        _ => Err(AuthError::Forbidden),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_stand_in_the_order_of_the_standings() {
        let all = [
            Standing::Guest,
            Standing::Outsider,
            Standing::Viewer,
            Standing::Moderator,
            Standing::Host,
            Standing::Admin,
        ];
        assert_eq!(all.map(|standing| standing as usize), [0, 1, 2, 3, 4, 5]);
        let closed = Policy { anonymous: Anonymous::None, is_operation_open: false };
        let told = |right| all.map(|standing| allow(right, standing, closed).map_err(|error| error.code()).err());
        assert_eq!(told(Right::Public), [None; 6]);
        assert_eq!(told(Right::Send), [Some("token_required"), Some("wrong_room"), None, None, None, None]);
        let no = Some("forbidden");
        assert_eq!(told(Right::Operate), [Some("token_required"), no, no, no, no, None]);
    }

    #[test]
    fn guests_may_what_is_configured() {
        let table =
            [(Anonymous::None, [false, false]), (Anonymous::Read, [true, false]), (Anonymous::Send, [true, true])];
        for (anonymous, expected) in table {
            let policy = Policy { anonymous, is_operation_open: true };
            let may = |right| allow(right, Standing::Guest, policy).is_ok();
            assert_eq!([may(Right::Join), may(Right::Send)], expected, "{anonymous:?}");
            assert_eq!(may(Right::Read), may(Right::Join));
            assert!(may(Right::Operate) && may(Right::Public));
        }
    }

    #[test]
    fn a_method_that_a_path_does_not_have_has_no_right() {
        assert_eq!(right("HEAD", "/metrics"), Some(Right::Operate));
        assert_eq!(right("DELETE", "/metrics"), None);
        assert_eq!(right("GET", "/new"), None);
    }
}
