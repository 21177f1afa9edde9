//! The end of a process: the signal that asks for it.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal as listen};
use tokio_util::sync::CancellationToken;

/// Exit code after a second signal: interrupted.
const INTERRUPTED: i32 = 130;

/// Listens to SIGTERM and SIGINT from now on. The future ends at the first; a second one ends the
/// process at once, which loses nothing but time: the leases of a dead server are given back.
///
/// Needs a tokio runtime.
///
/// # Errors
/// If the system refuses a signal handler.
pub fn signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let terminate = listen(SignalKind::terminate())?;
    let interrupt = listen(SignalKind::interrupt())?;
    let asked = CancellationToken::new();
    tokio::spawn(watch(terminate, interrupt, asked.clone()));
    Ok(asked.cancelled_owned())
}

async fn watch(mut terminate: Signal, mut interrupt: Signal, asked: CancellationToken) {
    next(&mut terminate, &mut interrupt).await;
    tracing::info!("shutting down, a second signal ends the process at once");
    asked.cancel();
    next(&mut terminate, &mut interrupt).await;
    tracing::warn!("second signal, ending at once");
    std::process::exit(INTERRUPTED);
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => (),
        _ = interrupt.recv() => (),
    }
}
