//! Suggestions for mistyped names.

use strsim::osa_distance;

/// Returns the candidate that `name` was probably meant to be.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let name = own_part(name);
    // A third of the letters may be wrong: enough for a typo, too little for a guess.
    let limit = name.len() / 3;
    let distance = |candidate| osa_distance(name, own_part(candidate));
    let distances = candidates.map(|candidate| (distance(candidate), candidate));
    distances.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// Returns the part of a name in which names differ: that of a variable without its prefix.
fn own_part(name: &str) -> &str {
    name.strip_prefix("RINGQ_").unwrap_or(name)
}

/// Returns an error text: `unknown setting listne; did you mean listen?`.
pub(super) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(known) => format!("unknown {what} {name}; did you mean {known}?"),
        None => format!("unknown {what} {name}; `ringq config` prints the settings"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_a_slip_and_nothing_else() {
        let known = ["listen", "http_listen", "threads", "RINGQ_OTLP"];
        for (name, want) in [
            ("listne", Some("listen")),
            ("http-listen", Some("http_listen")),
            ("thread", Some("threads")),
            ("lsiten", Some("listen")),
            ("RINGQ_OLTP", Some("RINGQ_OTLP")),
            ("RINGQ_URL", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known.into_iter()), want, "{name:?}");
        }
    }
}
