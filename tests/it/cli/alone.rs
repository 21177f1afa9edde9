use std::net::SocketAddr;

use super::{command, finish};

/// The commands here make no connection.
const NO_SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

async fn alone(args: &[&str]) -> super::Ran {
    finish(command(NO_SERVER, args).spawn().unwrap()).await
}

#[tokio::test]
async fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = alone(&["completions", shell]).await.ok();
        for word in ["reschedule", "on-conflict", "--server", "token-file", "context"] {
            let word = word.trim_start_matches('-');
            assert!(script.contains(word), "{word} in the script for {shell}");
        }
    }
    alone(&["completions", "tcsh"]).await.fails(2, &["fish"]);
}

#[tokio::test]
async fn bash_accepts_its_completions() {
    let script = alone(&["completions", "bash"]).await.ok();
    // As a file: it is longer than an argument may be.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, script.as_bytes()).unwrap();
    let output = std::process::Command::new("bash").arg("-n").arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn settings_are_printed_as_a_file_that_gives_them_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ringq.toml");
    let first = alone(&["config", "--listen", "0.0.0.0:1234", "--insecure"]).await.ok();
    assert!(first.contains("listen = \"0.0.0.0:1234\""), "{first}");
    std::fs::write(&file, &first).unwrap();
    let second = alone(&["config", "--config", file.to_str().unwrap()]).await.ok();
    assert_eq!(first, second);
}

#[tokio::test]
async fn slips_in_the_file_are_reported_in_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ringq.toml");
    for (text, texts) in [
        ("listen = 127.0.0.1:7700", "line 1: text stands in quotes: listen = \"127.0.0.1:7700\""),
        ("threads = 2\nshutdown_grace = 30s", "line 2: text stands in quotes"),
        ("listen: \"x\"", "line 1: it is not written as key = \"value\""),
    ] {
        std::fs::write(&file, text).unwrap();
        alone(&["config", "--config", file.to_str().unwrap()]).await.fails(2, &[texts]);
    }
}

#[tokio::test]
async fn an_address_is_no_name() {
    let args = ["serve", "--listen", "localhost:24000"];
    alone(&args).await.fails(2, &["localhost is a name; write 127.0.0.1:24000"]);
}

#[tokio::test]
async fn a_misspelled_command_or_flag_is_suggested() {
    alone(&["enqeue"]).await.fails(2, &["'enqueue'"]);
    alone(&["enqueue", "mail", "x", "--prio", "3"]).await.fails(2, &["'--priority'"]);
}

#[tokio::test]
async fn help_and_version_are_commands_too() {
    let usage = "Usage: ringq";
    for args in [&["help"][..], &["help", "job"], &["job", "help"], &["help", "job", "list"]] {
        let help = alone(args).await.ok();
        assert!(help.contains(usage), "{args:?}: {help}");
    }
    assert_eq!(alone(&["version"]).await.ok(), alone(&["--version"]).await.ok());
}

#[tokio::test]
async fn a_data_directory_that_is_a_file_is_reported() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let shard = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
    let args: Vec<_> = shard.into_iter().chain(["--data-dir", path]).collect();
    alone(&args).await.fails(1, &[path, "not a directory", "choose another directory"]);
}
