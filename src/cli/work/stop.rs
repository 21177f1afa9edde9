//! What ends a worker: signals, and a standard output that nobody reads.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::super::exit::{self, Failure};
use super::report::Report;

/// How long giving back the jobs of killed commands may take.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// A command may hear of a closed pipe a moment before this process does.
const CLOSED_WAIT: Duration = Duration::from_millis(100);

/// Why no more jobs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// SIGTERM.
    Terminated,
    /// Ctrl-C.
    Interrupted,
    /// The reader of standard output went away.
    Closed,
    /// A second signal.
    Killed,
}

/// Hears of the end. Clones hear the same.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<Option<Reason>>);

/// Both signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

// === impl Reason ===

impl Reason {
    /// How the process ends for it.
    pub(super) fn end(self) -> Result<(), Failure> {
        match self {
            Reason::Terminated | Reason::Closed => Ok(()),
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
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(hear(signals, stdout, sender, report));
        Ok(Stop(receiver))
    }

    /// The reason so far.
    pub(super) fn reason(&self) -> Option<Reason> {
        *self.0.borrow()
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

    async fn until(&self, wanted: impl Fn(Reason) -> bool) -> Reason {
        let mut receiver = self.0.clone();
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
    reason: watch::Sender<Option<Reason>>,
    report: Arc<Report>,
) {
    let first = tokio::select! {
        signal = signals.next() => signal,
        () = Stdout::closed(stdout) => Reason::Closed,
    };
    report.stopping(first);
    reason.send_replace(Some(first));
    signals.next().await;
    report.killing();
    reason.send_replace(Some(Reason::Killed));
    // Somebody is in a hurry: a third signal waits for nothing.
    signals.next().await;
    std::process::exit(exit::INTERRUPTED.into());
}

// === impl Signals ===

impl Signals {
    fn listen() -> io::Result<Signals> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Signals { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> Reason {
        tokio::select! {
            _ = self.terminate.recv() => Reason::Terminated,
            _ = self.interrupt.recv() => Reason::Interrupted,
        }
    }
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
