//! Failures of connections, with the flag or variable to change.

use super::url::PORT_DEFAULT;
use crate::cli::exit::CommandFailure;
use crate::client::{Client, Error, tls_errors};

/// Builds the failure of a call to a server that cannot be reached, or whose connection broke.
pub(super) fn unreachable(client: &Client, what: &str, error: &Error) -> CommandFailure {
    let what = if error.outcome_unknown() {
        format!("{what}: the connection to {} broke", one_of(client))
    } else if client.has_several_servers() {
        // The error names each server.
        what.to_owned()
    } else {
        format!("{what}: no connection to {}", with_port(client.url()))
    };
    // The error of h2 about the first bytes of HTTP/1.
    let hint = if error.message().contains("frame with invalid size") {
        "does a gRPC server listen there? ringq's port is 7700 by default"
    } else if let Some(hint) = tls_hint(error.message()) {
        hint
    } else if error.outcome_unknown() {
        "the request may have been applied"
    } else {
        "is it running? start one with `ringq serve`, or name it with --server or RINGQ_SERVER"
    };
    CommandFailure::from_call(&what, error).with_hint(hint)
}

/// Hints for failures of TLS, by the text of the client library. The last one is for all others.
const TLS_HINTS: [(&str, &str); 10] = [
    (tls_errors::UNKNOWN_AUTHORITY, "name the file of its authority with --ca or RINGQ_CA"),
    (
        tls_errors::WRONG_NAME,
        "name the server by a host of its certificate, with --server or RINGQ_SERVER",
    ),
    (tls_errors::EXPIRED, "the server needs a new one; or the clock of this machine is wrong"),
    (tls_errors::NOT_YET_VALID, "is the clock of this machine right?"),
    (
        tls_errors::REJECTED_CERTIFICATE,
        "it is set by --cert and --key, or RINGQ_CERT and RINGQ_KEY",
    ),
    (tls_errors::NEEDS_CERTIFICATE, "give one with --cert and --key, or RINGQ_CERT and RINGQ_KEY"),
    (tls_errors::NO_TLS, "write http:// in place of https:// in --server or RINGQ_SERVER"),
    (tls_errors::NEEDS_TLS, "write https:// in place of http:// in --server or RINGQ_SERVER"),
    (tls_errors::NO_HTTP2, "is it the HTTP port? ringq's gRPC port is 7700 by default"),
    ("TLS ", "check the scheme of the server's address: http:// is without TLS, https:// with TLS"),
];

/// Returns the hint for an error of TLS.
fn tls_hint(message: &str) -> Option<&'static str> {
    let found = TLS_HINTS.into_iter().find(|(text, _)| message.contains(text));
    found.map(|(_, hint)| hint)
}

/// Returns the URL of the server for an error; of several, one has failed.
pub(in crate::cli) fn one_of(client: &Client) -> String {
    let one_of = if client.has_several_servers() { "one of " } else { "" };
    format!("{one_of}{}", client.url())
}

/// Returns the URL with the port that was tried, if it names none.
fn with_port(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.trim_end_matches('/');
    if authority.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(':') {
        return url.to_owned();
    }
    let port = if scheme == "https" { 443 } else { 80 };
    format!("{url}, port {port}; ringq's own is {PORT_DEFAULT}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_port_that_was_tried() {
        assert_eq!(with_port("http://a:7/"), "http://a:7/");
        assert_eq!(with_port("http://a"), "http://a, port 80; ringq's own is 7700");
        assert!(with_port("https://[::1]").contains("port 443"));
        assert_eq!(with_port("http://[::1]:7"), "http://[::1]:7");
    }
}
