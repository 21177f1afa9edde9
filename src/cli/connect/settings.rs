//! The server of a command and the credentials for it: flags win over variables, these over the context in use, that over
//! the default. A context that a flag names wins over variables, too.

use std::collections::BTreeSet;

use http::Uri;

use super::url::{SERVER_DEFAULT, urls};
use crate::cli::contexts::Context;
use crate::cli::credentials::{Credentials, Token};
use crate::cli::exit::CommandFailure;
use crate::client::{Client, Error};

/// Source of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Flag,
    Variable,
    /// A context of this name.
    Context(String),
}

/// Settings of one source.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) source: Source,
    pub(super) server: Option<String>,
    pub(super) credentials: Credentials,
}

/// Settings of a command, with their sources.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Settings {
    url: String,
    credentials: Credentials,
    server_source: Option<Source>,
    token_source: Option<Source>,
    ca_source: Option<Source>,
    identity_source: Option<Source>,
    /// Context whose credentials are not used, because another source names the server; with its server.
    unused_context: Option<(String, String)>,
}

// === impl Layer ===

impl Layer {
    /// Returns the settings of a context.
    pub(super) fn of_context(name: String, context: &Context) -> Layer {
        let Context { server, credentials } = context.clone();
        Layer { source: Source::Context(name), server: Some(server), credentials }
    }
}

// === impl Settings ===

impl Settings {
    /// Takes each setting from the first layer that has it. A token belongs to a server: the credentials of a context are
    /// used only for its own hosts, and not without TLS where the context has TLS.
    pub(super) fn resolve(mut layers: Vec<Layer>) -> Settings {
        let server = layers.iter().find_map(|layer| {
            layer.server.as_ref().map(|server| (urls(server), layer.source.clone()))
        });
        let (url, server_source) = match server {
            Some((url, source)) => (url, Some(source)),
            None => (SERVER_DEFAULT.to_owned(), None),
        };
        let mut unused_context = None;
        for layer in &mut layers {
            if let (Source::Context(name), Some(server)) = (&layer.source, &layer.server)
                && !covers(&urls(server), &url)
                && layer.credentials != Credentials::default()
            {
                unused_context = Some((name.clone(), server.clone()));
                layer.credentials = Credentials::default();
            }
        }
        let (token, token_source) = first(&layers, |credentials| credentials.token.clone());
        let (ca, ca_source) = first(&layers, |credentials| credentials.ca.clone());
        let (identity, identity_source) =
            first(&layers, |credentials| credentials.identity.clone());
        let allow_plaintext_token =
            layers.iter().any(|layer| layer.credentials.allow_plaintext_token);
        let credentials = Credentials { token, allow_plaintext_token, ca, identity };
        Settings {
            url,
            credentials,
            server_source,
            token_source,
            ca_source,
            identity_source,
            unused_context,
        }
    }

    /// Returns the client library's connection; nothing is sent yet.
    pub(super) fn client(&self) -> Result<Client, CommandFailure> {
        let client = Client::with_options(&self.url, self.credentials.options());
        client.map_err(|error| self.mistake(&error))
    }

    /// Builds the failure of a setting that the client library refuses.
    fn mistake(&self, error: &Error) -> CommandFailure {
        let failure = CommandFailure::usage(error.message());
        let hint = match error.field() {
            Some("token") => set_by(self.token_source.as_ref(), "token"),
            Some("token_file") => set_by(self.token_source.as_ref(), "token-file"),
            Some("ca") => set_by(self.ca_source.as_ref(), "ca"),
            Some("cert") => set_by(self.identity_source.as_ref(), "cert"),
            Some("key") => set_by(self.identity_source.as_ref(), "key"),
            Some("allow_plaintext_token") => {
                "write https://, or on a network that you trust allow it with \
                --allow-plaintext-token or RINGQ_ALLOW_PLAINTEXT_TOKEN=true"
                    .to_owned()
            }
            _ => set_by(self.server_source.as_ref(), "server"),
        };
        failure.with_hint(hint)
    }

    /// Returns the hint for a call that the server refused because it does not know the client.
    pub(super) fn unauthenticated_hint(&self) -> String {
        let of_token =
            |flag: &str| format!("check the token: {}", set_by(self.token_source.as_ref(), flag));
        match (&self.credentials.token, &self.unused_context) {
            (Some(Token::Text(_)), _) => of_token("token"),
            (Some(Token::File(_)), _) => of_token("token-file"),
            (None, Some((name, server))) => format!(
                "the credentials of context {name} go only to its own server, {server}; give others with --token-file"
            ),
            (None, None) => {
                "give a token with --token-file, RINGQ_TOKEN_FILE or RINGQ_TOKEN, or a client \
                certificate with --cert and --key"
                    .to_owned()
            }
        }
    }
}

