//! What an error of the driver means for the batch: pure, without I/O.
//!
//! Codes: <https://github.com/mongodb/mongo/blob/v6.0/src/mongo/base/error_codes.yml>.

use mongodb::error::{Error, ErrorKind, IndexedWriteError, InsertManyError, WriteFailure};

use crate::store::StoreError;

/// Somebody must act: rights, authentication, a write concern that this set of servers can never meet, an operation
/// that this kind of server does not know.
const BLOCKED: [i32; 12] = [
    11,   // UserNotFound
    13,   // Unauthorized
    18,   // AuthenticationFailed
    20,   // IllegalOperation
    59,   // CommandNotFound
    73,   // InvalidNamespace
    79,   // UnknownReplWriteConcern
    100,  // UnsatisfiableWriteConcern
    115,  // CommandNotSupported
    166,  // CommandNotSupportedOnView
    323,  // APIStrictError
    8000, // AtlasError: authentication at a proxy
];

/// For one document of a batch: it was not refused, the server was not able to take it just now.
const NOT_NOW: [i32; 40] = [
    1,     // InternalError
    6,     // HostUnreachable
    7,     // HostNotFound
    8,     // UnknownError
    24,    // LockTimeout
    43,    // CursorNotFound
    46,    // LockBusy
    50,    // MaxTimeMSExpired
    63,    // StaleShardVersion
    64,    // WriteConcernFailed
    89,    // NetworkTimeout
    91,    // ShutdownInProgress
    112,   // WriteConflict
    117,   // ConflictingOperationInProgress
    133,   // FailedToSatisfyReadPreference
    134,   // ReadConcernMajorityNotAvailableYet
    146,   // ExceededMemoryLimit
    150,   // StaleEpoch
    189,   // PrimarySteppedDown
    202,   // NetworkInterfaceExceededTimeLimit
    208,   // TooManyLocks
    215,   // DatabaseDropPending
    216,   // ElectionInProgress
    262,   // ExceededTimeLimit
    264,   // TooManyFilesOpen
    314,   // ObjectIsBusy
    355,   // InterruptedDueToStorageChange
    365,   // TemporarilyUnavailable
    371,   // UserWritesBlocked
    384,   // ConnectionError
    9001,  // SocketException
    10058, // LegacyNotPrimary
    10107, // NotWritablePrimary
    11600, // InterruptedAtShutdown
    11601, // Interrupted
    11602, // InterruptedDueToReplStateChange
    13388, // StaleConfig
    13435, // NotPrimaryNoSecondaryOk
    13436, // NotPrimaryOrSecondary
    14031, // OutOfDiskSpace
];

/// For one document of a batch: the reason is in the document, and it will never go in. A code is put here only when no
/// state of the server can be its reason; what is on no list is [`Verdict::Undecided`].
const OF_DOCUMENT: [(i32, &str); 21] = [
    (2, "refused"),       // BadValue
    (9, "refused"),       // FailedToParse
    (14, "refused"),      // TypeMismatch
    (15, "refused"),      // Overflow: nested too deeply
    (22, "refused"),      // InvalidBSON
    (52, "refused"),      // DollarPrefixedFieldName
    (53, "refused"),      // InvalidIdField
    (54, "refused"),      // NotSingleValueField
    (55, "refused"),      // InvalidDBRef
    (56, "refused"),      // EmptyFieldName
    (57, "refused"),      // DottedFieldName
    (116, "too_large"),   // DocTooLargeForCapped
    (121, "schema"),      // DocumentValidationFailure
    (171, "refused"),     // CannotIndexParallelArrays
    (201, "refused"),     // CannotBuildIndexKeys
    (357, "refused"),     // InvalidBSONType
    (10334, "too_large"), // BSONObjectTooLarge
    (11000, "refused"),   // DuplicateKey, of somebody else's index
    (17280, "refused"),   // KeyTooLong
    (17419, "too_large"), // what older servers say for BSONObjectTooLarge
    (17420, "too_large"), // likewise
];

const DUPLICATE_KEY: i32 = 11000;

/// What one document's error means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The document is there already, from an earlier attempt.
    Duplicate,
    /// It is refused for good.
    SetAside {
        /// A stable word.
        reason: &'static str,
        /// What the server said, without the document's content.
        detail: String,
    },
    /// It was refused, and whether for its own sake or the server's cannot be told from the code.
    Undecided {
        /// The code.
        code: i32,
        /// What the server said, without the document's content.
        detail: String,
    },
}

/// An error that somebody must act on, with a sentence of ours.
pub(super) fn blocked(detail: String) -> StoreError {
    StoreError::Blocked { detail, source: None }
}

