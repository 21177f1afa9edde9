//! Errors inside the store, and their mapping to the errors of its callers.

use rusqlite::{ErrorCode, ffi};

use crate::store::Error;
use crate::store::codec::StoredDecodeError;

/// A failure within a transaction: nothing of it was applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum SqliteError {
    /// SQLite returned an error.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A blob cannot be decoded.
    #[error("{0}")]
    Undecodable(#[from] StoredDecodeError),
}

/// Result of a verb.
pub(super) type SqliteResult<T> = Result<T, SqliteError>;

/// Skips and logs a row that cannot be read: one damaged job must not stop a search for others.
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
    tracing::error!(error = %fault, "the stored row of a job is damaged; it is skipped");
    None
}

impl From<SqliteError> for Error {
    /// Converts a failure before the commit: nothing was written.
    fn from(fault: SqliteError) -> Error {
        let text = fault.to_string();
        match fault {
            SqliteError::Undecodable(_) => Error::Corrupt(text),
            SqliteError::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => Error::Full(format!("{text}; free some space")),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt(text),
                // One row conflicts with the stored ones.
                Some(
                    ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig,
                ) => Error::Corrupt(text),
                Some(_) => Error::Unavailable(text),
                // SQLite has returned the row, and a column holds an impossible value.
                None => Error::Corrupt(text),
            },
        }
    }
}

/// Converts the error of a failed commit. After an I/O error the outcome is unknown; for any other error SQLite has
/// written nothing that lasts.
pub(super) fn commit_error(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => Error::OutcomeUnknown(error.to_string()),
        _ => Error::from(SqliteError::from(error)),
    }
}

/// Returns whether a sync failed (SQLITE_IOERR_FSYNC, SQLITE_IOERR_DIR_FSYNC), after which the content of the disk is
/// unknown.
pub(super) fn is_failed_sync(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

/// Returns the error of all calls after a failed sync.
pub(super) fn sync_failed_error() -> Error {
    let text = "syncing the database to disk failed; check the disk, then restart the server";
    Error::Unavailable(text.into())
}
