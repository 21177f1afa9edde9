//! Where the lines of `--lines` are, in words, and how the rest is sent.

use std::fmt::Write as _;
use std::time::Duration;

use super::Identity;
use super::again::{Again, quoted};
use super::ledger::{Ledger, Place};
use super::parts::{Part, as_operand, complement, named, ranges, script};
use crate::pb::ConflictPolicy;

/// Ranges of what is in that are told; more say less than what is not in.
const RANGES: usize = 3;
/// Ranges that a command for the shell names.
const RANGES_OF_A_COMMAND: usize = 50;

/// What a repeat of a line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Makes another job of it, or does once more what the first one did.
    Doubles,
    /// Does once more what the first one did, also if that was another line with the same content.
    Changes,
    /// Makes another job of it, unless it goes under the id that the server gave it.
    DoublesWithoutId,
    /// Nothing while the record lives.
    Harmless,
    /// The same, as long as the line keeps its number: the id is made of it.
    HarmlessByNumber,
}

/// An early end, for people.
pub(super) struct Account<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) topic: &'a str,
    /// The file; None: no command can read it again, as with stdin.
    pub(super) file: Option<&'a str>,
    pub(super) repeat: Repeat,
    /// How this command was called.
    pub(super) again: Again,
    /// The whole input was read and sent.
    pub(super) all_sent: bool,
    /// How long the ids that the server has named are surely known there; None: no longer.
    pub(super) ids_live: Option<Duration>,
    /// How many of these ids are told.
    pub(super) ids_shown: usize,
}

/// Until when the server knows an id that follows from the line.
const NOT_DOUBLED: &str = "not doubled while their records live, 60s after their end unless \
                           --retention says otherwise";
/// Lines that may be enqueued.
const UNSURE: [Place; 2] = [Place::Unsure, Place::Named];

/// The last line of a whole run.
pub(super) fn summary(ledger: &Ledger) -> String {
    let mut text = format!("{} enqueued", ledger.count_enqueued());
    if ledger.count_unchanged() > 0 {
        let _ = write!(text, ", {} of them were there already", ledger.count_unchanged());
    }
    if ledger.count_refused() > 0 {
        let _ = write!(text, ", {} refused", ledger.count_refused());
    }
    text
}

// === impl Repeat ===

impl Repeat {
    /// That of a line under these flags.
    pub(super) fn of(identity: &Identity) -> Repeat {
        let policy = identity.policy();
        let keeps = matches!(policy, ConflictPolicy::Unspecified | ConflictPolicy::Keep);
        match (identity.id_from_payload, &identity.request_id) {
            (true, Some(_)) => Repeat::Harmless,
            (true, None) if keeps || policy == ConflictPolicy::Reject => Repeat::Harmless,
            (true, None) => Repeat::Changes,
            (false, Some(_)) => Repeat::HarmlessByNumber,
            (false, None) if keeps => Repeat::DoublesWithoutId,
            _ => Repeat::Doubles,
        }
    }
}

// === impl Account ===

