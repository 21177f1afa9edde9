//! The start: is there a server? Afterwards the client library reconnects for as long as it takes,
//! but somebody who mistyped an address wants to know at once.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::Code;

use super::super::connect::Connect;
use super::super::exit::{Failure, note};
use crate::pauses::Pauses;
use crate::pb::GetServerInfoRequest;

/// How long a server is waited for, which may be starting at the same time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pauses between tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Ends when the server has answered.
pub(super) async fn reach(connect: &Connect) -> Result<(), Failure> {
    let connection = connect.connection()?;
    let until = Instant::now() + PATIENCE;
    let mut pauses = Pauses::new(PAUSE.0, PAUSE.1);
    let mut told = false;
    loop {
        let mut admin = connection.client().admin();
        let request = connection.request(GetServerInfoRequest::default());
        let error = match connection.ask(admin.get_server_info(request)).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let pause = pauses.pause();
        if !error.is_unavailable() || Instant::now() + pause > until {
            let failure = connection.failure("cannot take jobs", &error);
            return Err(match error.code() {
                // There is no `--timeout` here.
                Code::DeadlineExceeded => failure.hint("is a ringq server there?"),
                _ => failure,
            });
        }
        if !told {
            note(&format!("waiting for {}", connection.client().url()));
            told = true;
        }
        sleep(pause).await;
    }
}
