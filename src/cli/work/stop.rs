//! What ends a worker: signals, and a standard output that nobody reads.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::super::exit::{self, Failure};
use super::report::Report;
use crate::config::io_problem;

/// How long giving back the jobs of killed commands may take.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// A command may hear of a closed pipe a moment before this process does.
const CLOSED_WAIT: Duration = Duration::from_millis(100);

/// Why a job is given back whose command writes to a closed pipe.
pub(super) const CLOSED: &str = "nobody reads standard output";

/// Why no more jobs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// SIGTERM, or SIGHUP of a terminal that was closed.
    Terminated,
    /// Ctrl-C.
    Interrupted,
    /// The reader of standard output went away.
    Closed,
    /// Standard output takes no more.
    Unwritable,
    /// A second signal, or SIGQUIT.
    Killed,
}

/// Hears of the end. Clones hear the same.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    reason: watch::Receiver<Option<Reason>>,
    /// Why standard output takes no more; the first time counts.
    unwritable: mpsc::Sender<io::Error>,
}

/// The signals that ask a process to end. Commands hear none of them: their groups are their own.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    /// None: it is ignored, as nohup has it.
    hangup: Option<Signal>,
}

// === impl Reason ===

impl Reason {
    /// How the process ends for it.
    pub(super) fn end(self) -> Result<(), Failure> {
        match self {
            Reason::Terminated | Reason::Closed => Ok(()),
            Reason::Unwritable => Err(Failure::told(exit::FAILED)),
            Reason::Interrupted | Reason::Killed => Err(Failure::told(exit::INTERRUPTED)),
        }
    }
}

// === impl Stop ===

impl Stop {
    /// Listens from now on; to the end of standard output only where commands write to it.
    pub(super) fn listen(report: Arc<Report>, stdout: bool) -> io::Result<Stop> {
        let signals = Signals::listen()?;
        let stdout = if stdout { Stdout::watch() } else { None };
        let (sender, reason) = watch::channel(None);
        let (unwritable, errors) = mpsc::channel(1);
        tokio::spawn(hear(signals, stdout, errors, sender, report));
        Ok(Stop { reason, unwritable })
    }

    /// The reason so far.
    pub(super) fn reason(&self) -> Option<Reason> {
        *self.reason.borrow()
    }

    /// Ends when no more jobs are to be taken.
    pub(super) async fn asked(&self) -> Reason {
        self.until(|_| true).await
    }

    /// Ends when running commands are to be killed.
    pub(super) async fn killed(&self) {
        self.until(|reason| reason == Reason::Killed).await;
    }

    /// Ends when commands were killed and their jobs are still not given back.
    pub(super) async fn overdue(&self) {
        self.killed().await;
        sleep(LAST_WORDS).await;
    }

    /// Whether the reader of standard output has gone away, or does so in this moment.
    pub(super) async fn is_closed(&self) -> bool {
        let closed = self.until(|reason| reason == Reason::Closed);
        timeout(CLOSED_WAIT, closed).await.is_ok()
    }

    /// Standard output cannot be written: no more jobs are to be taken, which is so when this ends. It
    /// says why the job whose output is lost is given back.
    pub(super) async fn unwritable(&self, error: io::Error) -> String {
        let why = match error.kind() {
            io::ErrorKind::BrokenPipe => CLOSED.to_owned(),
            _ => format!("its output could not be written: {}", io_problem(&error)),
        };
        // Full: it is known already.
        let _ = self.unwritable.try_send(error);
        self.asked().await;
        why
    }

    async fn until(&self, wanted: impl Fn(Reason) -> bool) -> Reason {
        let mut receiver = self.reason.clone();
        let heard = receiver.wait_for(|reason| reason.is_some_and(&wanted)).await;
        match heard.ok().and_then(|reason| *reason) {
            Some(reason) => reason,
            // The listener is gone, so the runtime is, too.
            None => std::future::pending().await,
        }
    }
}

async fn hear(
    mut signals: Signals,
    stdout: Option<Stdout>,
    mut errors: mpsc::Receiver<io::Error>,
    sender: watch::Sender<Option<Reason>>,
    report: Arc<Report>,
) {
    let first = tokio::select! {
        signal = signals.first() => signal,
        () = Stdout::closed(stdout) => Reason::Closed,
        Some(error) = errors.recv() => match error.kind() {
            io::ErrorKind::BrokenPipe => Reason::Closed,
            _ => {
                report.unwritable(&error);
                Reason::Unwritable
            }
        },
    };
    let quits = first == Reason::Killed;
    if !quits {
        report.stopping((first == Reason::Closed).then_some(CLOSED));
        sender.send_replace(Some(first));
        signals.next().await;
    }
    report.killing(if quits { "SIGQUIT" } else { "second signal" });
    sender.send_replace(Some(Reason::Killed));
    // Somebody is in a hurry: a third signal waits for nothing.
    signals.next().await;
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
            hangup: if ignores(&status, hangup) { None } else { Some(signal(hangup)?) },
        })
    }

    async fn first(&mut self) -> Reason {
        let hangup = self.hangup.take();
        tokio::select! {
            reason = self.next() => reason,
            () = heard(hangup) => Reason::Terminated,
        }
    }

    /// Without hangups: they come by twos when a terminal is closed, and that kills nothing.
    async fn next(&mut self) -> Reason {
        tokio::select! {
            _ = self.terminate.recv() => Reason::Terminated,
            _ = self.interrupt.recv() => Reason::Interrupted,
            _ = self.quit.recv() => Reason::Killed,
        }
    }
}

async fn heard(signal: Option<Signal>) {
    match signal {
        Some(mut signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether this process, of this `/proc/PID/status`, was started with a signal ignored.
fn ignores(status: &str, signal: SignalKind) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal.as_raw_value() - 1) & 1 == 1)
}

/// Standard output, if it is of a kind that can be closed by its reader.
struct Stdout(Sender);

// === impl Stdout ===

impl Stdout {
    fn watch() -> Option<Stdout> {
        let stdout = io::stdout().as_fd().try_clone_to_owned().ok()?;
        // Unchecked, for that would make it non-blocking for the commands, too. It is never written to
        // here. Refused for files, which no reader can close.
        Sender::from_owned_fd_unchecked(stdout).ok().map(Stdout)
    }

    async fn closed(stdout: Option<Stdout>) {
        if let Some(Stdout(stdout)) = stdout
            && let Ok(ready) = stdout.ready(Interest::ERROR).await
            && ready.is_error()
        {
            return;
        }
        std::future::pending().await
    }
}