impl Account<'_> {
    /// What is where.
    pub(super) fn state(&self) -> String {
        let ledger = self.ledger;
        let mut parts = vec![format!("surely enqueued: {} lines", ledger.count_enqueued())];
        if ledger.count_enqueued() > 0 {
            let but = if ledger.count_refused() > 0 { ", but for refused ones" } else { "" };
            let lines = ledger.lines(&[Place::In]);
            let which = match lines.len() {
                ..=RANGES => ranges(&lines),
                _ => format!("all others up to {}", ledger.last()),
            };
            let _ = write!(parts[0], " ({which}{but})");
        }
        if ledger.count_refused() > 0 {
            parts.push(format!("refused: {}", ledger.count_refused()));
        }
        for (places, words) in
            [(&UNSURE[..], "may be enqueued"), (&[Place::Missing], "not enqueued")]
        {
            let lines = ledger.lines(places);
            if !lines.is_empty() {
                parts.push(format!("{words}: {}", named(&lines)));
            }
        }
        if !self.all_sent {
            parts.push(format!("not sent: from line {} on", ledger.next()));
        }
        parts.join("; ")
    }

    /// What to do about the lines that are not in, and about those that may be.
    pub(super) fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        let rest = self.ledger.rest(self.all_sent);
        if !rest.is_empty() {
            hints.push(self.send_rest(&rest));
        }
        match self.repeat {
            Repeat::Doubles | Repeat::Changes => hints.extend(self.look(&UNSURE)),
            Repeat::DoublesWithoutId => match self.ids_live {
                Some(live) => {
                    hints.extend(self.look(&[Place::Unsure]));
                    hints.extend(self.by_id(live));
                }
                None => hints.extend(self.look(&UNSURE)),
            },
            Repeat::Harmless | Repeat::HarmlessByNumber => hints.extend(self.again()),
        }
        if self.file.is_none() && hints.iter().any(|hint| hint.contains("… | ")) {
            hints.push("… stands for the command that the lines came from".to_owned());
        }
        hints
    }

    fn send_rest(&self, rest: &[Part]) -> String {
        let count = rest.len();
        match self.repeat {
            _ if count <= RANGES_OF_A_COMMAND => {
                format!(
                    "to send exactly those that surely are not{}: {}",
                    self.but(rest),
                    self.command(rest)
                )
            }
            Repeat::Harmless | Repeat::HarmlessByNumber => format!(
                "the rest is in {count} ranges: to send it, run the same command again; lines that are enqueued are \
                 {NOT_DOUBLED}"
            ),
            Repeat::Doubles | Repeat::Changes | Repeat::DoublesWithoutId => format!(
                "the rest is in {count} ranges, too many for a command; -o json prints a row for each line"
            ),
        }
    }

    /// What sending these lines late may undo: where an id is that of a later line, too, that one was to have the last
    /// word.
    fn but(&self, rest: &[Part]) -> &'static str {
        let sent = self.ledger.lines(&[Place::In, Place::Unsure, Place::Named]);
        let is_behind = sent.last().zip(rest.first()).is_some_and(|(sent, rest)| sent.1 > rest.0);
        if self.repeat == Repeat::Changes && is_behind {
            " (where a later line with the same content is in already, its job is changed once more)"
        } else {
            ""
        }
    }

    /// About lines of which nothing is known that would make a repeat safe.
    fn look(&self, places: &[Place]) -> Option<String> {
        let lines = self.ledger.lines(places);
        (!lines.is_empty()).then(|| {
            format!(
                "{} would run twice if enqueued already: look first, as with \
                 `ringq job list {} --limit 0 --full -o json`, which has the payloads; \
                 a run with --request-id could be repeated",
                named(&lines),
                quoted(self.topic)
            )
        })
    }

    /// About lines whose ids follow from their content or their number.
    fn again(&self) -> Option<String> {
        let lines = self.ledger.lines(&UNSURE).into_iter();
        let lines: Vec<Part> = lines.map(|(first, last)| (first, Some(last))).collect();
        let them = "those that may be enqueued are";
        match lines.len() {
            0 => None,
            1..=RANGES_OF_A_COMMAND => {
                Some(format!("{them} {NOT_DOUBLED}: {}", self.command(&lines)))
            }
            _ => Some(format!("{them} {NOT_DOUBLED}: run the same command again")),
        }
    }

    /// About lines whose ids the server has named: a loop for the shell, with a line for each. Of a line it
    /// takes what `--lines` takes.
    fn by_id(&self, live: Duration) -> Option<String> {
        let ids = self.ledger.ids();
        let shown = &ids[..ids.len().min(self.ids_shown)];
        let list = shown.iter().map(|(line, id)| format!("{line} {id}\n")).collect::<String>();
        let more = match ids.len() - shown.len() {
            0 => String::new(),
            more => format!(
                "\n  and {more} more, from line {} on: look first; with -o json, or where stderr is a file, \
                 all ids are told",
                ids[shown.len()].0
            ),
        };
        let line = self.piped(r#"sed -n "${n}{s/$(printf '\r')\$//;p;}""#);
        (!ids.is_empty()).then(|| {
            format!(
                "those whose ids are known are not doubled for {}s from now; later look first, as with \
                 `ringq job get {} ID`:\n\
                 while read -r n id; do {line} | tr -d '\\n' | {}; done <<'END'\n\
                 {list}END{more}",
                live.as_secs(),
                quoted(self.topic),
                self.again.with_one()
            )
        })
    }

    /// A command that enqueues just these lines.
    fn command(&self, parts: &[Part]) -> String {
        let sed = match self.repeat {
            // Empty lines make no job, and count.
            Repeat::HarmlessByNumber => script(&complement(parts), "g", "sed"),
            _ => script(parts, "p", "sed -n"),
        };
        format!("{} | {}", self.piped(&sed), self.again.with_lines())
    }

    /// The input as this command gives it on.
    fn piped(&self, sed: &str) -> String {
        match self.file {
            Some(file) => format!("{sed} {}", as_operand(file)),
            None => format!("… | {sed}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::OnConflict;
    use super::*;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.sent(12);
        (1..=3).for_each(|line| ledger.enqueued(line, line == 2));
        ledger.refused(4);
        assert_eq!(summary(&ledger), "3 enqueued, 1 of them were there already, 1 refused");
        ledger.unsure(6, Some("s0~a"));
        ledger.unsure(7, None);
        ledger.missing(8);
        ledger.enqueued(9, false);
        ledger.unanswered((10, 12));
        ledger
    }

    fn account<'a>(
        ledger: &'a Ledger,
        repeat: Repeat,
        file: Option<&'a str>,
        all_sent: bool,
    ) -> Account<'a> {
        let ids_live = Some(Duration::from_secs(40));
        let again = Again::of(["t", "--lines", "-", "-q"].map(str::to_owned));
        let ids_shown = usize::MAX;
        Account { ledger, topic: "t", file, repeat, again, all_sent, ids_live, ids_shown }
    }

    #[test]
    fn it_says_what_is_where() {
        let ledger = ledger();
        let repeat = Repeat::Doubles;
        let mut account = account(&ledger, repeat, None, true);
        let state = "surely enqueued: 4 lines (1-4, 9, but for refused ones); refused: 1; \
                     may be enqueued: lines 6-7, 10-12; not enqueued: line 8";
        assert_eq!(account.state(), state);
        account.all_sent = false;
        assert_eq!(account.state(), format!("{state}; not sent: from line 13 on"));
    }

    #[test]
    fn it_says_how_to_send_the_rest() {
        let ledger = ledger();
        let hints = |repeat, file, all_sent| account(&ledger, repeat, file, all_sent).hints();
        let doubles = hints(Repeat::Doubles, Some("my jobs"), false);
        let sed = "sed -n '8p;13,$p' 'my jobs' | ringq enqueue t --lines - -q";
        assert_eq!(doubles[0], format!("to send exactly those that surely are not: {sed}"));
        assert!(doubles[1].starts_with("lines 6-7, 10-12 would run twice"), "{doubles:?}");
        assert!(
            doubles[1].contains("`ringq job list t --limit 0 --full -o json`")
                && !doubles[1].contains("sed")
        );
        let by_id = hints(Repeat::DoublesWithoutId, Some("my jobs"), true);
        assert!(by_id[1].starts_with("lines 7, 10-12 would run twice"), "{by_id:?}");
        let line = r#"sed -n "${n}{s/$(printf '\r')\$//;p;}" 'my jobs' | tr -d '\n'"#;
        let pipe = format!("{line} | ringq enqueue t --id \"$id\" -q -");
        let wanted = format!(":\nwhile read -r n id; do {pipe}; done <<'END'\n6 s0~a\nEND");
        assert!(by_id[2].ends_with(&wanted), "{by_id:?}");
        assert!(by_id[2].contains("not doubled for 40s from now"), "{by_id:?}");
        let late = account(&ledger, Repeat::DoublesWithoutId, Some("my jobs"), true);
        let late = Account { ids_live: None, ..late }.hints();
        assert!(late[1].starts_with("lines 6-7, 10-12 would run twice"), "{late:?}");
        assert_eq!(late.len(), 2, "nobody knows the ids any more");
        let harmless = hints(Repeat::Harmless, Some("-f"), true);
        assert!(harmless[0].contains(": sed -n '8p' ./-f |"), "{harmless:?}");
        assert!(harmless[1].contains(": sed -n '6,7p;10,12p' ./-f |"), "{harmless:?}");
        let numbers = hints(Repeat::HarmlessByNumber, None, false);
        assert!(numbers[0].contains(": … | sed '1,7g;9,12g' | ringq"), "{numbers:?}");
        assert!(numbers[1].contains(": … | sed '1,5g;8,9g;13,$g' | ringq"), "{numbers:?}");
    }

    #[test]
    fn what_a_repeat_does_follows_from_the_flags() {
        let of = |id_from_payload, request_id: Option<&str>, on_conflict| {
            let request_id = request_id.map(str::to_owned);
            let (id, durability) = (None, None);
            Repeat::of(&Identity { id, id_from_payload, request_id, on_conflict, durability })
        };
        for changing in [OnConflict::Replace, OnConflict::Reschedule] {
            assert_eq!(of(true, None, Some(changing)), Repeat::Changes);
            assert_eq!(of(true, Some("run"), Some(changing)), Repeat::Harmless);
            assert_eq!(of(false, None, Some(changing)), Repeat::Doubles, "no line has an id");
        }
        assert_eq!(of(true, None, Some(OnConflict::Reject)), Repeat::Harmless);
        assert_eq!(of(true, None, None), Repeat::Harmless);
        assert_eq!(of(false, Some("run"), None), Repeat::HarmlessByNumber);
        assert_eq!(of(false, None, None), Repeat::DoublesWithoutId);
    }

    #[test]
    fn a_line_behind_one_that_may_be_the_same_is_sent_with_a_word() {
        let mut ledger = Ledger::default();
        ledger.sent(2);
        ledger.missing(1);
        ledger.enqueued(2, false);
        let rest =
            |ledger: &Ledger, repeat| account(ledger, repeat, Some("f"), true).hints()[0].clone();
        let changes = rest(&ledger, Repeat::Changes);
        let word = "surely are not (where a later line with the same content is in already, ";
        assert!(changes.contains(word), "{changes}");
        assert!(changes.ends_with(": sed -n '1p' f | ringq enqueue t --lines - -q"), "{changes}");
        assert!(!rest(&ledger, Repeat::Harmless).contains("same content"));
        let mut ledger = Ledger::default();
        ledger.sent(2);
        ledger.enqueued(1, false);
        ledger.missing(2);
        let last = rest(&ledger, Repeat::Changes);
        assert!(!last.contains("same content"), "no line is behind it: {last}");
    }

    #[test]
    fn many_ranges_of_what_is_in_are_told_by_what_is_not() {
        let mut ledger = Ledger::default();
        ledger.sent(8);
        for line in [1, 3, 5, 7] {
            ledger.enqueued(line, false);
            ledger.unsure(line + 1, None);
        }
        let repeat = Repeat::Doubles;
        let account = account(&ledger, repeat, None, true);
        let state =
            "surely enqueued: 4 lines (all others up to 8); may be enqueued: lines 2, 4, 6, 8";
        assert_eq!(account.state(), state);
    }

    #[test]
    fn what_no_screen_would_hold_is_told_in_few_words() {
        let mut ledger = Ledger::default();
        ledger.sent(200);
        for line in (1..=200).step_by(2) {
            ledger.missing(line);
            ledger.unsure(line + 1, Some("id"));
        }
        let mut account = account(&ledger, Repeat::Doubles, Some("f"), true);
        let missing = "not enqueued: lines 1, 3, 5, 7, 9, 11, 13, 15, 17, 19 and 90 more ranges";
        assert!(account.state().ends_with(missing), "{}", account.state());
        let rest =
            "the rest is in 100 ranges, too many for a command; -o json prints a row for each line";
        assert_eq!(account.hints()[0], rest);
        account.repeat = Repeat::DoublesWithoutId;
        assert_eq!(account.hints()[1].matches(" id\n").count(), 100);
        account.ids_shown = 20;
        let by_id = &account.hints()[1];
        assert!(by_id.contains("\n40 id\nEND\n  and 80 more, from line 42 on: "), "{by_id}");
        for repeat in [Repeat::Harmless, Repeat::HarmlessByNumber] {
            account.repeat = repeat;
            let hints = account.hints();
            assert!(
                hints[0].starts_with(
                    "the rest is in 100 ranges: to send it, run the same command again"
                )
            );
            assert!(hints[1].ends_with("otherwise: run the same command again"), "{hints:?}");
        }
    }

    #[test]
    fn a_stand_in_for_the_input_is_explained() {
        let ledger = ledger();
        let hints = |file| account(&ledger, Repeat::Harmless, file, true).hints();
        assert_eq!(hints(None)[2], "… stands for the command that the lines came from");
        assert_eq!(hints(Some("f")).len(), 2);
    }

    #[test]
    fn after_the_last_line_there_is_no_rest() {
        let mut ledger = Ledger::default();
        ledger.sent(1);
        ledger.enqueued(1, false);
        let repeat = Repeat::Doubles;
        let account = account(&ledger, repeat, None, true);
        assert_eq!(account.hints(), [""; 0]);
    }
}
