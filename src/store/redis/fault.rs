//! What an error of Redis means. To a caller: whether it is known that nothing was written, and whether that is
//! for want of room. To whoever connects: whether somebody has to mend it.

use deadpool_redis::redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};
use deadpool_redis::{PoolError, TimeoutType};

use crate::domain::Time;
use crate::store::Error;

use super::OpenError;

/// What the error of a command within a script tells of where it was; Redis takes back nothing that the script
/// had done by then.
const IN_SCRIPT: &str = "user_script";
/// How a refusal of a script's first write stands in the error of the script.
const FIRST: [&str; 3] = ["-READONLY ", "-MISCONF ", "-NOREPLICAS "];
/// How a script refuses a call that arrives after its window (`lib/clock.lua`).
const LATE: &str = "LATE";
/// Codes with which Redis refuses a call before it runs. A script is refused as a whole, but for a right that one
/// of its commands lacks.
const REFUSALS: [&str; 17] = [
    LATE,
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
/// What the client says of bytes that are no answer; where and which they are follows, and helps nobody.
const UNREADABLE: &str = "Parse error at";
/// How the refusal of the database begins in the client's words; what Redis said follows.
const NO_DATABASE: &str = "Redis server refused to switch database";
/// What the parser says of an answer that ends in its middle.
const CUT_OFF: &str = "end of input";

/// What a call's failure means; `reads`: it could not have written anything.
pub(super) fn of_call(error: &RedisError, reads: bool) -> Error {
    let text = text(error);
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

/// What the clock of Redis showed when it refused a call that arrived after its window; `None`: another error.
pub(super) fn refused_late_at(error: &RedisError) -> Option<Time> {
    let detail = error.detail().filter(|_| error.code() == Some(LATE))?;
    detail.split(' ').next()?.parse().ok().map(Time)
}

/// Whether the connection should be tried before it is used again.
pub(super) fn casts_doubt(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Whether the connection leads to a Redis that has become a replica.
pub(super) fn leads_elsewhere(error: &RedisError) -> bool {
    error.code() == Some("READONLY") || error.to_string().contains("-READONLY ")
}

/// Why no connection could be had by this way.
pub(super) fn of_pool(error: &PoolError, way: &ConnectionInfo) -> OpenError {
    match error {
        PoolError::Backend(error) => of_connecting(error, way),
        PoolError::Timeout(TimeoutType::Create) if is_tls(way) => no_tls(),
        PoolError::Timeout(_) => OpenError::Unreachable("redis does not answer".to_owned()),
        other => OpenError::Unreachable(other.to_string()),
    }
}

/// Whether nobody has answered in time.
pub(super) fn is_silence(error: &PoolError) -> bool {
    match error {
        PoolError::Backend(error) => error.is_timeout(),
        PoolError::Timeout(TimeoutType::Create) => true,
        _ => false,
    }
}

fn of_connecting(error: &RedisError, way: &ConnectionInfo) -> OpenError {
    match (error.kind(), error.code()) {
        (ErrorKind::Parse, _) if error.to_string().contains(CUT_OFF) => {
            OpenError::Unreachable("redis hung up in the middle of an answer".to_owned())
        }
        (ErrorKind::Parse, _) => OpenError::NotRedis,
        // HELLO came with Redis 6.
        (ErrorKind::RESP3NotSupported, _) => OpenError::TooOld("before 6".to_owned()),
        (_, Some("WRONGPASS")) => OpenError::Login,
        (_, Some("NOAUTH")) => OpenError::NoPassword,
        (_, Some("DENIED")) => OpenError::Protected,
        _ if error.to_string().starts_with(NO_DATABASE) => of_database(error, way),
        _ if is_plain(error) => OpenError::NoTls,
        _ if is_tls(way) && is_no_tls(error) => no_tls(),
        _ if is_hang_up(error) && matches!(way.addr(), ConnectionAddr::Tcp(..)) => hung_up(),
        _ => OpenError::Unreachable(in_words(error) + hint(error, way)),
    }
}

fn of_database(error: &RedisError, way: &ConnectionInfo) -> OpenError {
    let said = plain(error.detail().unwrap_or("it does not say why"));
    if said.contains("no permissions") {
        return OpenError::Rights("SELECT".to_owned());
    }
    // Any other word passes: a Redis that is busy or loading refuses the same command.
    let never =
        ["out of range", "invalid DB index", "invalid first", "cluster mode", "unknown command"];
    match never.iter().any(|word| said.contains(word)) {
        true => OpenError::Database { number: way.redis_settings().db(), said },
        false => OpenError::Unreachable(in_words(error)),
    }
}

fn is_tls(way: &ConnectionInfo) -> bool {
    matches!(way.addr(), ConnectionAddr::TcpTls { .. })
}

/// Whether TLS was begun and something else came: nothing that speaks it begins its messages so.
pub(super) fn is_plain(error: &RedisError) -> bool {
    error.to_string().contains("corrupt message of type InvalidContentType")
}

/// A Redis without TLS waits for the end of what it takes for a line, or finds one and complains.
fn is_no_tls(error: &RedisError) -> bool {
    error.is_timeout() || error.to_string().contains("corrupt message")
}

fn no_tls() -> OpenError {
    let text = "redis cannot be reached: the TLS handshake got no answer; is TLS on at that port? Without it \
                the url begins with redis://";
    OpenError::Unreachable(text.to_owned())
}

/// Whether it took the connection and let go of it: by which of these errors that shows is a matter of luck.
fn is_hang_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

fn hung_up() -> OpenError {
    let text = "redis cannot be reached: what listens there hangs up at once; is that port for TLS (rediss://), or \
                does its protected mode let in nobody from other machines?";
    OpenError::Unreachable(text.to_owned())
}

/// What to look at.
fn hint(error: &RedisError, way: &ConnectionInfo) -> &'static str {
    let text = error.to_string();
    if error.is_connection_refusal() {
        "; check that redis runs there"
    } else if text.contains("lookup") {
        "; check the name of the host"
    } else if is_tls(way)
        && ["certificate", "Certificate", "alert"].iter().any(|w| text.contains(w))
    {
        "; check redis_ca, redis_cert, redis_key and that the url has the name in its certificate"
    } else {
        ""
    }
}

/// Why a Redis that let us in does not say what it is.
pub(super) fn of_info(error: &RedisError) -> OpenError {
    match error.code() {
        Some("NOPERM") => OpenError::Rights("INFO".to_owned()),
        _ => OpenError::Unreachable(text(error)),
    }
}

/// Whether it is about who asks. What a connection without HELLO gets for a wrong password has no code.
pub(super) fn is_of_login(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// What went wrong on the way.
pub(super) fn in_words(error: &RedisError) -> String {
    format!("redis cannot be reached: {}", text(error))
}

/// What an error says, in one line.
pub(super) fn text(error: &RedisError) -> String {
    let text = plain(&error.to_string());
    // Not so an answer in the right protocol that is not of the type that was asked for.
    match error.kind() == ErrorKind::Parse && text.contains(UNREADABLE) {
        true => "what answers there does not speak the protocol of redis".to_owned(),
        false => text,
    }
}

/// What a server says, as a part of one line: whoever reads a log by line, or on a terminal, is not led astray.
pub(super) fn plain(text: &str) -> String {
    text.split(char::is_control).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
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

    fn way(url: &str) -> ConnectionInfo {
        deadpool_redis::redis::IntoConnectionInfo::into_connection_info(url).unwrap()
    }

    #[test]
    fn what_somebody_has_to_mend_is_told_from_what_passes() {
        let told = |line: &str| of_connecting(&answered(line), &way("redis://h/99"));
        for (line, want) in [
            ("WRONGPASS invalid username-password pair or user is disabled.", "user and password"),
            (
                "NOAUTH HELLO must be called with the client already authenticated",
                "the url has none",
            ),
            ("DENIED Redis is running in protected mode", "protected mode"),
        ] {
            let error = told(line);
            assert!(error.is_certain() && error.to_string().contains(want), "{error}");
        }
        let loading = told("LOADING Redis is loading the dataset in memory");
        assert!(!loading.is_certain(), "{loading}");
        let clients = told("ERR max number of clients reached");
        assert!(!clients.is_certain() && clients.to_string().contains("clients"), "{clients}");
        let said = "User ringq has no permissions to run the 'select' command";
        let kind = ErrorKind::Server(deadpool_redis::redis::ServerErrorKind::ResponseError);
        let error = RedisError::from((kind, NO_DATABASE, said.to_owned()));
        assert!(matches!(of_connecting(&error, &way("redis://h/9")), OpenError::Rights(_)));
        let select = |said: &str| {
            let error = RedisError::from((kind, NO_DATABASE, said.to_owned()));
            of_connecting(&error, &way("redis://h/9")).is_certain()
        };
        let info = "NOPERM this user has no permissions to run the 'info' command";
        assert!(matches!(of_info(&answered(info)), OpenError::Rights(_)));
        assert!(select("DB index is out of range"));
        assert!(select("unknown command 'SELECT', with args beginning with: '9'"));
        assert!(!select("Redis is busy running a script."));
        let cut = parse_redis_value(b"*3\r\n+OK\r\n").unwrap_err();
        assert!(!of_connecting(&cut, &way("redis://h")).is_certain(), "{cut}");
    }

    #[test]
    fn who_waits_for_tls_in_vain_is_asked_whether_it_is_on() {
        let silence = [
            RedisError::from(io::Error::from(io::ErrorKind::TimedOut)),
            io::Error::new(io::ErrorKind::InvalidData, "received corrupt message").into(),
        ];
        for error in silence {
            let said = of_connecting(&error, &way("rediss://h")).to_string();
            assert!(said.contains("is TLS on at that port?"), "{said}");
            let said = of_connecting(&error, &way("redis://h")).to_string();
            assert!(!said.contains("TLS"), "{said}");
        }
    }

    #[test]
    fn who_answers_tls_with_something_else_has_none() {
        let text = "received corrupt message of type InvalidContentType";
        let error = RedisError::from(io::Error::new(io::ErrorKind::InvalidData, text));
        assert!(matches!(of_connecting(&error, &way("rediss://h")), OpenError::NoTls));
    }

    #[test]
    fn what_a_server_says_is_one_line() {
        let web = parse_redis_value(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
        assert_eq!(text(&web), "what answers there does not speak the protocol of redis");
        let wild = answered("ERR one\n2026 INFO two\x1b[31m\tthree");
        for said in [text(&wild), in_words(&wild), of_call(&wild, true).to_string()] {
            assert!(said.contains("one 2026 INFO two [31m three"), "{said}");
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
