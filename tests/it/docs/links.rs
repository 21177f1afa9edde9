//! Links between the pages, and the length of the README.

use std::collections::BTreeSet;
use std::path::Path;

use super::{in_project, page};

/// Longest README that readers finish.
const README_LINES_MAX: usize = 150;

/// Returns the documentation pages, by their paths from the root of the project.
pub(super) fn pages() -> Vec<String> {
    let docs = std::fs::read_dir(in_project("docs")).unwrap();
    let names = docs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"));
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(str::to_owned);
    top.into_iter().chain(names.map(|name| format!("docs/{name}"))).collect()
}

/// Returns the text without its fenced blocks and code spans.
fn prose(text: &str) -> String {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        !inside && !is_fence
    });
    let spans = lines.flat_map(|line| line.split('`').step_by(2).chain(["\n"]));
    spans.collect()
}

/// Returns the link targets of a page.
fn targets(text: &str) -> Vec<String> {
    let text = prose(text);
    let ends = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    ends.map(|(target, _)| target.split(' ').next().unwrap().to_owned()).collect()
}

/// Returns the anchors of a page's headings, as code hosts make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        inside ^= line.starts_with("```");
        !inside && line.starts_with('#')
    });
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    lines.map(anchor).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for from in pages() {
        for target in targets(&page(&from)) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = match path {
                "" => in_project(&from),
                path => in_project(&from).parent().unwrap().join(path),
            };
            let has_anchor = || {
                let text = std::fs::read_to_string(&to).unwrap_or_default();
                anchors(&text).contains(anchor)
            };
            if !to.exists() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{from}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn every_page_can_be_reached_from_the_readme() {
    let readme = page("README.md");
    let linked: BTreeSet<String> = targets(&readme).into_iter().collect();
    let missing: Vec<_> =
        pages().into_iter().filter(|page| page != "README.md" && !linked.contains(page)).collect();
    assert!(missing.is_empty(), "README.md has no link to {missing:?}");
}

#[test]
fn the_readme_is_short() {
    let lines = page("README.md").lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines, more than {README_LINES_MAX}");
}

#[test]
fn links_and_anchors_are_found() {
    assert_eq!(targets("a [b](c.md#d) `[x](y)` [e](f)"), ["c.md#d", "f"]);
    assert_eq!(targets("```sh\n[x](y)\n```\n[e](f)"), ["f"]);
    let found = anchors("# A `b`: c, d\n```\n# no\n```\n## E_f-g");
    assert_eq!(found, ["a-b-c-d", "e_f-g"].map(str::to_owned).into());
}
