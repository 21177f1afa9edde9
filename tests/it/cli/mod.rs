//! The commands of `ringq` as processes, against a real server; a file per command.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they fail, and they measure real time from outside"
)]

/// `ringq completions`, `ringq config`.
mod alone;
/// `ringq bench`.
mod bench;
/// `ringq context`, and the contexts of other commands.
mod context;
/// `ringq enqueue` of one job.
mod enqueue;
mod full_pipes;
/// `ringq info`.
mod info;
/// `ringq job delete`.
mod job_delete;
/// `ringq job explain`.
mod job_explain;
/// `ringq job get`.
mod job_get;
/// `ringq job list`.
mod job_list;
/// `ringq job redrive`.
mod job_redrive;
/// `ringq job reschedule`.
mod job_reschedule;
/// `ringq enqueue --lines`.
mod lines;
/// Behaviour that all commands share: no server, wrong usage, help, closed pipes, colours.
mod manners;
/// `ringq work`: workers that an autoscaler stops.
mod scale_in;
/// Commands that name several servers.
mod servers;
/// `ringq shard`.
mod shard;
/// A terminal for commands.
mod terminal;
/// TLS, tokens and client certificates of commands.
mod tls;
/// `ringq token`.
mod token;
/// `ringq topic`.
mod topic;
/// `ringq topic purge`.
mod topic_purge;
/// `ringq enqueue --wait`.
mod wait;
/// `ringq work`: input of the command, and effect of its exit.
mod work;
/// `ringq work`: leases, signals, failures.
mod work_life;
/// `ringq work` as a process.
mod work_rig;
/// `ringq worker`.
mod worker;

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

use crate::harness::{Server, eventually, within};

/// The result of a command.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Builds a command for the server at `address`.
pub(super) fn command(address: SocketAddr, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringq"));
    command.env_clear().env("RINGQ_SERVER", format!("http://{address}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.args(args).kill_on_drop(true);
    command
}

/// Runs a command against a server to its end.
pub(super) async fn ringq(server: &Server, args: &[&str]) -> Ran {
    finish(command(server.grpc, args).spawn().unwrap()).await
}

/// Runs a command with this input.
pub(super) async fn piped(server: &Server, args: &[&str], input: &[u8]) -> Ran {
    let mut child = command(server.grpc, args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // Beside the command: neither may wait for the other.
    let writer = tokio::spawn(async move {
        let _ = stdin.write_all(&input).await;
    });
    let ran = finish(child).await;
    writer.await.unwrap();
    ran
}

/// Locks the file of a shard, so that it does not answer until the returned connection is dropped; the server has
/// noticed that already.
pub(super) async fn silenced(server: &Server, shard: &str) -> rusqlite::Connection {
    let holder = rusqlite::Connection::open(server.shard_file(shard)).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    eventually("the shard is left alone", async || {
        let _ = ringq(server, &["shard", "drain", shard]).await;
        (ringq(server, &["shard", "list"]).await.code == 4).then_some(())
    })
    .await;
    holder
}

/// Waits for the end of a started command and returns its result.
pub(super) async fn finish(child: Child) -> Ran {
    let output = within("the end of the command", child.wait_with_output()).await.unwrap();
    Ran {
        code: output.status.code().expect("an exit code, not a signal"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

// === impl Ran ===

impl Ran {
    /// Returns its output; it must have succeeded without an error text.
    #[track_caller]
    pub(super) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        assert!(!self.stderr.contains("ringq:"), "{}", self.stderr);
        assert!(!self.stdout.contains('\u{1b}'), "no colours in a pipe: {:?}", self.stdout);
        self.stdout
    }

    /// Returns its output as JSON.
    #[track_caller]
    pub(super) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).expect("JSON")
    }

    /// Checks that it failed with this code, with these texts on stderr and no other error.
    #[track_caller]
    pub(super) fn fails(self, code: i32, texts: &[&str]) -> Ran {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        for part in texts {
            assert!(self.stderr.contains(part), "{part:?} in:\n{}", self.stderr);
        }
        for never in ["panicked", "RUST_BACKTRACE", "Status {", "\u{1b}"] {
            assert!(!self.stderr.contains(never), "{never:?} in:\n{}", self.stderr);
        }
        self
    }
}

/// Returns the rows of a table by their first column; the first is the heading.
pub(super) fn rows(table: &str) -> Vec<Vec<String>> {
    table
        .lines()
        .map(|line| line.split("  ").map(|cell| cell.trim().to_owned()))
        .map(|cells| cells.filter(|cell| !cell.is_empty()).collect())
        .collect()
}
