//! Maps errors of Redis. For a call: whether it certainly wrote nothing, and whether Redis is full. For a connection:
//! whether a setting has to be corrected.
//!
//! redis-rs has kinds and codes, which are used where they exist. Texts are compared where Redis has only those: an
//! error inside a script, a rejected database, and a TLS handshake with a peer that has no TLS.

use deadpool_redis::redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};

use crate::domain::Time;
use crate::store::Error;

use super::RedisOpenError;

/// Part of the error of a command inside a script. Redis does not roll back what the script had written before.
const IN_SCRIPT: &str = "user_script";
/// Part of the error of a command inside a script that the user may not use. Redis 7.2 and newer have a code for it.
const NO_RIGHT_IN_SCRIPT: &str = "The user executing the script can't ";
/// Rejections of a script's first write, as they appear in the error of the script.
const FIRST_WRITE_REFUSALS: [&str; 3] = ["-READONLY ", "-MISCONF ", "-NOREPLICAS "];
/// Code with which a script rejects a call that arrives after its window (`lib/clock.lua`).
const LATE_CODE: &str = "LATE";
/// Codes with which Redis rejects a call before it runs. A script is rejected as a whole, except for a right that one
/// of its commands lacks.
const REFUSALS: [&str; 17] = [
    LATE_CODE,
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
/// Error of redis-rs for bytes that are no reply; position and bytes follow.
const UNREADABLE: &str = "Parse error at";
/// Error of redis-rs for a rejected database; the detail is from Redis.
const NO_DATABASE: &str = "Redis server refused to switch database";

/// Returns the error of a failed call; `reads`: the call cannot have written anything.
pub(super) fn call_error(error: &RedisError, reads: bool) -> Error {
    let text = text(error);
    match error.code() {
        // The script may have written before its first command without the right.
        Some(_) if !reads && text.contains(IN_SCRIPT) && is_permission_error(error) => {
            Error::OutcomeUnknown(text)
        }
        Some("OOM") => full_error(),
        // Before Redis 7 a script gets these errors at its first write.
        Some(_) if text.contains(IN_SCRIPT) && text.contains("-OOM ") => full_error(),
        Some(_)
            if text.contains(IN_SCRIPT)
                && FIRST_WRITE_REFUSALS.iter().any(|code| text.contains(code)) =>
        {
            Error::Unavailable(text)
        }
        Some(code) if REFUSALS.contains(&code) => Error::Unavailable(text),
        // A script failed on stored data: a key of another type, a record of another form.
        Some(_) => Error::Corrupt(text),
        None if reads || was_never_sent(error) => Error::Unavailable(text),
        None => Error::OutcomeUnknown(text),
    }
}

fn full_error() -> Error {
    Error::Full(
        "redis has reached its maxmemory; raise maxmemory or let workers finish jobs".to_owned(),
    )
}

/// Returns whether the request did not leave this process.
fn was_never_sent(error: &RedisError) -> bool {
    error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::InvalidClientConfig
                | ErrorKind::RESP3NotSupported
        )
}

/// Returns the time at which Redis rejected a call that arrived after its window; `None`: another error.
pub(super) fn refused_late_at(error: &RedisError) -> Option<Time> {
    let detail = error.detail().filter(|_| error.code() == Some(LATE_CODE))?;
    detail.split(' ').next()?.parse().ok().map(Time)
}

/// Returns whether the connection leads to a Redis that has become a replica.
pub(super) fn is_replica_error(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
        || error.to_string().contains("-READONLY ")
}

/// Returns whether the user of this connection has lost a right since the connection was checked.
pub(super) fn is_permission_error(error: &RedisError) -> bool {
    error.code() == Some("NOPERM") || error.to_string().contains(NO_RIGHT_IN_SCRIPT)
}

/// Returns the reason why no connection to this endpoint was made.
pub(super) fn connect_error(error: &RedisError, endpoint: &ConnectionInfo) -> RedisOpenError {
    let text = error.to_string();
    match (error.kind(), error.code()) {
        // A reply that ends in the middle may be from a Redis.
        (ErrorKind::Parse, _) if !text.contains("end of input") => RedisOpenError::NotRedis,
        // HELLO came with Redis 6.
        (ErrorKind::RESP3NotSupported, _) => RedisOpenError::TooOld("before 6".to_owned()),
        (_, Some("WRONGPASS")) => RedisOpenError::LoginRejected,
        (_, Some("NOAUTH")) => RedisOpenError::NoPassword,
        (_, Some("DENIED")) => RedisOpenError::ProtectedMode,
        _ if text.starts_with(NO_DATABASE) => database_error(error, endpoint),
        _ => unreachable_error(&cause(error, endpoint.addr())),
    }
}

