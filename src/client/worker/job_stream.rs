//! Stream of jobs, opened again whenever it ends.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::super::job_spec::to_proto_duration;
use super::super::servers::{AnsweringServer, ServerPin};
use super::super::{Client, Error};
use super::{asked_pause, is_permanent, is_refusal};
use crate::backoff::{Backoff, BackoffRange};
use crate::pb::{StreamInfo, StreamRequest, StreamResponse};

/// Requested interval of the server's heartbeats; after three missed ones, as the server names them, the stream counts as
/// broken.
const HEARTBEAT: Duration = Duration::from_secs(10);
const MISSED_HEARTBEATS_MAX: u32 = 3;
/// Timeout for the first message, which the server sends at once.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Grace of a server that names none.
const ORPHAN_GRACE: Duration = Duration::from_secs(5);
/// Shortest and longest pause before a stream is opened again. The pause grows until a stream has brought jobs or
/// lasted, so that a server that ends each stream at once is not called all the time.
const REOPEN_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(100), max: Duration::from_secs(5) };

pub(super) struct JobStream {
    client: Client,
    request: StreamRequest,
    state: JobStreamState,
    pauses: Backoff,
    /// Set until the first message or failure.
    is_first_attempt: bool,
    /// Interval of the heartbeats of the open stream.
    heartbeat: Duration,
    /// Time that the server keeps leases after a break.
    orphan_grace: Duration,
    /// Set if a rejection is not the end.
    waits_for_rights: bool,
}

enum JobStreamState {
    Pausing(Instant),
    Opening(BoxFuture<'static, OpenStreamResult>),
    Open {
        stream: Box<Streaming<StreamResponse>>,
        opened: Instant,
        received: Instant,
        /// Server of the stream, of a client with several: settles go there, too.
        server: Option<ServerPin>,
    },
    Closed,
}

type OpenStreamResult = Result<OpenedStream, Status>;

/// Stream with its first message.
struct OpenedStream {
    stream: Streaming<StreamResponse>,
    first: StreamResponse,
    server: Option<ServerPin>,
}

/// Event of a stream.
#[derive(Debug)]
pub(super) enum JobStreamEvent {
    Message(Box<StreamResponse>),
    /// The stream ended with OK: the server is draining, or all requested jobs have come. The leases stay.
    Ended,
    /// The stream broke; a new one is opened after the pause.
    Failed(Error, Duration),
    /// The server rejects this worker.
    Rejected(Error),
}

// === impl JobStream ===

impl JobStream {
    /// Creates a stream that is opened by the first call of [`JobStream::next`].
    pub(super) fn new(client: Client, request: StreamRequest, waits_for_rights: bool) -> JobStream {
        let request =
            StreamRequest { heartbeat_interval: Some(to_proto_duration(HEARTBEAT)), ..request };
        let state = JobStreamState::Pausing(Instant::now());
        JobStream {
            client,
            request,
            state,
            pauses: Backoff::new(REOPEN_BACKOFF),
            is_first_attempt: true,
            heartbeat: HEARTBEAT,
            orphan_grace: ORPHAN_GRACE,
            waits_for_rights,
        }
    }

    /// Returns the time that the server keeps leases after the last stream has broken.
    pub(super) fn orphan_grace(&self) -> Duration {
        self.orphan_grace
    }

    /// Sets the id of the open stream, whose leases the next stream adopts, the interval of its heartbeats and its grace.
    pub(super) fn set_info(&mut self, info: &StreamInfo) {
        info.stream_id.clone_into(&mut self.request.continues_stream_id);
        let named = info.heartbeat_interval.and_then(|interval| interval.try_into().ok());
        self.heartbeat = named.filter(|interval| *interval > Duration::ZERO).unwrap_or(HEARTBEAT);
        let named = info.orphan_grace.and_then(|grace| grace.try_into().ok());
        self.orphan_grace = named.unwrap_or(ORPHAN_GRACE);
    }

    /// Sets the maximum number of jobs of the next stream; 0: any number.
    pub(super) fn set_max_jobs(&mut self, max_jobs: i64) {
        self.request.max_jobs = max_jobs;
    }

    /// Returns the URL of the server of the open stream; without one, the URLs of all servers.
    pub(super) fn server_url(&self) -> &str {
        match &self.state {
            JobStreamState::Open { server: Some(server), .. } => server.url(),
            _ => self.client.url(),
        }
    }

    /// Returns whether jobs may come before [`JobStream::next`] opens another stream.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, JobStreamState::Opening(_) | JobStreamState::Open { .. })
    }

    /// Closes the stream; returns the messages that have already arrived.
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

    /// Returns the next event; pending for ever after [`JobStream::close`]. Dropping the future loses nothing.
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
                    Ok(OpenedStream { stream, first, server }) => {
                        let now = Instant::now();
                        self.state = JobStreamState::Open {
                            stream: Box::new(stream),
                            opened: now,
                            received: now,
                            server,
                        };
                        return self.on_message(first);
                    }
                    Err(status) => return self.on_failure(status),
                },
                JobStreamState::Open { stream, opened, received, server } => {
                    let until = *received + self.heartbeat * MISSED_HEARTBEATS_MAX;
                    let message = tokio::select! {
                        biased;
                        message = stream.message() => message,
                        () = sleep_until(until) => {
                            server.iter().for_each(ServerPin::suspect);
                            Err(Status::unavailable("the stream was silent"))
                        }
                    };
                    *received = Instant::now();
                    if *received >= *opened + REOPEN_BACKOFF.max {
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
        // Before anything has worked, a bare refusal is taken as permanent: that is no ringq server.
        let first = std::mem::take(&mut self.is_first_attempt);
        let is_rejected = is_permanent(&error) || first && is_refusal(error.code());
        if is_rejected && !self.waits_for_rights {
            self.state = JobStreamState::Closed;
            return JobStreamEvent::Rejected(error);
        }
        let pause = if is_rejected {
            Backoff::new(BackoffRange { min: REOPEN_BACKOFF.max, ..REOPEN_BACKOFF }).next_delay()
        } else {
            self.pauses.next_delay()
        };
        let pause = pause.max(asked_pause(&error));
        self.state = JobStreamState::Pausing(Instant::now() + pause);
        JobStreamEvent::Failed(error, pause)
    }
}

/// Opens a stream and receives its first message.
async fn open(client: Client, request: StreamRequest) -> OpenStreamResult {
    let opening = async {
        let (_, mut stream, extensions) = client.queue().stream(request).await?.into_parts();
        let server = extensions.get::<AnsweringServer>().cloned().map(AnsweringServer::pin);
        let first = stream.message().await?;
        let first = first.ok_or_else(|| Status::unavailable("the stream ended at once"))?;
        Ok(OpenedStream { stream, first, server })
    };
    let late = || Status::unavailable("the server did not answer in time");
    timeout(OPEN_TIMEOUT, opening).await.unwrap_or_else(|_| Err(late()))
}
