//! Where jobs come from: one stream, opened anew whenever it ends.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::super::job::proto;
use super::super::{Client, Error};
use super::{for_good, is_refusal};
use crate::pauses::Pauses;
use crate::pb::{StreamRequest, StreamResponse};

/// The longest silence of the server; after three of them it is taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(10);
const SILENT_HEARTBEATS: u32 = 3;
/// The first message comes at once.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses before a stream is opened anew: growing until one has brought jobs or lasted, so that a
/// server that ends each at once is not asked all the time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct Source {
    client: Client,
    request: StreamRequest,
    state: State,
    pauses: Pauses,
    /// Nothing was heard yet, not even a failure.
    first: bool,
}

enum State {
    Pausing(Instant),
    Opening(BoxFuture<'static, Opened>),
    Open { stream: Box<Streaming<StreamResponse>>, opened: Instant, heard: Instant },
    Closed,
}

type Opened = Result<(Streaming<StreamResponse>, StreamResponse), Status>;

/// What a stream brings.
#[derive(Debug)]
pub(super) enum Event {
    Message(Box<StreamResponse>),
    /// It ended well: the server is leaving, or all that was asked for has come. The leases stay.
    Ended,
    /// It broke; a new one is opened after the pause.
    Broke(Error, Duration),
    /// The server does not want this worker.
    Refused(Error),
}

// === impl Source ===

impl Source {
    /// Opens its stream when first asked.
    pub(super) fn new(client: Client, request: StreamRequest) -> Source {
        let request = StreamRequest { heartbeat_interval: Some(proto(HEARTBEAT)), ..request };
        let state = State::Pausing(Instant::now());
        Source { client, request, state, pauses: Pauses::new(PAUSE.0, PAUSE.1), first: true }
    }

    /// The stream that is open: the next one adopts its leases.
    pub(super) fn opened(&mut self, stream_id: &str) {
        stream_id.clone_into(&mut self.request.continues_stream_id);
    }

    /// How many jobs the next stream may bring; 0: any number.
    pub(super) fn limit(&mut self, max_jobs: i64) {
        self.request.max_jobs = max_jobs;
    }

    /// Ends the stream: what has come already, and nothing more.
    pub(super) fn close(&mut self) -> Vec<StreamResponse> {
        let mut rest = Vec::new();
        if let State::Open { stream, .. } = &mut self.state {
            use futures::FutureExt as _;
            while let Some(Ok(Some(message))) = stream.message().now_or_never() {
                rest.push(message);
            }
        }
        self.state = State::Closed;
        rest
    }

    /// The next event; none ever after [`Source::close`]. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            match &mut self.state {
                State::Closed => std::future::pending().await,
                State::Pausing(until) => {
                    sleep_until(*until).await;
                    self.state =
                        State::Opening(Box::pin(open(self.client.clone(), self.request.clone())));
                }
                State::Opening(opening) => match opening.await {
                    Ok((stream, first)) => {
                        let now = Instant::now();
                        self.state =
                            State::Open { stream: Box::new(stream), opened: now, heard: now };
                        return self.message(first);
                    }
                    Err(status) => return self.failed(status),
                },
                State::Open { stream, opened, heard } => {
                    let until = *heard + HEARTBEAT * SILENT_HEARTBEATS;
                    let message = tokio::select! {
                        biased;
                        message = stream.message() => message,
                        () = sleep_until(until) => Err(Status::unavailable("the stream was silent")),
                    };
                    *heard = Instant::now();
                    if *heard >= *opened + PAUSE.1 {
                        self.pauses.reset();
                    }
                    return match message {
                        Ok(Some(message)) => self.message(message),
                        Ok(None) => {
                            self.state = State::Pausing(Instant::now() + self.pauses.pause());
                            Event::Ended
                        }
                        Err(status) => self.failed(status),
                    };
                }
            }
        }
    }

    fn message(&mut self, message: StreamResponse) -> Event {
        self.first = false;
        if !message.deliveries.is_empty() {
            self.pauses.reset();
        }
        Event::Message(Box::new(message))
    }

    fn failed(&mut self, status: Status) -> Event {
        let error = Error::from(status);
        // Where nothing has worked yet a bare refusal is believed: that is no server of ours.
        let first = std::mem::take(&mut self.first);
        if for_good(&error) || first && is_refusal(error.code()) {
            self.state = State::Closed;
            return Event::Refused(error);
        }
        let pause = self.pauses.pause().max(error.retry_after().unwrap_or_default());
        self.state = State::Pausing(Instant::now() + pause);
        Event::Broke(error, pause)
    }
}

/// Opens a stream and hears its first message.
async fn open(client: Client, request: StreamRequest) -> Opened {
    let opening = async {
        let mut stream = client.queue().stream(request).await?.into_inner();
        let first = stream.message().await?;
        Ok((stream, first.ok_or_else(|| Status::unavailable("the stream ended at once"))?))
    };
    let late = || Status::unavailable("the server did not answer in time");
    timeout(OPEN_TIMEOUT, opening).await.unwrap_or_else(|_| Err(late()))
}
