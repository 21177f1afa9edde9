//! Contents of certificates: their names and their validity. Signatures are checked by rustls.

use std::fmt;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use x509_cert::Certificate;
use x509_cert::der::{self, Decode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::time::Validity;

use crate::domain::Time;

/// Names in the verified certificate of a client, from its subject alternative names. As an `Arc` it is an extension of
/// each request of a connection whose client presented one.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificate {
    /// DNS names.
    pub dns: Vec<String>,
    /// URIs, such as `spiffe://example.org/worker`.
    pub uris: Vec<String>,
    /// The certificate, followed by those of the authorities between it and the root that were sent with it.
    chain: Vec<CertificateDer<'static>>,
    /// Cancelled when the certificate is not valid any more.
    end: CancellationToken,
}

/// Time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CertificateValidity(Validity);

// === impl PeerCertificate ===

impl PeerCertificate {
    /// Returns all names: URIs first, which are the more specific ones. No name of one kind is one of the other.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.uris.iter().chain(&self.dns).map(String::as_str)
    }

    /// Returns whether a certificate can have this name: a URI with `://`, or a DNS name.
    #[must_use]
    pub fn can_have(name: &str) -> bool {
        let is_uri = name.contains("://") && !name.contains(char::is_whitespace);
        is_uri || !name.is_empty() && is_dns_name(name)
    }

    /// Returns whether it is not valid any more: it has expired, or its authority is not accepted any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.is_cancelled()
    }

    /// Waits until it is not valid any more.
    pub async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// Makes it invalid for all that have it.
    pub(crate) fn end(&self) {
        self.end.cancel();
    }

    /// Returns the certificates that were sent, the client's first.
    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Returns the first time after `now` at which one of the chain is not valid any more.
    pub(super) fn next_expiry(&self, now: Time) -> Option<Time> {
        let validities = self.chain.iter().filter_map(|one| CertificateValidity::read(one).ok());
        // Valid for the whole of its last second.
        let ends = validities.map(|validity| validity.end().plus(Duration::from_secs(1)));
        ends.filter(|end| *end > now).min()
    }

    /// Reads the names of the first certificate of a chain; one without such names has none. An authority may be limited
    /// to names of one kind, so a DNS name that is none, as one with `://`, is left out, and a URI without `://`.
    ///
    /// # Errors
    /// Fails for an encoding that is not allowed.
    pub(super) fn read(chain: &[CertificateDer<'_>]) -> Result<PeerCertificate, der::Error> {
        let mut peer = PeerCertificate::default();
        let Some(first) = chain.first() else { return Ok(peer) };
        peer.chain = chain.iter().map(|one| one.clone().into_owned()).collect();
        let certificate = Certificate::from_der(first)?;
        let names = certificate.tbs_certificate().get_extension::<SubjectAltName>()?;
        for name in names.map(|(_, SubjectAltName(names))| names).unwrap_or_default() {
            match name {
                GeneralName::DnsName(name) if is_dns_name(name.as_str()) => {
                    peer.dns.push(name.as_str().to_owned());
                }
                GeneralName::UniformResourceIdentifier(uri) if uri.as_str().contains("://") => {
                    peer.uris.push(uri.as_str().to_owned());
                }
                _ => {}
            }
        }
        Ok(peer)
    }
}

// === impl CertificateValidity ===

impl CertificateValidity {
    /// Reads the validity of a certificate.
    ///
    /// # Errors
    /// Fails for an encoding that is not allowed.
    pub(super) fn read(
        certificate: &CertificateDer<'_>,
    ) -> Result<CertificateValidity, der::Error> {
        let certificate = Certificate::from_der(certificate)?;
        Ok(CertificateValidity(*certificate.tbs_certificate().validity()))
    }

    /// Returns the first instant at which it is valid.
    pub(super) fn begin(&self) -> Time {
        time(self.0.not_before)
    }

    /// Returns the last instant at which it is valid.
    pub(super) fn end(&self) -> Time {
        time(self.0.not_after)
    }
}

impl fmt::Display for CertificateValidity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.0.not_before, self.0.not_after)
    }
}

/// Returns whether a text has the characters of a DNS name only.
fn is_dns_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte))
}

fn time(time: x509_cert::time::Time) -> Time {
    Time(i64::try_from(time.to_unix_duration().as_micros()).unwrap_or(i64::MAX))
}
