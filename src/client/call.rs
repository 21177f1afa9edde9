//! A unary call with a timeout.

use std::time::Duration;

use tonic::{Request, Response, Status};

use super::servers::RepeatNumber;

/// Time for the network in addition to the timeout that the server gets.
const GRACE: Duration = Duration::from_secs(1);

/// Makes a call that the server ends after `limit`, and this side soon after. The timeout here is needed: tonic's
/// deadline does not run before there is a connection, and calls wait in line for one. A repeat, by its number, goes to
/// another of several servers.
pub(super) async fn call_with_timeout<M, T, F>(
    limit: Duration,
    repeat: usize,
    message: M,
    call: impl FnOnce(Request<M>) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request.extensions_mut().insert(RepeatNumber(repeat));
    match tokio::time::timeout(limit.saturating_add(GRACE), call(request)).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Status::deadline_exceeded("the server did not answer in time")),
    }
}
