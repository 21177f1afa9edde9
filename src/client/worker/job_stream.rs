//! Where jobs come from: one stream, opened anew whenever it ends.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::super::job_spec::to_proto_duration;
use super::super::{Client, Error};
use super::{is_permanent, is_refusal};
use crate::backoff::Backoff;
use crate::pb::{StreamRequest, StreamResponse};

/// The longest silence of the server; after three of them it is taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(10);
const MISSED_HEARTBEATS_MAX: u32 = 3;
/// The first message comes at once.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses before a stream is opened anew: growing until one has brought jobs or lasted, so that a
/// server that ends each at once is not asked all the time.
const REOPEN_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct JobStream {
    client: Client,
    request: StreamRequest,
    state: JobStreamState,
    pauses: Backoff,
    /// Nothing was heard yet, not even a failure.
    is_first_attempt: bool,
}

enum JobStreamState {
    Pausing(Instant),
    Opening(BoxFuture<'static, OpenStreamResult>),
    Open { stream: Box<Streaming<StreamResponse>>, opened: Instant, heard: Instant },
    Closed,
}

type OpenStreamResult = Result<(Streaming<StreamResponse>, StreamResponse), Status>;

/// What a stream brings.
#[derive(Debug)]
pub(super) enum JobStreamEvent {
    Message(Box<StreamResponse>),
    /// It ended well: the server is leaving, or all that was asked for has come. The leases stay.
    Ended,
    /// It broke; a new one is opened after the pause.
    Failed(Error, Duration),
    /// The server does not want this worker.
    Rejected(Error),
}

// === impl Source ===

impl JobStream {
    /// Opens its stream when first asked.
    pub(super) fn new(client: Client, request: StreamRequest) -> JobStream {
        let request =
            StreamRequest { heartbeat_interval: Some(to_proto_duration(HEARTBEAT)), ..request };
        let state = JobStreamState::Pausing(Instant::now());
        JobStream {
            client,
            request,
            state,
            pauses: Backoff::new(REOPEN_BACKOFF.0, REOPEN_BACKOFF.1),
            is_first_attempt: true,
        }
    }

    /// The stream that is open: the next one adopts its leases.
    pub(super) fn set_stream_id(&mut self, stream_id: &str) {
        stream_id.clone_into(&mut self.request.continues_stream_id);
    }

    /// How many jobs the next stream may bring; 0: any number.
    pub(super) fn set_max_jobs(&mut self, max_jobs: i64) {
        self.request.max_jobs = max_jobs;
    }

    /// Ends the stream: what has come already, and nothing more.
    pub(super) fn close(&mut self) -> Vec<StreamResponse> {
        let mut rest = Vec::new();
        if let JobStreamState::Open { stream, .. } = &mut self.state {
            use futures::FutureExt as _;
            while let Some(Ok(Some(message))) = stream.message().now_or_never() {
                rest.push(message);
            }
        }
        self.state = JobStreamState::Closed;
        rest
    }

    /// The next event; none ever after [`JobStream::close`]. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> JobStreamEvent {
        loop {
            match &mut self.state {
                JobStreamState::Closed => std::future::pending().await,
                JobStreamState::Pausing(until) => {
                    sleep_until(*until).await;
                    self.state = JobStreamState::Opening(Box::pin(open(
                        self.client.clone(),
                        self.request.clone(),
                    )));
                }
                JobStreamState::Opening(opening) => match opening.await {
                    Ok((stream, first)) => {
                        let now = Instant::now();
                        self.state = JobStreamState::Open {
                            stream: Box::new(stream),
                            opened: now,
                            heard: now,
                        };
                        return self.on_message(first);
                    }
                    Err(status) => return self.on_failure(status),
                },
                JobStreamState::Open { stream, opened, heard } => {
                    let until = *heard + HEARTBEAT * MISSED_HEARTBEATS_MAX;
                    let message = tokio::select! {
                        biased;
                        message = stream.message() => message,
                        () = sleep_until(until) => Err(Status::unavailable("the stream was silent")),
                    };
                    *heard = Instant::now();
                    if *heard >= *opened + REOPEN_BACKOFF.1 {
                        self.pauses.reset();
                    }
                    return match message {
                        Ok(Some(message)) => self.on_message(message),
                        Ok(None) => {
                            self.state =
                                JobStreamState::Pausing(Instant::now() + self.pauses.next_delay());
                            JobStreamEvent::Ended
                        }
                        Err(status) => self.on_failure(status),
                    };
                }
            }
        }
    }

    fn on_message(&mut self, message: StreamResponse) -> JobStreamEvent {
        self.is_first_attempt = false;
        if !message.deliveries.is_empty() {
            self.pauses.reset();
        }
        JobStreamEvent::Message(Box::new(message))
    }

    fn on_failure(&mut self, status: Status) -> JobStreamEvent {
        let error = Error::from(status);
        // Where nothing has worked yet a bare refusal is believed: that is no server of ours.
        let first = std::mem::take(&mut self.is_first_attempt);
        if is_permanent(&error) || first && is_refusal(error.code()) {
            self.state = JobStreamState::Closed;
            return JobStreamEvent::Rejected(error);
        }
        let pause = self.pauses.next_delay().max(error.retry_after().unwrap_or_default());
        self.state = JobStreamState::Pausing(Instant::now() + pause);
        JobStreamEvent::Failed(error, pause)
    }
}

/// Opens a stream and hears its first message.
async fn open(client: Client, request: StreamRequest) -> OpenStreamResult {
    let opening = async {
        let mut stream = client.queue().stream(request).await?.into_inner();
        let first = stream.message().await?;
        Ok((stream, first.ok_or_else(|| Status::unavailable("the stream ended at once"))?))
    };
    let late = || Status::unavailable("the server did not answer in time");
    timeout(OPEN_TIMEOUT, opening).await.unwrap_or_else(|_| Err(late()))
}
