//! The tour: every ```console block of the README whose info string says `tour` is typed into a
//! shell, in order, against one server, and must print what stands there.
//!
//! What differs from run to run is compared by its shape: times, durations, ids made by the server.
//! `…` stands for anything, at the end of a line or for whole lines.

use std::process::{Command, Output};

use super::readme;
use crate::harness::{PATIENCE, Server};

/// A command with what it prints.
#[derive(Debug)]
struct Step {
    command: String,
    output: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_prints_what_the_readme_shows() {
    let server = Server::start().await;
    let steps = steps(&readme());
    assert!(steps.len() >= 10, "a tour of {} commands is none", steps.len());
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for step in &steps {
        let url = format!("http://{}", server.grpc);
        let (command, directory) = (step.command.clone(), directory.path().to_owned());
        let run = tokio::task::spawn_blocking(move || type_in(&command, &url, &directory));
        let output = tokio::time::timeout(PATIENCE * 4, run).await.expect("an end").unwrap();
        let text = [output.stdout, output.stderr].concat();
        let got: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        if !matches(&step.output, &got) {
            let (want, got) = (step.output.join("\n"), got.join("\n"));
            wrong.push(format!("$ {}\n--- README\n{want}\n--- printed\n{got}", step.command));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Runs a line of the tour in a shell that finds `ringq` and its server.
fn type_in(command: &str, url: &str, directory: &std::path::Path) -> Output {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_ringq")).parent().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the path of a shell")]
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        // Standard error comes where it would on a terminal.
        .args(["-c", &format!("exec 2>&1; {command}")])
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", binary.display()))
        .env("RINGQ_SERVER", url)
        .env("COLUMNS", "120")
        .output()
        .unwrap()
}

/// The steps of all blocks.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```console tour" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    steps.push(Step { command: command.to_owned(), output: Vec::new() });
                }
                // A command that goes on in the next line.
                (None, Some(step)) if step.command.ends_with('\\') => {
                    step.command.truncate(step.command.len() - 1);
                    step.command.push_str(line.trim_start());
                }
                (None, Some(step)) => step.output.push(line.to_owned()),
                (None, None) => panic!("output without a command: {line}"),
            },
        }
    }
    steps
}

/// Whether the lines fit, each by its shape.
fn matches(want: &[String], got: &[String]) -> bool {
    match (want.split_first(), got.split_first()) {
        (None, None) => true,
        (Some((any, rest)), _) if any.trim() == "…" => {
            (0..=got.len()).any(|skip| matches(rest, &got[skip..]))
        }
        (Some((want, rest)), Some((got, others))) => fits(want, got) && matches(rest, others),
        _ => false,
    }
}

fn fits(want: &str, got: &str) -> bool {
    let (want, got) = (shape(want), shape(got));
    match want.split_once('…') {
        Some((start, end)) => got.starts_with(start) && got.ends_with(end),
        None => want == got,
    }
}

/// The line with every varying word replaced, and spaces told as one: columns move with them.
fn shape(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().map(word).collect();
    let mut shape: Vec<&str> = Vec::new();
    for word in words {
        match (shape.last().copied(), word) {
            // "2 ms"
            (Some(number), "ms" | "ms," | "s" | "s,") if number.parse::<f64>().is_ok() => {
                shape.pop();
                shape.push(SPAN);
            }
            // "5s ago" a moment later than "now"
            (Some(SPAN), "ago") => {
                shape.pop();
                shape.push("now");
            }
            _ => shape.push(word),
        }
    }
    shape.join(" ")
}

const SPAN: &str = "<span>";

/// The word, or what sort of word it is.
fn word(word: &str) -> &str {
    let bare = word.trim_matches(|c: char| "\",.;:()".contains(c));
    let digits = bare.chars().filter(char::is_ascii_digit).count();
    let is_time = (bare.len() >= 19 && bare.contains('T') && digits >= 14)
        || (bare.len() == 8 && digits == 6 && bare.matches(':').count() == 2);
    let is_span = digits > 0
        && bare.trim_start_matches(|c: char| c.is_ascii_digit() || "dhm.".contains(c)).len() <= 2
        && bare.ends_with(['s', 'm', 'h']);
    // The default name of a worker: host and process.
    let is_worker = bare.rsplit_once(':').is_some_and(|(host, process)| {
        !host.is_empty() && !process.is_empty() && process.chars().all(|c| c.is_ascii_digit())
    });
    match bare {
        "now" | "ago" => bare,
        _ if bare.contains('~') => "<id>",
        _ if is_time => "<time>",
        _ if is_span => SPAN,
        _ if is_worker => "<worker>",
        _ => word,
    }
}

#[test]
fn shapes_hide_only_what_varies() {
    let line = "welcome-7  READY   2026-11-21T10:25:16.283138Z  3m ago";
    assert_eq!(shape(line), "welcome-7 READY <time> now");
    assert_eq!(shape("11:15:29 mails/a  done in 2 ms"), "<time> mails/a done in <span>");
    assert_eq!(shape("created: (now) vm:19609"), shape("created: (12s ago) host:7"));
    assert_eq!(shape("due: (in 2d23h)"), shape("due: (in 2d22h)"));
    assert_eq!(shape("s0~01k7uq72vqeq2o1hn8dlm4rkuu"), "<id>");
    assert_eq!(shape("2 emails and 1 more"), "2 emails and 1 more");
    assert!(fits("error: …", "error: connection refused") && !fits("error: …", "warning: x"));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(matches(&lines("a\n…\nd"), &lines("a\nb\nc\nd")));
    assert!(!matches(&lines("a\n…\nd"), &lines("a\nb\nc")));
}
