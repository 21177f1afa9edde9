use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, ExitStatus, Stdio};

use ringq::pb::{DeleteRequest, JobSpec, JobState, RetryPolicy};
use tempfile::TempDir;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use crate::harness::{Client, Server, Setup, eventually, in_ci, job, millis, proto, within};

/// Path of the program, from the root of the project.
const PROGRAM: &str = "examples/json_worker.py";
const TOPIC: &str = "files";

/// The program, and the files that it counts the lines of.
struct LineCounter {
    dir: TempDir,
    child: Child,
}

// === impl LineCounter ===

impl LineCounter {
    /// Starts the program. `None`: python3 is missing; the test prints that and ends.
    fn start(server: &Server) -> Option<LineCounter> {
        let dir = tempfile::Builder::new().prefix("ringq-json-worker-").tempdir().unwrap();
        let output = |name: &str| std::fs::File::create(dir.path().join(name)).unwrap();
        let child = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAM))
            .arg(format!("http://{}", server.http))
            .arg(TOPIC)
            .env("no_proxy", "*")
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .kill_on_drop(true)
            .spawn();
        match child {
            Ok(child) => Some(LineCounter { dir, child }),
            Err(error) => {
                assert!(!in_ci(), "python3 is missing: {error}");
                eprintln!("skipped: python3 is missing");
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a job for the file of this name, which is also its id.
    fn job(&self, name: &str) -> JobSpec {
        let path = self.path(name);
        job(TOPIC).with_id(name).with_text(path.to_str().unwrap()).with_retention(millis(600_000))
    }

    /// Writes a file of so many lines.
    fn write(&self, name: &str, lines: usize) {
        std::fs::write(self.path(name), "line\n".repeat(lines)).unwrap();
    }

    /// Enqueues a job for a pipe. Returns the pipe once the program reads it: the job runs until it is dropped.
    async fn running(&self, client: &Client, name: &str) -> pipe::Sender {
        let path = self.path(name);
        let status = StdCommand::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success(), "mkfifo: {status}");
        client.enqueue(self.job(name)).await;
        eventually("the job runs", async || pipe::OpenOptions::new().open_sender(&path).ok()).await
    }

    /// Sends SIGTERM.
    fn terminate(&self) {
        let script = format!("kill -TERM {}", self.child.id().expect("the program has ended"));
        let status = StdCommand::new("sh").args(["-c", &script]).status().unwrap();
        assert!(status.success(), "{script}: {status}");
    }

    async fn exit(&mut self) -> ExitStatus {
        within("the program's end", self.child.wait()).await.unwrap()
    }

    /// Returns what it has written to `stdout` or `stderr`.
    fn output(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

async fn succeeds(client: &Client, id: &str) {
    client.until(TOPIC, id, JobState::Succeeded).await;
}

#[tokio::test]
async fn the_example_completes_jobs_and_retries_one_that_fails() {
    let server = Server::start().await;
    let client = server.connect().await;
    let Some(counter) = LineCounter::start(&server) else { return };
    for (lines, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        counter.write(name, lines);
        client.enqueue(counter.job(name)).await;
    }
    let retry = RetryPolicy { delays: vec![proto(millis(200))], ..Default::default() };
    client.enqueue(counter.job("late").with_retry(retry)).await;
    let failed = eventually("an attempt fails", async || {
        Some(client.get(TOPIC, "late").await).filter(|job| !job.last_error.is_empty())
    })
    .await;
    assert!(failed.last_error.starts_with("FileNotFoundError("), "{failed:?}");
    counter.write("late", 4);
    for name in ["a", "b", "c", "d", "late"] {
        succeeds(&client, name).await;
    }
    let mut lines: Vec<_> = counter.output("stdout").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["a 0", "b 1", "c 2", "d 3", "late 4"]);
    assert_eq!(counter.output("stderr"), "", "no call failed");
}

#[tokio::test]
async fn the_example_outlives_a_server_and_a_job_that_is_deleted() {
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    let Some(mut counter) = LineCounter::start(&server) else { return };
    // The server is away when the job ends: the Ack is repeated.
    let pipe = counter.running(&client, "away").await;
    server.kill().await;
    drop(pipe);
    eventually("a call fails", async || {
        counter.output("stderr").contains("Ack: URLError(").then_some(())
    })
    .await;
    server.restart().await;
    let client = server.connect().await;
    succeeds(&client, "away").await;
    assert_eq!(client.get(TOPIC, "away").await.deliveries, 1, "the first delivery was acked");

    let pipe = counter.running(&client, "deleted").await;
    let deleted = DeleteRequest { topic: TOPIC.into(), id: "deleted".into(), ..Default::default() };
    client.queue.clone().delete(deleted).await.unwrap();
    drop(pipe);
    eventually("the failure is logged", async || {
        counter.output("stderr").contains("\nAck: SETTLE_ERROR_NOT_FOUND: ").then_some(())
    })
    .await;

    // SIGTERM comes while a job runs: it ends, and no other begins.
    counter.write("next", 4);
    let pipe = counter.running(&client, "current").await;
    client.enqueue(counter.job("next")).await;
    counter.terminate();
    drop(pipe);
    let status = counter.exit().await;
    assert!(status.success(), "{status}: {}", counter.output("stderr"));
    assert_eq!(client.state(TOPIC, "current").await, JobState::Succeeded);
    assert_eq!(client.state(TOPIC, "next").await, JobState::Ready);
    assert_eq!(counter.output("stdout"), "away 0\ndeleted 0\ncurrent 0\n");
}
