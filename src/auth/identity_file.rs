//! Identities as text: `[[identity]]` tables of a TOML file.
//!
//! Errors name the place and never quote a value of `tokens`: a token may stand there by mistake.

use toml::{Table, Value};

use crate::domain::{TopicName, TopicPattern};

use super::identity::{Identity, JwtSubject};
use super::role::Role;
use super::secret::{self, Variables};
use super::token::TokenHash;

/// Key of the tables.
pub const KEY: &str = "identity";
/// Key of the quota in a table, which is read elsewhere.
pub(super) const QUOTA_KEY: &str = "quota";
/// Keys of a table.
const KEYS: [&str; 11] = [
    "name",
    "tokens",
    "jwt",
    "certificates",
    "namespaces",
    "producer",
    "worker",
    "operator",
    "viewer",
    "payloads",
    QUOTA_KEY,
];
/// Maximum number of bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of tokens of an identity: the old one and the new one.
const TOKENS_MAX: usize = 2;
/// Last characters of a namespace: those that topics are structured by.
pub(super) const SEPARATORS: [char; 3] = ['.', ':', '-'];

/// Reader of one file.
struct IdentityReader {
    variables: Variables,
    place: String,
    problems: Vec<String>,
}

/// Reads the identities of a file, each with its place. `variables` has the tokens that are named by a variable.
///
/// # Errors
/// A text for each mistake, which begins with its place.
pub fn read(table: &Table, variables: Variables) -> Result<Vec<(String, Identity)>, Vec<String>> {
    let Some(value) = table.get(KEY) else { return Ok(Vec::new()) };
    let tables = value.as_array().map(|tables| tables.iter().map(Value::as_table).collect());
    let Some(tables): Option<Vec<&Table>> = tables.flatten() else {
        return Err(vec![format!("{KEY}: is not written as [[{KEY}]] tables")]);
    };
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (index, table) in tables.into_iter().enumerate() {
        let mut reader =
            IdentityReader { variables, place: format!("{KEY}[{index}]"), problems: Vec::new() };
        let identity = reader.identity(table);
        problems.append(&mut reader.problems);
        found.push((reader.place, identity));
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

// === impl IdentityReader ===

impl IdentityReader {
    fn identity(&mut self, table: &Table) -> Identity {
        let mut identity = Identity::new(&self.name(table));
        if !identity.name.is_empty() {
            self.place = format!("{} ({})", self.place, identity.name);
        }
        let unknown = table.keys().filter(|key| !KEYS.contains(&key.as_str()));
        for key in unknown.cloned().collect::<Vec<_>>() {
            self.problem(&key, &format!("there is no such key; keys are {}", KEYS.join(", ")));
        }
        identity.tokens = self.tokens(table);
        identity.jwt = self.jwt(table);
        identity.certificates = self.certificates(table);
        identity.namespaces = self.namespaces(table);
        for role in Role::ALL {
            identity.grants[role.index()] = self.patterns(table, role.name());
        }
        identity.payloads = self.patterns(table, "payloads");
        identity
    }

    fn name(&mut self, table: &Table) -> String {
        let name = table.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_valid = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:/@".contains(c));
        if !is_valid {
            let text = "must be 1 to 64 letters, digits and . _ - : / @";
            self.problem("name", text);
        }
        name.to_owned()
    }

    fn tokens(&mut self, table: &Table) -> Vec<TokenHash> {
        let texts = self.texts(table, "tokens");
        if texts.len() > TOKENS_MAX {
            self.problem(
                "tokens",
                "has more than 2: the token in use, and the one that replaces it",
            );
        }
        let mut hashes = Vec::with_capacity(texts.len());
        for (index, text) in texts.into_iter().enumerate() {
            match secret::token_hash(text, self.variables) {
                Ok(hash) => hashes.push(hash),
                Err(problem) => self.problem(&format!("tokens[{index}]"), &problem),
            }
        }
        hashes
    }

    fn jwt(&mut self, table: &Table) -> Vec<JwtSubject> {
        let text = "must be tables like { issuer = \"cluster\", subject = \"system:serviceaccount:shop:api\" }";
        let given = match table.get("jwt") {
            None => return Vec::new(),
            Some(Value::Array(given)) => given,
            Some(_) => {
                self.problem("jwt", text);
                return Vec::new();
            }
        };
        let mut subjects = Vec::with_capacity(given.len());
        for (index, entry) in given.iter().enumerate() {
            let part = |key: &str| Some(entry.get(key)?.as_str()?.to_owned());
            let is_whole = entry.as_table().is_some_and(|table| table.len() == 2);
            match (part("issuer"), part("subject")) {
                (Some(issuer), Some(subject)) if is_whole => {
                    subjects.push(JwtSubject { issuer, subject });
                }
                _ => self.problem(&format!("jwt[{index}]"), text),
            }
        }
        subjects
    }

    fn certificates(&mut self, table: &Table) -> Vec<String> {
        let texts = self.texts(table, "certificates");
        for (index, text) in texts.iter().enumerate() {
            if text.is_empty() || text.contains(char::is_whitespace) {
                let key = format!("certificates[{index}]");
                self.problem(&key, "must be a URI or a DNS name of a certificate");
            }
        }
        texts.into_iter().map(str::to_owned).collect()
    }

    fn namespaces(&mut self, table: &Table) -> Vec<String> {
        let texts = self.texts(table, "namespaces");
        for (index, text) in texts.iter().enumerate() {
            if TopicName::try_new(text).is_err() || !text.ends_with(SEPARATORS) {
                let key = format!("namespaces[{index}]");
                let text =
                    "must be the beginning of topic names and end in . : or -, as in \"shop.\"";
                self.problem(&key, text);
            }
        }
        texts.into_iter().map(str::to_owned).collect()
    }

    fn patterns(&mut self, table: &Table, key: &str) -> Vec<TopicPattern> {
        let texts = self.texts(table, key);
        let mut patterns = Vec::with_capacity(texts.len());
        for (index, text) in texts.into_iter().enumerate() {
            match TopicPattern::parse(text) {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => self.problem(
                    &format!("{key}[{index}]"),
                    &format!("{error}; a final * stands for any ending"),
                ),
            }
        }
        patterns
    }

    /// Reads a list of texts, which may be missing.
    fn texts<'a>(&mut self, table: &'a Table, key: &str) -> Vec<&'a str> {
        let texts = match table.get(key) {
            None => Some(Vec::new()),
            Some(value) => value.as_array().and_then(|v| v.iter().map(Value::as_str).collect()),
        };
        texts.unwrap_or_else(|| {
            self.problem(key, "must be a list of texts, as in [\"a\", \"b\"]");
            Vec::new()
        })
    }

    fn problem(&mut self, key: &str, text: &str) {
        self.problems.push(format!("{}.{key}: {text}", self.place));
    }
}
