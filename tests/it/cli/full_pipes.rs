//! Commands whose output has a reader that stopped: leases are extended, calls go on, signals end them.

use std::io::{PipeReader, Read as _};
use std::process::Stdio;

use ringq::pb::JobState;
use tokio::process::Command;

use super::work_rig::{kept, signal};
use super::{command, finish};
use crate::harness::{Server, eventually, full_pipe, http_get, millis, within};

/// Command that writes more to its standard error than is held, and then runs longer than its lease.
const LOUD: &str = "head -c 3000000 /dev/zero | tr '\\0' '\\n' >&2; sleep 2.5";

fn work(server: &Server, args: &[&str]) -> Command {
    let mut work = command(server.grpc, &[&["work", "t", "--lease", "1s"], args].concat());
    work.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    work
}

/// Reads a pipe to its end.
async fn read(mut reader: PipeReader) -> String {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    read.await.unwrap().unwrap()
}

/// Waits until the job has this state; it was delivered once.
async fn once(server: &Server, id: &str, state: JobState) {
    let job = server.connect().await.until("t", id, state).await;
    assert_eq!(job.deliveries, 1, "its lease was extended");
}

#[tokio::test]
async fn a_worker_whose_standard_error_is_full_settles_jobs_and_ends() {
    let server = Server::start().await;
    let client = server.connect().await;
    let ids = ["a", "b", "c"];
    client.enqueue_all(ids.iter().map(|id| kept("t", id)).collect()).await;
    let (_reader, writer) = full_pipe();
    let exec = format!("[ $RINGQ_ID != a ] || {{ {LOUD}; }}");
    let args = ["--exec", &exec, "--max-jobs", "3"];
    let mut child = work(&server, &args).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    for id in ids {
        once(&server, id, JobState::Succeeded).await;
    }
    assert!(within("its end", child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn lines_lost_by_a_worker_are_counted_in_one_that_comes() {
    let server = Server::start().await;
    server.connect().await.enqueue(kept("t", "a")).await;
    let (reader, writer) = full_pipe();
    let exec = format!("[ $RINGQ_ID != a ] || {{ {LOUD}; }}");
    let args = ["--exec", &exec, "--max-jobs", "2"];
    let mut child = work(&server, &args).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    once(&server, "a", JobState::Succeeded).await;
    let text = tokio::spawn(read(reader));
    server.connect().await.enqueue(kept("t", "b")).await;
    assert!(within("its end", child.wait()).await.unwrap().success());
    let text = text.await.unwrap();
    assert!(
        text.contains(" lost: the reader of standard error did not take them\n"),
        "{}",
        text.len()
    );
}

#[tokio::test]
async fn a_worker_whose_standard_output_is_full_holds_its_job_and_ends() {
    let server = Server::start().await;
    server.connect().await.enqueue(kept("t", "a")).await;
    let (reader, writer) = full_pipe();
    let args = ["--exec", "echo done", "--max-jobs", "1", "-c", "2"];
    let mut child = work(&server, &args).stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    once(&server, "a", JobState::Running).await;
    tokio::time::sleep(millis(2_200)).await;
    once(&server, "a", JobState::Running).await;
    let (text, ended) = tokio::join!(read(reader), within("its end", child.wait()));
    assert!(ended.unwrap().success() && text.ends_with("done\n"));
    once(&server, "a", JobState::Succeeded).await;
}

#[tokio::test]
async fn a_command_that_ignores_its_input_and_leaves_its_pipes_open_is_not_waited_for() {
    let server = Server::start().await;
    let payload = "x".repeat(1_000_000);
    server.connect().await.enqueue(kept("t", "a").with_text(&payload)).await;
    let args = ["--exec", "sleep 60 & exit 0", "--max-jobs", "1", "-c", "2"];
    let ran = finish(work(&server, &args).spawn().unwrap()).await;
    assert_eq!(ran.code, 0);
    once(&server, "a", JobState::Succeeded).await;
}

fn lines(server: &Server, file: &std::path::Path) -> Command {
    command(server.grpc, &["enqueue", "t", "--lines", file.to_str().unwrap()])
}

#[tokio::test]
async fn an_import_ends_though_its_standard_error_is_full() {
    let server = Server::start().await;
    let file = server.database().with_extension("lines");
    // More lines are refused than are held.
    let long = "x".repeat(1_100_000);
    std::fs::write(&file, format!("one\n{long}\ntwo\n")).unwrap();
    let (_reader, writer) = full_pipe();
    let mut child = lines(&server, &file).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    assert_eq!(within("its end", child.wait()).await.unwrap().code(), Some(1));
    assert_eq!(server.connect().await.stats("t").await.ready, 2);
}

#[tokio::test]
async fn an_import_whose_standard_output_is_full_ends_by_a_signal_and_names_its_place() {
    let server = Server::start().await;
    let file = server.database().with_extension("lines");
    std::fs::write(&file, "line\n".repeat(20_000)).unwrap();
    let client = server.connect().await;
    client.enqueue(kept("t", "a")).await;
    let (_reader, writer) = full_pipe();
    let child = lines(&server, &file).stdout(writer).spawn().unwrap();
    eventually("lines are stored", async || (client.stats("t").await.ready >= 500).then_some(()))
        .await;
    signal(&child.id().unwrap().to_string(), "TERM");
    let ran = finish(child).await;
    ran.fails(143, &["--from-line 1 ", "not confirmed: from line 1 on", "terminated"]);
}

#[tokio::test]
async fn a_command_whose_standard_output_is_full_ends_by_ctrl_c() {
    let server = Server::start().await;
    server.connect().await.enqueue(kept("t", "a")).await;
    let (_reader, writer) = full_pipe();
    let child = command(server.grpc, &["topic", "list"]).stdout(writer).spawn().unwrap();
    eventually("it was answered", async || {
        let (_, metrics) = http_get(server.http, "/metrics").await;
        metrics.contains("ListTopics\"").then_some(())
    })
    .await;
    signal(&child.id().unwrap().to_string(), "INT");
    assert_eq!(finish(child).await.code, 130);
}
