use std::net::SocketAddr;

use super::{command, finish};

/// No command here talks to anybody.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

async fn alone(args: &[&str]) -> super::Ran {
    finish(command(NOBODY, args).spawn().unwrap()).await
}

#[tokio::test]
async fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = alone(&["completions", shell]).await.ok();
        for word in ["reschedule", "on-conflict", "--server"] {
            let word = word.trim_start_matches('-');
            assert!(script.contains(word), "{word} in the script for {shell}");
        }
    }
    alone(&["completions", "tcsh"]).await.fails(2, &["fish"]);
}

#[tokio::test]
async fn bash_accepts_its_completions() {
    let script = alone(&["completions", "bash"]).await.ok();
    let output = std::process::Command::new("bash").args(["-n", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn settings_are_printed_as_a_file_that_gives_them_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ringq.toml");
    let first = alone(&["config", "--listen", "0.0.0.0:1234"]).await.ok();
    assert!(first.contains("listen = \"0.0.0.0:1234\""), "{first}");
    std::fs::write(&file, &first).unwrap();
    let second = alone(&["config", "--config", file.to_str().unwrap()]).await.ok();
    assert_eq!(first, second);
}

#[tokio::test]
async fn slips_in_the_file_are_told_in_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ringq.toml");
    for (text, says) in [
        ("listen = 127.0.0.1:7700", "line 1: text stands in quotes: listen = \"127.0.0.1:7700\""),
        ("threads = 2\nshutdown_grace = 30s", "line 2: text stands in quotes"),
        ("listen: \"x\"", "line 1: it is not written as key = \"value\""),
    ] {
        std::fs::write(&file, text).unwrap();
        alone(&["config", "--config", file.to_str().unwrap()]).await.fails(2, &[says]);
    }
}

#[tokio::test]
async fn flags_of_other_programs_lead_to_ours() {
    for (flag, ours) in [
        ("--port", "--listen"),
        ("--port=1", "--listen"),
        ("--db", "--data-dir"),
        ("-p", "--listen"),
        ("--redis", "--shard"),
        ("--workers", "--threads"),
    ] {
        alone(&["serve", flag, "7700"]).await.fails(2, &[&format!("'{ours}'")]);
    }
    for (args, ours) in [
        (&["enqueue", "mail", "x", "--host", "h"][..], "--server"),
        (&["enqueue", "mail", "x", "--url=http://h"], "--server"),
        (&["enqueue", "mail", "x", "--in", "5m"], "--delay"),
        (&["enq", "mail", "x", "--eta", "5m"], "--at"),
        (&["enqueue", "mail", "x", "--retries", "3"], "--max-attempts"),
        (&["enqueue", "mail", "x", "--prio", "3"], "--priority"),
        (&["jobs", "list", "mail", "-n", "5"], "--limit"),
        (&["job", "reschedule", "mail", "a", "--in", "5m"], "--delay"),
        (&["work", "mail", "--workers", "3"], "--concurrency"),
        (&["work", "mail", "--timeout", "3s"], "--run-timeout"),
        (&["bench", "--queue", "x"], "--topic"),
    ] {
        let ran = alone(args).await.fails(2, &[&format!("'{ours}'")]);
        assert!(!ran.stderr.contains("as a value"), "{}", ran.stderr);
        // Not that of the flag which the parser would have offered.
        let usage = ran.stderr.lines().find(|line| line.starts_with("Usage: ringq ")).unwrap();
        assert!(usage.contains(" [OPTIONS] "), "{usage}");
    }
}

#[tokio::test]
async fn what_is_no_flag_here_is_told_in_words() {
    for (args, says) in [
        (&["enqueue", "mail", "--payload", "x"][..], "as in: ringq enqueue TOPIC 'hello'"),
        (&["enqueue", "mail", "--body=x"], "the payload stands by itself"),
        (&["enqueue", "mail", "--data", "x"], "the payload stands by itself"),
        (&["enqueue", "--queue", "mail", "x"], "as in: ringq enqueue TOPIC"),
        (&["job", "ls", "--topic", "mail"], "as in: ringq job list TOPIC"),
        (&["enqueue", "mail", "--file", "x"], "--lines FILE"),
        (&["enqueue", "mail", "x", "--json"], "-o json"),
        (&["info", "--json"], "-o json"),
        (&["topic", "list", "--redis", "x"], "--server names the server"),
        (&["enqueue", "mail", "hello", "world"], "stands in quotes"),
        (&["enqueue", "mail", "x", "--wait", "5s"], "--wait --wait-timeout 5s"),
        (&["serve", "redis://h"], "ringq serve --shard s0=redis://h"),
    ] {
        alone(args).await.fails(2, &[says]);
    }
}

/// No tip is better than one that leads astray.
#[tokio::test]
async fn what_is_only_spelled_alike_is_not_offered() {
    for args in [
        &["enqueue", "mail", "x", "--group", "g"][..],
        &["work", "mail", "--once"],
        &["demo", "--port", "1"],
        &["topic", "delete", "mail"],
        &["shard", "add", "s1"],
    ] {
        let ran = alone(args).await.fails(2, &["Usage: ringq"]);
        assert!(!ran.stderr.contains("similar"), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn an_address_is_no_name() {
    let args = ["serve", "--listen", "localhost:24000"];
    alone(&args).await.fails(2, &["localhost is a name; write 127.0.0.1:24000"]);
}

#[tokio::test]
async fn commands_of_other_programs_lead_to_ours() {
    for (command, ours) in
        [("stats", "topic stats"), ("list", "job list"), ("push", "enqueue"), ("enqeue", "enqueue")]
    {
        let ran = alone(&[command]).await.fails(2, &[&format!("'{ours}'")]);
        assert!(!ran.stderr.contains("shards"), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn help_and_version_are_commands_too() {
    let usage = "Usage: ringq";
    for args in [&["help"][..], &["help", "job"], &["job", "help"], &["help", "job", "list"]] {
        let help = alone(args).await.ok();
        assert!(help.contains(usage), "{args:?}: {help}");
    }
    assert_eq!(alone(&["version"]).await.ok(), alone(&["--version"]).await.ok());
    alone(&["-v"]).await.fails(2, &["`ringq --version`"]);
}

#[tokio::test]
async fn a_flag_that_comes_too_early_is_told_its_place() {
    for args in [
        &["--server", "http://x:1", "topic", "list"][..],
        &["topic", "--server=http://x:1", "list"],
        &["job", "-o", "json", "list", "mail"],
    ] {
        alone(args).await.fails(2, &["comes after the command"]);
    }
    let serve = alone(&["serve", "--server", "http://x:1"]).await.fails(2, &["--server"]);
    assert!(!serve.stderr.contains("after the command"), "{}", serve.stderr);
    // A variable that is set is no flag that must be given.
    let wrong = alone(&["job", "get"]).await.fails(2, &["Usage: ringq job get"]);
    assert!(!wrong.stderr.contains("--server"), "{}", wrong.stderr);
}

#[tokio::test]
async fn a_data_directory_that_is_a_file_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let shard = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
    let args: Vec<_> = shard.into_iter().chain(["--data-dir", path]).collect();
    alone(&args).await.fails(1, &[path, "not a directory", "choose another directory"]);
}
