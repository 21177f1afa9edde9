//! Wraps help texts to the width of the terminal. In the source, text after the flags has one line per paragraph,
//! list entry or command; this module wraps these lines for all commands.

use clap::Command;
use rustix::stdio;
use rustix::termios::tcgetwinsize;

use crate::config;

/// Width without a terminal, and at most: longer lines are hard to read.
const COLUMNS: usize = 100;
/// Least width that is taken for a terminal with a reader.
const COLUMNS_MIN: usize = 20;
/// Further indentation of the lines that continue an entry.
const HANGING_INDENT: usize = 4;

/// Wraps the help of a command and of all its subcommands to the terminal.
pub(super) fn fit_to_terminal(command: Command) -> Command {
    let columns = columns().unwrap_or(COLUMNS);
    wrap_help(command, columns.clamp(COLUMNS_MIN, COLUMNS))
}

/// Returns the width of the terminal, or the value of COLUMNS without one.
fn columns() -> Option<usize> {
    let sizes = [
        tcgetwinsize(stdio::stdout()),
        tcgetwinsize(stdio::stderr()),
        tcgetwinsize(stdio::stdin()),
    ];
    let mut columns = sizes.into_iter().flatten().map(|size| usize::from(size.ws_col));
    columns.find(|columns| *columns > 0).or_else(|| config::variable("COLUMNS")?.parse().ok())
}

fn wrap_help(command: Command, columns: usize) -> Command {
    let command =
        command.term_width(columns).mut_subcommands(|command| wrap_help(command, columns));
    match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(wrap_text(&text, columns)),
        None => command,
    }
}

fn wrap_text(text: &str, columns: usize) -> String {
    let lines: Vec<String> = text.lines().flat_map(|line| wrap_line(line, columns)).collect();
    lines.join("\n")
}

/// Wraps a line of the source to this width.
fn wrap_line(line: &str, columns: usize) -> Vec<String> {
    if width(line) <= columns {
        return vec![line.to_owned()];
    }
    let indent = width(line) - width(line.trim_start());
    // In `  exit code 75  given back` the explanation of an entry stays in its column.
    let gap = line.trim_start().find("  ").map(|at| indent + at);
    let (head, rest) = line.split_at(gap.unwrap_or(indent));
    let column = width(line) - width(rest.trim_start());
    let (head, hang) = match (indent, gap) {
        (0, _) => (String::new(), 0),
        (_, Some(_)) if column <= columns / 2 => (format!("{head:column$}"), column),
        (_, Some(_)) => {
            let mut lines = wrap_line(head, columns);
            lines.extend(fill(
                " ".repeat(indent + HANGING_INDENT),
                rest,
                indent + HANGING_INDENT,
                columns,
            ));
            return lines;
        }
        (_, None) => (head.to_owned(), indent + HANGING_INDENT),
    };
    fill(head, rest, hang, columns)
}

/// Appends the words to `head`; lines after the first are indented by `hang`.
fn fill(head: String, words: &str, hang: usize, columns: usize) -> Vec<String> {
    let (mut lines, mut line, mut is_empty) = (Vec::new(), head, true);
    for word in words.split_ascii_whitespace() {
        if !is_empty && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(hang)));
            is_empty = true;
        }
        if !std::mem::take(&mut is_empty) {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    /// Returns each command with its name, at this width.
    fn all(columns: usize) -> Vec<(String, Command)> {
        fn add(path: &str, command: Command, all: &mut Vec<(String, Command)>) {
            let path = format!("{path} {}", command.get_name());
            command.get_subcommands().for_each(|below| add(&path, below.clone(), all));
            all.push((path, command));
        }
        let mut found = Vec::new();
        add("", wrap_help(Cli::command(), columns), &mut found);
        assert!(found.len() > 20);
        found
    }

    /// Returns the words of a help, each with the line that it ends, if any.
    fn words(help: &str) -> Vec<(&str, Option<&str>)> {
        let of_line = |line| {
            let words: Vec<&str> = str::split_whitespace(line).collect();
            let last = words.len().saturating_sub(1);
            let ends = move |at| (at == last).then_some(line);
            words.into_iter().enumerate().map(move |(at, word)| (word, ends(at)))
        };
        help.lines().flat_map(of_line).collect()
    }

    /// A line ends where its source line ends or where it is full, on terminals of any width.
    #[test]
    fn no_line_of_any_help_is_broken_without_need() {
        for columns in [60, 80, 100] {
            for ((path, mut command), (_, mut wide)) in all(columns).into_iter().zip(all(9_999)) {
                let help = command.render_long_help().to_string();
                let wide_text = wide.render_long_help().to_string();
                let (words, wide) = (words(&help), words(&wide_text));
                assert_eq!(words.len(), wide.len(), "{path}: a word is lost");
                for (at, pair) in words.windows(2).enumerate() {
                    let (Some(line), None) = (pair[0].1, wide[at].1) else { continue };
                    let text = line.trim_start();
                    // A name alone, with its explanation on the next line.
                    let is_name = wide_text.contains(&format!("{text}  "));
                    let is_full = width(line) + 1 + width(pair[1].0) > columns;
                    assert!(is_full || is_name, "{path} at {columns}: {line:?}\n{help}");
                    assert!(width(line) <= columns || !text.contains(' '), "{path}: {line:?}");
                }
            }
        }
    }

    /// A line break inside a paragraph of the source would show on every terminal.
    #[test]
    fn a_paragraph_is_one_line_of_its_source() {
        let indent = |line: &str| width(line) - width(line.trim_start());
        for (path, command) in all(9_999) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2).filter(|pair| !pair.iter().any(|line| line.is_empty())) {
                let is_list = pair[0].ends_with(':') || pair[0].ends_with('|');
                let goes_on = match indent(pair[0]) {
                    0 => true,
                    indent_before => indent(pair[1]) > indent_before,
                };
                assert!(is_list || !goes_on, "{path}: {pair:?}");
            }
        }
    }

    /// An example that is cut in two could not be copied.
    #[test]
    fn an_example_fits_a_terminal_of_80_columns() {
        for (path, command) in all(9_999) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with("  ringq ")) {
                let command = line.trim_start().split("  ").next().unwrap();
                assert!(width(command) + 2 <= 80, "{path}: {command}");
            }
        }
    }

    #[test]
    fn entries_keep_their_column_and_paragraphs_the_margin() {
        let lines = |text: &str| wrap_line(text, 20);
        assert_eq!(lines("short  as it is"), ["short  as it is"]);
        assert_eq!(lines("some words that are too long"), ["some words that are", "too long"]);
        assert_eq!(lines("  75  given back, not tried"), ["  75  given back,", "      not tried"]);
        assert_eq!(
            lines("  ringq enqueue t --delay 5m"),
            ["  ringq enqueue t", "      --delay 5m"]
        );
        let far = "  ringq bench idle    latency of it";
        assert_eq!(lines(far), ["  ringq bench idle", "      latency of it"]);
    }
}
