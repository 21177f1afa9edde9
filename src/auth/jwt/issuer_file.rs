//! Issuers of JSON Web Tokens as text: `[[issuer]]` tables of a file of identities.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jsonwebtoken::Algorithm;
use toml::{Table, Value};

use super::super::table_reader::{TableReader, read_tables};
use super::issuer::{
    ALGORITHMS, ALGORITHMS_DEFAULT, Issuer, KeySource, LEEWAY_DEFAULT, LEEWAY_MAX,
};
use super::jwks_url::JwksUrl;
use super::key_set::KeySet;
use crate::source_files;

/// Key of the tables.
pub const KEY: &str = "issuer";
/// Keys of a table.
const KEYS: [&str; 9] = [
    "name",
    "issuer",
    "audiences",
    "algorithms",
    "leeway",
    JWKS_FILE,
    "jwks_url",
    "jwks_ca",
    "jwks_token_file",
];
/// Key of the name of a file with keys.
const JWKS_FILE: &str = "jwks_file";
/// Reader of one table.
struct IssuerReader<'r, 't> {
    table: &'r mut TableReader<'t>,
    /// Directory of the file, where relative paths start.
    directory: &'r Path,
}

/// Reads the issuers of a file in this directory, each with its place, and the files with keys that they name.
///
/// # Errors
/// A text for each mistake, which begins with its place.
pub fn read(table: &Table, directory: &Path) -> Result<Vec<(String, Issuer)>, Vec<String>> {
    read_tables(table, KEY, &KEYS, |table, name| IssuerReader { table, directory }.issuer(name))
}

// === impl IssuerReader ===

impl<'t> IssuerReader<'_, 't> {
    /// Reads every key before it returns `None`, so that no mistake hides another.
    fn issuer(&mut self, name: String) -> Option<Issuer> {
        let issuer = self.get("issuer").and_then(Value::as_str).unwrap_or_default().to_owned();
        if issuer.is_empty() {
            self.table.problem("issuer", "must be the claim `iss` of its tokens");
        }
        let audiences = self.audiences();
        let algorithms = self.algorithms();
        let leeway = self.leeway();
        let keys = self.keys();
        Some(Issuer { name, issuer, audiences, algorithms, leeway, keys: keys? })
    }

    fn audiences(&mut self) -> Vec<String> {
        let texts = texts(self.get("audiences"));
        let texts = texts.filter(|texts| !texts.is_empty() && !texts.iter().any(String::is_empty));
        texts.unwrap_or_else(|| {
            let text = "must be a list of at least one audience, as in [\"ringq\"]: tokens for other services must \
                        not be accepted";
            self.table.problem("audiences", text);
            Vec::new()
        })
    }

    fn algorithms(&mut self) -> Vec<Algorithm> {
        let Some(value) = self.get("algorithms") else { return ALGORITHMS_DEFAULT.to_vec() };
        let known = |name: &String| ALGORITHMS.iter().find(|(known, _)| known == name);
        let algorithms = texts(Some(value)).and_then(|names| {
            names.iter().map(|name| known(name).map(|(_, algorithm)| *algorithm)).collect()
        });
        algorithms.filter(|algorithms: &Vec<_>| !algorithms.is_empty()).unwrap_or_else(|| {
            let names = ALGORITHMS.map(|(name, _)| name).join(", ");
            self.table.problem("algorithms", &format!("must be a list of at least one of {names}"));
            Vec::new()
        })
    }

    fn leeway(&mut self) -> Duration {
        let Some(value) = self.get("leeway") else { return LEEWAY_DEFAULT };
        let leeway = value.as_str().and_then(|text| humantime::parse_duration(text).ok());
        leeway.filter(|leeway| *leeway <= LEEWAY_MAX).unwrap_or_else(|| {
            self.table.problem("leeway", "must be a duration from 0s to 60s, as in \"30s\"");
            LEEWAY_DEFAULT
        })
    }

    fn keys(&mut self) -> Option<KeySource> {
        let file = self.path(JWKS_FILE);
        let ca = self.path("jwks_ca");
        let token_file = self.path("jwks_token_file");
        let url = self.get("jwks_url");
        match (file, url) {
            (Some(file), None) => {
                for (key, is_set) in
                    [("jwks_ca", ca.is_some()), ("jwks_token_file", token_file.is_some())]
                {
                    if is_set {
                        self.table.problem(key, "is for jwks_url only");
                    }
                }
                self.key_file(&file).map(KeySource::File)
            }
            (None, Some(url)) => {
                let has_ca = ca.is_some();
                let url = JwksUrl::parse(url.as_str().unwrap_or_default(), ca, token_file);
                let url = url.map_err(|problem| self.table.problem("jwks_url", &problem)).ok()?;
                if has_ca && !url.is_tls() {
                    self.table.problem("jwks_ca", "is for https only");
                }
                Some(KeySource::Url(url))
            }
            _ => {
                self.table.problem(JWKS_FILE, "exactly one of jwks_file and jwks_url must be set");
                None
            }
        }
    }

    fn key_file(&mut self, path: &Path) -> Option<KeySet> {
        let keys = source_files::read(path).and_then(|text| {
            KeySet::parse(&text).map_err(|error| format!("{} {error}", path.display()))
        });
        keys.map_err(|problem| self.table.problem(JWKS_FILE, &problem)).ok()
    }

    /// Reads a path, which may be missing.
    fn path(&mut self, key: &str) -> Option<PathBuf> {
        let path = self.get(key)?.as_str().filter(|path| !path.is_empty());
        if path.is_none() {
            self.table.problem(key, "must be the path of a file");
        }
        path.map(|path| self.directory.join(path))
    }

    fn get(&self, key: &str) -> Option<&'t Value> {
        self.table.table.get(key)
    }
}

/// Reads a list of texts.
fn texts(value: Option<&Value>) -> Option<Vec<String>> {
    value?.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}
