use std::collections::HashSet;
use std::fs;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::{command, finish, piped, ringq};
use crate::harness::{Server, Setup, millis, within};

/// As many lines as the target of the command line is about.
const MANY: usize = 100_000;

#[tokio::test]
async fn a_hundred_thousand_lines_become_as_many_jobs_in_their_order() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.txt");
    let lines: Vec<String> = (0..MANY).map(|n| format!("{{\"n\":{n}}}")).collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let begin = Instant::now();
    let ran = ringq(&server, &["enqueue", "bulk", "--lines", file.to_str().unwrap()]).await;
    println!("{MANY} lines took {:?}", begin.elapsed());
    assert_eq!(ran.stderr, format!("{MANY} enqueued\n"));
    let stdout = ran.ok();
    let ids: Vec<&str> = stdout.lines().collect();
    assert_eq!(ids.len(), MANY);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), MANY, "ids are different");
    let client = server.connect().await;
    assert_eq!(client.stats("bulk").await.ready, i64::try_from(MANY).unwrap());
    for place in [0, 499, 500, 77_777, MANY - 1] {
        let payload = client.get("bulk", ids[place]).await.spec.unwrap().payload.unwrap();
        assert_eq!(payload.bytes(), lines[place].as_bytes(), "id {place} belongs to its line");
    }
}

#[tokio::test]
async fn bad_lines_are_told_by_their_number_and_good_ones_go_through() {
    let server = Server::start().await;
    let mut input = b"one\n\ntwo\r\n".to_vec();
    input.extend(vec![b'x'; 2 << 20]);
    input.extend(b"\nthree \n");
    input.extend(vec![b'y'; 6 << 20]);
    input.extend(b"\n\xff\xfe");
    let ran = piped(&server, &["enqueue", "mail", "--lines", "-"], &input).await;
    let says = ["ringq: line 4 of standard input: ", "line 6 of standard input", "4 enqueued, 2"];
    let ran = ran.fails(1, &says);
    let client = server.connect().await;
    let mut payloads = Vec::new();
    for id in ran.stdout.lines() {
        let payload = client.get("mail", id).await.spec.unwrap().payload.unwrap();
        payloads.push(payload.bytes().to_vec());
    }
    assert_eq!(payloads, [&b"one"[..], b"two", b"three ", b"\xff\xfe"]);
}

#[tokio::test]
async fn a_mistake_in_the_flags_is_told_once() {
    let server = Server::start().await;
    let ran = piped(&server, &["enqueue", "no topic", "--lines", "-"], b"a\nb\nc\n").await;
    let ran = ran.fails(1, &["stopped at line 1", "TOPIC"]);
    assert_eq!(ran.stderr.lines().count(), 2, "{}", ran.stderr);
    let none = ringq(&server, &["enqueue", "mail", "--lines", "/nowhere"]).await;
    none.fails(2, &["cannot read /nowhere: no such file"]);
    let none = ringq(&server, &["enqueue", "mail", "--lines", "/"]).await;
    none.fails(2, &["directory"]);
}

#[tokio::test]
async fn a_run_with_ids_can_be_repeated() {
    let server = Server::start().await;
    for flags in [&["--id-from-payload"][..], &["--request-id", "run-1"]] {
        let topic = flags[0].trim_start_matches('-');
        let args: Vec<_> =
            ["enqueue", topic, "--lines", "-"].iter().chain(flags).copied().collect();
        let first = piped(&server, &args, b"a\n\nb\n").await;
        assert_eq!(first.stderr, "2 enqueued\n");
        let second = piped(&server, &args, b"a\n\nb\n").await;
        assert_eq!(second.stderr, "2 enqueued, 2 of them were there already\n");
        assert_eq!(first.stdout, second.stdout);
        if topic == "request-id" {
            assert_eq!(first.stdout, "r:run-1:1\nr:run-1:3\n");
        }
        assert_eq!(server.connect().await.stats(topic).await.ready, 2);
    }
    let quiet = piped(&server, &["enqueue", "mail", "--lines", "-", "--quiet"], b"a\n").await;
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[tokio::test]
async fn json_has_a_row_for_each_line() {
    let server = Server::start().await;
    let input = [&b"a\n"[..], &vec![b'x'; 2 << 20], b"\nb\n"].concat();
    let args = ["enqueue", "mail", "--lines", "-", "-o", "json"];
    let ran = piped(&server, &args, &input).await.fails(1, &["line 2"]);
    let rows: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0]["outcome"], "ENQUEUE_OUTCOME_CREATED");
    assert_eq!(rows[1]["error"]["reason"], "TOO_LARGE");
}

#[tokio::test]
async fn a_slow_producer_is_not_waited_for() {
    let server = Server::start().await;
    let mut command = command(server.grpc, &["enqueue", "mail", "--lines", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        stdin.write_all(b"job\n").await.unwrap();
        let id = within("the id", ids.next_line()).await.unwrap();
        assert!(id.is_some());
    }
    drop(stdin);
    assert_eq!(finish(child).await.code, 0);
}

#[tokio::test]
async fn a_reader_that_leaves_does_not_stop_the_jobs() {
    let server = Server::start().await;
    let mut command = command(server.grpc, &["enqueue", "mail", "--lines", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"first\n").await.unwrap();
    within("the id", ids.next_line()).await.unwrap();
    drop(ids);
    stdin.write_all(&b"more\n".repeat(5_000)).await.unwrap();
    drop(stdin);
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "5001 enqueued\n"));
    assert_eq!(server.connect().await.stats("mail").await.ready, 5_001);
}

#[tokio::test]
async fn a_server_that_goes_away_leaves_a_true_account() {
    let mut server = Setup::new().restartable().start().await;
    let args = ["enqueue", "mail", "--lines", "-", "--timeout", "1s"];
    let mut child = command(server.grpc, &args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(&b"in\n".repeat(10)).await.unwrap();
    for _ in 0..10 {
        within("the id", ids.next_line()).await.unwrap().unwrap();
    }
    server.kill().await;
    stdin.write_all(&b"out\n".repeat(10)).await.unwrap();
    let ran = finish(child).await;
    let says =
        ["stopped at line 11 of standard input", "surely enqueued: 10 lines", "from line 11"];
    ran.fails(4, &says);
    server.restart().await;
    assert_eq!(server.connect().await.stats("mail").await.ready, 10);
}

#[tokio::test]
async fn a_restart_of_the_server_is_lived_through() {
    let mut server = Setup::new().restartable().start().await;
    let args = ["enqueue", "mail", "--lines", "-", "--request-id", "r"];
    let mut child = command(server.grpc, &args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"before\n").await.unwrap();
    within("the id", ids.next_line()).await.unwrap().unwrap();
    server.kill().await;
    stdin.write_all(b"meanwhile\n").await.unwrap();
    tokio::time::sleep(millis(300)).await;
    server.restart().await;
    within("the id", ids.next_line()).await.unwrap().unwrap();
    drop(stdin);
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "2 enqueued\n"));
}

#[tokio::test]
async fn ctrl_c_tells_how_far_it_came() {
    let server = Server::start().await;
    let mut command = command(server.grpc, &["enqueue", "mail", "--lines", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"a\nb\n").await.unwrap();
    for _ in 0..2 {
        within("the id", ids.next_line()).await.unwrap().unwrap();
    }
    let script = format!("kill -INT {}", child.id().unwrap());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let says = ["ringq: interrupted", "surely enqueued: 2 lines", "go on from line 3"];
    finish(child).await.fails(130, &says);
}
