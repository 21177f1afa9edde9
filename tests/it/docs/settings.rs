//! The table of the settings.

use ringq::config::{DEFAULTS, KEYS};

use super::check_part;

#[test]
fn the_settings_are_those_of_the_default_file() {
    let mut table = String::from("| setting | default | |\n| --- | --- | --- |\n");
    for key in KEYS {
        let (default, about) = setting(key);
        table.push_str(&format!("| `{key}` | {default} | {about} |\n"));
    }
    check_part("docs/configuration.md", "settings", &table);
}

/// Returns the default of a setting, and the first sentence about it.
fn setting(key: &str) -> (String, String) {
    let lines: Vec<&str> = DEFAULTS.lines().collect();
    let is_set = |line: &&str| {
        let line = line.strip_prefix("# ").unwrap_or(line);
        line == key || line.split_once(" = ").is_some_and(|(name, _)| name == key)
    };
    let at = lines.iter().position(is_set).unwrap_or_else(|| panic!("no {key}"));
    let from = lines[..at].iter().rposition(|line| line.is_empty()).map_or(0, |blank| blank + 1);
    let about: Vec<&str> =
        lines[from..at].iter().map(|line| line.trim_start_matches("# ")).collect();
    let about = about.join(" ");
    let default = match lines[at].strip_prefix("# ") {
        None => {
            lines[at].split_once(" = ").map(|(_, value)| format!("`{}`", value.trim_matches('"')))
        }
        Some(_) => about.split_once("Default: ").map(|(_, text)| sentence(text).to_owned()),
    };
    let about = sentence(&about).replace('|', "\\|");
    (default.unwrap_or_default().trim_end_matches('.').to_owned(), about)
}

/// Returns the text up to the first full stop that ends a sentence.
fn sentence(text: &str) -> &str {
    let ends = text.match_indices(". ").map(|(at, _)| at);
    let mut ends = ends.filter(|at| text[at + 2..].starts_with(|c: char| c.is_ascii_uppercase()));
    text[..ends.next().unwrap_or(text.len())].trim_end_matches('.')
}
