//! The one table of close codes. 1000–1015 are RFC 6455's, 4000 and above ours.

/// What a client should do after a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnect {
    /// Come back after the time that `bye` gave.
    AfterHint,
    /// Come back, waiting longer after each failure.
    WithBackoff,
    /// Do not come back by itself: it would end the same way.
    Never,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The client asked for it.
    Normal,
    /// The server is about to stop.
    GoingAway,
    /// The client broke RFC 6455.
    Protocol,
    /// A binary frame where text is due.
    Binary,
    /// A text that is not UTF-8.
    Utf8,
    /// A message in more fragments than allowed.
    Fragments,
    /// A message larger than allowed.
    TooBig,
    /// More frames a second than any client needs.
    Flood,
    /// The viewer took nothing for too long.
    SlowConsumer,
    /// Nothing came from the client, not even an answer to a ping.
    PingTimeout,
    /// The room cannot be opened, for as many are as may be.
    Busy,
    /// The token that the connection was opened with has expired.
    TokenExpired,
}

impl CloseReason {
    /// The whole table.
    pub const ALL: [Self; 12] = [
        Self::Normal,
        Self::GoingAway,
        Self::Protocol,
        Self::Binary,
        Self::Utf8,
        Self::Fragments,
        Self::TooBig,
        Self::Flood,
        Self::SlowConsumer,
        Self::PingTimeout,
        Self::Busy,
        Self::TokenExpired,
    ];

    /// The code in the close frame, the word in `bye` and metrics, and what the client should do.
    #[must_use]
    pub const fn row(self) -> (u16, &'static str, Reconnect) {
        use Reconnect::{AfterHint, Never, WithBackoff};
        match self {
            Self::Normal => (1000, "normal", Never),
            Self::GoingAway => (1001, "going_away", AfterHint),
            Self::Protocol => (1002, "protocol_error", Never),
            Self::Binary => (1003, "binary_refused", Never),
            Self::Utf8 => (1007, "invalid_utf8", Never),
            Self::Fragments => (1008, "too_many_fragments", Never),
            Self::TooBig => (1009, "too_big", Never),
            Self::Flood => (4001, "flood", WithBackoff),
            Self::SlowConsumer => (4002, "slow_consumer", WithBackoff),
            Self::PingTimeout => (4003, "ping_timeout", WithBackoff),
            Self::Busy => (4004, "busy", WithBackoff),
            Self::TokenExpired => (4005, "token_expired", Never),
        }
    }

    /// The code in the close frame.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.row().0
    }

    /// The stable word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.row().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_reasons_share_a_code_or_a_word() {
        let codes: HashSet<_> = CloseReason::ALL.iter().map(|reason| reason.code()).collect();
        let words: HashSet<_> = CloseReason::ALL.iter().map(|reason| reason.word()).collect();
        assert_eq!((codes.len(), words.len()), (CloseReason::ALL.len(), CloseReason::ALL.len()));
    }

    #[test]
    fn codes_are_those_an_endpoint_may_send() {
        // RFC 6455, 7.4: 1004–1006 and 1015 must not be sent; 3000–3999 need registration.
        for reason in CloseReason::ALL {
            assert!(matches!(reason.code(), 1000..=1003 | 1007..=1014 | 4000..=4999), "{reason:?}");
        }
    }
}
