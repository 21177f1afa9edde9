//! One run of the command: a shell in a process group of its own, what goes in, what comes out.
//!
//! Whatever ends a run (its handler's future is dropped when the job is taken away), the whole group
//! dies with it, unless the shell has ended by itself: what it left in the background is then left
//! alone, and keeps nobody waiting.

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

use super::process_group::is_alive;
use super::result::CapturedStdout;
use super::stderr::Stderr;
use super::stdout::{BufferedStdout, SharedStdout, WriteInProgress};

/// Not looked for in PATH: system(3) does not, either.
const SHELL: &str = "/bin/sh";
/// A pipe always takes so much at once, however many pipes there are: a page.
const PIPE_BYTES: usize = 4096;
/// From SIGTERM to SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(3);
/// A process that the shell left behind may hold its pipes open; they are not read for longer.
const ORPHAN_PIPE_TIMEOUT: Duration = Duration::from_millis(200);
/// Nobody tells when the last process of a group has gone: the pauses between looks, growing.
const GROUP_POLL_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(320));

/// What is to be run.
pub(super) struct CommandSpec<'a> {
    pub(super) exec: &'a str,
    pub(super) variables: Vec<(String, String)>,
    pub(super) stdin: &'a [u8],
    pub(super) timeout: Option<Duration>,
    pub(super) stdout: CommandStdout<'a>,
}

/// Where standard output goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum CommandStdout<'a> {
    /// It is ours.
    Inherited,
    /// It is the result.
    Result,
    /// To ours, but all at once: others write there, too.
    Shared(&'a SharedStdout),
}

/// How a run ended.
#[derive(Debug)]
pub(super) enum CommandEnd {
    /// By itself, or by a signal from elsewhere.
    Exited(ExitStatus),
    /// It took longer than its timeout.
    TimedOut,
    /// A second signal came.
    Killed,
    /// It could not be started.
    NotStarted(io::Error),
}

/// A run that is over.
#[derive(Debug)]
pub(super) struct FinishedCommand {
    pub(super) end: CommandEnd,
    /// The end of its standard error.
    pub(super) stderr: String,
    /// Its standard output, if that is the result.
    pub(super) result: CapturedStdout,
    /// Whether its standard output was written, where that was up to us.
    pub(super) written: io::Result<()>,
}

/// What a command writes.
struct CommandOutput {
    stderr: Stderr,
    result: CapturedStdout,
    grouped: Option<BufferedStdout>,
}

/// A shell and its process group.
struct Process {
    child: Child,
    group: Option<Pid>,
}

/// Whether commands can be run at all.
pub(super) async fn probe() -> io::Result<()> {
    let mut shell = Command::new(SHELL);
    shell.args(["-c", ":"]).stdin(Stdio::null()).status().await.map(drop)
}

/// Runs it to its end, or until `killed` ends. Dropping the future kills it.
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
    /// Without `pre_exec`, a user or a directory the standard library takes `posix_spawn`, which does
    /// not copy this process.
    fn spawn(order: &CommandSpec<'_>) -> io::Result<Process> {
        let mut command = Command::new(SHELL);
        command.args(["-c", order.exec]).process_group(0).stderr(Stdio::piped());
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

    /// All that flows in and out, until every pipe is closed.
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
        // While our standard output takes its time there may be more in the pipe.
        while !streams.is_terminated()
            && timeout(ORPHAN_PIPE_TIMEOUT, streams.as_mut()).await.is_err()
            && writing.is_under_way()
        {}
        end
    }

    /// Waits for the shell, and goes on reading and writing meanwhile.
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

    /// Ends the whole group, gently if it can.
    async fn terminate(&mut self, mut streams: Pin<&mut impl FusedFuture<Output = ()>>) {
        self.signal(Signal::TERM);
        let gone = async {
            let _ = self.exit(streams.as_mut()).await;
            let Some(group) = self.group else { return };
            let mut pause = GROUP_POLL_BACKOFF.0;
            // It reads much where there are many processes.
            while let Ok(true) = spawn_blocking(move || is_alive(group)).await {
                sleep(pause).await;
                pause = GROUP_POLL_BACKOFF.1.min(pause * 2);
            }
        };
        if timeout(KILL_GRACE, gone).await.is_err() {
            self.signal(Signal::KILL);
            let _ = self.exit(streams).await;
        }
    }

    /// As long as one of the group lives its number belongs to it.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Gone already: just what is wanted.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Not waited for yet: the job was taken away while it ran.
        if self.child.id().is_some() {
            self.signal(Signal::KILL);
        }
    }
}

/// A payload that a pipe takes at once is written before the command starts: no task and no wake-up
/// is needed for most jobs.
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

/// Writes what was too long for that. A command need not read it.
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

// === impl End ===

impl CommandEnd {
    /// Whether its arguments and variables were more than the machine takes.
    pub(super) fn is_too_big(&self) -> bool {
        let too_big = Some(Errno::TOOBIG.raw_os_error());
        matches!(self, CommandEnd::NotStarted(error) if error.raw_os_error() == too_big)
    }

    /// Whether it died of writing to a pipe that nobody reads.
    pub(super) fn is_broken_pipe(&self) -> bool {
        let CommandEnd::Exited(status) = self else { return false };
        let signal = Signal::PIPE.as_raw();
        status.signal() == Some(signal) || status.code() == Some(128 + signal)
    }
}
