use std::net::SocketAddr;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{Ran, command, finish, ringq};
use crate::harness::{Server, job, within};

/// Calls of every command that connects to a server.
const CALLS: [&[&str]; 25] = [
    &["enqueue", "mail", "x"],
    &["enqueue", "mail", "x", "--wait"],
    &["enqueue", "mail", "--lines", "/dev/null"],
    &["job", "get", "mail", "a"],
    &["job", "list", "mail"],
    &["job", "delete", "mail", "a", "b"],
    &["job", "reschedule", "mail", "a", "--now"],
    &["job", "redrive", "mail", "--all"],
    &["topic", "list"],
    &["group", "list", "mail"],
    &["topic", "stats", "mail"],
    &["topic", "purge", "mail", "--state", "dead", "--yes"],
    &["worker", "list"],
    &["shard", "list"],
    &["shard", "drain", "s0", "--wait"],
    &["shard", "activate", "s0"],
    &["topic", "get", "mail"],
    &["group", "pause", "mail", "a"],
    &["group", "resume", "mail", "a"],
    &["group", "purge", "mail", "a", "--state", "dead", "--yes"],
    &["topic", "create", "mail"],
    &["topic", "set", "mail", "--priority", "1"],
    &["topic", "pause", "mail"],
    &["topic", "resume", "mail"],
    &["topic", "delete", "mail"],
];

/// An address without a listener.
const NO_SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

