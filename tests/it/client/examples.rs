//! The programs under `examples/`, run like a reader does.

use std::path::PathBuf;
use std::process::Output;

use tokio::process::Command;

use crate::harness::{Server, in_ci, within};

/// Returns the path of an example. Cargo builds examples before tests, beside the program.
fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_ringq")).parent().unwrap().join("examples").join(name)
}

async fn run(name: &str, server: &Server, args: &[&str]) -> Output {
    let mut command = Command::new(example(name));
    command.arg(format!("http://{}", server.grpc)).args(args).kill_on_drop(true);
    within(name, command.output()).await.unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    let mut lines: Vec<_> =
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn the_examples_do_what_they_show() {
    // A test run by its filter or with `--test it` alone does not build them.
    if !example("enqueue").exists() || !example("worker").exists() {
        assert!(!in_ci(), "the examples are missing: `cargo build --examples` first");
        eprintln!("skipped: the examples are missing, `cargo build --examples` first");
        return;
    }
    let server = Server::start().await;
    let enqueued = run("enqueue", &server, &["greetings", "Ada", "Grace", "Echo"]).await;
    let created = ["Ada", "Echo", "Grace"].map(|name| format!("{name} ENQUEUE_OUTCOME_CREATED"));
    assert_eq!(lines(&enqueued), created);
    let again = run("enqueue", &server, &["greetings", "Ada"]).await;
    assert_eq!(lines(&again), ["Ada ENQUEUE_OUTCOME_UNCHANGED"]);

    let worked = run("worker", &server, &["greetings", "4"]).await;
    let expected = ["3 acked, 1 failed", "Hello, Ada!", "Hello, Echo!", "Hello, Grace!"];
    assert_eq!(lines(&worked), expected);

    let usage = Command::new(example("worker")).output().await.unwrap();
    assert!(!usage.status.success() && usage.stdout.is_empty());
}
