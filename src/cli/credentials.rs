//! Credentials of a client command: from flags, from variables, from a context.

use clap::Args;

use super::exit::CommandFailure;
use super::values::{self, Secret};
use crate::client::Options;
use crate::config::io_problem;

/// Flags for the token, the authorities and the certificate of a client. clap does not read the variables: its usage
/// errors would show a value from a variable as a flag that must be given.
#[derive(Clone, Debug, Args)]
pub(super) struct CredentialArgs {
    /// Send the bearer token in this file; a changed file is read again [env: RINGQ_TOKEN_FILE]
    #[arg(long, value_name = "FILE", value_parser = values::non_empty)]
    token_file: Option<String>,
    /// Send this bearer token. Other users of this machine can see it in the list of processes: prefer --token-file or
    /// the variable [env: RINGQ_TOKEN]
    #[arg(long, value_name = "TOKEN", value_parser = values::secret, conflicts_with = "token_file")]
    token: Option<Secret>,
    /// Send the token also without TLS, to http:// on another machine [env: RINGQ_ALLOW_PLAINTEXT_TOKEN=true]
    #[arg(long)]
    allow_plaintext_token: bool,
    /// Trust the authorities in this PEM file, in place of those of the system [env: RINGQ_CA]
    #[arg(long, value_name = "FILE", value_parser = values::non_empty)]
    ca: Option<String>,
    /// Present the client certificate in this PEM file [env: RINGQ_CERT]
    #[arg(long, value_name = "FILE", value_parser = values::non_empty, requires = "key")]
    cert: Option<String>,
    /// The private key of that certificate, a PEM file [env: RINGQ_KEY]
    #[arg(long, value_name = "FILE", value_parser = values::non_empty, requires = "cert")]
    key: Option<String>,
}

/// Credentials that one source gives, or all of them together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) token: Option<Token>,
    /// True if the token may be sent without TLS to another machine.
    pub(super) allow_plaintext_token: bool,
    /// File of the authorities to trust.
    pub(super) ca: Option<String>,
    /// Files of the client's certificate and of its key.
    pub(super) identity: Option<(String, String)>,
}

/// Bearer token, or the file that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Text(Secret),
    File(String),
}

// === impl CredentialArgs ===

impl CredentialArgs {
    /// Returns the credentials of the flags.
    pub(super) fn credentials(&self) -> Credentials {
        let text = self.token.clone().map(Token::Text);
        Credentials {
            token: text.or_else(|| self.token_file.clone().map(Token::File)),
            allow_plaintext_token: self.allow_plaintext_token,
            ca: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
        }
    }
}

// === impl Credentials ===

impl Credentials {
    /// Reads the credentials in the variables.
    pub(super) fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Credentials, CommandFailure> {
        let text = variable("RINGQ_TOKEN").map(|token| Token::Text(Secret(token)));
        let file = variable("RINGQ_TOKEN_FILE").map(Token::File);
        if text.is_some() && file.is_some() {
            let problem = "RINGQ_TOKEN and RINGQ_TOKEN_FILE are both set";
            return Err(CommandFailure::usage(problem).with_hint("unset one of them"));
        }
        let identity = match (variable("RINGQ_CERT"), variable("RINGQ_KEY")) {
            (Some(_), None) => Err("RINGQ_CERT is set without RINGQ_KEY"),
            (None, Some(_)) => Err("RINGQ_KEY is set without RINGQ_CERT"),
            (cert, key) => Ok(cert.zip(key)),
        };
        let allow_plaintext_token = match variable("RINGQ_ALLOW_PLAINTEXT_TOKEN").as_deref() {
            None | Some("false" | "0") => false,
            Some("true" | "1") => true,
            Some(_) => {
                let problem = "RINGQ_ALLOW_PLAINTEXT_TOKEN is neither true nor false";
                return Err(CommandFailure::usage(problem));
            }
        };
        Ok(Credentials {
            token: text.or(file),
            allow_plaintext_token,
            ca: variable("RINGQ_CA"),
            identity: identity.map_err(CommandFailure::usage)?,
        })
    }

    /// Makes the paths absolute, so that they are the same files in any directory.
    pub(super) fn with_absolute_paths(self) -> Result<Credentials, CommandFailure> {
        let token = match self.token {
            Some(Token::File(path)) => Some(Token::File(absolute(&path)?)),
            token => token,
        };
        let identity = match self.identity {
            Some((cert, key)) => Some((absolute(&cert)?, absolute(&key)?)),
            None => None,
        };
        let ca = self.ca.as_deref().map(absolute).transpose()?;
        Ok(Credentials { token, ca, identity, ..self })
    }

    /// Returns the options of the client library.
    pub(super) fn options(&self) -> Options {
        let mut options = Options::default();
        options = match &self.token {
            Some(Token::Text(Secret(token))) => options.token(token),
            Some(Token::File(path)) => options.token_file(path),
            None => options,
        };
        if self.allow_plaintext_token {
            options = options.allow_plaintext_token();
        }
        if let Some(ca) = &self.ca {
            options = options.ca_file(ca);
        }
        match &self.identity {
            Some((cert, key)) => options.identity_files(cert, key),
            None => options,
        }
    }
}

fn absolute(path: &str) -> Result<String, CommandFailure> {
    let absolute = std::path::absolute(path).map_err(|error| {
        CommandFailure::usage(format!("{path:?} is not a path: {}", io_problem(&error)))
    })?;
    let text = absolute.into_os_string().into_string();
    text.map_err(|_| CommandFailure::usage("the path of this directory is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Credentials, String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(found, _)| *found == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Credentials::from_variables(value).map_err(|failure| failure.problem())
    }

    #[test]
    fn variables_that_contradict_are_refused() {
        for (variables, part) in [
            (&[("RINGQ_TOKEN", "planted"), ("RINGQ_TOKEN_FILE", "f")][..], "are both set"),
            (&[("RINGQ_CERT", "c")], "RINGQ_CERT is set without RINGQ_KEY"),
            (&[("RINGQ_KEY", "k")], "RINGQ_KEY is set without RINGQ_CERT"),
            (&[("RINGQ_ALLOW_PLAINTEXT_TOKEN", "yes")], "neither true nor false"),
        ] {
            let problem = read(variables).unwrap_err();
            assert!(problem.contains(part) && !problem.contains("planted"), "{problem}");
        }
        let all = read(&[
            ("RINGQ_TOKEN_FILE", "t"),
            ("RINGQ_ALLOW_PLAINTEXT_TOKEN", "1"),
            ("RINGQ_CA", "a"),
            ("RINGQ_CERT", "c"),
            ("RINGQ_KEY", "k"),
        ]);
        let want = Credentials {
            token: Some(Token::File("t".to_owned())),
            allow_plaintext_token: true,
            ca: Some("a".to_owned()),
            identity: Some(("c".to_owned(), "k".to_owned())),
        };
        assert_eq!(all, Ok(want));
        assert_eq!(read(&[]), Ok(Credentials::default()));
    }

    #[test]
    fn paths_become_those_of_any_directory() {
        let credentials = read(&[("RINGQ_CA", "a/../b"), ("RINGQ_TOKEN_FILE", "/t")]).unwrap();
        let absolute = credentials.with_absolute_paths().unwrap();
        assert!(absolute.ca.unwrap().starts_with('/'));
        assert_eq!(absolute.token, Some(Token::File("/t".to_owned())));
    }

    #[test]
    fn a_token_is_not_shown() {
        let credentials = read(&[("RINGQ_TOKEN", "planted")]).unwrap();
        assert!(!format!("{credentials:?}").contains("planted"), "{credentials:?}");
    }
}
