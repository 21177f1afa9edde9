//! Contents of certificates: their names and their validity. Signatures are checked by rustls.

use std::fmt;

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::{self, Decode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::time::Validity;

use crate::domain::Time;

/// Names in the verified certificate of a client, from its subject alternative names. As an `Arc` it is an extension of
/// each request of a connection whose client presented one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerCertificate {
    /// DNS names.
    pub dns: Vec<String>,
    /// URIs, such as `spiffe://example.org/worker`.
    pub uris: Vec<String>,
}

/// Time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CertificateValidity(Validity);

// === impl PeerCertificate ===

impl PeerCertificate {
    /// Returns all names: URIs first, which are the more specific ones.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.uris.iter().chain(&self.dns).cloned().collect()
    }

    /// Reads the names of a certificate; one without such names has none.
    ///
    /// # Errors
    /// Fails for an encoding that is not allowed.
    pub(super) fn read(certificate: &CertificateDer<'_>) -> Result<PeerCertificate, der::Error> {
        let certificate = Certificate::from_der(certificate)?;
        let names = certificate.tbs_certificate().get_extension::<SubjectAltName>()?;
        let mut peer = PeerCertificate::default();
        for name in names.map(|(_, SubjectAltName(names))| names).unwrap_or_default() {
            match name {
                GeneralName::DnsName(name) => peer.dns.push(name.as_str().to_owned()),
                GeneralName::UniformResourceIdentifier(uri) => {
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

fn time(time: x509_cert::time::Time) -> Time {
    Time(i64::try_from(time.to_unix_duration().as_micros()).unwrap_or(i64::MAX))
}
