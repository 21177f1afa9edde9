//! Checks that README.md and the pages in docs/ are true: their commands are run, their tables are compared with the
//! program, and their links resolve.
//!
//! `RINGQ_BLESS=1 cargo test --test it -- docs` writes the generated parts.

mod acl;
mod alerts;
mod commands;
mod dashboards;
mod links;
mod scale_out;
mod settings;
mod shape;
mod tour;

use std::path::{Path, PathBuf};

/// Returns the text of a page, by its path from the root of the project.
fn page(path: &str) -> String {
    let path = in_project(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares the part of a page between the markers of `name` with `want`, or writes it.
fn check_part(path: &str, name: &str, want: &str) {
    let text = page(path);
    let (begin, end) =
        (format!("<!-- {name}: begin, generated -->\n"), format!("<!-- {name}: end -->"));
    let start = text.find(&begin).expect("the first marker") + begin.len();
    let stop = text.find(&end).expect("the last marker");
    if text[start..stop] == *want {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "a switch for people who run this test")]
    let bless = std::env::var("RINGQ_BLESS").is_ok();
    assert!(bless, "{name} in {path} is not up to date; RINGQ_BLESS=1 writes it:\n{want}");
    let new = format!("{}{want}{}", &text[..start], &text[stop..]);
    std::fs::write(in_project(path), new).unwrap();
}
