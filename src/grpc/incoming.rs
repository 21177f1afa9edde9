//! Connections as they come.

use std::io;
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use tokio::net::{TcpListener, TcpStream};

use crate::pauses::Pauses;

/// First pause after a failed accept.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Longest pause after failed accepts: soon enough for a caller that connects meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The connections of `listener`, without end. tonic goes on at once after an error, so a process
/// that is out of files would spin: here an error is waited out.
pub(super) fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> + Send {
    let pauses = Pauses::new(PAUSE_MIN, PAUSE_MAX);
    unfold((listener, pauses), async |(listener, mut pauses)| {
        let connection = accept(&listener, &mut pauses).await;
        Some((Ok(connection), (listener, pauses)))
    })
}

async fn accept(listener: &TcpListener, pauses: &mut Pauses) -> TcpStream {
    loop {
        match listener.accept().await {
            // Without it a small answer waits for the acknowledgement of the one before.
            Ok((connection, _)) if connection.set_nodelay(true).is_ok() => {
                pauses.reset();
                return connection;
            }
            // It was closed before we came to it.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection, trying again");
                tokio::time::sleep(pauses.pause()).await;
            }
        }
    }
}
