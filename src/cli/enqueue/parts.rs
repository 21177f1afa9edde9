//! Parts of the input, by the numbers of their lines: in words, and for the shell.

use super::again::quoted;
use super::ledger::Lines;

/// Ranges of what is not in that are told one by one.
const RANGES_SHOWN: usize = 10;

/// A part of the input; None: up to its end.
pub(super) type Part = (u64, Option<u64>);

/// `sed -n '8p;13,$p'`
pub(super) fn script(parts: &[Part], command: &str, sed: &str) -> String {
    let address = |&(first, last): &Part| match last {
        Some(last) if last == first => format!("{first}{command}"),
        Some(last) => format!("{first},{last}{command}"),
        None => format!("{first},${command}"),
    };
    let script: Vec<String> = parts.iter().map(address).collect();
    format!("{sed} '{}'", script.join(";"))
}

/// All other lines.
pub(super) fn complement(parts: &[Part]) -> Vec<Part> {
    let (mut others, mut next) = (Vec::new(), 1);
    for &(first, last) in parts {
        if first > next {
            others.push((next, Some(first - 1)));
        }
        match last {
            Some(last) => next = last + 1,
            None => return others,
        }
    }
    others.push((next, None));
    others
}

/// `line 7`, `lines 1-500, 777`.
pub(super) fn named(lines: &[Lines]) -> String {
    let is_one = matches!(lines, [(first, last)] if first == last);
    format!("{} {}", if is_one { "line" } else { "lines" }, ranges(lines))
}

/// Line numbers as people write them, the first ones: `1-500, 777`.
pub(super) fn ranges(lines: &[Lines]) -> String {
    let range = |&(first, last): &Lines| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let shown = &lines[..lines.len().min(RANGES_SHOWN)];
    let text = shown.iter().map(range).collect::<Vec<_>>().join(", ");
    match lines.len() - shown.len() {
        0 => text,
        more => format!("{text} and {more} more ranges"),
    }
}

/// A file's name, which no program takes for a flag.
pub(super) fn as_operand(file: &str) -> String {
    if file.starts_with('-') { quoted(&format!("./{file}")) } else { quoted(file) }
}
