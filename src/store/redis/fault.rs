//! What an error of Redis means to a caller: whether it is known that nothing was written, and whether
//! that is for want of room.

use deadpool_redis::PoolError;
use deadpool_redis::redis::{ErrorKind, RedisError};

use crate::store::Error;

/// Codes with which Redis refuses a call before it runs. A script is refused as a whole.
const REFUSALS: [&str; 16] = [
    "LOADING",
    "READONLY",
    "MISCONF",
    "MASTERDOWN",
    "NOREPLICAS",
    "BUSY",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "NOSCRIPT",
    "NOPROTO",
];

/// What a call's failure means; `reads`: it could not have written anything.
pub(super) fn of_call(error: &RedisError, reads: bool) -> Error {
    let text = error.to_string();
    match error.code() {
        Some("OOM") => Error::Full(format!("{text}; raise maxmemory or let workers drain it")),
        Some(code) if REFUSALS.contains(&code) => Error::Unavailable(text),
        // A script failed at what it found: a key of another type, a record of another form.
        Some(_) => Error::Corrupt(text),
        None if reads || was_never_sent(error) => Error::Unavailable(text),
        None => Error::Unknown(text),
    }
}

/// Whether the request did not leave this process.
fn was_never_sent(error: &RedisError) -> bool {
    error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::InvalidClientConfig
                | ErrorKind::RESP3NotSupported
        )
}

/// Whether the connection should be tried before it is used again.
pub(super) fn casts_doubt(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// No connection could be had: nothing was sent.
pub(super) fn of_pool(error: &PoolError) -> Error {
    let text = match error {
        PoolError::Backend(error) => format!("redis cannot be reached: {error}"),
        PoolError::Timeout(_) => "redis does not answer".to_owned(),
        other => other.to_string(),
    };
    Error::Unavailable(text)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn io(kind: io::ErrorKind) -> RedisError {
        RedisError::from(io::Error::from(kind))
    }

    #[test]
    fn what_may_have_arrived_is_unknown() {
        for kind in
            [io::ErrorKind::TimedOut, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof]
        {
            assert!(of_call(&io(kind), false).outcome_unknown(), "{kind}");
            assert!(!of_call(&io(kind), true).outcome_unknown(), "{kind}: a read");
        }
        assert!(!of_call(&io(io::ErrorKind::ConnectionRefused), false).outcome_unknown());
    }
}
