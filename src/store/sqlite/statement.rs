//! Statements are in `.sql` files, named like the code that runs them; a file may hold several, each behind a line
//! `-- :name`. [`statement`] cuts one out at compile time.

/// Returns the statement called `name` in `file`.
///
/// # Panics
/// Panics at compile time when there is no such statement.
pub(super) const fn statement(file: &'static str, name: &str) -> &'static str {
    let (bytes, name) = (file.as_bytes(), name.as_bytes());
    let mut at = 0;
    while at < bytes.len() {
        if heads(bytes, at, name) {
            let begin = line_end(bytes, at);
            let mut end = begin;
            while end < bytes.len() && !heads(bytes, end, b"") {
                end += 1;
            }
            return file.split_at(end).0.split_at(begin).1;
        }
        at += 1;
    }
    panic!("no such statement in the file");
}

/// Returns whether a line `-- :name` begins at `at`; with an empty name, whether any such line does.
const fn heads(bytes: &[u8], at: usize, name: &[u8]) -> bool {
    const MARK: &[u8] = b"-- :";
    if at > 0 && bytes[at - 1] != b'\n' || !matches(bytes, at, MARK) {
        return false;
    }
    let end = at + MARK.len() + name.len();
    name.is_empty()
        || matches(bytes, at + MARK.len(), name) && end < bytes.len() && bytes[end] == b'\n'
}

const fn matches(bytes: &[u8], at: usize, text: &[u8]) -> bool {
    let mut i = 0;
    while i < text.len() {
        if at + i >= bytes.len() || bytes[at + i] != text[i] {
            return false;
        }
        i += 1;
    }
    true
}

const fn line_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'\n' {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::statement;

    #[test]
    fn statements_are_cut_out_by_name() {
        const FILE: &str = "-- about\n-- :one\nSELECT 1;\n-- :onetwo\nSELECT 2;\n";
        assert_eq!(statement(FILE, "one").trim(), "SELECT 1;");
        assert_eq!(statement(FILE, "onetwo").trim(), "SELECT 2;");
    }
}
