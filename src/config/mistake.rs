//! What is wrong with the settings, in words.

use std::{fmt, io};

use super::source::Source;

/// One mistake: the setting, what is wrong with it, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    setting: String,
    problem: String,
    from: Source,
}

/// All mistakes of a configuration, at least one; one a line when shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub(super) Vec<Mistake>);

// === impl Mistake ===

impl Mistake {
    pub(super) fn new(setting: impl Into<String>, problem: String, from: &Source) -> Mistake {
        Mistake { setting: setting.into(), problem, from: from.clone() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (from {})", self.setting, self.problem, self.from)
    }
}

// === impl Mistakes ===

impl Mistakes {
    /// Each of them: those of the files and the environment first, then those of the values.
    pub fn iter(&self) -> impl Iterator<Item = &Mistake> {
        self.0.iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            mistake.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// An input/output error as part of a lowercase sentence, without the system's error number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|code| format!(" (os error {code})"));
    let text = number.and_then(|number| text.strip_suffix(&number)).unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

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

    #[test]
    fn reasons_are_lowercase() {
        for (error, want) in [
            (io::Error::from_raw_os_error(2), "no such file or directory"),
            (io::ErrorKind::AddrInUse.into(), "address in use"),
            (io::Error::other("Broken disk"), "broken disk"),
        ] {
            assert_eq!(reason(&error), want);
        }
    }
}
