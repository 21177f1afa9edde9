//! Checks that the tables of the module list every verb and the scripts that it calls.

use super::script::{ALL, SOURCES, ScriptSource};

const MODULE: &str = include_str!("mod.rs");

/// Returns the quoted names in the cells of the tables, by row.
fn rows() -> Vec<Vec<Vec<&'static str>>> {
    let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2).collect();
    let rows = MODULE.lines().filter_map(|line| line.strip_prefix("//! | "));
    let rows = rows.filter(|row| row.starts_with('`'));
    rows.map(|row| row.split(" | ").map(quoted).collect()).collect()
}

/// Returns the scripts that the Rust file of that name calls.
fn called(file: &str) -> Vec<&'static str> {
    let path = format!("{}/src/store/redis/{file}", env!("CARGO_MANIFEST_DIR"));
    let code = std::fs::read_to_string(path).unwrap();
    let capitalized = |word: &str| word[..1].to_uppercase() + &word[1..];
    let calls = |script: &&ScriptSource| {
        let verb: String = script.name.split('_').map(capitalized).collect();
        let name = format!("Verb::{verb}");
        let mut behind = code.split(&name).skip(1);
        behind.any(|code| !code.starts_with(|c: char| c.is_ascii_alphanumeric()))
    };
    ALL.iter().filter(calls).map(|script| script.name).collect()
}

/// Returns the methods of the store that make a request to the shard.
fn methods() -> Vec<&'static str> {
    let (_, store) = MODULE.split_once("impl Store for").unwrap();
    let methods = store.split("    fn ").skip(1);
    let asks = |method: &&str| {
        let (signature, _) = method.split_once('{').unwrap();
        signature.contains("StoreFuture<") || signature.contains("Vec<Result<")
    };
    methods.filter(asks).map(|method| method.split_once('(').unwrap().0).collect()
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    names
}

#[test]
fn the_tables_name_every_verb_and_every_script_where_it_is() {
    let (mut verbs, mut scripts, mut included) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows() {
        if let [file, asked, calls] = &row[..] {
            assert_eq!(sorted(calls.iter().copied()), called(file[0]), "{}", file[0]);
            verbs.extend_from_slice(asked);
            scripts.extend_from_slice(calls);
        } else {
            included.extend_from_slice(&row[0]);
        }
    }
    assert_eq!(sorted(verbs), sorted(methods()));
    assert_eq!(sorted(scripts), sorted(ALL.iter().map(|script| script.name)));
    assert_eq!(sorted(included), sorted(SOURCES.map(|(name, _)| name)));
}
