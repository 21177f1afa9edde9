//! README.md speaks the truth: its settings are those of `deploy/ringq.toml`, its tour and its "Scale out" are
//! run, and the rights of its Redis user are those that are used.
//!
//! `RINGQ_BLESS=1 cargo test --test it -- readme` writes what is generated.

mod acl;
mod scale_out;
mod settings;
mod shape;
mod tour;

use std::path::Path;

/// The text of the README.
fn readme() -> String {
    std::fs::read_to_string(path()).unwrap()
}

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")
}

/// Compares the part between the markers of `name` with what it should be, or writes it.
fn check_part(name: &str, want: &str) {
    let text = readme();
    let (begin, end) =
        (format!("<!-- {name}: begin, generated -->\n"), format!("<!-- {name}: end -->"));
    let start = text.find(&begin).expect("the first marker") + begin.len();
    let stop = text.find(&end).expect("the last marker");
    if text[start..stop] == *want {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "a switch for people who run this test")]
    let bless = std::env::var("RINGQ_BLESS").is_ok();
    assert!(bless, "{name} in README.md is not up to date; RINGQ_BLESS=1 writes it:\n{want}");
    std::fs::write(path(), format!("{}{want}{}", &text[..start], &text[stop..])).unwrap();
}
