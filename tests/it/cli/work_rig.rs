//! `ringq work` as a process: its output, its exit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::{Server, eventually, job, millis, within};
use ringq::pb::JobSpec;

/// A running worker. Its standard output is read line by line; its standard error goes to a file.
pub(crate) struct Work {
    dir: TempDir,
    child: Child,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
}

/// A worker that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    /// Lines that were not read yet.
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: String,
}

/// Builds a job that is retained when it is done.
pub(crate) fn kept(topic: &str, id: &str) -> JobSpec {
    job(topic).with_id(id).with_retention(millis(600_000))
}

/// Returns whether a process lives; one that only waits to be reaped does not.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// Waits for the end of a process.
pub(crate) async fn gone(pid: &str) {
    eventually(&format!("process {pid} is gone"), async || (!lives(pid)).then_some(())).await;
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: &str, name: &str) {
    let kill = format!("kill -{name} {pid}");
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

// === impl Work ===

impl Work {
    /// Starts a worker of this server's topic `t`.
    pub(crate) fn start(server: &Server, exec: &str, args: &[&str]) -> Work {
        let url = format!("http://{}", server.grpc);
        let all = ["t", "--server", &url, "--exec", exec];
        Work::spawn(&[&all[..], args].concat())
    }

    /// Starts it in a shell that has run `before`.
    pub(crate) fn start_after(before: &str, server: &Server, exec: &str, args: &[&str]) -> Work {
        let url = format!("http://{}", server.grpc);
        let script = format!("{before}; exec \"$0\" \"$@\"");
        let all = ["work", "t", "--server", &url, "--exec", exec];
        let ringq = ["-c", &script, env!("CARGO_BIN_EXE_ringq")];
        Work::run("/bin/sh", Stdio::piped(), &[&ringq[..], &all, args].concat())
    }

    /// Starts `ringq work` with exactly these arguments.
    pub(crate) fn spawn(args: &[&str]) -> Work {
        Work::spawn_to(Stdio::piped(), args)
    }

    /// Starts it with another standard output.
    pub(crate) fn spawn_to(stdout: Stdio, args: &[&str]) -> Work {
        Work::run(env!("CARGO_BIN_EXE_ringq"), stdout, &[&["work"], args].concat())
    }

    fn run(program: &str, stdout: Stdio, args: &[&str]) -> Work {
        let dir = tempfile::Builder::new().prefix("ringq-work-").tempdir().unwrap();
        let stderr = fs::File::create(dir.path().join("stderr")).unwrap();
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(dir.path());
        command.args(args).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let stdout = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        Work { dir, child, stdout }
    }

    /// Waits for the next line of standard output.
    pub(crate) async fn line(&mut self) -> String {
        let lines = self.stdout.as_mut().expect("it was closed");
        let line = within("a line of standard output", lines.next_line()).await.unwrap();
        line.unwrap_or_else(|| panic!("it ended:\n{}", self.stderr()))
    }

    /// Closes the reading end of its standard output.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Returns its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap()
    }

    /// Waits until its standard error contains `text`.
    pub(crate) async fn prints(&self, text: &str) {
        let contains = async || self.stderr().contains(text).then_some(());
        eventually(&format!("stderr contains {text:?}"), contains).await;
    }

    /// Returns a file in the directory in which commands run.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates the file `go`, for which commands wait.
    pub(crate) fn go(&self) {
        touch(&self.file("go"));
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child.id().expect("it has ended").to_string(), name);
    }

    /// Waits for its end.
    pub(crate) async fn done(mut self) -> Done {
        let mut stdout = Vec::new();
        while let Some(lines) = &mut self.stdout {
            match within("its end", lines.next_line()).await.unwrap() {
                Some(line) => stdout.push(line),
                None => break,
            }
        }
        let status = within("its end", self.child.wait()).await.unwrap();
        let done = Done { code: status.code(), stdout, stderr: self.stderr() };
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        done
    }
}

fn touch(path: &Path) {
    fs::write(path, "").unwrap();
}
