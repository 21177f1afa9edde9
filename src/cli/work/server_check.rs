//! Check of the server at the start. Later the client library reconnects for as long as it takes, but a mistyped
//! address must be reported at once.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::Code;

use super::super::connect::ConnectArgs;
use super::super::exit::{CommandFailure, print_note};
use crate::backoff::{Backoff, BackoffRange};
use crate::pb::GetServerInfoRequest;

/// Time to wait for a server, which may be starting at the same time.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses between attempts.
const RETRY_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(100), max: Duration::from_secs(1) };

/// Waits until the server has answered.
pub(super) async fn wait_for_server(connect: &ConnectArgs) -> Result<(), CommandFailure> {
    let connection = connect.connection()?;
    let until = Instant::now() + START_TIMEOUT;
    let mut pauses = Backoff::new(RETRY_BACKOFF);
    let mut noted = false;
    loop {
        let mut admin = connection.client().admin();
        let request = connection.request(GetServerInfoRequest::default());
        let error = match connection.try_call(admin.get_server_info(request)).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let pause = pauses.next_delay();
        if !error.is_unavailable() || Instant::now() + pause > until {
            let failure = connection.failure("cannot take jobs", &error);
            return Err(match error.code() {
                // This command has no `--timeout`.
                Code::DeadlineExceeded => failure.with_hint("is a ringq server there?"),
                _ => failure,
            });
        }
        if !noted {
            print_note(&format!("waiting for {}", connection.client().url()));
            noted = true;
        }
        sleep(pause).await;
    }
}
