//! Options of a client: its token, the authorities that it trusts, its certificate.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use tonic::codegen::http::Uri;

use super::Error;
use super::credentials::Credentials;
use super::tls::{PemSource, TlsFiles};

/// Options of a [`Client`](super::Client).
#[derive(Clone, Default)]
pub struct Options {
    token: Option<TokenSource>,
    allow_plaintext_token: bool,
    ca: Option<PemSource>,
    identity: Option<(PemSource, PemSource)>,
}

/// Source of the bearer token.
#[derive(Clone)]
enum TokenSource {
    Text(String),
    File(PathBuf),
}

// === impl Options ===

impl Options {
    /// Sends `authorization: Bearer <token>` with each call: 1 byte to 15 KiB of visible ASCII. Replaces a
    /// [`token_file`](Options::token_file).
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Options {
        self.token = Some(TokenSource::Text(token.into()));
        self
    }

    /// Sends the token in a file, whose surrounding white space is ignored. Replaces a [`token`](Options::token).
    ///
    /// The file is read when the client is created, and again by the next call after it has changed, at the latest by
    /// the first call 60 s after the last time: a rotated ServiceAccount token of Kubernetes is used at once. When the
    /// file cannot be read, the last token stays in use, and the error of a call that the server refuses as
    /// UNAUTHENTICATED names the problem. A pipe is read once.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Options {
        self.token = Some(TokenSource::File(path.into()));
        self
    }

    /// Sends the token also to servers with `http://`, where each machine on the way can read it. Without this option,
    /// a client with a token and such a server is refused, unless its host is loopback: `localhost`, 127.0.0.0/8 or
    /// `[::1]`. For networks that encrypt by themselves, such as a service mesh.
    #[must_use]
    pub fn allow_plaintext_token(mut self) -> Options {
        self.allow_plaintext_token = true;
        self
    }

    /// Trusts the authorities in this PEM text, in place of those of the system.
    #[must_use]
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Options {
        self.ca = Some(PemSource::Text(pem.into()));
        self
    }

    /// Trusts the authorities in this PEM file, in place of those of the system. It is read when the client is created.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Options {
        self.ca = Some(PemSource::File(path.into()));
        self
    }

    /// Presents this certificate to servers: PEM texts of its chain, its own first, and of its private key.
    #[must_use]
    pub fn identity(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Options {
        self.identity = Some((PemSource::Text(cert.into()), PemSource::Text(key.into())));
        self
    }

    /// Presents the certificate in PEM files, as [`identity`](Options::identity) does. They are read when the client is
    /// created.
    #[must_use]
    pub fn identity_files(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Options {
        self.identity = Some((PemSource::File(cert.into()), PemSource::File(key.into())));
        self
    }

    /// Reads the files for TLS.
    pub(super) fn tls_files(&self) -> Result<TlsFiles, Error> {
        TlsFiles::read(self.ca.as_ref(), self.identity.as_ref())
    }

    /// Returns the token in its header; reads its file.
    pub(super) fn credentials(&self) -> Result<Credentials, Error> {
        match &self.token {
            None => Ok(Credentials::none()),
            Some(TokenSource::Text(token)) => Credentials::from_text(token),
            Some(TokenSource::File(path)) => Credentials::from_file(path.clone()),
        }
    }

    /// Checks that the server may get what the options give.
    pub(super) fn check_server(&self, url: &str, uri: &Uri) -> Result<(), Error> {
        if uri.scheme_str() == Some("https") {
            return Ok(());
        }
        let needs_tls = |field: &str, what: &str| {
            let problem = format!("{what}, but {url} is without TLS: write https://");
            Err(Error::usage(field, problem))
        };
        if self.ca.is_some() {
            return needs_tls("ca", "an authority to trust is given");
        }
        if self.identity.is_some() {
            return needs_tls("cert", "a client certificate is given");
        }
        if self.token.is_some() && !self.allow_plaintext_token && !is_loopback(uri) {
            let problem = format!("the token would be sent to {url} without encryption");
            return Err(Error::usage("allow_plaintext_token", problem));
        }
        Ok(())
    }
}

/// Returns whether the host is this machine by its name or address.
fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_address = || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    host.eq_ignore_ascii_case("localhost") || is_address()
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("token", &self.token)
            .field("allow_plaintext_token", &self.allow_plaintext_token)
            .field("ca", &self.ca)
            .field("identity", &self.identity)
            .finish()
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenSource::Text(_) => f.write_str("…"),
            TokenSource::File(path) => path.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &Options, url: &str) -> Option<String> {
        let error = options.check_server(url, &url.parse().unwrap()).err()?;
        Some(error.field().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_token_goes_without_encryption_to_this_machine_only() {
        let token = Options::default().token("t");
        for url in [
            "https://queue:7700",
            "http://localhost:7700",
            "http://LOCALHOST",
            "http://127.0.0.1:7700",
            "http://127.8.9.1",
            "http://[::1]:7700",
            "http://[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(check(&token, url), None, "{url}");
        }
        for url in [
            "http://queue:7700",
            "http://10.0.0.1",
            "http://0.0.0.0:7700",
            "http://[::2]:7700",
            "http://localhost.example.org",
            "http://localhost@queue:7700",
            "http://127.0.0.1.example.org",
        ] {
            assert_eq!(check(&token, url).as_deref(), Some("allow_plaintext_token"), "{url}");
            assert_eq!(check(&Options::default(), url), None, "{url}");
            let file = Options::default().token_file("/t");
            assert!(check(&file, url).is_some(), "{url}");
            assert_eq!(check(&file.allow_plaintext_token(), url), None, "{url}");
        }
    }

    #[test]
    fn what_tls_needs_is_refused_without_it() {
        let identity = Options::default().identity("c", "k");
        assert_eq!(check(&Options::default().ca("x"), "http://[::1]").as_deref(), Some("ca"));
        assert_eq!(check(&identity, "http://localhost").as_deref(), Some("cert"));
        assert_eq!(check(&identity.ca("x"), "https://localhost"), None);
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = Options::default().token("planted").ca("planted").identity("c", "planted");
        assert!(!format!("{options:?} {options:#?}").contains("planted"), "{options:?}");
        let files = Options::default().token_file("/a").identity_files("/b", "/c");
        assert!(format!("{files:?}").contains("\"/a\""), "{files:?}");
    }
}
