//! Run of the command: a shell in a process group of its own, its input and its output.
//!
//! Whenever a run ends (its handler's future is dropped if the lease is revoked) the whole process group is killed,
//! unless the shell has ended by itself: processes that it left in the background then go on, and the run does not
//! wait for them.

use std::io::{self, PipeWriter, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::FusedFuture;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::super::trace_context::CARRIERS;
use super::process_group::is_alive;
use super::result::CapturedStdout;
use super::stderr::Stderr;
use super::stdout::{BufferedStdout, SharedStdout, WriteInProgress};
use crate::backoff::BackoffRange;

/// Absolute path, not looked up in PATH, like in system(3).
const SHELL: &str = "/bin/sh";
/// Bytes that a pipe always accepts at once, however many pipes there are: a page.
const PIPE_BYTES: usize = 4096;
/// Time from SIGTERM to SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(3);
/// Time after which pipes are closed that a background process of the shell holds open.
const ORPHAN_PIPE_TIMEOUT: Duration = Duration::from_millis(200);
/// Growing pauses between checks for the end of a process group: the system does not report it.
const GROUP_POLL_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(20), max: Duration::from_millis(320) };

/// Input of a run.
pub(super) struct CommandSpec<'a> {
    pub(super) exec: &'a str,
    pub(super) variables: Vec<(String, String)>,
    pub(super) stdin: &'a [u8],
    pub(super) timeout: Option<Duration>,
    pub(super) stdout: CommandStdout<'a>,
}

/// Destination of standard output.
#[derive(Clone, Copy, Debug)]
pub(super) enum CommandStdout<'a> {
    /// Standard output of this process.
    Inherited,
    /// Result of the job.
    Result,
    /// Standard output of this process, written in one piece, because other commands write there, too.
    Shared(&'a SharedStdout),
}

/// End of a run.
#[derive(Debug)]
pub(super) enum CommandEnd {
    /// The command exited, or was killed by a signal from elsewhere.
    Exited(ExitStatus),
    /// The command ran longer than its timeout.
    TimedOut,
    /// The command was killed, because a second signal arrived.
    Killed,
    /// The command could not be started.
    NotStarted(io::Error),
}

/// Run that has ended.
#[derive(Debug)]
pub(super) struct FinishedCommand {
    pub(super) end: CommandEnd,
    /// End of its standard error.
    pub(super) stderr: String,
    /// Standard output, if that is the result.
    pub(super) result: CapturedStdout,
    /// Result of writing its standard output, if this process writes it.
    pub(super) written: io::Result<()>,
}

/// Output of a command.
struct CommandOutput {
    stderr: Stderr,
    result: CapturedStdout,
    grouped: Option<BufferedStdout>,
}

/// Shell with its process group.
struct Process {
    child: Child,
    group: Option<Pid>,
}

/// Checks that commands can be run at all.
pub(super) async fn probe() -> io::Result<()> {
    let mut shell = Command::new(SHELL);
    shell.args(["-c", ":"]).stdin(Stdio::null()).status().await.map(drop)
}

/// Runs the command to its end, or until `killed` ends. Dropping the future kills the command.
pub(super) async fn run(
    order: CommandSpec<'_>,
    killed: impl Future<Output = ()>,
) -> FinishedCommand {
    let grouped = match order.stdout {
        CommandStdout::Shared(shared) => Some(BufferedStdout::new(shared)),
        CommandStdout::Inherited | CommandStdout::Result => None,
    };
    let writing = grouped.as_ref().map(BufferedStdout::writing).unwrap_or_default();
    let mut written =
        CommandOutput { stderr: Stderr::new(), result: CapturedStdout::default(), grouped };
    let end = match Process::spawn(&order) {
        Ok(mut process) => {
            let streams = process.streams(order.stdin, &mut written);
            process.end(pin!(streams.fuse()), order.timeout, killed, &writing).await
        }
        Err(error) => CommandEnd::NotStarted(error),
    };
    let CommandOutput { stderr, result, grouped } = written;
    let written = match grouped {
        Some(grouped) => grouped.finish().await,
        None => Ok(()),
    };
    FinishedCommand { end, stderr: stderr.finish(), result, written }
}

// === impl Process ===

impl Process {
    /// Starts the shell. Without `pre_exec`, a user or a directory the standard library uses `posix_spawn`, which
    /// does not copy this process.
    fn spawn(order: &CommandSpec<'_>) -> io::Result<Process> {
        let mut command = Command::new(SHELL);
        command.args(["-c", order.exec]).process_group(0).stderr(Stdio::piped());
        // The worker's own trace context is not the job's.
        for (variable, _) in CARRIERS {
            command.env_remove(variable);
        }
        command.envs(order.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(stdin(order.stdin)?);
        match order.stdout {
            CommandStdout::Result | CommandStdout::Shared(_) => command.stdout(Stdio::piped()),
            CommandStdout::Inherited => command.stdout(Stdio::inherit()),
        };
        let child = command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Process { child, group })
    }

