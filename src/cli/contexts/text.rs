//! The text of the contexts' file: TOML.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use super::{Context, Credentials, Token, nearest, values};
use crate::cli::values::Secret;

/// Keys of the file.
const KEYS: [&str; 2] = ["current", "context"];
/// Keys of a context.
const CONTEXT_KEYS: [&str; 7] =
    ["server", "token", "token_file", "allow_plaintext_token", "ca", "cert", "key"];
/// First line of the file.
const HEAD: &str = "# Contexts of ringq, written by `ringq context`, which keeps no comments.\n";

/// Contexts by name.
type Entries = BTreeMap<String, Context>;

/// Reads the name of the current context, and all contexts. An error has no values: these may be tokens.
pub(super) fn parse(text: &str) -> Result<(Option<String>, Entries), String> {
    let table: Table = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let number = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        let problem: Vec<_> = error.message().lines().collect();
        format!("is not TOML: line {number}: {}", problem.join(", "))
    })?;
    check_keys("", &table, &KEYS)?;
    let mut entries = Entries::new();
    if let Some(contexts) = table.get("context") {
        let tables = contexts.as_table().ok_or("context is not written as [context.NAME]")?;
        for (name, value) in tables {
            values::context_name(name).map_err(|why| format!("context {name:?}: {why}"))?;
            let place = format!("context {name}: ");
            let table = value.as_table().ok_or(format!("{place}it is not a table"))?;
            entries.insert(name.clone(), context(&place, table)?);
        }
    }
    let current = string("", &table, "current")?;
    if let Some(name) = current.as_ref().filter(|name| !entries.contains_key(*name)) {
        return Err(format!("current is {name:?}, and there is no such context"));
    }
    Ok((current, entries))
}

fn context(place: &str, table: &Table) -> Result<Context, String> {
    check_keys(place, table, &CONTEXT_KEYS)?;
    let [server, token, token_file, ca, cert, key] =
        ["server", "token", "token_file", "ca", "cert", "key"].map(|key| string(place, table, key));
    let [token_file, ca, cert, key] = [token_file?, ca?, cert?, key?];
    for (name, path) in [("token_file", &token_file), ("ca", &ca), ("cert", &cert), ("key", &key)] {
        if path.as_ref().is_some_and(|path| !Path::new(path).is_absolute()) {
            return Err(format!("{place}{name} is not an absolute path"));
        }
    }
    let token = match (token?, token_file) {
        (Some(_), Some(_)) => return Err(format!("{place}it has both token and token_file")),
        (Some(token), None) => Some(Token::Text(Secret(token))),
        (None, file) => file.map(Token::File),
    };
    let identity = match (cert, key) {
        (Some(_), None) => return Err(format!("{place}it has cert, but no key")),
        (None, Some(_)) => return Err(format!("{place}it has key, but no cert")),
        (cert, key) => cert.zip(key),
    };
    let allow_plaintext_token = match table.get("allow_plaintext_token") {
        Some(value) => value
            .as_bool()
            .ok_or_else(|| format!("{place}allow_plaintext_token is neither true nor false"))?,
        None => false,
    };
    let server = server?.ok_or_else(|| format!("{place}it has no server"))?;
    Ok(Context { server, credentials: Credentials { token, allow_plaintext_token, ca, identity } })
}

fn check_keys(place: &str, table: &Table, known: &[&str]) -> Result<(), String> {
    let Some(unknown) = table.keys().find(|key| !known.contains(&key.as_str())) else {
        return Ok(());
    };
    let hint = match nearest(unknown, known.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", known.join(", ")),
    };
    Err(format!("{place}unknown key {unknown}; {hint}"))
}

fn string(place: &str, table: &Table, key: &str) -> Result<Option<String>, String> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        Some(Value::String(_)) => Err(format!("{place}{key} is empty")),
        Some(other) => Err(format!("{place}{key} is of type {}, not text", other.type_str())),
    }
}

