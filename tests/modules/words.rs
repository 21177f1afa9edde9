//! The words of the source: mechanisms, not people, and doc comments that stand alone. See "Texts" in CONTRIBUTING.md.

use std::path::{Path, PathBuf};

/// Words that are not used, each with better ones.
const BANNED: [(&str, &str); 16] = [
    ("told", "reported, notified, returned"),
    ("tell", "report, notify, return"),
    ("tells", "reports, notifies, returns"),
    ("said", "reported, logged, returned"),
    ("says", "reports, states, returns"),
    ("hear", "receive, be notified"),
    ("hears", "receives, is notified"),
    ("heard", "received"),
    ("speaks", "uses (a protocol)"),
    ("spoke", "used (a protocol)"),
    ("nobody", "no client, no caller, no server"),
    ("somebody", "a client, a caller, an operator"),
    ("anybody", "any client, any caller"),
    ("whoever", "the caller, each client that"),
    ("heal", "recover, repair"),
    ("heals", "recovers, repairs"),
];

/// First words of a doc comment that has no subject of its own, each with a better beginning.
const HEADLESS: [(&str, &str); 14] = [
    ("What ", "a noun: Value of …, Jobs that …, Result of …"),
    ("Whether ", "Returns whether …, True while …"),
    ("How ", "a noun: Number of …, Time until …, Way in which …"),
    ("When ", "Time of …, Time at which …"),
    ("Why ", "Reason of …, Cause of …"),
    ("Where ", "Place of …, Position of …"),
    ("Who ", "Caller that …, Worker that …"),
    ("That of ", "the noun itself"),
    ("Those ", "the noun itself"),
    ("Of ", "the noun itself"),
    ("The same", "the noun itself"),
    ("See ", "a sentence that states the fact"),
    ("It ", "the noun itself"),
    ("By ", "the noun itself"),
];

/// Folders of generated files and of other projects' files, which are not committed.
const GENERATED: [&str; 7] = ["stubs", "venv", "node_modules", "vendor", "build", "target", "dist"];

#[test]
fn the_source_uses_the_words_of_the_field() {
    let mut found = Vec::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).unwrap();
        for (index, line) in text.lines().enumerate() {
            for word in words(line) {
                if let Some((_, better)) = BANNED.iter().find(|(banned, _)| *banned == word) {
                    found.push(format!("{}:{}: {word}: {better}", path.display(), index + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn each_doc_comment_begins_with_its_subject() {
    let mut found = Vec::new();
    for path in sources().filter(|path| path.extension().is_some_and(|kind| kind == "rs")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut is_inside = false;
        for (index, line) in text.lines().enumerate() {
            let doc = line.trim_start();
            let doc = doc.strip_prefix("/// ").or_else(|| doc.strip_prefix("//! "));
            let first = doc.filter(|_| !is_inside);
            is_inside = line.trim_start().starts_with("//");
            let headless = |doc: &str| HEADLESS.iter().find(|(start, _)| doc.starts_with(start));
            if let Some((start, better)) = first.and_then(headless) {
                let place = format!("{}:{}", path.display(), index + 1);
                found.push(format!("{place}: begins with {start}: better {better}"));
            }
        }
    }
    assert!(found.is_empty(), "{} comments:\n{}", found.len(), found.join("\n"));
}

/// Words of a line in lower case; `snake_case` and `CamelCase` are taken apart.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_ascii_alphabetic() || (was_lower && c.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphabetic()) {
            word.push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Files of the product and of its tests: code, scripts, statements and pages. Not this one, which has the words.
fn sources() -> impl Iterator<Item = PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut folders =
        ["src", "docs", "tests", "benches", "examples"].map(|name| root.join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !GENERATED.iter().any(|name| path.ends_with(name)) {
                    folders.push(path);
                }
            } else if is_source(&path) {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 300, "only {} files were found", files.len());
    files.sort();
    files.into_iter()
}

/// Returns whether a person wrote the file. The data of earlier builds stays as it is.
fn is_source(path: &Path) -> bool {
    let kinds = ["rs", "lua", "sql", "md", "py", "go", "mjs", "toml"];
    let kind = path.extension().and_then(|kind| kind.to_str());
    let is_fixture = path.components().any(|part| part.as_os_str() == "fixtures");
    kind.is_some_and(|kind| kinds.contains(&kind)) && !is_fixture && !path.ends_with(file!())
}

#[test]
fn identifiers_are_taken_apart() {
    assert_eq!(words("fn hears(x: ToldBy) // it's"), ["fn", "hears", "x", "told", "by", "it", "s"]);
}