    /// Copies all input and output, until every pipe is closed.
    fn streams<'a>(
        &mut self,
        payload: &'a [u8],
        written: &'a mut CommandOutput,
    ) -> impl Future<Output = ()> + use<'a> {
        let (stdin, err, out) =
            (self.child.stdin.take(), self.child.stderr.take(), self.child.stdout.take());
        let CommandOutput { stderr, result, grouped } = written;
        async move {
            let err = async { read(err, async |from| stderr.copy(from).await).await };
            let out = async {
                match grouped {
                    Some(grouped) => read(out, async |from| grouped.copy(from).await).await,
                    None => read(out, async |from| result.copy(from).await).await,
                }
            };
            tokio::join!(feed(stdin, payload), err, out);
        }
    }

    async fn end(
        &mut self,
        mut streams: Pin<&mut impl FusedFuture<Output = ()>>,
        limit: Option<Duration>,
        killed: impl Future<Output = ()>,
        writing: &WriteInProgress,
    ) -> CommandEnd {
        let end = tokio::select! {
            biased;
            status = self.exit(streams.as_mut()) => status.map_or_else(CommandEnd::NotStarted, CommandEnd::Exited),
            () = killed => CommandEnd::Killed,
            () = sleep_opt(limit) => CommandEnd::TimedOut,
        };
        match end {
            CommandEnd::TimedOut => self.terminate(streams.as_mut()).await,
            CommandEnd::Killed => {
                self.signal(Signal::KILL);
                let _ = self.exit(streams.as_mut()).await;
            }
            CommandEnd::Exited(_) | CommandEnd::NotStarted(_) => {}
        }
        // While this process waits to write to its standard output, the pipe may hold more.
        while !streams.is_terminated()
            && timeout(ORPHAN_PIPE_TIMEOUT, streams.as_mut()).await.is_err()
            && writing.is_under_way()
        {}
        end
    }

    /// Waits for the shell; reads and writes meanwhile.
    async fn exit(
        &mut self,
        mut streams: Pin<&mut impl FusedFuture<Output = ()>>,
    ) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                status = self.child.wait() => return status,
                () = streams.as_mut(), if !streams.is_terminated() => {}
            }
        }
    }

    /// Ends the whole group: SIGTERM, and SIGKILL after a while.
    async fn terminate(&mut self, mut streams: Pin<&mut impl FusedFuture<Output = ()>>) {
        self.signal(Signal::TERM);
        let gone = async {
            let _ = self.exit(streams.as_mut()).await;
            let Some(group) = self.group else { return };
            let mut pause = GROUP_POLL_BACKOFF.min;
            // Reads much if there are many processes.
            while let Ok(true) = spawn_blocking(move || is_alive(group)).await {
                sleep(pause).await;
                pause = GROUP_POLL_BACKOFF.max.min(pause * 2);
            }
        };
        if timeout(KILL_GRACE, gone).await.is_err() {
            self.signal(Signal::KILL);
            let _ = self.exit(streams).await;
        }
    }

    /// Sends a signal to the group. Its number is not reused as long as one of its processes lives.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // An error means that the group is gone already, which is the aim.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The shell still runs: the lease was revoked.
        if self.child.id().is_some() {
            self.signal(Signal::KILL);
        }
    }
}

/// Builds the standard input. A payload that a pipe accepts at once is written before the command starts: most jobs
/// need no task and no wake-up.
fn stdin(payload: &[u8]) -> io::Result<Stdio> {
    if payload.is_empty() {
        return Ok(Stdio::null());
    }
    if payload.len() > PIPE_BYTES {
        return Ok(Stdio::piped());
    }
    let (reader, mut writer): (_, PipeWriter) = io::pipe()?;
    writer.write_all(payload)?;
    Ok(reader.into())
}

/// Writes a longer payload. A command need not read it.
async fn feed(stdin: Option<ChildStdin>, payload: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(payload).await;
    }
}

async fn read<R: AsyncRead>(from: Option<R>, copy: impl AsyncFnOnce(R)) {
    if let Some(from) = from {
        copy(from).await;
    }
}

async fn sleep_opt(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}

// === impl CommandEnd ===

impl CommandEnd {
    /// Returns whether arguments and variables exceed the limit of the system.
    pub(super) fn is_too_big(&self) -> bool {
        let too_big = Some(Errno::TOOBIG.raw_os_error());
        matches!(self, CommandEnd::NotStarted(error) if error.raw_os_error() == too_big)
    }

    /// Returns whether the command was killed because the reader of its standard output has gone.
    pub(super) fn is_broken_pipe(&self) -> bool {
        let CommandEnd::Exited(status) = self else { return false };
        let signal = Signal::PIPE.as_raw();
        status.signal() == Some(signal) || status.code() == Some(128 + signal)
    }
}
