//! What to write instead of a flag or a command that is not there. The parser offers what is spelled
//! alike, or to take a flag for a value; both lead astray where somebody knows another program.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::nearest;

/// Flags by the names that other programs give them, and ours: the first that the command has.
const OTHER_FLAGS: [(&[&str], &[&str]); 17] = [
    (&["--addr", "--address", "--host", "--port", "--grpc-port"], &["--listen", "--server"]),
    (&["--bind", "-p"], &["--listen"]),
    (&["--url", "--endpoint", "-s"], &["--server", "--shard"]),
    (&["--redis", "--redis-url", "--store", "--dsn"], &["--shard"]),
    (&["--http", "--http-port"], &["--http-listen"]),
    (&["--data", "--dir", "--db", "-d"], &["--data-dir"]),
    (&["--file", "-f", "-c"], &["--config"]),
    (&["--verbose"], &["--log-filter"]),
    (&["--workers", "--parallel", "--threads", "-j"], &["--concurrency", "--threads"]),
    (&["--command", "--cmd", "-e"], &["--exec"]),
    (&["--in", "--after", "--defer", "-d"], &["--delay"]),
    (&["--schedule", "--eta", "--when", "--run-at"], &["--at"]),
    (&["--retries", "--max-retries", "--attempts"], &["--max-attempts"]),
    (&["--backoff"], &["--retry-delays"]),
    (&["--unique", "--key", "--dedupe", "--job-id"], &["--id"]),
    (&["--count", "-n"], &["--limit", "--max-jobs", "--jobs"]),
    (&["--queue"], &["--topic"]),
];
/// What is no flag here, by the names of other programs.
const PAYLOADS: [&str; 5] = ["--payload", "--body", "--data", "--message", "--args"];
const TOPICS: [&str; 2] = ["--topic", "--queue"];
const FILES: [&str; 4] = ["--file", "-f", "--payload-file", "--input"];
const REDISES: [&str; 4] = ["--redis", "--redis-url", "--store", "--dsn"];

/// Commands of other programs, and our own without their noun.
const OTHER_COMMANDS: [(&str, &str); 29] = [
    ("start", "serve"),
    ("server", "serve"),
    ("run", "work"),
    ("consume", "work"),
    ("pull", "work"),
    ("take", "work"),
    ("add", "enqueue"),
    ("push", "enqueue"),
    ("put", "enqueue"),
    ("send", "enqueue"),
    ("publish", "enqueue"),
    ("submit", "enqueue"),
    ("get", "job get"),
    ("show", "job get"),
    ("ls", "job list"),
    ("list", "job list"),
    ("rm", "job delete"),
    ("delete", "job delete"),
    ("cancel", "job delete"),
    ("reschedule", "job reschedule"),
    ("redrive", "job redrive"),
    ("retry", "job redrive"),
    ("stats", "topic stats"),
    ("stat", "topic stats"),
    ("queue", "topic"),
    ("queues", "topic"),
    ("status", "info"),
    ("drain", "shard drain"),
    ("activate", "shard activate"),
];

/// Flags that every client command has, and no group of commands.
const CLIENT_FLAGS: [&str; 5] = ["--server", "--token", "--timeout", "--output", "-o"];

/// What to write instead.
enum Tip {
    /// This flag.
    Flag(&'static str),
    /// What these words say.
    Words(String),
}

/// The command that was meant, and how it was called.
struct Meant<'a> {
    command: &'a Command,
    /// `ringq job list`.
    path: String,
    /// What follows it.
    rest: &'a [String],
}

/// The same error with a tip that holds for this command line: `args` after the program's name.
pub(super) fn suggest(mut error: clap::Error, root: &Command, args: &[String]) -> clap::Error {
    let meant = Meant::of(root, args);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(given) = text(&error, ContextKind::InvalidArg) else { return error };
            let given = given.split('=').next().unwrap_or_default();
            let tip = meant.instead_of(given);
            meant.tell(&mut error, given, tip);
        }
        // A group has commands of its own.
        ErrorKind::InvalidSubcommand if !meant.is_group() => {
            let given = text(&error, ContextKind::InvalidSubcommand);
            let ours = OTHER_COMMANDS.iter().find(|(name, _)| Some(*name) == given.as_deref());
            if let Some((_, ours)) = ours {
                let ours = ContextValue::String((*ours).to_owned());
                error.insert(ContextKind::SuggestedSubcommand, ours);
            }
        }
        _ => {}
    }
    error
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

// === impl Meant ===