/// Formats the file.
pub(super) fn format(current: Option<&str>, entries: &Entries) -> String {
    let quoted = |text: &str| Value::String(text.to_owned());
    let mut file = HEAD.to_owned();
    let line = |file: &mut String, key: &str, value: Option<&str>| {
        if let Some(value) = value {
            file.push_str(&format!("{key} = {}\n", quoted(value)));
        }
    };
    line(&mut file, "current", current);
    for (name, Context { server, credentials }) in entries {
        // A name may have dots, which would make tables of a bare key.
        file.push_str(&format!("\n[context.{}]\n", quoted(name)));
        line(&mut file, "server", Some(server));
        match &credentials.token {
            Some(Token::Text(Secret(token))) => line(&mut file, "token", Some(token)),
            Some(Token::File(path)) => line(&mut file, "token_file", Some(path)),
            None => {}
        }
        if credentials.allow_plaintext_token {
            file.push_str("allow_plaintext_token = true\n");
        }
        line(&mut file, "ca", credentials.ca.as_deref());
        if let Some((cert, key)) = &credentials.identity {
            line(&mut file, "cert", Some(cert));
            line(&mut file, "key", Some(key));
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let full = Credentials {
            token: Some(Token::Text(Secret("rq_\"quoted\"\\ä".to_owned()))),
            allow_plaintext_token: true,
            ca: Some("/a b".to_owned()),
            identity: Some(("/c".to_owned(), "/k".to_owned())),
        };
        let file = Credentials { token: Some(Token::File("/t".to_owned())), ..Default::default() };
        let context = |server: &str, credentials: &Credentials| Context {
            server: server.to_owned(),
            credentials: credentials.clone(),
        };
        let entries = Entries::from([
            ("eu.prod".to_owned(), context("https://a:7700,https://b:7700", &full)),
            ("bare".to_owned(), context("http://127.0.0.1:7700", &Credentials::default())),
            ("file".to_owned(), context("https://c", &file)),
        ]);
        let text = format(Some("eu.prod"), &entries);
        assert_eq!(parse(&text).unwrap(), (Some("eu.prod".to_owned()), entries), "{text}");
        assert_eq!(parse(&format(None, &Entries::new())), Ok((None, Entries::new())));
        assert_eq!(parse(""), Ok((None, Entries::new())));
    }

    #[test]
    fn mistakes_are_named_without_values() {
        for (text, part) in [
            ("currant = \"a\"", "unknown key currant; did you mean current?"),
            ("current = \"a\"", "current is \"a\", and there is no such context"),
            ("context = 1", "context is not written as [context.NAME]"),
            ("[context.a]\nsever = \"s\"", "context a: unknown key sever; did you mean server?"),
            ("[context.a]\npassword = \"planted\"", "context a: unknown key password; there are"),
            ("[context.a]\ntoken = \"planted\"", "context a: it has no server"),
            ("[context.a]\nserver = \"s\"\ntoken = 7", "token is of type integer, not text"),
            ("[context.a]\nserver = \"s\"\ntoken = \"\"", "token is empty"),
            (
                "[context.a]\nserver = \"s\"\ntoken = \"planted\"\ntoken_file = \"/t\"",
                "it has both token and token_file",
            ),
            ("[context.a]\nserver = \"s\"\nca = \"ca.pem\"", "ca is not an absolute path"),
            ("[context.a]\nserver = \"s\"\ncert = \"/c\"", "it has cert, but no key"),
            ("[context.a]\nserver = \"s\"\nkey = \"/c\"", "it has key, but no cert"),
            (
                "[context.a]\nserver = \"s\"\nallow_plaintext_token = \"yes\"",
                "allow_plaintext_token is neither true nor false",
            ),
            ("[context.\"a b\"]\nserver = \"s\"", "context \"a b\": a context is named by"),
            ("[context.a]\nserver = \"s\"\ntoken = planted", "is not TOML: line 3: "),
            ("[context.a]\nserver = \"s\"\ntoken = \"planted", "is not TOML: line 3: "),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(part), "{text:?}: {problem}");
            assert!(!problem.contains("planted") && !problem.contains('\n'), "{problem}");
        }
    }
}