/// Returns the first value of the layers, with its source.
fn first<T>(
    layers: &[Layer],
    value: impl Fn(&Credentials) -> Option<T>,
) -> (Option<T>, Option<Source>) {
    let found = layers.iter().find_map(|layer| Some((value(&layer.credentials)?, &layer.source)));
    found.map_or((None, None), |(value, source)| (Some(value), Some(source.clone())))
}

/// Returns the place where a setting is changed.
fn set_by(source: Option<&Source>, flag: &str) -> String {
    match source {
        Some(Source::Context(name)) => {
            format!("it is set in context {name}: `ringq context show {name}`")
        }
        _ => {
            let variable = flag.to_uppercase().replace('-', "_");
            format!("it is set by --{flag} or RINGQ_{variable}")
        }
    }
}

/// Returns whether each of `urls` has a host of `known`, and TLS if that host has it there.
fn covers(known: &str, urls: &str) -> bool {
    let hosts = |urls: &str| -> Option<BTreeSet<(bool, String)>> {
        let host = |url: &str| {
            let uri: Uri = url.trim().parse().ok()?;
            Some((uri.scheme_str() == Some("https"), uri.host()?.to_ascii_lowercase()))
        };
        urls.split(',').map(host).collect()
    };
    let (Some(known), Some(hosts)) = (hosts(known), hosts(urls)) else { return false };
    let is_known = |(tls, host): (bool, String)| {
        known.contains(&(false, host.clone())) || (tls && known.contains(&(true, host)))
    };
    hosts.into_iter().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::values::Secret;

    fn token(token: &str) -> Credentials {
        let token = Some(Token::Text(Secret(token.to_owned())));
        Credentials { token, ca: Some("/ca".to_owned()), ..Credentials::default() }
    }

    fn layer(source: Source, server: Option<&str>, credentials: Credentials) -> Layer {
        Layer { source, server: server.map(str::to_owned), credentials }
    }

    fn prod(server: &str) -> Layer {
        layer(Source::Context("prod".to_owned()), Some(server), token("of-context"))
    }

    #[test]
    fn the_first_layer_wins_for_each_setting() {
        let flags = layer(Source::Flag, None, token("of-flag"));
        let none = Credentials::default();
        let variables = layer(Source::Variable, Some("queue"), none.clone());
        let settings = Settings::resolve(vec![flags, variables, prod("https://queue")]);
        assert_eq!(settings.url, "http://queue:7700");
        assert_eq!(settings.server_source, Some(Source::Variable));
        assert_eq!(settings.token_source, Some(Source::Flag));
        let default = Settings::resolve(vec![layer(Source::Flag, None, none)]);
        assert_eq!((default.url.as_str(), default.server_source), (SERVER_DEFAULT, None));
    }

    #[test]
    fn the_credentials_of_a_context_stay_with_its_hosts() {
        let with = |server: &str, context: &str| {
            let flags = layer(Source::Flag, Some(server), Credentials::default());
            Settings::resolve(vec![flags, prod(context)])
        };
        for (server, context) in [
            ("https://queue:7700", "https://queue:7700"),
            ("https://QUEUE:7710", "https://queue:7700"),
            ("https://b,https://a", "https://a,https://b"),
            ("https://queue", "http://queue:7700"),
            ("queue", "queue:7710"),
        ] {
            let used = with(server, context);
            assert!(used.credentials.token.is_some() && used.credentials.ca.is_some(), "{server}");
            assert_eq!(used.unused_context, None, "{server}");
        }
        for (server, context) in [
            ("https://other:7700", "https://queue:7700"),
            ("http://queue:7700", "https://queue:7700"),
            ("queue", "https://queue:7700"),
            ("https://a,https://evil", "https://a,https://b"),
            ("https://queue.evil", "https://queue"),
            ("https://queue@evil", "https://queue"),
            (":7700", "https://queue"),
            ("https://a b", "https://queue"),
        ] {
            let unused = with(server, context);
            assert_eq!(unused.credentials, Credentials::default(), "{server}");
            let want = Some(("prod".to_owned(), context.to_owned()));
            assert_eq!(unused.unused_context, want, "{server}");
            let hint = unused.unauthenticated_hint();
            assert!(hint.contains("context prod go only to its own server"), "{hint}");
        }
    }

    #[test]
    fn a_hint_names_the_place_of_a_setting() {
        assert_eq!(
            set_by(Some(&Source::Variable), "token-file"),
            "it is set by --token-file or RINGQ_TOKEN_FILE"
        );
        assert_eq!(set_by(None, "server"), "it is set by --server or RINGQ_SERVER");
        let context = Source::Context("prod".to_owned());
        assert_eq!(
            set_by(Some(&context), "ca"),
            "it is set in context prod: `ringq context show prod`"
        );
    }
}