#[tokio::test]
async fn a_server_that_is_not_there_is_reported_with_what_to_do() {
    for args in CALLS.iter().copied().chain([&["info"][..]]) {
        let ran = finish(command(NO_SERVER, args).spawn().unwrap()).await;
        let texts = ["no connection to http://127.0.0.1:1", "connection refused", "`ringq serve`"];
        let ran = ran.fails(4, &texts);
        assert_eq!(ran.stderr.lines().count(), 2, "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout.trim().trim_matches(['[', ']']), "", "{args:?}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for_longer_than_asked() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let args = ["topic", "list", "--timeout", "300ms"];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    ran.fails(4, &["no answer from", "within 300ms", "--timeout"]);
}

#[tokio::test]
async fn the_server_is_named_in_several_ways() {
    let server = Server::start().await;
    let port = server.grpc.port();
    let urls =
        [format!("127.0.0.1:{port}"), format!(":{port}"), format!("http://localhost:{port}/")];
    for url in urls {
        let mut command = command(NO_SERVER, &["shard", "list", "--server", &url]);
        finish(command.spawn().unwrap()).await.ok();
    }
    let mut token = command(server.grpc, &["shard", "list"]);
    finish(token.env("RINGQ_TOKEN", "secret").spawn().unwrap()).await.ok();
    let help = finish(token.arg("--help").spawn().unwrap()).await.ok();
    assert!(!help.contains("secret"), "a token is not shown");
    for url in ["ftp://127.0.0.1", "http://", "http://a b", "http://127.0.0.1:1/path", "a:b"] {
        ringq(&server, &["shard", "list", "--server", url]).await.fails(2, &["--server"]);
    }
    // An empty variable counts as not set, and the default address may belong to another server.
    let mut empty = command(server.grpc, &["shard", "list", "--timeout", "1s"]);
    let ran = finish(empty.env("RINGQ_SERVER", "").spawn().unwrap()).await;
    assert!([0, 4].contains(&ran.code), "{}", ran.stderr);
}

#[tokio::test]
async fn a_port_of_something_else_is_reported() {
    let server = Server::start().await;
    for args in CALLS.iter().copied().chain([&["info"][..]]) {
        let ran = finish(command(server.http, args).spawn().unwrap()).await;
        let url = format!("http://{} is not a gRPC server", server.http);
        ran.fails(4, &[&url, "is it the HTTP port?", "7700"]);
    }
    // No process serves the port of HTTP here.
    let args = ["topic", "list", "--server", "http://localhost", "--timeout", "2s"];
    ringq(&server, &args).await.fails(4, &["http://localhost, port 80"]);
}

/// Runs a command that needs no server.
async fn without_server(args: &[&str]) -> Ran {
    finish(command(NO_SERVER, args).spawn().unwrap()).await
}

#[tokio::test]
async fn help_reports_the_defaults() {
    let help = without_server(&["enqueue", "--help"]).await.ok();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for default in [
        "[default: 25]",
        "[default: 1s, then twice",
        "else 30m]",
        "[default: 60s",
        "[default: never]",
        "[env: RINGQ_SERVER] [default: http://127.0.0.1:7700]",
    ] {
        assert!(help.contains(default), "{default}: {help}");
    }
}

#[tokio::test]
async fn help_has_examples_and_wrong_usage_a_code() {
    for args in CALLS.iter().copied().chain([&["serve"][..], &["config"], &["info"], &[]]) {
        let words = args.iter().take_while(|word| !word.starts_with('-')).take(2);
        let words: Vec<_> = words.copied().filter(|word| *word != "mail").collect();
        let args: Vec<_> = words.iter().copied().chain(["--help"]).collect();
        let help = without_server(&args).await.ok();
        assert!(help.contains("Example"), "{words:?}:\n{help}");
        let args: Vec<_> = words.iter().copied().chain(["--nonsense"]).collect();
        without_server(&args).await.fails(2, &["--nonsense"]);
    }
    let help = without_server(&["--help"]).await.ok();
    assert!(help.contains("130  interrupted"), "{help}");
    without_server(&["nonsense"]).await.fails(2, &["nonsense"]);
    without_server(&["topic"]).await.fails(2, &["list"]);
}

#[tokio::test]
async fn a_reader_that_leaves_is_no_failure() {
    let server = Server::start().await;
    let jobs = (0..5_000).map(|n| job("mail").with_id(format!("j{n}"))).collect();
    server.connect().await.enqueue_all(jobs).await;
    for args in [
        &["job", "list", "mail", "--limit", "0"][..],
        &["job", "list", "mail", "--limit", "0", "-o", "json"],
        &["info"],
        &["completions", "bash"],
    ] {
        let mut child = command(server.grpc, args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        within("a line", lines.next_line()).await.unwrap().unwrap();
        drop(lines);
        let ran = finish(child).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    }
    // The error output has no reader either.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command(NO_SERVER, &["topic", "list"]);
    let ran = finish(command.stderr(Stdio::from(writer)).spawn().unwrap()).await;
    assert_eq!(ran.code, 4);
}

#[tokio::test]
async fn colours_are_for_terminals() {
    let server = Server::start().await;
    server.connect().await.enqueue(job("mail").with_id("a")).await;
    for args in CALLS.iter().filter(|args| !args.contains(&"--wait")) {
        let mut command = command(server.grpc, args);
        let ran = finish(command.env("TERM", "xterm-256color").spawn().unwrap()).await;
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{ran:?}");
    }
    // As on a terminal, where colours are forced.
    let mut forced = command(server.grpc, &["topic", "list"]);
    let ran = finish(forced.env("CLICOLOR_FORCE", "1").spawn().unwrap()).await;
    assert!(ran.stdout.starts_with("\u{1b}[1mNAME"), "{:?}", ran.stdout);
    let ran =
        finish(forced.env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE").spawn().unwrap()).await;
    assert!(ran.stdout.starts_with("NAME"), "{:?}", ran.stdout);
}

/// Reported whatever the command does, and no reason for it to fail.
#[tokio::test]
async fn a_variable_that_no_reader_reads_is_reported() {
    let server = Server::start().await;
    let with = async |name: &str, value: &str| {
        let mut command = command(server.grpc, &["topic", "list"]);
        finish(command.env(name, value).spawn().unwrap()).await
    };
    for (name, texts) in [
        ("RINGQ_SERVR", "unknown variable RINGQ_SERVR; did you mean RINGQ_SERVER?"),
        ("RINGQ_TOKENS", "unknown variable RINGQ_TOKENS; did you mean RINGQ_TOKEN?"),
        ("RINGQ_TOKEN_FILES", "unknown variable RINGQ_TOKEN_FILES; did you mean RINGQ_TOKEN_FILE?"),
        (
            "RINGQ_URL",
            "unknown variable RINGQ_URL; commands read RINGQ_SERVER, RINGQ_TOKEN_FILE, RINGQ_TOKEN, \
             RINGQ_ALLOW_PLAINTEXT_TOKEN, RINGQ_CA, RINGQ_CERT, RINGQ_KEY, RINGQ_CONTEXT, RINGQ_CONTEXTS",
        ),
    ] {
        let ran = with(name, "x").await;
        let warned: Vec<_> = ran.stderr.lines().filter(|line| line.contains("variable")).collect();
        assert_eq!((ran.code, warned), (0, vec![&*format!("ringq: {texts}")]));
    }
    // Variables of a server, of a command of `ringq work`, and of a Kubernetes service called ringq.
    for name in ["RINGQ_LISTEN", "RINGQ_SHARDS", "RINGQ_HEADER_A", "RINGQ_ID", "RINGQ_SERVICE_HOST"]
    {
        with(name, "x").await.ok();
    }
    let mut alone = command(server.grpc, &["completions", "bash"]);
    finish(alone.env("RINGQ_SERVR", "x").spawn().unwrap()).await.ok();
}

#[tokio::test]
async fn a_server_without_tls_is_not_reported_to_be_away() {
    let server = Server::start().await;
    let url = format!("https://{}", server.grpc);
    let ran = ringq(&server, &["info", "--server", &url]).await;
    let ran = ran.fails(4, &["try http://", "write http:// in place of https://"]);
    assert!(!ran.stderr.contains("is it running?"), "{}", ran.stderr);
}
