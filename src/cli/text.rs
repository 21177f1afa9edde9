//! Escaping and shortening of texts of jobs and servers for a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns text that is safe on a terminal: control characters and those that change the direction of writing are
/// escaped, except line ends and tabs.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && c != '\t')
}

/// Returns the text escaped like `printable`, on one line.
pub(super) fn one_line(text: &str) -> String {
    escape(text, |_| true).into_owned()
}

fn escape(text: &str, may: impl Fn(char) -> bool) -> Cow<'_, str> {
    let bad = |c: char| is_disturbing(c) && may(c);
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            c if !bad(c) => escaped.push(c),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c => {
                let _ = write!(escaped, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(escaped)
}

fn is_disturbing(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the first `chars` characters, with an ellipsis if there are more.
pub(super) fn shorten(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns `1 job` or `2 jobs`.
pub(super) fn jobs(count: i64) -> String {
    format!("{count} {}", if count == 1 { "job" } else { "jobs" })
}

/// Returns as much of a line as fits into this many columns.
pub(super) fn fit(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns { line.to_owned() } else { shorten(line, columns - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_disturb_a_terminal() {
        assert_eq!(one_line("a\u{1b}[2Jb\nc\u{202e}d"), "a\\u{1b}[2Jb\\nc\\u{202e}d");
        assert_eq!(printable("a\n\tb\u{7}"), "a\n\tb\\u{7}");
        assert!(matches!(printable("äöü ✓"), Cow::Borrowed(_)));
    }

    #[test]
    fn shorten_cuts_between_characters() {
        assert_eq!(shorten("äöü", 2), "äö…");
        assert_eq!(shorten("äöü", 3), "äöü");
        assert_eq!(fit("äöü", 3), "äöü");
        assert_eq!(fit("äöüß", 3), "äö…");
    }
}
