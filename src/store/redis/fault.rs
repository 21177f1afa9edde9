//! What an error of Redis means to a caller: whether it is known that nothing was written, and whether
//! that is for want of room.

use deadpool_redis::PoolError;
use deadpool_redis::redis::{ErrorKind, RedisError};

use crate::store::Error;

/// What the error of a command within a script tells of where it was; Redis takes back nothing that the script
/// had done by then.
const IN_SCRIPT: &str = "user_script";
/// How a refusal of a script's first write stands in the error of the script.
const FIRST: [&str; 3] = ["-READONLY ", "-MISCONF ", "-NOREPLICAS "];
/// Codes with which Redis refuses a call before it runs. A script is refused as a whole, but for a right that one
/// of its commands lacks.
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
        Some("OOM") => full(&text),
        // Before Redis 7 a script meets these at its first write.
        Some(_) if text.contains(IN_SCRIPT) && text.contains("-OOM ") => full(&text),
        Some(_) if text.contains(IN_SCRIPT) && FIRST.iter().any(|code| text.contains(code)) => {
            Error::Unavailable(text)
        }
        Some("NOPERM") if !reads && text.contains(IN_SCRIPT) => Error::Corrupt(text),
        Some(code) if REFUSALS.contains(&code) => Error::Unavailable(text),
        // A script failed at what it found: a key of another type, a record of another form.
        Some(_) => Error::Corrupt(text),
        None if reads || was_never_sent(error) => Error::Unavailable(text),
        None => Error::Unknown(text),
    }
}

/// It has no room.
fn full(text: &str) -> Error {
    Error::Full(format!("{text}; raise maxmemory or let workers drain it"))
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

/// Whether the connection leads to a Redis that has become a replica.
pub(super) fn leads_elsewhere(error: &RedisError) -> bool {
    error.code() == Some("READONLY") || error.to_string().contains("-READONLY ")
}

/// Why no connection could be had.
pub(super) fn of_pool(error: &PoolError) -> String {
    match error {
        PoolError::Backend(error) => in_words(error),
        PoolError::Timeout(_) => "redis does not answer".to_owned(),
        other => other.to_string(),
    }
}

/// What went wrong on the way.
pub(super) fn in_words(error: &RedisError) -> String {
    format!("redis cannot be reached: {error}")
}

#[cfg(test)]
mod tests {
    use std::io;

    use deadpool_redis::redis::{Value, parse_redis_value};

    use super::*;

    /// The error that Redis answers with this line.
    fn answered(line: &str) -> RedisError {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error.into(),
            Err(error) => error,
            Ok(value) => panic!("{value:?} is no error"),
        }
    }

    #[test]
    fn what_redis_refuses_was_not_written() {
        for line in [
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
            "MISCONF Errors writing to the AOF file: No space left on device",
            "BUSY Redis is busy running a script.",
            "NOREPLICAS Not enough good replicas to write.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
        ] {
            let error = of_call(&answered(line), false);
            assert!(matches!(error, Error::Unavailable(_)), "{line}: {error:?}");
        }
        let full = "OOM command not allowed when used memory > 'maxmemory'.";
        let full = of_call(&answered(full), false);
        assert!(matches!(&full, Error::Full(text) if text.contains("raise maxmemory")), "{full:?}");
        let odd = "WRONGTYPE Operation against a key holding the wrong kind of value";
        assert!(matches!(of_call(&answered(odd), false), Error::Corrupt(_)));
    }

    #[test]
    fn what_fails_at_the_first_write_of_a_script_was_not_written() {
        let told = |code: &str| {
            let line = format!(
                "ERR Error running script (call to f_3f): @user_script:42: @user_script: 42: {code} no"
            );
            of_call(&answered(&line), false)
        };
        assert!(matches!(told("-OOM"), Error::Full(_)));
        assert!(matches!(told("-READONLY"), Error::Unavailable(_)));
        assert!(matches!(told("-MISCONF"), Error::Unavailable(_)));
        assert!(leads_elsewhere(&answered("ERR Error: @user_script: 42: -READONLY no")));
    }

    #[test]
    fn what_fails_within_a_script_may_have_written() {
        for line in [
            "WRONGTYPE Operation against a key holding the wrong kind of value script: 3f, on @user_script:5.",
            "ERR user_script:12: attempt to index local 'j' (a nil value) script: 3f, on @user_script:12.",
            "ERR Error running script (call to f_3f): @user_script:12: attempt to index a nil value",
            "NOPERM User ringq has no permissions to run the 'publish' command script: 3f, on @user_script:9.",
        ] {
            let error = of_call(&answered(line), false);
            assert!(matches!(error, Error::Corrupt(_)), "{line}: {error:?}");
        }
    }

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