impl<'a> Meant<'a> {
    fn of(root: &'a Command, args: &'a [String]) -> Meant<'a> {
        let mut meant = Meant { command: root, path: "ringq".to_owned(), rest: args };
        while let Some((word, rest)) = meant.rest.split_first()
            && let Some(command) = meant.command.find_subcommand(word)
        {
            meant = Meant { command, path: format!("{} {}", meant.path, command.get_name()), rest };
        }
        meant
    }

    fn is(&self, name: &str) -> bool {
        self.command.get_name() == name
    }

    fn is_group(&self) -> bool {
        self.command.has_subcommands() && !self.is("ringq")
    }

    fn has(&self, flag: &str) -> bool {
        self.command.get_arguments().any(|arg| arg.get_long() == flag.strip_prefix("--"))
    }

    fn takes_topic(&self) -> bool {
        self.command.get_positionals().any(|arg| arg.get_id().as_str().starts_with("topic"))
    }

    fn instead_of(&self, given: &str) -> Option<Tip> {
        if !given.starts_with('-') {
            return self.instead_of_value(given).map(Tip::Words);
        }
        let mut ours = OTHER_FLAGS.iter().filter(|(names, _)| names.contains(&given));
        let ours = ours.find_map(|(_, ours)| ours.iter().find(|flag| self.has(flag)));
        ours.map(|flag| Tip::Flag(flag)).or_else(|| self.instead_of_flag(given).map(Tip::Words))
    }

    /// Where what is wanted is no flag.
    fn instead_of_flag(&self, given: &str) -> Option<String> {
        let path = &self.path;
        let among = |names: &[&str]| names.contains(&given);
        Some(match given {
            "-v" => "`ringq --version` prints the version".to_owned(),
            _ if among(&CLIENT_FLAGS) && self.command.has_subcommands() => {
                format!("{given} comes after the command, as in: ringq topic list {given} …")
            }
            "--json" if self.has("--output") => "write -o json".to_owned(),
            _ if among(&PAYLOADS) && self.is("enqueue") => {
                format!("the payload stands by itself, as in: {path} TOPIC 'hello'")
            }
            _ if among(&FILES) && self.is("enqueue") => {
                "`- < FILE` makes a job of a file, `--lines FILE` one of each of its lines"
                    .to_owned()
            }
            _ if among(&TOPICS) && self.takes_topic() => {
                format!("the topic stands by itself, as in: {path} TOPIC …")
            }
            _ if among(&REDISES) && self.has("--server") => {
                "only the server talks to a store; --server names the server".to_owned()
            }
            _ => return None,
        })
    }

    /// About a value too many.
    fn instead_of_value(&self, given: &str) -> Option<String> {
        let at = self.rest.iter().position(|arg| arg == given);
        let before = at.and_then(|at| self.rest.get(at.checked_sub(1)?)).map(String::as_str);
        match before {
            Some("--wait") if self.is("enqueue") => {
                Some(format!("--wait has no value; write --wait --wait-timeout {given}"))
            }
            _ if self.is("enqueue") => Some("a payload with blanks stands in quotes".to_owned()),
            _ if self.is("serve") && given.contains("://") => {
                Some(format!("a shard has a name, as in: {} --shard s0={given}", self.path))
            }
            _ => None,
        }
    }

    /// Puts the tip in the place of those of the parser, of which only good ones stay.
    fn tell(&self, error: &mut clap::Error, given: &str, tip: Option<Tip>) {
        // That of the parser has its own guess among the flags.
        let usage = self.command.clone().bin_name(&self.path).render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        match tip {
            Some(Tip::Flag(flag)) => {
                error.remove(ContextKind::Suggested);
                error.insert(ContextKind::SuggestedArg, ContextValue::String(flag.to_owned()));
            }
            Some(Tip::Words(words)) => {
                error.remove(ContextKind::SuggestedArg);
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![words.into()]));
            }
            None => {
                let alike = text(error, ContextKind::SuggestedArg);
                if alike.is_some_and(|ours| !is_alike(given, &ours)) {
                    error.remove(ContextKind::SuggestedArg);
                }
                // Of all values only a payload may look like a flag.
                if !self.is("enqueue") {
                    error.remove(ContextKind::Suggested);
                }
            }
        }
    }
}

/// Whether somebody who wrote one name may have meant the other: a slip, or a part of it.
fn is_alike(given: &str, ours: &str) -> bool {
    let (given, ours) = (given.trim_start_matches('-'), ours.trim_start_matches('-'));
    let is_part = given.len().min(ours.len()) > 2 && (ours.contains(given) || given.contains(ours));
    is_part || nearest(given, [ours].into_iter()).is_some()
}