/// An error that no server gave: this much time has passed.
pub(super) fn timed_out(doing: &str, after: std::time::Duration) -> StoreError {
    StoreError::Transient { detail: format!("no answer to {doing} within {after:?}"), source: None }
}

/// Classifies an error of an operation as a whole.
pub(super) fn classify(error: &Error) -> StoreError {
    let is_blocked = match error.kind.as_ref() {
        ErrorKind::Authentication { .. }
        | ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. } => true,
        kind if hides_failed_login(kind) => true,
        ErrorKind::Command(command) => BLOCKED.contains(&command.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => BLOCKED.contains(&concern.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => BLOCKED.contains(&write.code),
        ErrorKind::InsertMany(InsertManyError { write_concern_error: Some(concern), .. }) => {
            BLOCKED.contains(&concern.code)
        }
        _ => false,
    };
    let detail = describe(error.kind.as_ref());
    // Errors of single documents quote them, and a comment's text has no place in a log.
    let quotes_comments = matches!(error.kind.as_ref(), ErrorKind::InsertMany(_) | ErrorKind::Write(_));
    let source = (!quotes_comments).then(|| Box::new(error.clone()) as Box<_>);
    if is_blocked { StoreError::Blocked { detail, source } } else { StoreError::Transient { detail, source } }
}

/// Takes apart the error of an unordered insert: which documents, by index, were not inserted and why. All others were.
///
/// # Errors
/// When the batch as a whole has no known outcome: not an error of single documents, a write concern that was not met,
/// or a document that was not taken for a reason that is not its own.
pub(super) fn judge(error: &Error) -> Result<Vec<(usize, Verdict)>, StoreError> {
    let ErrorKind::InsertMany(InsertManyError { write_errors, write_concern_error: None, .. }) = error.kind.as_ref()
    else {
        return Err(classify(error));
    };
    let Some(write_errors) = write_errors else { return Err(classify(error)) };
    write_errors.iter().map(|refused| Ok((refused.index, judge_document(refused)?))).collect()
}

fn judge_document(refused: &IndexedWriteError) -> Result<Verdict, StoreError> {
    let detail = format!("error {}: {}", refused.code, without_values(&refused.message));
    match refused.code {
        DUPLICATE_KEY if is_of_id_index(&refused.message) => Ok(Verdict::Duplicate),
        code if NOT_NOW.contains(&code) => Err(StoreError::Transient { detail, source: None }),
        code if BLOCKED.contains(&code) => Err(blocked(detail)),
        code => Ok(match OF_DOCUMENT.iter().find(|(of_document, _)| *of_document == code) {
            Some((_, reason)) => Verdict::SetAside { reason, detail },
            None => Verdict::Undecided { code, detail },
        }),
    }
}

/// Whether the duplicate is of `_id`, which alone proves that the document is stored. Somebody else's unique index over
/// other fields refuses a document that is not there. A clustered collection names no index, and the server leaves the
/// message out once the errors of a batch have grown past a megabyte; both leave `_id`, the one index of ours that is
/// unique.
fn is_of_id_index(message: &str) -> bool {
    message.split_once(" index: ").is_none_or(|(_, index)| index.starts_with("_id_ "))
}

/// Cuts off what may quote the document, a comment's text among it: the key's values, and any object or text.
fn without_values(message: &str) -> &str {
    let end = [" dup key:", "{", "\""].iter().filter_map(|begin| message.find(begin)).min();
    message.get(..end.unwrap_or(message.len())).unwrap_or_default().trim_end()
}

/// Whether an error that reads like the network's is a failed login. The operation whose connection could not log in
/// says so itself; the driver (3.9) then empties the pool and takes the server for unknown, and all other operations,
/// those waiting and those that come within the next seconds, only hear of that. The text is all there is to tell.
fn hides_failed_login(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::ConnectionPoolCleared { message, .. } | ErrorKind::ServerSelection { message, .. } => {
            message.contains("AuthenticationFailed") || message.contains("Authentication failed")
        }
        _ => false,
    }
}

