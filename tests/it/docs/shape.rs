//! Compares lines with those of another run: variable parts by their shape, all else exactly. Only these parts may
//! differ:
//!
//! - clock times and timestamps, and server-made ids;
//! - durations: after `done in` and `failed in`, and in columns `TOOK`;
//! - `now` and `3s ago`, up to [`AGO_MAX`]; `(in 59s)` and `(in 57s)`, up to [`AHEAD_MAX`] apart;
//! - workers, `host:pid` with this machine's name: after `worker:` and in columns `WORKER`.
//!
//! `…` stands for anything, within a line or for whole lines.

use std::time::Duration;

/// Limit of an age that matches another.
const AGO_MAX: Duration = Duration::from_secs(60);
/// Largest difference of two matching waiting times, unless one of the smallest printed unit is more.
const AHEAD_MAX: Duration = Duration::from_secs(5);

/// Returns whether the lines match.
pub(super) fn matches(want: &[String], got: &[String]) -> bool {
    matches_from(want, got, [&[], &[]])
}

/// Matches with the columns of the last header.
fn matches_from(want: &[String], got: &[String], columns: [&[Cell<'_>]; 2]) -> bool {
    match (want.split_first(), got.split_first()) {
        (None, None) => true,
        (Some((any, rest)), _) if any.trim() == "…" => {
            (0..=got.len()).any(|skip| matches_from(rest, &got[skip..], columns))
        }
        (Some((want, rest)), Some((got, others))) => {
            let (wanted, found) = (cells(want), cells(got));
            let heads = is_header(&wanted);
            let next = if heads { [&wanted[..], &found[..]] } else { columns };
            line_fits(want, got, columns) && matches_from(rest, others, next)
        }
        _ => false,
    }
}

fn line_fits(want: &str, got: &str, columns: [&[Cell<'_>]; 2]) -> bool {
    if let Some((start, end)) = want.split_once('…') {
        return got.strip_prefix(start).is_some_and(|rest| rest.ends_with(end));
    }
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (wanted, found) = (cells(want), cells(got));
    let labels = [&wanted, &found].map(|cells| cells.first().map_or("", |cell| cell.text));
    indent(want) == indent(got)
        && wanted.len() == found.len()
        && wanted.iter().zip(&found).enumerate().all(|(index, (want, got))| {
            let (place, other) = (want.column(columns[0]), got.column(columns[1]));
            let label = if index == 1 { labels[0] } else { "" };
            place == other
                && match (place, label) {
                    ("TOOK", _) => want.text == got.text || took_fits(want.text, got.text),
                    ("WORKER", _) | (_, "worker:") => worker_fits(want.text, got.text),
                    _ => words_fit(want.text, got.text),
                }
        })
}

/// A cell between two gaps of at least two spaces.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Cell<'a> {
    /// Returns the column that begins at this position.
    fn column(&self, columns: &[Cell<'a>]) -> &'a str {
        columns.iter().find(|column| column.at == self.at).map_or("", |column| column.text)
    }
}

fn cells(line: &str) -> Vec<Cell<'_>> {
    let mut cells = Vec::new();
    let mut at = 0;
    for text in line.split("  ") {
        let trimmed = text.trim_start();
        if !trimmed.is_empty() {
            cells.push(Cell { at: at + text.len() - trimmed.len(), text: trimmed.trim_end() });
        }
        at += text.len() + 2;
    }
    cells
}

/// Returns whether the cells are names in capitals, perhaps after a label.
fn is_header(cells: &[Cell<'_>]) -> bool {
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_uppercase() || " /".contains(c));
    let names = if cells.first().is_some_and(|cell| cell.text.ends_with(':')) { 1 } else { 0 };
    cells.len() >= names + 2 && cells[names..].iter().all(|cell| is_name(cell.text))
}

fn words_fit(want: &str, got: &str) -> bool {
    let (want, got) = (tokens(want), tokens(got));
    want.len() == got.len() && want.iter().zip(&got).all(|(want, got)| want.fits(got))
}

/// A token of one or several words.
#[derive(Debug, PartialEq)]
enum Token<'a> {
    Text(&'a str),
    /// A duration, and the punctuation after it.
    Took(&'a str),
    /// An age, and the punctuation around it.
    Ago(Duration, [&'a str; 2]),
    /// A waiting time, its smallest unit, and the punctuation after it.
    Ahead(Duration, Duration, &'a str),
}

impl Token<'_> {
    fn fits(&self, got: &Token<'_>) -> bool {
        match (self, got) {
            (Token::Text(want), Token::Text(got)) => want == got || form(want) == form(got),
            (Token::Ago(want, around), Token::Ago(got, others)) => {
                around == others && want.max(got) <= &AGO_MAX
            }
            (Token::Ahead(want, unit, after), Token::Ahead(got, _, other)) => {
                after == other && want.abs_diff(*got) <= AHEAD_MAX.max(*unit)
            }
            _ => self == got,
        }
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let words: Vec<&str> = text.split(' ').collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let (token, used) = token(&words[at..], &words[..at]);
        tokens.push(token);
        at += used;
    }
    tokens
}

/// Returns the token at the start of some words, and its number of words.
fn token<'a>(words: &[&'a str], before: &[&str]) -> (Token<'a>, usize) {
    let (bare, around) = punctuation(words[0]);
    let after = around[1];
    if let [.., "done" | "failed", "in"] = before {
        if let Some(next) = words.get(1).filter(|_| bare.parse::<f64>().is_ok()) {
            let (unit, [_, after]) = punctuation(next);
            if matches!(unit, "ms" | "s") {
                return (Token::Took(after), 2);
            }
        }
        return match span(bare) {
            Some(_) => (Token::Took(after), 1),
            None => (Token::Text(words[0]), 1),
        };
    }
    let ago = words.get(1).map(|next| punctuation(next)).filter(|(next, _)| *next == "ago");
    match (span(bare), ago, before.last()) {
        _ if bare == "now" => (Token::Ago(Duration::ZERO, around), 1),
        (Some((span, _)), Some((_, [_, after])), _) => (Token::Ago(span, [around[0], after]), 2),
        (Some((span, unit)), None, Some(&("in" | "(in"))) => (Token::Ahead(span, unit, after), 1),
        _ => (Token::Text(words[0]), 1),
    }
}

/// Returns a word, and the punctuation before and after it.
fn punctuation(word: &str) -> (&str, [&str; 2]) {
    let rest = word.trim_start_matches(['"', '(']);
    let bare = rest.trim_end_matches(['"', ')', ',', ':', ';', '.']);
    (bare, [&word[..word.len() - rest.len()], &rest[bare.len()..]])
}

/// Parses a duration like `3ms`, `59s` or `2d23h`; returns its smallest unit, too.
fn span(word: &str) -> Option<(Duration, Duration)> {
    let (mut rest, mut sum, mut last) = (word, Duration::ZERO, None);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u32 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
        let (name, ms) = units.into_iter().find(|(name, _)| rest.starts_with(name))?;
        let unit = Duration::from_millis(ms);
        rest = &rest[name.len()..];
        sum += unit * number;
        last = Some(unit);
    }
    last.map(|unit| (sum, unit))
}

fn took_fits(want: &str, got: &str) -> bool {
    span(want).is_some() && span(got).is_some()
}

/// Returns whether both are workers: one of some machine, the other of this one.
fn worker_fits(want: &str, got: &str) -> bool {
    let process = |worker: &str, host: &str| {
        let process = worker.strip_prefix(host).and_then(|rest| rest.strip_prefix(':'));
        process.is_some_and(|id| !id.is_empty() && id.chars().all(|c| c.is_ascii_digit()))
    };
    let host = want.rsplit_once(':').map_or("", |(host, _)| host);
    want == got || (!host.is_empty() && process(want, host) && process(got, &this_host()))
}

fn this_host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Returns the word with its variable parts replaced; unchanged if there are none.
fn form(word: &str) -> String {
    let (bare, [before, after]) = punctuation(word);
    let form = if is_time(bare, "dd:dd:dd") {
        "<clock>".to_owned()
    } else if let Some((time, fraction)) = bare.split_at_checked("2026-11-21T11:43:49".len()) {
        let fraction = fraction.strip_suffix('Z');
        let digits = fraction.map(|text| text.strip_prefix('.').unwrap_or(text));
        let whole = digits.is_some_and(|text| text.chars().all(|c| c.is_ascii_digit()));
        let time = is_time(time, "dddd-dd-ddTdd:dd:dd") && whole;
        if time { "<time>".to_owned() } else { id_form(bare) }
    } else {
        id_form(bare)
    };
    format!("{before}{form}{after}")
}

fn is_time(word: &str, pattern: &str) -> bool {
    let fits = |(c, p): (char, char)| if p == 'd' { c.is_ascii_digit() } else { c == p };
    word.len() == pattern.len() && word.chars().zip(pattern.chars()).all(fits)
}

/// Returns the form of a server-made id: its shard, and 26 characters.
fn id_form(word: &str) -> String {
    match word.split_once('~') {
        Some((shard, id)) if id.len() == 26 && id.chars().all(|c| c.is_ascii_alphanumeric()) => {
            format!("{shard}~<id>")
        }
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the texts match; `HOST` in the printed one is this machine's name.
    fn fits(want: &str, got: &str) -> bool {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        matches(&lines(want), &lines(&got.replace("HOST", &this_host())))
    }

    #[track_caller]
    fn same(pairs: &[(&str, &str)]) {
        for (want, got) in pairs {
            assert!(fits(want, got), "{want:?} and {got:?}");
        }
    }

    #[track_caller]
    fn different(pairs: &[(&str, &str)]) {
        for (want, got) in pairs {
            assert!(!fits(want, got), "{want:?} and {got:?}");
        }
    }

    #[test]
    fn times_and_ids_differ_and_nothing_beside_them() {
        same(&[
            ("s0~01k7uumt8eeoe87tqubgesh95i", "s0~01k7uumt8eeoe87tqubgesh000"),
            (
                "11:43:49 a/s0~01k7uumt8eeoe87tqubgesh95i",
                "01:02:03 a/s0~01k7uumt8eeoe87tqubgesh000",
            ),
            ("  \"t\": \"2026-11-24T11:43:49.036154Z\",", "  \"t\": \"2027-01-02T00:00:00Z\","),
        ]);
        different(&[
            ("s0~01k7uumt8eeoe87tqubgesh95i", "s1~01k7uumt8eeoe87tqubgesh95i"),
            ("s0~01k7uumt8eeoe87tqubgesh95i", "s0~01k7uumt8eeoe87"),
            ("11:43:49 a/x", "11:43 a/x"),
            ("11:43:49 a/x", "11:43:49 b/x"),
            ("  \"t\": \"2026-11-24T11:43:49Z\",", "  \"t\": \"2026-11-24T11:43:49Z\""),
            ("  \"t\": \"2026-11-24T11:43:49Z\"", "\"t\": \"2026-11-24T11:43:49Z\""),
            ("2026-11-24T11:43:49Z", "2026-11-24 11:43:49"),
        ]);
    }

    #[test]
    fn only_what_was_timed_may_take_longer() {
        same(&[
            ("a/x  done in 3 ms", "a/x  done in 1.2 s"),
            ("failed in 1 ms, attempt 1 of 25", "failed in 20 ms, attempt 1 of 25"),
            ("N  TOOK  ERROR\n1  3ms   bad", "N  TOOK   ERROR\n1  120ms  bad"),
        ]);
        different(&[
            ("a/x  done in 3 ms", "a/x  done in three ms"),
            ("failed in 1 ms, attempt 1 of 25", "failed in 1 ms, attempt 2 of 25"),
            ("failed in 1 ms, attempt 1", "failed in 1 ms attempt 1"),
            ("retry:  after 1m, 3m, 5m", "retry:  after 9h, 2d, 7s"),
            ("lease:  30s", "lease:  20s"),
            ("N  TOOK  LEASE\n1  3ms   30s", "N  TOOK  LEASE\n1  3ms   20s"),
            ("N  TOOK  LEASE\n1  3ms   30s", "N  TOOK  LEASE\n1        30s"),
        ]);
    }

    #[test]
    fn what_was_or_will_be_is_near() {
        same(&[
            ("created:  2026-11-21T11:43:49.036Z (now)", "created:  2027-11-21T11:43:49Z (3s ago)"),
            ("CREATED  N\nnow      1", "CREATED  N\n12s ago  1"),
            ("(in 59s)", "(in 55s)"),
            ("(in 2d23h)", "(in 2d22h)"),
            ("(in 1m)", "(in 59s)"),
        ]);
        different(&[
            ("(now)", "(3h ago)"),
            ("(now)", "3s ago"),
            ("(in 59s)", "(in 40s)"),
            ("(in 59s)", "(in 59s"),
            ("(in 59s)", "(59s ago)"),
            ("(in 2d23h)", "(in 2d20h)"),
            ("(in 59s)", "(in 59d)"),
        ]);
    }

    #[test]
    fn workers_are_this_machines_and_stand_in_their_places() {
        same(&[("worker:  vm:6649", "worker:  HOST:7")]);
        let table = format!("ID  {:<40}ERROR\na   {:<40}x", "WORKER", format!("{}:1", this_host()));
        assert!(fits("ID  WORKER   ERROR\na   vm:6656  x", &table), "{table}");
        different(&[
            ("worker:  vm:6649", "worker:  elsewhere.example:7"),
            ("worker:  vm:6649", "worker:  HOST:x7"),
            ("worker:  vm:6649", "owner:   HOST:7"),
            ("error:  line:9", "error:  HOST:9"),
            ("x:9", "y:9"),
            ("x:9", "x:8"),
        ]);
    }

    #[test]
    fn all_else_is_to_the_letter() {
        different(&[
            ("2 emails and 1 more", "2 emails and 2 more"),
            ("N  IN/S\na  1667", "N  IN/S\na  166"),
            ("N  IN/S  OUT/S\na  1", "N  IN/S  OUT/S\na        1"),
            ("a b", "a b c"),
            ("a b", "a  b"),
            ("a\nb", "a"),
            ("a", "a\nb"),
        ]);
    }

    #[test]
    fn three_dots_stand_for_anything() {
        same(&[
            ("error: …", "error: connection refused"),
            ("connected (…)", "connected (now)"),
            ("a\n…\nd", "a\nb\nc\nd"),
            ("a\n…", "a"),
        ]);
        different(&[
            ("error: …", "warning: x"),
            ("connected (…)", "connected (now"),
            ("aba…bab", "abab"),
            ("a\n…\nd", "a\nb\nc"),
        ]);
    }
}
