//! The files that identities come from. They are read again when they change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Table;

use crate::source_files::{FileTexts, read_texts};

use super::authenticator::Authenticator;
use super::identities::Identities;
use super::identity::Identity;
use super::identity_file;
use super::jwt::Issuer;
use super::jwt::issuer_file;
use super::quota::{Quotas, quota_file};
use super::secret::Variables;

/// Interval in which the files are compared with what is in use. All of them are read: those of a Kubernetes volume
/// change by a symbolic link, and a token may be in a file of its own.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Source of identities: a file, or a directory, of which each `*.toml` counts.
#[derive(Clone, Debug)]
pub struct IdentitySource {
    path: PathBuf,
    variables: Variables,
}

/// Content of one file; identities and issuers with their places.
struct ParsedFile {
    identities: Vec<(String, Identity)>,
    issuers: Vec<(String, Issuer)>,
    quotas: Quotas,
}

// === impl IdentitySource ===

impl IdentitySource {
    /// Creates the source at this path; nothing is read yet. `variables` has the tokens that are named by a variable.
    #[must_use]
    pub fn new(path: PathBuf, variables: Variables) -> IdentitySource {
        IdentitySource { path, variables }
    }

    /// Reads all identities; none at all is a mistake, because nothing could be called.
    ///
    /// # Errors
    /// A text for each mistake, which names the file and the place in it.
    pub fn read(&self) -> Result<Identities, Vec<String>> {
        read_texts(&self.path).and_then(|texts| self.parse(&texts))
    }

    /// Gives `authenticator` the identities of the files whenever they differ from those in force. Mistakes are logged
    /// once, and leave the former identities in force. `log` gets each change, with the mistakes if there are any.
    pub async fn follow(self, authenticator: Authenticator, log: impl Fn(Option<&str>) + Send) {
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The files may have changed since they were read at the start.
        let mut last = authenticator.identities().map_or_else(|| Err(Vec::new()), Ok);
        loop {
            checks.tick().await;
            let now = self.read_beside().await;
            if now == last {
                continue;
            }
            match &now {
                Ok(identities) => {
                    log(None);
                    let (count, issuers) = (identities.len(), identities.issuers().count());
                    tracing::info!(identities = count, issuers, "identities read again");
                    authenticator.replace(identities.clone());
                }
                Err(problems) => {
                    authenticator.reload_failed();
                    let error = problems.join("; ");
                    log(Some(&error));
                    tracing::warn!(
                        error,
                        "identities not read again: the former ones stay in force until the files are corrected"
                    );
                }
            }
            last = now;
        }
    }

    /// Reads all identities beside the runtime.
    async fn read_beside(&self) -> Result<Identities, Vec<String>> {
        let source = self.clone();
        let read = tokio::task::spawn_blocking(move || source.read()).await;
        read.unwrap_or_else(|_| Err(vec!["the files cannot be read".to_owned()]))
    }

    fn parse(&self, texts: &FileTexts) -> Result<Identities, Vec<String>> {
        let (mut found, mut issuers, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        let mut quotas = Quotas::default();
        for (path, text) in texts {
            let place = |text: String| format!("{}: {text}", path.display());
            match parse_file(path, text, self.variables) {
                Ok(file) => {
                    let identities = file.identities.into_iter();
                    found.extend(identities.map(|(at, identity)| (place(at), identity)));
                    issuers
                        .extend(file.issuers.into_iter().map(|(at, issuer)| (place(at), issuer)));
                    let extended = quotas.extend(&path.display().to_string(), file.quotas);
                    problems.extend(extended.err().into_iter().flatten());
                }
                Err(texts) => problems.extend(texts.into_iter().map(place)),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let identities = Identities::new(found, issuers)?;
        if identities.is_empty() {
            let text = "there is no identity in it, so nothing could be called";
            return Err(vec![format!("{}: {text}", self.path.display())]);
        }
        Ok(identities.with_quotas(quotas))
    }
}

fn parse_file(path: &Path, text: &str, variables: Variables) -> Result<ParsedFile, Vec<String>> {
    let table: Table = toml::from_str(text).map_err(|error| {
        // Its own message would show the line, and there may be a token in it.
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        vec![format!("is not TOML: line {line}")]
    })?;
    let known = [identity_file::KEY, issuer_file::KEY, quota_file::KEY];
    let unknown = table.keys().find(|key| !known.contains(&key.as_str()));
    if let Some(key) = unknown {
        return Err(vec![format!(
            "{key}: there is no such table; a file of identities has [[{}]] tables only",
            known.join("]], [[")
        )]);
    }
    // Relative paths start at the file that they stand in.
    let directory = path.parent().unwrap_or(Path::new(""));
    let identities = identity_file::read(&table, variables);
    let issuers = issuer_file::read(&table, directory);
    match (identities, issuers, quota_file::read(&table)) {
        (Ok(identities), Ok(issuers), Ok(quotas)) => Ok(ParsedFile { identities, issuers, quotas }),
        (identities, issuers, quotas) => {
            let problems = [identities.err(), issuers.err(), quotas.err()];
            Err(problems.into_iter().flatten().flatten().collect())
        }
    }
}
