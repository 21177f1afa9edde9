//! One unary call that ends in time.

use std::time::Duration;

use tonic::{Request, Response, Status};

/// What the network may take on top of what the server was given.
const GRACE: Duration = Duration::from_secs(1);

/// Makes a call that the server ends after `limit`, and this side soon after: no deadline of tonic's
/// runs before there is a connection, and calls that wait for one wait in line.
pub(super) async fn call_with_timeout<M, T, F>(
    limit: Duration,
    message: M,
    call: impl FnOnce(Request<M>) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(limit);
    match tokio::time::timeout(limit + GRACE, call(request)).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Status::deadline_exceeded("the server did not answer in time")),
    }
}