/// Returns the cause of a failure that may pass, and the settings to check. One cause has one text, as it is logged
/// once, where redis-rs has several errors for it.
fn cause(error: &RedisError, addr: &ConnectionAddr) -> String {
    let text = text(error);
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    match addr {
        _ if error.is_connection_refusal() => text + "; check that redis runs there",
        ConnectionAddr::TcpTls { .. } if error.is_timeout() || has(&["corrupt message"]) => {
            "the TLS handshake got no answer; is TLS on at that port? Without it the url begins with redis://"
                .to_owned()
        }
        ConnectionAddr::TcpTls { .. } if has(&["ertificate", "alert"]) => {
            text + "; check redis_ca, redis_cert, redis_key and that the url has the name in its certificate"
        }
        ConnectionAddr::Tcp(..) if error.is_connection_dropped() => {
            "the server closes the connection at once; is that port for TLS (rediss://), or is protected-mode on \
             there?"
                .to_owned()
        }
        _ => text,
    }
}

fn database_error(error: &RedisError, endpoint: &ConnectionInfo) -> RedisOpenError {
    let reason = one_line(error.detail().unwrap_or("redis gives no reason"));
    // Any other reason may pass: a Redis that is busy or loading rejects the same command.
    let lasting =
        ["out of range", "invalid DB index", "invalid first", "cluster mode", "unknown command"];
    if reason.contains("no permissions") {
        RedisOpenError::MissingPermission("SELECT".to_owned())
    } else if lasting.iter().any(|text| reason.contains(text)) {
        RedisOpenError::Database(format!("{} ({reason})", endpoint.redis_settings().db()))
    } else {
        unreachable_error(&text(error))
    }
}

/// Returns whether the reply to the beginning of a TLS handshake was not TLS.
pub(super) fn is_not_tls(error: &RedisError) -> bool {
    error.to_string().contains("corrupt message of type InvalidContentType")
}

/// Returns the reason why a connected Redis does not answer INFO.
pub(super) fn info_error(error: &RedisError) -> RedisOpenError {
    match error.code() {
        Some("NOPERM") => RedisOpenError::MissingPermission("INFO".to_owned()),
        _ => RedisOpenError::Unreachable(text(error)),
    }
}

