//! Identities as text: `[[identity]]` tables of a TOML file.
//!
//! Errors name the place and never quote a value of `tokens`: a token may stand there by mistake.

use toml::{Table, Value};

use crate::domain::{TopicName, TopicPattern};
use crate::tls::PeerCertificate;

use super::identity::{Identity, JwtSubject};
use super::role::Role;
use super::secret::{self, Variables};
use super::table_reader::{TableReader, read_tables};
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
/// Maximum number of tokens of an identity: the old one and the new one.
const TOKENS_MAX: usize = 2;
/// Last characters of a namespace: those that topics are structured by.
pub(super) const SEPARATORS: [char; 3] = ['.', ':', '-'];

/// Reads the identities of a file, each with its place. `variables` has the tokens that are named by a variable.
///
/// # Errors
/// A text for each mistake, which begins with its place.
pub fn read(table: &Table, variables: Variables) -> Result<Vec<(String, Identity)>, Vec<String>> {
    read_tables(table, KEY, &KEYS, |table, name| Some(identity(table, &name, variables)))
}

fn identity(table: &mut TableReader<'_>, name: &str, variables: Variables) -> Identity {
    let mut identity = Identity::new(name);
    identity.tokens = tokens(table, variables);
    identity.jwt = jwt(table);
    identity.certificates = certificates(table);
    identity.namespaces = namespaces(table);
    for role in Role::ALL {
        identity.grants[role.index()] = patterns(table, role.name());
    }
    identity.payloads = patterns(table, "payloads");
    identity
}

fn tokens(table: &mut TableReader<'_>, variables: Variables) -> Vec<TokenHash> {
    let texts = table.texts("tokens");
    if texts.len() > TOKENS_MAX {
        table.problem("tokens", "has more than 2: the token in use, and the one that replaces it");
    }
    let mut hashes = Vec::with_capacity(texts.len());
    for (index, text) in texts.into_iter().enumerate() {
        match secret::token_hash(text, variables) {
            Ok(hash) => hashes.push(hash),
            Err(problem) => table.problem(&format!("tokens[{index}]"), &problem),
        }
    }
    hashes
}

fn jwt(table: &mut TableReader<'_>) -> Vec<JwtSubject> {
    let text = "must be tables like { issuer = \"cluster\", subject = \"system:serviceaccount:shop:api\" }";
    let given = match table.table.get("jwt") {
        None => return Vec::new(),
        Some(Value::Array(given)) => given,
        Some(_) => {
            table.problem("jwt", text);
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
            _ => table.problem(&format!("jwt[{index}]"), text),
        }
    }
    subjects
}

fn certificates(table: &mut TableReader<'_>) -> Vec<String> {
    let texts = table.texts("certificates");
    for (index, text) in texts.iter().enumerate() {
        if !PeerCertificate::can_have(text) {
            let key = format!("certificates[{index}]");
            table.problem(&key, "must be a URI with ://, or a DNS name, of a certificate");
        }
    }
    texts.into_iter().map(str::to_owned).collect()
}

fn namespaces(table: &mut TableReader<'_>) -> Vec<String> {
    let texts = table.texts("namespaces");
    for (index, text) in texts.iter().enumerate() {
        if TopicName::try_new(text).is_err() || !text.ends_with(SEPARATORS) {
            let key = format!("namespaces[{index}]");
            let text = "must be the beginning of topic names and end in . : or -, as in \"shop.\"";
            table.problem(&key, text);
        }
    }
    texts.into_iter().map(str::to_owned).collect()
}

fn patterns(table: &mut TableReader<'_>, key: &str) -> Vec<TopicPattern> {
    let texts = table.texts(key);
    let mut patterns = Vec::with_capacity(texts.len());
    for (index, text) in texts.into_iter().enumerate() {
        match TopicPattern::parse(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => table.problem(
                &format!("{key}[{index}]"),
                &format!("{error}; a final * stands for any ending"),
            ),
        }
    }
    patterns
}