fn describe(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::Authentication { message, .. } => format!("MongoDB does not let this user in: {message}"),
        kind if hides_failed_login(kind) => "MongoDB does not let this user in: Authentication failed".into(),
        ErrorKind::InsertMany(InsertManyError { write_concern_error: Some(concern), .. })
        | ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => {
            format!("write concern not met, error {} ({}): {}", concern.code, concern.code_name, concern.message)
        }
        ErrorKind::Write(WriteFailure::WriteError(write)) => {
            format!("error {}: {}", write.code, without_values(&write.message))
        }
        ErrorKind::Command(command) => format!("error {} ({}): {}", command.code, command.code_name, command.message),
        ErrorKind::InsertMany(_) => "an insert failed without saying for which documents".into(),
        // The driver's whole view of the set follows, server by server; it stays in the source.
        ErrorKind::ServerSelection { message, .. } => {
            message.split(" Topology: ").next().unwrap_or_default().trim_end_matches('.').to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    fn insert_error(write_errors: Vec<Document>, concern: Option<Document>) -> Error {
        let mut raw = doc! { "writeErrors": write_errors };
        if let Some(concern) = concern {
            raw.insert("writeConcernError", concern);
        }
        ErrorKind::InsertMany(bson::deserialize_from_document(raw).unwrap()).into()
    }

    fn command_error(code: i32) -> Error {
        ErrorKind::Command(bson::deserialize_from_document(doc! { "code": code, "errmsg": "m" }).unwrap()).into()
    }

    fn dup(index: i32, of: &str) -> Document {
        let errmsg =
            format!("E11000 duplicate key error collection: x.danmaku index: {of} dup key: {{ k: \"secret\" }}");
        doc! { "index": index, "code": 11000, "errmsg": errmsg }
    }

    #[test]
    fn each_document_gets_its_own_verdict() {
        let error = insert_error(
            vec![
                dup(0, "_id_"),
                doc! { "index": 3, "code": 121, "errmsg": "Document failed validation" },
                doc! { "index": 4, "code": 10334, "errmsg": "too big" },
                doc! { "index": 5, "code": 424_242, "errmsg": "never heard of { content: \"secret\" }" },
                dup(6, "_id_1_content_1"),
                doc! { "index": 7, "code": 11000, "errmsg": "" },
            ],
            None,
        );
        let verdicts = judge(&error).unwrap();
        let words: Vec<_> = verdicts
            .iter()
            .map(|(index, verdict)| match verdict {
                Verdict::Duplicate => (*index, "duplicate"),
                Verdict::SetAside { reason, detail } => {
                    assert!(!detail.contains("secret"), "{detail}");
                    (*index, *reason)
                }
                Verdict::Undecided { code, detail } => {
                    assert!(!detail.contains("secret") && detail.contains(&code.to_string()), "{detail}");
                    (*index, "undecided")
                }
            })
            .collect();
        let expected =
            [(0, "duplicate"), (3, "schema"), (4, "too_large"), (5, "undecided"), (6, "refused"), (7, "duplicate")];
        assert_eq!(words, expected);
    }

    #[test]
    fn every_code_is_on_one_list_at_most() {
        let lists = [BLOCKED.as_slice(), NOT_NOW.as_slice(), &OF_DOCUMENT.map(|(code, _)| code)].concat();
        let codes: std::collections::BTreeSet<_> = lists.iter().collect();
        assert_eq!(codes.len(), lists.len());
    }

    #[test]
    fn a_document_not_taken_for_the_servers_sake_keeps_the_batch() {
        for code in NOT_NOW {
            let error = insert_error(vec![dup(0, "_id_"), doc! { "index": 1, "code": code, "errmsg": "m" }], None);
            assert!(judge(&error).unwrap_err().is_transient(), "{code}");
        }
        let error = insert_error(vec![doc! { "index": 1, "code": 13, "errmsg": "not authorized" }], None);
        assert!(!judge(&error).unwrap_err().is_transient());
    }

    #[test]
    fn a_write_concern_that_was_not_met_leaves_the_outcome_open() {
        let timeout =
            doc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out" };
        let error = insert_error(vec![dup(0, "_id_")], Some(timeout));
        let outcome = judge(&error).unwrap_err();
        assert!(outcome.is_transient() && outcome.to_string().contains("timed out"), "{outcome}");
        assert!(!format!("{outcome:?}").contains("secret"), "{outcome:?}");
        let never = insert_error(vec![], Some(doc! { "code": 100, "errmsg": "not enough data-bearing nodes" }));
        assert!(!judge(&never).unwrap_err().is_transient());
    }

    #[test]
    fn rights_and_logins_block_and_all_else_is_waited_for() {
        for code in [13, 18, 8000] {
            assert_eq!(classify(&command_error(code)).class(), "blocked", "{code}");
        }
        for code in [10107, 189, 91, 11600, 50, 1] {
            assert_eq!(classify(&command_error(code)).class(), "transient", "{code}");
        }
        let io = Error::from(ErrorKind::from(std::io::Error::from(std::io::ErrorKind::TimedOut)));
        assert!(classify(&io).is_transient());
        assert!(classify(&ErrorKind::Shutdown.into()).is_transient());
    }
}
