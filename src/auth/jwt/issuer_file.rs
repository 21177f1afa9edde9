//! Issuers of JSON Web Tokens as text: `[[issuer]]` tables of a file of identities.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jsonwebtoken::Algorithm;
use toml::{Table, Value};

use super::bounded_file;
use super::issuer::{
    ALGORITHMS, ALGORITHMS_DEFAULT, Issuer, KeySource, LEEWAY_DEFAULT, LEEWAY_MAX,
};
use super::jwks_url::JwksUrl;
use super::key_set::KeySet;

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
/// Maximum number of bytes of a name.
const NAME_BYTES_MAX: usize = 64;

/// Reader of one table.
struct IssuerReader<'a> {
    place: String,
    /// Directory of the file, where relative paths start.
    directory: &'a Path,
    problems: Vec<String>,
}

/// Reads the issuers of a file in this directory, each with its place, and the files with keys that they name.
///
/// # Errors
/// A text for each mistake, which begins with its place.
pub fn read(table: &Table, directory: &Path) -> Result<Vec<(String, Issuer)>, Vec<String>> {
    let Some(value) = table.get(KEY) else { return Ok(Vec::new()) };
    let tables = value.as_array().map(|tables| tables.iter().map(Value::as_table).collect());
    let Some(tables): Option<Vec<&Table>> = tables.flatten() else {
        return Err(vec![format!("{KEY}: is not written as [[{KEY}]] tables")]);
    };
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (index, table) in tables.into_iter().enumerate() {
        let place = format!("{KEY}[{index}]");
        let mut reader = IssuerReader { place, directory, problems: Vec::new() };
        let issuer = reader.issuer(table);
        problems.append(&mut reader.problems);
        found.extend(issuer.map(|issuer| (reader.place, issuer)));
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

// === impl IssuerReader ===

impl IssuerReader<'_> {
    /// Reads every key before it returns `None`, so that no mistake hides another.
    fn issuer(&mut self, table: &Table) -> Option<Issuer> {
        let name = self.name(table);
        if !name.is_empty() {
            self.place = format!("{} ({name})", self.place);
        }
        let unknown = table.keys().filter(|key| !KEYS.contains(&key.as_str()));
        for key in unknown.cloned().collect::<Vec<_>>() {
            self.problem(&key, &format!("there is no such key; keys are {}", KEYS.join(", ")));
        }
        let issuer = table.get("issuer").and_then(Value::as_str).unwrap_or_default().to_owned();
        if issuer.is_empty() {
            self.problem("issuer", "must be the claim `iss` of its tokens");
        }
        let audiences = self.audiences(table);
        let algorithms = self.algorithms(table);
        let leeway = self.leeway(table);
        let keys = self.keys(table);
        Some(Issuer { name, issuer, audiences, algorithms, leeway, keys: keys? })
    }

    fn name(&mut self, table: &Table) -> String {
        let name = table.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_valid = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:/@".contains(c));
        if !is_valid {
            self.problem("name", "must be 1 to 64 letters, digits and . _ - : / @");
        }
        name.to_owned()
    }

    fn audiences(&mut self, table: &Table) -> Vec<String> {
        let texts = texts(table.get("audiences"));
        let texts = texts.filter(|texts| !texts.is_empty() && !texts.iter().any(String::is_empty));
        texts.unwrap_or_else(|| {
            let text = "must be a list of at least one audience, as in [\"ringq\"]: tokens for other services must \
                        not be accepted";
            self.problem("audiences", text);
            Vec::new()
        })
    }

    fn algorithms(&mut self, table: &Table) -> Vec<Algorithm> {
        let Some(value) = table.get("algorithms") else { return ALGORITHMS_DEFAULT.to_vec() };
        let known = |name: &String| ALGORITHMS.iter().find(|(known, _)| known == name);
        let algorithms = texts(Some(value)).and_then(|names| {
            names.iter().map(|name| known(name).map(|(_, algorithm)| *algorithm)).collect()
        });
        algorithms.filter(|algorithms: &Vec<_>| !algorithms.is_empty()).unwrap_or_else(|| {
            let names = ALGORITHMS.map(|(name, _)| name).join(", ");
            self.problem("algorithms", &format!("must be a list of at least one of {names}"));
            Vec::new()
        })
    }

    fn leeway(&mut self, table: &Table) -> Duration {
        let Some(value) = table.get("leeway") else { return LEEWAY_DEFAULT };
        let leeway = value.as_str().and_then(|text| humantime::parse_duration(text).ok());
        leeway.filter(|leeway| *leeway <= LEEWAY_MAX).unwrap_or_else(|| {
            self.problem("leeway", "must be a duration from 0s to 60s, as in \"30s\"");
            LEEWAY_DEFAULT
        })
    }

    fn keys(&mut self, table: &Table) -> Option<KeySource> {
        let file = self.path(table, JWKS_FILE);
        let ca = self.path(table, "jwks_ca");
        let token_file = self.path(table, "jwks_token_file");
        let url = table.get("jwks_url");
        match (file, url) {
            (Some(file), None) => {
                for (key, is_set) in
                    [("jwks_ca", ca.is_some()), ("jwks_token_file", token_file.is_some())]
                {
                    if is_set {
                        self.problem(key, "is for jwks_url only");
                    }
                }
                self.key_file(&file).map(KeySource::File)
            }
            (None, Some(url)) => {
                let has_ca = ca.is_some();
                let url = JwksUrl::parse(url.as_str().unwrap_or_default(), ca, token_file);
                let url = url.map_err(|problem| self.problem("jwks_url", &problem)).ok()?;
                if has_ca && !url.is_tls() {
                    self.problem("jwks_ca", "is for https only");
                }
                Some(KeySource::Url(url))
            }
            _ => {
                self.problem(JWKS_FILE, "exactly one of jwks_file and jwks_url must be set");
                None
            }
        }
    }

    fn key_file(&mut self, path: &Path) -> Option<KeySet> {
        let keys = bounded_file::read(path).and_then(|text| {
            KeySet::parse(&text).map_err(|error| format!("{} {error}", path.display()))
        });
        keys.map_err(|problem| self.problem(JWKS_FILE, &problem)).ok()
    }

    /// Reads a path, which may be missing.
    fn path(&mut self, table: &Table, key: &str) -> Option<PathBuf> {
        let path = table.get(key)?.as_str().filter(|path| !path.is_empty());
        if path.is_none() {
            self.problem(key, "must be the path of a file");
        }
        path.map(|path| self.directory.join(path))
    }

    fn problem(&mut self, key: &str, text: &str) {
        self.problems.push(format!("{}.{key}: {text}", self.place));
    }
}

/// Reads a list of texts.
fn texts(value: Option<&Value>) -> Option<Vec<String>> {
    value?.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}
