//! Parsers from the text of one setting to its value. An error is the rest of a sentence that begins with the
//! setting's name.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::audit::{AuditCalls, AuditTarget};
use crate::telemetry::{self, LogFormat};
use crate::tls::ClientAuth;

use super::bounds;

/// Parses `127.0.0.1:7700`, `[::1]:7700`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let why = address_advice(text).map(|why| format!(": {why}")).unwrap_or_default();
        format!("{text:?} is not an address like 127.0.0.1:7700{why}")
    })
}

/// Returns advice for common mistakes in an address with its port.
fn address_advice(text: &str) -> Option<String> {
    if text.parse::<IpAddr>().is_ok() {
        return Some("its port is missing".to_owned());
    }
    if let Ok(port) = text.parse::<u16>() {
        return Some(format!("a port alone is not enough; write 127.0.0.1:{port}"));
    }
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    match host {
        "" | "*" => Some(format!("for all addresses write 0.0.0.0:{port}")),
        "localhost" => Some(format!("localhost is a name; write 127.0.0.1:{port}")),
        _ if host.contains(|c: char| c.is_ascii_alphabetic()) && !host.contains(':') => {
            Some(format!("{host} is a name, and an address is needed"))
        }
        _ => None,
    }
}

/// Parses any path but the empty one.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(PathBuf::from(text)) }
}

/// Parses `none`, `stdout` or a directory.
pub(super) fn audit_log(text: &str) -> Result<Option<AuditTarget>, String> {
    match text {
        "none" => Ok(None),
        "stdout" => Ok(Some(AuditTarget::Stdout)),
        directory => path(directory).map(|directory| Some(AuditTarget::Directory(directory))),
    }
}

/// Formats the target as [`audit_log`] reads it.
pub(super) fn show_audit_log(target: Option<&AuditTarget>) -> String {
    match target {
        None => "none".to_owned(),
        Some(AuditTarget::Stdout) => "stdout".to_owned(),
        Some(AuditTarget::Directory(directory)) => directory.display().to_string(),
    }
}

/// Parses `changes` or `all`.
pub(super) fn audit_calls(text: &str) -> Result<AuditCalls, String> {
    match text {
        "changes" => Ok(AuditCalls::Changes),
        "all" => Ok(AuditCalls::All),
        _ => Err(format!("{text:?} is not changes or all")),
    }
}

/// Formats the value as [`audit_calls`] reads it.
pub(super) fn show_audit_calls(calls: AuditCalls) -> &'static str {
    match calls {
        AuditCalls::Changes => "changes",
        AuditCalls::All => "all",
    }
}

/// Parses a name of `[A-Za-z0-9._-]`.
pub(super) fn replica(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if bounds::REPLICA_CHARS.contains(&text.len()) && text.chars().all(good) {
        return Ok(text.to_owned());
    }
    let (min, max) = (bounds::REPLICA_CHARS.start(), bounds::REPLICA_CHARS.end());
    Err(format!("{text:?} is not {min} to {max} of A-Z a-z 0-9 . _ -"))
}

/// Parses a whole number within the bounds.
pub(super) fn number(text: &str, bounds: &RangeInclusive<usize>) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if bounds.contains(&number) => Ok(number),
        _ => {
            let (min, max) = (bounds.start(), bounds.end());
            Err(format!("{text:?} is not a whole number from {min} to {max}"))
        }
    }
}

/// Parses `true` or `false`.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
}

/// Parses `required` or `optional`.
pub(super) fn client_auth(text: &str) -> Result<ClientAuth, String> {
    match text {
        "required" => Ok(ClientAuth::Required),
        "optional" => Ok(ClientAuth::Optional),
        _ => Err(format!("{text:?} is neither required nor optional")),
    }
}

/// Returns the text that [`client_auth`] reads.
pub(super) fn show_client_auth(auth: ClientAuth) -> &'static str {
    match auth {
        ClientAuth::Required => "required",
        ClientAuth::Optional => "optional",
    }
}

/// Parses `text` or `json`.
pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("{text:?} is neither text nor json")),
    }
}

/// Returns the text that [`log_format`] reads.
pub(super) fn show_log_format(format: LogFormat) -> &'static str {
    match format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    }
}

/// Parses a filter that the log can use.
pub(super) fn log_filter(text: &str) -> Result<String, String> {
    if let Some(word) = text.split(',').map(str::trim).find(|word| is_mistyped_level(word)) {
        return Err(format!(
            "{word:?} is not a log level: off, error, warn, info, debug or trace; \
             a level of one module is written ringq::dispatch=debug"
        ));
    }
    match telemetry::filter(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{text:?} is not a log filter like info,ringq=debug: {error}")),
    }
}

/// Returns whether a bare word is no level. It would be read as the name of a module, of which everything is logged,
/// and nothing of all others: a mistyped level would silence the server.
fn is_mistyped_level(word: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let level = LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    !level && !word.contains(['=', ':', '[']) && !word.starts_with("ringq")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_suggests_a_correction() {
        for (text, want) in [
            ("localhost:24000", "localhost is a name; write 127.0.0.1:24000"),
            ("db.example:1", "db.example is a name, and an address is needed"),
            ("7700", "write 127.0.0.1:7700"),
            (":7700", "write 0.0.0.0:7700"),
            ("127.0.0.1", "its port is missing"),
            ("nonsense", "like 127.0.0.1:7700"),
        ] {
            let problem = address(text).unwrap_err();
            assert!(problem.ends_with(want), "{problem}");
        }
    }

    #[test]
    fn replica_names() {
        let longest = "a".repeat(64);
        for good in ["ringq-0", "Host.local", "a_b", longest.as_str()] {
            assert_eq!(replica(good).as_deref(), Ok(good));
        }
        for bad in ["", "a b", "ä", &"a".repeat(65)] {
            assert!(replica(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_stay_in_range() {
        assert_eq!(number("2", &(2..=256)), Ok(2));
        for bad in ["1", "257", "-2", "two", "", "2.0"] {
            assert!(number(bad, &(2..=256)).is_err(), "{bad:?}");
        }
    }
}
