//! What somebody probably meant who wrote a name that is none.

/// The candidate that `name` was probably meant to be.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // A third of the letters may be wrong: enough for a slip, too little for a guess.
    let limit = name.len() / 3;
    let distances = candidates.map(|candidate| (distance(name, candidate), candidate));
    distances.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// Bytes to insert, delete or change to turn `a` into `b` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// `unknown setting listne, did you mean listen`.
pub(super) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(known) => format!("unknown {what} {name}, did you mean {known}"),
        None => format!("unknown {what} {name}; `ringq config` prints the settings"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_a_slip_and_nothing_else() {
        let known = ["listen", "http_listen", "threads"];
        for (name, want) in [
            ("listne", Some("listen")),
            ("http-listen", Some("http_listen")),
            ("thread", Some("threads")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known.into_iter()), want, "{name:?}");
        }
    }

    #[test]
    fn distance_counts_edits() {
        for (a, b, want) in [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("ab", "ba", 2)] {
            assert_eq!(distance(a, b), want, "{a:?} {b:?}");
        }
    }
}
