//! The commands of a page: its ```console blocks of one kind run in a shell, in order, against one server, and must
//! print what the page shows; [`shape`](super::shape) has the rules of the comparison. Each command has to succeed,
//! unless the next one is `echo $?`.

use std::path::Path;
use std::process::{Command, Output};

use super::shape::matches;
use super::{in_project, page};
use crate::e2e::grpcurl::grpcurl;
use crate::harness::{Server, in_ci, within};

/// The addresses of the server in the pages: gRPC and HTTP.
const READER: [&str; 2] = ["127.0.0.1:7700", "127.0.0.1:7701"];

/// A command with its output.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_of_the_readme_prints_what_it_shows() {
    follow("README.md", "tour", 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_grpcurl_print_what_the_page_shows() {
    if grpcurl().await.is_some() {
        follow("docs/grpcurl.md", "grpcurl", 12).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_curl_print_what_the_page_shows() {
    if Command::new("curl").arg("--version").output().is_ok() {
        follow("docs/json.md", "curl", 13).await;
    } else {
        assert!(!in_ci(), "curl is missing");
        eprintln!("skipped: curl is missing");
    }
}

/// Runs all commands of one kind of a page, at least `least`.
async fn follow(path: &str, kind: &str, least: usize) {
    let server = Server::start().await;
    let steps = steps(&page(path), kind);
    assert!(steps.len() >= least, "{path} has only {} commands", steps.len());
    let directory = tempfile::tempdir().unwrap();
    let here = [server.grpc, server.http].map(|address| address.to_string());
    let replaced = |text: &str, from: [&str; 2], to: [&str; 2]| {
        text.replace(from[0], to[0]).replace(from[1], to[1])
    };
    let ours = [&*here[0], &*here[1]];
    let (mut status, mut wrong) = (0, Vec::new());
    for (index, step) in steps.iter().enumerate() {
        let (command, directory) =
            (replaced(&step.command, READER, ours), directory.path().to_owned());
        let url = format!("http://{}", here[0]);
        let run = tokio::task::spawn_blocking(move || type_in(&command, status, &url, &directory));
        let output = within("its end", run).await.unwrap();
        status = output.status.code().unwrap_or(-1);
        let text = replaced(&String::from_utf8_lossy(&output.stdout), ours, READER);
        let got: Vec<String> = text.lines().map(str::to_owned).collect();
        let ended_well = status == 0 || shows_status(steps.get(index + 1));
        if !ended_well || !matches(&step.output, &got) {
            let (want, got) = (step.output.join("\n"), got.join("\n"));
            let command = &step.command;
            wrong.push(format!("$ {command}\n--- page\n{want}\n--- exit {status}\n{got}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Runs a line of the tour in a shell that finds `ringq` and its server. `status`: exit status of the line before. A
/// pipe fails if any of its commands does.
fn type_in(command: &str, status: i32, url: &str, directory: &Path) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_ringq")).parent().unwrap();
    let tools = in_project(".tools/bin");
    #[expect(clippy::disallowed_methods, reason = "the path of a shell")]
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        // Standard error appears where it would on a terminal.
        .args(["-c", &format!("exec 2>&1; set -o pipefail; (exit {status}); {command}")])
        .current_dir(directory)
        .env("PATH", format!("{}:{}:{path}", binary.display(), tools.display()))
        .env("RINGQ_SERVER", url)
        .env("COLUMNS", "120")
        .output()
        .unwrap()
}

/// Returns the steps of all console blocks of that kind.
pub(super) fn steps(text: &str, kind: &str) -> Vec<Step> {
    let begin = format!("```console {kind}");
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            line if line == begin => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    steps.push(Step { command: command.to_owned(), output: Vec::new() });
                }
                // A command that continues in the next line.
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

/// Returns whether the next step shows the exit status: such a step may fail on purpose.
pub(super) fn shows_status(step: Option<&Step>) -> bool {
    step.is_some_and(|step| step.command == "echo $?")
}

#[test]
fn a_line_that_fails_is_reported_by_its_status() {
    let here = Path::new("/");
    assert_eq!(type_in("exit 3 | cat", 0, "", here).status.code(), Some(3));
    assert_eq!(type_in("echo $?", 3, "", here).stdout, b"3\n");
    assert!(type_in("echo $?", 3, "", here).status.success());
    let steps = steps("```console tour\n$ false\n$ echo $?\n1\n$ true\n```", "tour");
    assert!(shows_status(steps.get(1)) && !shows_status(steps.get(2)));
}
