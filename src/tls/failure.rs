//! Reasons for which a connection ends before its first request, each with a hint.

use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

/// Connection without a handshake.
#[derive(Debug)]
pub(super) struct HandshakeFailure {
    pub(super) reason: FailureReason,
    /// Error of the socket or of TLS.
    pub(super) error: Option<io::Error>,
}

/// Reason of the failure of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureReason {
    /// The client closed the connection.
    Closed,
    /// The handshake took too long.
    Timeout,
    /// The client does not use TLS, and the port does.
    PlainText,
    /// The client uses TLS, and the port does not.
    TlsIsOff,
    /// The client presented no certificate.
    NoCertificate,
    /// The certificate of the client was signed by another authority.
    UnknownAuthority,
    /// The certificate of the client is not valid now.
    ExpiredCertificate,
    /// The certificate of the client cannot be used for another reason.
    UnusableCertificate,
    /// The client does not accept the certificate of the server, or refused to go on for another reason.
    RefusedByClient,
    /// Client and server have no version, cipher or protocol in common.
    NothingInCommon,
    /// The bytes are no handshake.
    Invalid,
}

// === impl HandshakeFailure ===

impl HandshakeFailure {
    /// Finds the reason of an error.
    pub(super) fn from_error(error: io::Error) -> HandshakeFailure {
        let tls = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
        let reason = tls.map_or(FailureReason::Closed, FailureReason::of);
        HandshakeFailure { reason, error: Some(error) }
    }
}

impl From<FailureReason> for HandshakeFailure {
    fn from(reason: FailureReason) -> HandshakeFailure {
        HandshakeFailure { reason, error: None }
    }
}

// === impl FailureReason ===

impl FailureReason {
    fn of(error: &Error) -> FailureReason {
        match error {
            Error::NoCertificatesPresented => FailureReason::NoCertificate,
            Error::InvalidCertificate(error) => match error {
                // A bad signature is one of another key: of an authority that was replaced under its name.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    FailureReason::UnknownAuthority
                }
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => FailureReason::ExpiredCertificate,
                _ => FailureReason::UnusableCertificate,
            },
            // Alerts of a client that leaves, such as a Java program that ends.
            Error::AlertReceived(
                AlertDescription::CloseNotify | AlertDescription::UserCanceled,
            ) => FailureReason::Closed,
            Error::AlertReceived(_) => FailureReason::RefusedByClient,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => {
                FailureReason::NothingInCommon
            }
            _ => FailureReason::Invalid,
        }
    }

    /// Returns the value of the label in the metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            FailureReason::Closed => "closed",
            FailureReason::Timeout => "timeout",
            FailureReason::PlainText => "plain_text",
            FailureReason::TlsIsOff => "tls_is_off",
            FailureReason::NoCertificate => "no_certificate",
            FailureReason::UnknownAuthority => "unknown_authority",
            FailureReason::ExpiredCertificate => "expired_certificate",
            FailureReason::UnusableCertificate => "unusable_certificate",
            FailureReason::RefusedByClient => "refused_by_client",
            FailureReason::NothingInCommon => "nothing_in_common",
            FailureReason::Invalid => "invalid",
        }
    }

    /// Returns the cause and the action, for the log.
    pub(super) fn hint(self) -> &'static str {
        match self {
            FailureReason::Closed => {
                "client closed the connection during the TLS handshake: if it is no probe, see whether it accepts the \
                 server's certificate"
            }
            FailureReason::Timeout => "client did not finish the TLS handshake in time",
            FailureReason::PlainText => {
                "client does not use TLS, and this port does: give it an https:// address, and grpcurl no -plaintext"
            }
            FailureReason::TlsIsOff => {
                "client uses TLS, and this port does not: give it an http:// address, or set tls_cert and tls_key"
            }
            FailureReason::NoCertificate => {
                "client presented no certificate: give it one that an authority in tls_client_ca signed, or set \
                 tls_client_auth to optional"
            }
            FailureReason::UnknownAuthority => {
                "no authority in tls_client_ca signed the client's certificate: add the one that did, or give the \
                 client another certificate"
            }
            FailureReason::ExpiredCertificate => {
                "the client's certificate has expired or is not valid yet: renew it, or correct the clock"
            }
            FailureReason::UnusableCertificate => {
                "the client's certificate cannot be used: create it for the use as a client (clientAuth)"
            }
            FailureReason::RefusedByClient => {
                "client does not accept the server's certificate: give it the authority that signed tls_cert, and a \
                 host name that this certificate has"
            }
            FailureReason::NothingInCommon => {
                "client and server have no version, cipher or protocol in common: this port has TLS 1.2 and 1.3"
            }
            FailureReason::Invalid => "client sent bytes that are no TLS handshake",
        }
    }

    /// Returns whether an operator can do something about it, so that it is worth a warning.
    pub(super) fn is_warned(self) -> bool {
        !matches!(self, FailureReason::Timeout | FailureReason::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_leaves_has_not_refused_the_certificate() {
        for (alert, reason) in [
            (AlertDescription::CloseNotify, FailureReason::Closed),
            (AlertDescription::UserCanceled, FailureReason::Closed),
            (AlertDescription::UnknownCA, FailureReason::RefusedByClient),
            (AlertDescription::BadCertificate, FailureReason::RefusedByClient),
        ] {
            assert_eq!(FailureReason::of(&Error::AlertReceived(alert)), reason, "{alert:?}");
        }
    }
}
