//! Shutdown of the process by a signal.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal as listen};
use tokio_util::sync::CancellationToken;

use crate::stderr;

/// Exit code after a second signal: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// Installs handlers for SIGTERM and SIGINT. The future ends at the first signal. A second signal ends the process at
/// once, which loses only time: the leases of a dead server are released.
///
/// Needs a tokio runtime.
///
/// # Errors
/// The error of the system, if it rejects a signal handler.
pub fn signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let terminate = listen(SignalKind::terminate())?;
    let interrupt = listen(SignalKind::interrupt())?;
    let requested = CancellationToken::new();
    tokio::spawn(watch(terminate, interrupt, requested.clone()));
    Ok(requested.cancelled_owned())
}

async fn watch(mut terminate: Signal, mut interrupt: Signal, requested: CancellationToken) {
    next(&mut terminate, &mut interrupt).await;
    tracing::info!("received a signal, shutting down; a second signal ends the process at once");
    requested.cancel();
    next(&mut terminate, &mut interrupt).await;
    tracing::warn!("received a second signal, ending the process at once");
    stderr::flush();
    std::process::exit(INTERRUPTED);
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => (),
        _ = interrupt.recv() => (),
    }
}
