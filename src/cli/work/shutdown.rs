//! Reasons to stop a worker: signals, and a standard output without a reader.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::super::exit::{self, CommandFailure};
use super::reporter::WorkReporter;
use crate::config::io_problem;
use crate::stderr;

/// Time for releasing the jobs of killed commands.
const RELEASE_GRACE: Duration = Duration::from_secs(2);
/// Time to wait for the end of standard output: a command may notice a closed pipe slightly earlier than this
/// process.
const STDOUT_CLOSED_WAIT: Duration = Duration::from_millis(100);

/// Reason of a release if the command writes to a closed pipe.
pub(super) const STDOUT_CLOSED: &str = "standard output has no reader";

/// Reason to take no more jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// SIGTERM, or SIGHUP of a closed terminal.
    Terminated,
    /// Ctrl-C.
    Interrupted,
    /// The reader of standard output has closed it.
    StdoutClosed,
    /// Standard output cannot be written.
    StdoutFailed,
    /// A second signal, or SIGQUIT.
    Killed,
}

/// Watch of the reasons to stop. Clones share its state.
#[derive(Clone, Debug)]
pub(super) struct ShutdownWatch {
    reason: watch::Receiver<Option<StopReason>>,
    /// Sender of the error of standard output; the first one counts.
    unwritable: mpsc::Sender<io::Error>,
}

/// Signals that stop the process. Commands do not receive them: they have process groups of their own.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    /// SIGHUP. None: it is ignored, as under nohup.
    hangup: Option<Signal>,
}

// === impl StopReason ===

impl StopReason {
    /// Returns how the process ends for this reason.
    pub(super) fn exit_result(self) -> Result<(), CommandFailure> {
        match self {
            StopReason::Terminated | StopReason::StdoutClosed => Ok(()),
            StopReason::StdoutFailed => Err(CommandFailure::already_reported(exit::FAILED)),
            StopReason::Interrupted | StopReason::Killed => {
                Err(CommandFailure::already_reported(exit::INTERRUPTED))
            }
        }
    }
}

// === impl ShutdownWatch ===

impl ShutdownWatch {
    /// Watches from now on; standard output is watched only if commands write to it.
    pub(super) fn listen(report: Arc<WorkReporter>, stdout: bool) -> io::Result<ShutdownWatch> {
        let signals = Signals::listen()?;
        let stdout = if stdout { StdoutMonitor::watch() } else { None };
        let (sender, reason) = watch::channel(None);
        let (unwritable, errors) = mpsc::channel(1);
        tokio::spawn(watch_for_stop(signals, stdout, errors, sender, report));
        Ok(ShutdownWatch { reason, unwritable })
    }

    /// Returns the reason, if there is one already.
    pub(super) fn reason(&self) -> Option<StopReason> {
        *self.reason.borrow()
    }

    /// Waits until no more jobs are to be taken.
    pub(super) async fn stop_requested(&self) -> StopReason {
        self.wait_for_reason(|_| true).await
    }

    /// Waits until running commands are to be killed.
    pub(super) async fn kill_requested(&self) {
        self.wait_for_reason(|reason| reason == StopReason::Killed).await;
    }

    /// Waits until the jobs of killed commands should have been released.
    pub(super) async fn release_overdue(&self) {
        self.kill_requested().await;
        sleep(RELEASE_GRACE).await;
    }

    /// Returns whether the reader of standard output has closed it, or does so at this moment.
    pub(super) async fn is_stdout_closed(&self) -> bool {
        let closed = self.wait_for_reason(|reason| reason == StopReason::StdoutClosed);
        timeout(STDOUT_CLOSED_WAIT, closed).await.is_ok()
    }