/// Returns whether the login was rejected. A connection without HELLO gets no code for a wrong password.
pub(super) fn is_login_error(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

pub(super) fn unreachable_error(cause: &str) -> RedisOpenError {
    RedisOpenError::Unreachable(format!("redis cannot be reached: {cause}"))
}

/// Returns the text of an error, in one line.
pub(super) fn text(error: &RedisError) -> String {
    let text = one_line(&error.to_string());
    // A reply of another type than the expected one has the same kind.
    if error.kind() == ErrorKind::Parse && text.contains(UNREADABLE) {
        return "the server does not use the redis protocol".to_owned();
    }
    text
}

/// Returns the text of a server as a part of one line, without characters that control a terminal.
pub(super) fn one_line(text: &str) -> String {
    text.split(char::is_control).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use deadpool_redis::redis::{Value, parse_redis_value};

    use super::*;

    /// Returns the error for this line of a reply.
    fn answered(line: &str) -> RedisError {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error.into(),
            Err(error) => error,
            Ok(value) => panic!("{value:?} is no error"),
        }
    }

    /// A rejected call, or one that fails at the first write of its script, has written nothing; other errors of a
    /// script may come after a write.
    #[test]
    fn a_refused_call_was_not_written_and_a_failed_script_may_have_written() {
        let first = "ERR Error running script (call to f_3f): @user_script:42: @user_script: 42:";
        for (line, want) in [
            ("LOADING Redis is loading the dataset in memory", "Unavailable"),
            ("READONLY You can't write against a read only replica.", "Unavailable"),
            ("MISCONF Errors writing to the AOF file: No space left on device", "Unavailable"),
            ("BUSY Redis is busy running a script.", "Unavailable"),
            ("NOREPLICAS Not enough good replicas to write.", "Unavailable"),
            ("NOPERM this user has no permissions to run the 'evalsha' command", "Unavailable"),
            ("NOAUTH Authentication required.", "Unavailable"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "Full"),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", "Corrupt"),
            (&format!("{first} -OOM no"), "Full"),
            (&format!("{first} -READONLY no"), "Unavailable"),
            (&format!("{first} -MISCONF no"), "Unavailable"),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value script: 3f, on @user_script:5.",
                "Corrupt",
            ),
            (
                "ERR user_script:12: attempt to index local 'j' (a nil value) script: 3f, on @user_script:12.",
                "Corrupt",
            ),
            (
                "ERR Error running script (call to f_3f): @user_script:12: attempt to index a nil value",
                "Corrupt",
            ),
            (
                "NOPERM ACL failure in script: User ringq has no permissions to run the 'publish' command script: 3f, on @user_script:9.",
                "OutcomeUnknown",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 3f, on @user_script:9.",
                "OutcomeUnknown",
            ),
            (
                &format!(
                    "{first} -NOPERM The user executing the script can't run this command or subcommand"
                ),
                "OutcomeUnknown",
            ),
        ] {
            let error = call_error(&answered(line), false);
            assert!(format!("{error:?}").starts_with(want), "{line}: {error:?}");
            assert!(want != "Full" || error.to_string().contains("raise maxmemory"), "{error}");
        }
        assert!(is_replica_error(&answered(&format!("{first} -READONLY no"))));
    }

    fn endpoint(url: &str) -> ConnectionInfo {
        deadpool_redis::redis::IntoConnectionInfo::into_connection_info(url).unwrap()
    }

    #[test]
    fn lasting_and_passing_failures_differ() {
        let database = |reason: &str| {
            let kind = ErrorKind::Server(deadpool_redis::redis::ServerErrorKind::ResponseError);
            RedisError::from((kind, NO_DATABASE, reason.to_owned()))
        };
        let cut = parse_redis_value(b"*3\r\n+OK\r\n").unwrap_err();
        for (error, lasts, want) in [
            (answered("WRONGPASS invalid username-password pair"), true, "user and password"),
            (answered("NOAUTH HELLO must be called with"), true, "the url has none"),
            (answered("DENIED Redis is running in protected mode"), true, "protected mode"),
            (answered("LOADING Redis is loading the dataset in memory"), false, "loading"),
            (answered("ERR max number of clients reached"), false, "clients"),
            (
                database("User ringq has no permissions to run the 'select' command"),
                true,
                "may not use SELECT",
            ),
            (database("DB index is out of range"), true, "rejects database 9 (DB index"),
            (
                database("unknown command 'SELECT', with args beginning with: '9'"),
                true,
                "database 9",
            ),
            (database("Redis is busy running a script."), false, "busy"),
            (cut, false, "redis cannot be reached"),
        ] {
            let error = connect_error(&error, &endpoint("redis://h/9"));
            assert_eq!(error.is_permanent(), lasts, "{error}");
            assert!(error.to_string().contains(want), "{error}");
        }
        let info = "NOPERM this user has no permissions to run the 'info' command";
        assert!(matches!(info_error(&answered(info)), RedisOpenError::MissingPermission(_)));
    }

    #[test]
    fn a_silent_tls_handshake_asks_whether_tls_is_on() {
        let silence = [
            RedisError::from(io::Error::from(io::ErrorKind::TimedOut)),
            io::Error::new(io::ErrorKind::InvalidData, "received corrupt message").into(),
        ];
        for error in silence {
            let text = connect_error(&error, &endpoint("rediss://h")).to_string();
            assert!(text.contains("is TLS on at that port?"), "{text}");
            let text = connect_error(&error, &endpoint("redis://h")).to_string();
            assert!(!text.contains("TLS"), "{text}");
        }
    }

    #[test]
    fn a_text_of_a_server_is_one_line() {
        let web = parse_redis_value(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
        assert_eq!(text(&web), "the server does not use the redis protocol");
        let wild = answered("ERR one\n2026 INFO two\x1b[31m\tthree");
        let connecting = connect_error(&wild, &endpoint("redis://h")).to_string();
        for line in [text(&wild), connecting, call_error(&wild, true).to_string()] {
            assert!(line.contains("one 2026 INFO two [31m three"), "{line}");
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
            assert!(call_error(&io(kind), false).outcome_unknown(), "{kind}");
            assert!(!call_error(&io(kind), true).outcome_unknown(), "{kind}: a read");
        }
        assert!(!call_error(&io(io::ErrorKind::ConnectionRefused), false).outcome_unknown());
    }
}
