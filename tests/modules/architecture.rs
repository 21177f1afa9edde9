//! The table of modules in `docs/architecture.md`.

use std::path::Path;

use super::{LAYERS, imports, top};

/// Returns the module of each row, in their order.
fn rows() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("\n## Modules\n").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    let name = |row: &str| Some(row.strip_prefix("| `")?.split_once("` |")?.0.to_owned());
    section.lines().filter_map(name).collect()
}

#[test]
fn the_page_has_a_row_for_each_module_in_the_order_of_the_layers() {
    let rows = rows();
    let tops: Vec<&str> =
        rows.iter().map(String::as_str).filter(|row| !row.contains("::")).collect();
    let layers: Vec<&str> = LAYERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(tops, layers, "docs/architecture.md names the modules of LAYERS, each once");
}

#[test]
fn each_row_of_the_page_is_a_module() {
    let modules = imports::of_the_library();
    let mut rows_above: Vec<String> = Vec::new();
    for row in rows() {
        assert!(modules.iter().any(|module| module.name == row), "there is no module {row}");
        assert!(!rows_above.contains(&row), "{row} has two rows");
        let above = rows_above.last().map_or("", |above| top(above));
        assert!(row == top(&row) || top(&row) == above, "{row} stands below that of {above}");
        rows_above.push(row);
    }
}
