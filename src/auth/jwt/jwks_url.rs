//! Place from which the keys of an issuer are fetched.

use std::net::IpAddr;
use std::path::PathBuf;

use http::Uri;
use http::uri::Scheme;

/// URL of a JSON Web Key Set, with what a fetch needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JwksUrl {
    uri: Uri,
    /// Certificates (PEM) that are trusted instead of the system's.
    pub(super) ca: Option<PathBuf>,
    /// File with a bearer token that is sent with each fetch, and read again for it.
    pub(super) token_file: Option<PathBuf>,
}

// === impl JwksUrl ===

impl JwksUrl {
    /// Reads a URL: `https`, or `http` at a loopback address.
    ///
    /// # Errors
    /// A text, if it is another one.
    pub fn parse(
        text: &str,
        ca: Option<PathBuf>,
        token_file: Option<PathBuf>,
    ) -> Result<JwksUrl, String> {
        let uri: Uri = text.parse().map_err(|error| format!("is not a URL: {error}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err("must be a URL such as https://issuer.example/keys".to_owned());
        };
        if authority.as_str().contains('@') {
            return Err("must have no user and no password; use jwks_token_file".to_owned());
        }
        let is_plain = *scheme == Scheme::HTTP;
        if !is_plain && *scheme != Scheme::HTTPS {
            return Err("must begin with https://".to_owned());
        }
        if is_plain && !is_loopback(authority.host()) {
            let text = "must begin with https://: over http, anyone on the way could replace the keys; http is for \
                        loopback addresses only";
            return Err(text.to_owned());
        }
        Ok(JwksUrl { uri, ca, token_file })
    }

    /// Returns the URL.
    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns the host, an IPv6 address without its brackets.
    pub(super) fn host(&self) -> &str {
        let host = self.uri.host().unwrap_or_default();
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Returns the port.
    pub(super) fn port(&self) -> u16 {
        self.uri.port_u16().unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// Returns whether it is fetched over TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.uri.scheme() != Some(&Scheme::HTTP)
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
