//! What goes wrong inside the store, and what its callers hear of it.

use rusqlite::{ErrorCode, ffi};

use crate::store::Error;
use crate::store::codec::StoredDecodeError;

/// A failure within a transaction: nothing of it was applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum SqliteError {
    /// SQLite refused.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A blob does not make sense.
    #[error("{0}")]
    Undecodable(#[from] StoredDecodeError),
}

/// What a verb answers.
pub(super) type SqliteResult<T> = Result<T, SqliteError>;

/// Leaves out a row that cannot be read, and logs it: one damaged job must not stop a search for others.
pub(super) fn skip_damaged<T>(row: SqliteResult<T>) -> Option<SqliteResult<T>> {
    match &row {
        Err(fault @ SqliteError::Undecodable(_)) => report_damage(fault),
        Err(fault @ SqliteError::Sqlite(error)) if error.sqlite_error_code().is_none() => {
            report_damage(fault)
        }
        _ => Some(row),
    }
}

fn report_damage<T>(fault: &SqliteError) -> Option<SqliteResult<T>> {
    tracing::error!(error = %fault, "a job is damaged and left out");
    None
}

impl From<SqliteError> for Error {
    /// A failure before the commit: nothing was written.
    fn from(fault: SqliteError) -> Error {
        let text = fault.to_string();
        match fault {
            SqliteError::Undecodable(_) => Error::Corrupt(text),
            SqliteError::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => Error::Full(format!("{text}; free some space")),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt(text),
                // One row does not go with the others.
                Some(
                    ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig,
                ) => Error::Corrupt(text),
                Some(_) => Error::Unavailable(text),
                // SQLite has given what it had, and a column holds what cannot be.
                None => Error::Corrupt(text),
            },
        }
    }
}

/// What a failed commit means: where SQLite is known to have written nothing that lasts, it says so;
/// after any other error of the disk nobody knows.
pub(super) fn commit_error(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => Error::OutcomeUnknown(error.to_string()),
        _ => Error::from(SqliteError::from(error)),
    }
}

/// Whether a sync failed (SQLITE_IOERR_FSYNC, SQLITE_IOERR_DIR_FSYNC), after which nobody knows what
/// is on the disk.
pub(super) fn is_failed_sync(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

/// What calls hear after a failed sync.
pub(super) fn sync_failed_error() -> Error {
    let text = "the disk failed to sync; restart the server once the disk is sound";
    Error::Unavailable(text.into())
}
