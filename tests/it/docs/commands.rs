//! Commands of `ringq` on the pages: the program knows each with its flags, and no argument means something else than a
//! reader of the page expects.

use std::process::{Command, Output};

use super::links::pages;
use super::page;

/// Least number of commands on all pages.
const LEAST: usize = 60;

/// Takes the arguments of a command as a shell does, up to a pipe, a redirection, a comment or the next command. `None`: a
/// part of it stands for something else.
fn arguments(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (_, '…' | '[' | '$') if quote != Some('\'') => return None,
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '<' | ';' | '&' | ')') => break,
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Returns the commands of a page in its blocks of code, with their lines put together.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        inside && !is_fence
    });
    let text = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let line = |line: &str| {
        let line = line.trim_start().trim_start_matches("$ ");
        arguments(line.strip_prefix("ringq ")?)
    };
    text.lines().filter_map(line).collect()
}

fn ringq(arguments: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringq"));
    command.env_clear().args(arguments).arg("--help").output().unwrap()
}

#[test]
fn each_command_on_a_page_is_one_of_the_program() {
    let (mut count, mut wrong) = (0, Vec::new());
    for from in pages() {
        for arguments in commands(&page(&from)) {
            count += 1;
            let output = ringq(&arguments);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // curl reads a file there; for ringq it is a text like any other.
            let file = arguments.iter().find(|argument| argument.starts_with('@'));
            if !output.status.success() || file.is_some() {
                wrong.push(format!("{from}: ringq {}: {file:?} {text}", arguments.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= LEAST, "only {count} commands were found");
}

#[test]
fn arguments_are_those_of_a_shell() {
    let of = |line| arguments(line).unwrap();
    assert_eq!(of("enqueue t 'a b' -x \"c\" < f"), ["enqueue", "t", "a b", "-x", "c"]);
    assert_eq!(of("a '#b' # c"), ["a", "#b"]);
    assert_eq!(arguments("job get t …"), None);
}
