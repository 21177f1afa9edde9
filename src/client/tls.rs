//! TLS of a client: authorities that it trusts, certificate that it presents.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::Error;
use super::error::in_sentence;

/// PEM text, or a file with it.
#[derive(Clone)]
pub(super) enum PemSource {
    Text(Vec<u8>),
    File(PathBuf),
}

/// Checked PEM texts.
pub(super) struct TlsFiles {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

// === impl PemSource ===

impl PemSource {
    /// Returns the text; `field` and `what` name it in the error.
    fn read(&self, field: &str, what: &str) -> Result<Vec<u8>, Error> {
        let path = match self {
            PemSource::Text(pem) => return Ok(pem.clone()),
            PemSource::File(path) => path,
        };
        fs::read(path).map_err(|error| {
            let why = in_sentence(&error.to_string());
            Error::usage(field, format!("{what} {path:?} cannot be read: {why}"))
        })
    }

    fn name(&self) -> String {
        match self {
            PemSource::Text(_) => "the PEM text".to_owned(),
            PemSource::File(path) => format!("{path:?}"),
        }
    }
}

impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PemSource::Text(_) => f.write_str("…"),
            PemSource::File(path) => path.fmt(f),
        }
    }
}

// === impl TlsFiles ===

impl TlsFiles {
    /// Reads and checks the texts. tonic ignores certificates that it cannot parse, and would trust no server then.
    pub(super) fn read(
        ca: Option<&PemSource>,
        identity: Option<&(PemSource, PemSource)>,
    ) -> Result<TlsFiles, Error> {
        let ca = ca.map(|ca| certificates("ca", "the authority's certificate", ca)).transpose()?;
        let identity = identity.map(|(cert, key)| {
            let cert = certificates("cert", "the client certificate", cert)?;
            let pem = key.read("key", "the client key")?;
            if PrivateKeyDer::from_pem_slice(&pem).is_err() {
                let problem = format!("{} has no unencrypted private key in PEM form", key.name());
                return Err(Error::usage("key", problem));
            }
            Ok((cert, pem))
        });
        Ok(TlsFiles { ca, identity: identity.transpose()? })
    }

    /// Adds TLS to the connections of an endpoint, with this timeout of the handshake.
    pub(super) fn apply(&self, endpoint: Endpoint, timeout: Duration) -> Result<Endpoint, Error> {
        let mut tls = ClientTlsConfig::new().timeout(timeout);
        tls = match &self.ca {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
            None => tls.with_native_roots(),
        };
        if let Some((cert, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        endpoint.tls_config(tls).map_err(|error| self.problem(&error))
    }

    /// Returns the error of texts that are PEM, but cannot be used.
    fn problem(&self, error: &tonic::transport::Error) -> Error {
        let mut chain = std::iter::successors(error.source(), |error| (*error).source());
        let rustls = chain.find_map(|error| error.downcast_ref::<rustls::Error>());
        let cause = std::iter::successors(Some(error as &dyn StdError), |error| (*error).source());
        let cause = cause.last().map(ToString::to_string).unwrap_or_default();
        match rustls {
            Some(rustls::Error::InconsistentKeys(_)) => {
                Error::usage("key", "the client key does not belong to the client certificate")
            }
            _ if cause.contains("no native certs found") => {
                let problem = "the system has no trusted authorities; name one";
                Error::usage("ca", problem)
            }
            _ if self.identity.is_some() => {
                Error::usage("cert", format!("the client certificate cannot be used: {cause}"))
            }
            _ => Error::usage("ca", format!("TLS cannot be used: {cause}")),
        }
    }
}

/// Reads a text with at least one certificate.
fn certificates(field: &str, what: &str, source: &PemSource) -> Result<Vec<u8>, Error> {
    let pem = source.read(field, what)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    // Bundles of authorities may have some that rustls cannot use, as those of systems do. The client's own certificate is
    // checked with its key.
    let is_usable = |der: &CertificateDer<'_>| {
        field != "ca" || rustls::RootCertStore::empty().add(der.clone().into_owned()).is_ok()
    };
    match found {
        Ok(found) if found.iter().any(is_usable) => Ok(pem),
        _ => Err(Error::usage(field, format!("{} has no certificate in PEM form", source.name()))),
    }
}