    /// Reports that standard output cannot be written, and waits until no more jobs are taken. Returns the reason for
    /// releasing the job whose output is lost.
    pub(super) async fn report_write_error(&self, error: io::Error) -> String {
        let why = match error.kind() {
            io::ErrorKind::BrokenPipe => STDOUT_CLOSED.to_owned(),
            _ => format!("the output of the command could not be written: {}", io_problem(&error)),
        };
        // A full channel already has an error.
        let _ = self.unwritable.try_send(error);
        self.stop_requested().await;
        why
    }

    async fn wait_for_reason(&self, wanted: impl Fn(StopReason) -> bool) -> StopReason {
        let mut receiver = self.reason.clone();
        let found = receiver.wait_for(|reason| reason.is_some_and(&wanted)).await;
        match found.ok().and_then(|reason| *reason) {
            Some(reason) => reason,
            // The watching task is gone, so the runtime is ending, too.
            None => std::future::pending().await,
        }
    }
}

async fn watch_for_stop(
    mut signals: Signals,
    stdout: Option<StdoutMonitor>,
    mut errors: mpsc::Receiver<io::Error>,
    sender: watch::Sender<Option<StopReason>>,
    report: Arc<WorkReporter>,
) {
    let first = tokio::select! {
        signal = signals.first_signal() => signal,
        () = StdoutMonitor::closed(stdout) => StopReason::StdoutClosed,
        Some(error) = errors.recv() => match error.kind() {
            io::ErrorKind::BrokenPipe => StopReason::StdoutClosed,
            _ => {
                report.unwritable(&error);
                StopReason::StdoutFailed
            }
        },
    };
    let quits = first == StopReason::Killed;
    if !quits {
        report.stopping((first == StopReason::StdoutClosed).then_some(STDOUT_CLOSED));
        sender.send_replace(Some(first));
        signals.next_signal().await;
    }
    report.killing(if quits { "SIGQUIT" } else { "second signal" });
    sender.send_replace(Some(StopReason::Killed));
    // A third signal waits for nothing but the lines that are printed.
    signals.next_signal().await;
    stderr::flush();
    std::process::exit(exit::INTERRUPTED.into());
}

// === impl Signals ===

impl Signals {
    fn listen() -> io::Result<Signals> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = SignalKind::hangup();
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: if is_ignored(&status, hangup) { None } else { Some(signal(hangup)?) },
        })
    }

    async fn first_signal(&mut self) -> StopReason {
        let hangup = self.hangup.take();
        tokio::select! {
            reason = self.next_signal() => reason,
            () = recv_opt(hangup) => StopReason::Terminated,
        }
    }

    /// Returns the next signal. Hangups are ignored: a closed terminal sends two, and the second must not kill.
    async fn next_signal(&mut self) -> StopReason {
        tokio::select! {
            _ = self.terminate.recv() => StopReason::Terminated,
            _ = self.interrupt.recv() => StopReason::Interrupted,
            _ = self.quit.recv() => StopReason::Killed,
        }
    }
}

async fn recv_opt(signal: Option<Signal>) {
    match signal {
        Some(mut signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Returns whether the process of this `/proc/PID/status` was started with a signal ignored.
fn is_ignored(status: &str, signal: SignalKind) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal.as_raw_value() - 1) & 1 == 1)
}

/// Standard output, if its reader can close it.
struct StdoutMonitor(Sender);

// === impl StdoutMonitor ===

impl StdoutMonitor {
    fn watch() -> Option<StdoutMonitor> {
        let stdout = io::stdout().as_fd().try_clone_to_owned().ok()?;
        // Unchecked: the check would make it non-blocking for the commands, too. This process does not write to it
        // here. Fails for files, which have no reader that can close them.
        Sender::from_owned_fd_unchecked(stdout).ok().map(StdoutMonitor)
    }

    async fn closed(stdout: Option<StdoutMonitor>) {
        if let Some(StdoutMonitor(stdout)) = stdout
            && let Ok(ready) = stdout.ready(Interest::ERROR).await
            && ready.is_error()
        {
            return;
        }
        std::future::pending().await
    }
}
