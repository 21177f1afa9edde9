//! Program under test: a process, its environment, its output.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::record::{Check, Failure, Log, Record};

/// Process of a worker or producer. It and its children are killed when this is dropped.
pub(crate) struct Program {
    pid: Pid,
    exit: tokio::sync::watch::Receiver<Option<ExitStatus>>,
}

/// Counts in the last line of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) acked: u64,
    pub(crate) nacked: u64,
    pub(crate) released: u64,
    pub(crate) lost: u64,
}

/// Lines of one output in the log.
type Lines = fn(&mut Log) -> &mut Vec<String>;

// === impl Program ===

impl Program {
    /// Starts a command line with these variables; other `RINGQ_…` variables are removed.
    pub(crate) fn start(
        command: &str,
        arguments: &[String],
        variables: &[(String, String)],
        folder: &Path,
        record: &Arc<Record>,
    ) -> Check<Program> {
        let mut program = Command::new("sh");
        program.args(["-c", &format!("exec {command} \"$@\""), "sh"]).args(arguments);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RINGQ_")) {
            program.env_remove(name);
        }
        program.envs(variables.iter().cloned()).env("TMPDIR", folder);
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let failed = |error| Failure(format!("{command} starts: {error}"));
        let mut child = program.spawn().map_err(failed)?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or_else(|| Failure(format!("{command} starts: it has no pid")))?;
        let stdout = child.stdout.take().unwrap();
        let stderr = child.stderr.take().unwrap();
        let read = |kept: Lines| (Arc::clone(record), kept);
        let lines = [
            tokio::spawn(keep_lines(stdout, read(|log| &mut log.stdout))),
            tokio::spawn(keep_lines(stderr, read(|log| &mut log.stderr))),
        ];
        let (ended, exit) = tokio::sync::watch::channel(None);
        tokio::spawn(wait(child, lines, Arc::clone(record), ended));
        Ok(Program { pid, exit })
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let _ = kill_process(self.pid, Signal::TERM);
    }

    pub(crate) fn kill(&self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self, within: Duration) -> Check<ExitStatus> {
        let mut exit = self.exit.clone();
        let ended = timeout(within, exit.wait_for(Option::is_some)).await;
        let late = || Failure::late("the program ends", within);
        let ended = ended.map_err(|_| late())?;
        ended.ok().and_then(|exit| *exit).ok_or_else(late)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.exit.borrow().is_none() {
            self.kill();
        }
    }
}

/// Waits for the end of a process and of its output, and records it.
async fn wait(
    mut child: Child,
    lines: [tokio::task::JoinHandle<()>; 2],
    record: Arc<Record>,
    ended: tokio::sync::watch::Sender<Option<ExitStatus>>,
) {
    let status = child.wait().await.unwrap_or_default();
    // A child of its own may keep the pipes open.
    let _ = timeout(Duration::from_millis(500), futures::future::join_all(lines)).await;
    record.note(format!("program: {status}"));
    record.write(|log, _| log.exit = Some(status.to_string()));
    ended.send_replace(Some(status));
}

async fn keep_lines(output: impl AsyncRead + Unpin, (record, kept): (Arc<Record>, Lines)) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        record.note(format!("program: {}", line.chars().take(300).collect::<String>()));
        record.write(|log, _| kept(log).push(line));
    }
}

// === impl Stopped ===

impl Stopped {
    /// Reads the last line of a worker.
    pub(crate) fn from_lines(lines: &[String]) -> Option<Stopped> {
        let line = lines.iter().rev().map(|line| line.trim()).find(|line| !line.is_empty())?;
        let line = line.strip_prefix("stopped: ")?;
        let count = |name: &str| {
            let mut fields = line.split_whitespace().filter_map(|field| field.split_once('='));
            fields.find(|(field, _)| *field == name)?.1.parse().ok()
        };
        Some(Stopped {
            acked: count("acked")?,
            nacked: count("nacked")?,
            released: count("released")?,
            lost: count("lost")?,
        })
    }
}
