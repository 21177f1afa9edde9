//! Texts of failures of TLS. The command line has a hint for each of these texts.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error as TlsError};

/// The server's certificate, or the one that signed it, is signed by an unknown authority.
pub(crate) const UNKNOWN_AUTHORITY: &str =
    "the server's certificate is not signed by a trusted authority";
/// The server's certificate is for other hosts; their names follow.
pub(crate) const WRONG_NAME: &str = "the server's certificate is not for";
/// The server's certificate, or one of those that signed it, has expired; the time since then follows.
pub(crate) const EXPIRED: &str = "the server's certificate has expired";
/// The server's certificate, or one of those that signed it, is of the future.
pub(crate) const NOT_YET_VALID: &str = "the server's certificate is not valid yet";
/// The server accepts clients with a certificate only.
pub(crate) const NEEDS_CERTIFICATE: &str = "the server requires a client certificate";
/// The server does not accept the certificate of this client; its reason follows.
pub(crate) const REJECTED_CERTIFICATE: &str = "the server rejected the client certificate";
/// TLS was tried with a server without TLS.
pub(crate) const NO_TLS: &str = "the server does not use TLS";
/// A server with TLS was tried without it.
pub(crate) const NEEDS_TLS: &str = "the server uses TLS";
/// The server has TLS, but other protocols than gRPC's.
pub(crate) const NO_HTTP2: &str = "the server does not offer HTTP/2";

/// Beginning of rustls' text of an alert, which the server sends when it ends TLS. A server learns of the client's
/// certificate after the client has sent its first call; by then, h2 keeps only the text of the error.
const ALERT: &str = "received fatal alert: ";

/// Returns the text of a failed handshake.
pub(super) fn handshake_error_text(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
    let problem = match cause {
        Some(TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            format!("{NO_TLS}; try http://")
        }
        Some(TlsError::InvalidCertificate(why)) => certificate_text(why),
        Some(TlsError::AlertReceived(alert)) => alert_text(*alert),
        Some(other) => other.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the server closed the connection during the handshake".to_owned()
        }
        None => super::in_sentence(&error.to_string()),
    };
    format!("TLS failed: {problem}")
}

/// Returns the text for an error that shows that the server has refused the connection, whatever was sent on it: none
/// of that was executed.
pub(super) fn refusal_text(cause: &str) -> Option<String> {
    if cause.contains(NEEDS_TLS) {
        return Some(cause.to_owned());
    }
    let alert = cause.split_once(ALERT)?.1;
    let known = CLIENT_ALERTS.into_iter().find(|known| alert == format!("{known:?}"))?;
    Some(format!("TLS failed: {}", alert_text(known)))
}

/// Returns the text for an error of TLS that is no error of the handshake itself.
pub(super) fn negotiation_text(cause: &str) -> Option<String> {
    let is_negotiation = cause.contains("HTTP/2 was not negotiated");
    is_negotiation.then(|| format!("TLS failed: {NO_HTTP2}"))
}

/// Alerts with which a server refuses a client by its certificate.
const CLIENT_ALERTS: [AlertDescription; 9] = [
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
];

fn alert_text(alert: AlertDescription) -> String {
    use AlertDescription as Alert;
    let why = match alert {
        Alert::CertificateRequired => return NEEDS_CERTIFICATE.to_owned(),
        Alert::UnknownCA => "it does not trust the authority that signed it".to_owned(),
        Alert::CertificateExpired => "it has expired, or is not valid yet".to_owned(),
        Alert::CertificateRevoked => "it is revoked".to_owned(),
        other if CLIENT_ALERTS.contains(&other) => format!("alert {other:?}"),
        // A server with TLS 1.2 has no alert of its own for a missing certificate.
        Alert::HandshakeFailure => {
            return "the server refused the handshake; it may require a client certificate"
                .to_owned();
        }
        Alert::NoApplicationProtocol => return NO_HTTP2.to_owned(),
        Alert::ProtocolVersion => {
            return "the server has neither TLS 1.2 nor TLS 1.3".to_owned();
        }
        other => return format!("the server ended the handshake with the alert {other:?}"),
    };
    format!("{REJECTED_CERTIFICATE}: {why}")
}

fn certificate_text(why: &CertificateError) -> String {
    match why {
        // The second one: a trusted authority has the name of the signer, but another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            UNKNOWN_AUTHORITY.to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| bare_name(name)).collect();
            let only = match names[..] {
                [] => "it names no host".to_owned(),
                _ => format!("it is for {}", names.join(", ")),
            };
            format!("{WRONG_NAME} {}; {only}", expected.to_str())
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let age = time.as_secs().saturating_sub(not_after.as_secs());
            format!("{EXPIRED}, {} ago", span(Duration::from_secs(age)))
        }
        CertificateError::Expired => EXPIRED.to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            NOT_YET_VALID.to_owned()
        }
        other => format!("the server's certificate is not accepted: {other}"),
    }
}

/// Returns `localhost` of `DnsName("localhost")`.
fn bare_name(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// Formats a time for people: in minutes, hours from two on, days from two on.
fn span(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    match minutes {
        2_880.. => format!("{} days", minutes / 1_440),
        120.. => format!("{} hours", minutes / 60),
        1 => "1 minute".to_owned(),
        _ => format!("{minutes} minutes"),
    }
}

/// Returns whether an error of the chain is one by which [`refusal_text`] knows a refused connection.
pub(super) fn is_refusal<'e>(
    mut chain: impl Iterator<Item = &'e (dyn StdError + 'static)>,
) -> bool {
    chain.any(|error| refusal_text(&error.to_string()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_after_the_handshake_are_found_in_texts() {
        let required = refusal_text("received fatal alert: CertificateRequired").unwrap();
        assert_eq!(required, format!("TLS failed: {NEEDS_CERTIFICATE}"));
        let unknown = refusal_text("received fatal alert: UnknownCA").unwrap();
        assert!(unknown.starts_with(&format!("TLS failed: {REJECTED_CERTIFICATE}: ")), "{unknown}");
        for other in ["received fatal alert: InternalError", "connection reset", ""] {
            assert_eq!(refusal_text(other), None, "{other}");
        }
    }

    #[test]
    fn spans_are_rounded_down() {
        for (seconds, want) in [
            (0, "0 minutes"),
            (119, "1 minute"),
            (7_199, "119 minutes"),
            (7_200, "2 hours"),
            (172_799, "47 hours"),
            (172_800, "2 days"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), want);
        }
    }

    #[test]
    fn names_are_shown_without_their_type() {
        assert_eq!(bare_name("DnsName(\"localhost\")"), "localhost");
        assert_eq!(bare_name("IpAddress(127.0.0.1)"), "127.0.0.1");
        assert_eq!(bare_name("other"), "other");
    }
}
