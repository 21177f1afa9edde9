//! Origin of an error: the server, or this side of the connection.

use std::error::Error as StdError;
use std::io;

use tonic::{ConnectError, Status, TimeoutExpired};

use super::tls;

/// Beginning of tonic's message for an answer without a gRPC status; the HTTP status follows.
pub(super) const NO_STATUS: &str = "grpc-status header missing, mapped from HTTP status code ";
/// Replacement for it in our messages.
pub(super) const NO_GRPC: &str = "HTTP status ";

/// Origin of the error of a call.
pub(super) enum ErrorOrigin {
    /// The server, or a proxy in between, with its message.
    Response(String),
    /// This side, before there was a connection, or a server that refused the connection, with the reason for people.
    ConnectFailed(String),
    /// This side: no answer came in time.
    TimedOut,
    /// The connection, while the call was on it, with the reason for people.
    ConnectionLost(String),
}

// === impl ErrorOrigin ===

impl ErrorOrigin {
    /// Classifies a status. One that came over the wire has no source; every failure of tonic's transport has one,
    /// and a code that depends on where tonic noticed it.
    pub(super) fn from_status(status: &Status) -> ErrorOrigin {
        let Some(first) = status.source() else {
            return ErrorOrigin::Response(response_message(status.message()));
        };
        if let Some(connect) = chain(first).find_map(|error| error.downcast_ref::<ConnectError>()) {
            return ErrorOrigin::ConnectFailed(connect_error_text(connect));
        }
        if chain(first).any(|error| error.is::<TimeoutExpired>()) {
            return ErrorOrigin::TimedOut;
        }
        let cause = root_cause(first).to_string();
        match tls::refusal_text(&cause) {
            Some(refusal) => ErrorOrigin::ConnectFailed(refusal),
            None => ErrorOrigin::ConnectionLost(cause),
        }
    }
}

/// Returns whether a failed call was not sent. A call is canceled by hyper only while it waits for its turn on the
/// connection; an error of a call that was sent is another one.
pub(super) fn was_not_sent(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|error| {
        let canceled = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled);
        canceled || error.is::<ConnectError>()
    }) || tls::is_refusal(chain(error))
}

/// Returns the message of an answer; one without a gRPC status is of HTTP.
fn response_message(message: &str) -> String {
    match message.strip_prefix(NO_STATUS) {
        Some(number) => format!("{NO_GRPC}{number}"),
        None => message.to_owned(),
    }
}

/// Returns why there is no connection: "Connection refused", not "tcp connect error".
fn connect_error_text(connect: &ConnectError) -> String {
    let cause = root_cause(connect);
    // A failure before TLS has a type of hyper's.
    if let Some(handshake) = connect.0.downcast_ref::<io::Error>() {
        return tls::handshake_error_text(handshake);
    }
    if let Some(text) = tls::negotiation_text(&cause.to_string()) {
        return text;
    }
    match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => "connecting timed out".to_owned(),
        _ if cause.is::<tokio::time::error::Elapsed>() => "connecting timed out".to_owned(),
        _ => cause.to_string(),
    }
}

fn root_cause<'e>(error: &'e (dyn StdError + 'static)) -> &'e (dyn StdError + 'static) {
    chain(error).last().unwrap_or(error)
}

fn chain<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}
