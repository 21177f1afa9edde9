//! Reads the files of the server's TLS, and checks that they can be used together and now.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};

use crate::domain::Time;

use super::certificate::CertificateValidity;
use super::{ClientAuth, ClientCa, TlsFiles};

/// Contents of the files, as they were read together.
pub(super) struct TlsTexts {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Digest of the contents. The contents themselves are not kept: one is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TlsDigest([u8; 32]);

/// Files that were read and checked.
#[derive(Clone, Debug)]
pub(super) struct LoadedTls {
    /// Settings of connections; each port adds its protocols.
    pub(super) config: Arc<ServerConfig>,
    /// Check of client certificates.
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Time at which the first certificate of the server's chain expires.
    pub(super) cert_end: Time,
    /// Time at which the first of the authorities in use expires.
    pub(super) client_ca_end: Option<Time>,
}

/// Error of a file: the setting that names it, the file, the problem, and the action.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {}: {problem}", file.display())]
pub struct TlsFileError {
    setting: &'static str,
    file: PathBuf,
    problem: String,
}

/// File and the setting that names it.
#[derive(Clone, Copy)]
struct TlsFile<'a> {
    setting: &'static str,
    path: &'a Path,
}

// === impl TlsFile ===

impl TlsFile<'_> {
    fn error(&self, problem: impl Into<String>) -> TlsFileError {
        let (setting, file) = (self.setting, self.path.to_owned());
        TlsFileError { setting, file, problem: problem.into() }
    }

    async fn read(&self) -> Result<Vec<u8>, TlsFileError> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => self.error("there is no such file"),
            _ => self.error(format!("cannot be read: {}", error.kind())),
        };
        tokio::fs::read(self.path).await.map_err(unreadable)
    }

    /// Returns the certificates in this text, at least one, each with its validity.
    fn certificates(
        &self,
        text: &[u8],
    ) -> Result<Vec<(CertificateDer<'static>, CertificateValidity)>, TlsFileError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        let all = all.map_err(|error| self.error(format!("is no valid PEM: {error}")))?;
        if all.is_empty() {
            return Err(self.error(
                "has no certificate: it must be PEM, with a block that starts with -----BEGIN CERTIFICATE-----",
            ));
        }
        let with_validity = |certificate: CertificateDer<'static>| {
            let validity = CertificateValidity::read(&certificate);
            let validity = validity
                .map_err(|error| self.error(format!("has a damaged certificate: {error}")))?;
            Ok((certificate, validity))
        };
        all.into_iter().map(with_validity).collect()
    }

    /// Returns the error of certificates that are not valid now.
    fn not_valid(&self, validity: &CertificateValidity, now: Time) -> TlsFileError {
        let problem = if now > validity.end() { "has expired" } else { "is not valid yet" };
        self.error(format!(
            "a certificate in it {problem} (valid from {validity}): renew it, or correct the clock"
        ))
    }
}

// === impl TlsTexts ===

impl TlsTexts {
    /// Reads the files.
    ///
    /// # Errors
    /// Fails for the first file that cannot be read.
    pub(super) async fn read(files: &TlsFiles) -> Result<TlsTexts, TlsFileError> {
        let cert = cert_file(files).read().await?;
        let key = key_file(files).read().await?;
        let client_ca = match &files.client_ca {
            Some(ca) => Some(client_ca_file(ca).read().await?),
            None => None,
        };
        Ok(TlsTexts { cert, key, client_ca })
    }

    /// Returns the digest of all of them.
    pub(super) fn digest(&self) -> TlsDigest {
        let texts = [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()];
        let mut digest = Sha256::new();
        for text in texts.into_iter().flatten() {
            digest.update((text.len() as u64).to_be_bytes());
            digest.update(text);
        }
        TlsDigest(digest.finalize().into())
    }

    /// Checks them for use at `now`.
    ///
    /// # Errors
    /// Fails for a file without what it should have, for a certificate that is not valid at `now`, and for a key that
    /// belongs to another certificate.
    pub(super) fn load(&self, files: &TlsFiles, now: Time) -> Result<LoadedTls, TlsFileError> {
        let (cert, key) = (cert_file(files), key_file(files));
        let mut chain = Vec::new();
        let mut cert_end = Time::MAX;
        for (certificate, validity) in cert.certificates(&self.cert)? {
            if !is_valid(&validity, now) {
                return Err(cert.not_valid(&validity, now));
            }
            cert_end = cert_end.min(validity.end());
            chain.push(certificate);
        }
        let provider = Arc::new(ring::default_provider());
        let (verifier, client_ca_end) = match (&files.client_ca, &self.client_ca) {
            (Some(ca), Some(text)) => {
                let (verifier, end) = client_verifier(ca, text, Arc::clone(&provider), now)?;
                (verifier, Some(end))
            }
            _ => (WebPkiClientVerifier::no_client_auth(), None),
        };
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| cert.error(error.to_string()))?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_single_cert(chain, private_key(key, &self.key)?);
        let mut config = config.map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                let cert = files.cert.display();
                key.error(format!("the key does not belong to the first certificate in {cert}"))
            }
            error => key.error(format!("cannot be used with {}: {error}", files.cert.display())),
        })?;
        if client_ca_end.is_some() {
            // A resumed session would be one without a check of the certificate, which may have expired since.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(LoadedTls { config: Arc::new(config), verifier, cert_end, client_ca_end })
    }
}

fn cert_file(files: &TlsFiles) -> TlsFile<'_> {
    TlsFile { setting: "tls_cert", path: &files.cert }
}

fn key_file(files: &TlsFiles) -> TlsFile<'_> {
    TlsFile { setting: "tls_key", path: &files.key }
}

fn client_ca_file(ca: &ClientCa) -> TlsFile<'_> {
    TlsFile { setting: "tls_client_ca", path: &ca.file }
}

fn is_valid(validity: &CertificateValidity, now: Time) -> bool {
    (validity.begin()..=validity.end()).contains(&now)
}

/// Returns the only private key in this text. No error repeats a part of it.
fn private_key(file: TlsFile<'_>, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|_| {
        file.error(
            "has no private key: it must be PEM with a key that is not encrypted (`openssl pkey` decrypts one)",
        )
    })
}

/// Returns the check of client certificates, and the time at which the first of its authorities expires. Authorities that
/// are not valid at `now` are left out, as long as there are others: a file may have the old and the new one.
fn client_verifier(
    ca: &ClientCa,
    text: &[u8],
    provider: Arc<CryptoProvider>,
    now: Time,
) -> Result<(Arc<dyn ClientCertVerifier>, Time), TlsFileError> {
    let file = client_ca_file(ca);
    let all = file.certificates(text)?;
    let newest = all.iter().map(|(_, validity)| *validity).max_by_key(CertificateValidity::end);
    let (mut roots, mut end) = (RootCertStore::empty(), Time::MAX);
    for (certificate, validity) in all {
        if is_valid(&validity, now) {
            let added = roots.add(certificate);
            added.map_err(|error| file.error(format!("cannot be an authority: {error}")))?;
            end = end.min(validity.end());
        }
    }
    if let (true, Some(newest)) = (roots.is_empty(), newest) {
        return Err(file.not_valid(&newest, now));
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = match ca.auth {
        ClientAuth::Required => verifier,
        ClientAuth::Optional => verifier.allow_unauthenticated(),
    };
    let verifier = verifier.build().map_err(|error| file.error(error.to_string()))?;
    Ok((verifier, end))
}
