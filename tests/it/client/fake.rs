//! A server with scripted answers: shards that are down, streams that end at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use ringq::client::Client;
use ringq::pb::queue_service_server::{QueueService, QueueServiceServer};
use ringq::pb::*;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::Count;
use crate::harness::proto;

/// Returns the failure of a call, if it fails.
type Verdict = Box<dyn Fn(&BatchEnqueueRequest) -> Option<Status> + Send + Sync>;

/// Returns whether the outcome of a job is unknown.
type Doubt = Box<dyn Fn(&JobSpec) -> bool + Send + Sync>;

/// Configured answers, and recorded calls.
#[derive(Default)]
pub(crate) struct Script {
    /// Result of each call of BatchEnqueue.
    pub(super) verdict: Option<Verdict>,
    /// Jobs with an unknown outcome. If set, jobs get ids; jobs in doubt are accepted, and the answer is
    /// OUTCOME_UNKNOWN.
    pub(super) doubt: Option<Doubt>,
    /// Jobs whose shard is unavailable, as long as it is.
    pub(super) away: Option<Doubt>,
    /// Items whose topic or receipt is `down` fail with UNAVAILABLE.
    pub(super) down: AtomicBool,
    /// Receipts of the jobs of the first stream.
    pub(super) receipts: Mutex<Vec<&'static str>>,
    /// True if each stream announces that the server drains.
    pub(super) leaving: bool,
    /// Number of streams that break after their first message.
    pub(super) breaking: AtomicUsize,
    /// While true, each stream but the first is refused, and each Extend.
    pub(super) cut: AtomicBool,
    /// Time that leases are kept after a break. Default: the client's.
    pub(super) grace: Option<Duration>,
    /// Lease of the jobs. Default 30 s.
    pub(super) lease: Option<Duration>,
    /// True if an Extend with a checkpoint is answered STALE.
    pub(super) stale: bool,
    pub(super) extends: Mutex<Vec<ExtendRequest>>,
    pub(super) nacks: Mutex<Vec<NackRequest>>,
    pub(super) streams: Count,
    pub(crate) enqueues: Mutex<Vec<BatchEnqueueRequest>>,
    /// Accepted jobs.
    pub(crate) jobs: Mutex<Vec<JobSpec>>,
    pub(super) acks: Mutex<Vec<AckRequest>>,
}

/// Builds the status of a shard or a server that is down for the moment, with nothing done.
pub(crate) fn not_done(retry_after: Duration) -> Status {
    let mut details = ErrorDetails::with_error_info("DRAINING", "ringq.dev", HashMap::new());
    details.set_retry_info(Some(retry_after));
    Status::with_error_details(Code::Unavailable, "not done", details)
}

/// Builds the status of a proxy whose connection breaks: the outcome is unknown.
pub(crate) fn unknown() -> Status {
    Status::unavailable("broken")
}

/// A running server, until the test ends.
#[derive(Clone)]
pub(crate) struct Fake(pub(crate) Arc<Script>);

type Answer<T> = Result<Response<T>, Status>;

impl Script {
    /// Builds a script whose BatchEnqueue calls fail with the returned status, or are accepted.
    pub(crate) fn failing(
        verdict: impl Fn(&BatchEnqueueRequest) -> Option<Status> + Send + Sync + 'static,
    ) -> Script {
        Script { verdict: Some(Box::new(verdict)), ..Script::default() }
    }

    /// Builds a script in which jobs get ids, and the outcome of jobs in doubt is unknown.
    pub(crate) fn doubting(doubt: impl Fn(&JobSpec) -> bool + Send + Sync + 'static) -> Script {
        Script { doubt: Some(Box::new(doubt)), ..Script::default() }
    }

    /// Builds a script in which the shard of these jobs is unavailable.
    pub(crate) fn without(away: impl Fn(&JobSpec) -> bool + Send + Sync + 'static) -> Script {
        Script { away: Some(Box::new(away)), ..Script::default() }
    }
}

impl Fake {
    pub(crate) async fn start(script: Script) -> (Fake, Client) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let fake = Fake(Arc::new(script));
        let service = QueueServiceServer::new(fake.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        (fake, client)
    }

    fn is_down(&self, name: &str) -> bool {
        name == "down" && self.0.down.load(Ordering::SeqCst)
    }

    /// Enqueues one job, where answers can be in doubt.
    fn doubted(&self, doubt: &Doubt, mut job: JobSpec) -> EnqueueResult {
        let mut jobs = self.0.jobs.lock().unwrap();
        if job.id.is_empty() {
            job.id = format!("s1~{}", jobs.len());
        }
        let id = job.id.clone();
        let error = doubt(&job).then(|| ItemError {
            code: Code::Unavailable.into(),
            reason: "OUTCOME_UNKNOWN".to_owned(),
            message: "the shard did not answer".to_owned(),
            ..Default::default()
        });
        let is_there = jobs.iter().any(|known| known.id == id);
        if !is_there {
            jobs.push(job);
        }
        let outcome = match is_there {
            _ if error.is_some() => EnqueueOutcome::Unspecified,
            true => EnqueueOutcome::Unchanged,
            false => EnqueueOutcome::Created,
        };
        EnqueueResult { id, error, outcome: outcome.into(), ..Default::default() }
    }

    fn enqueued(&self, job: JobSpec) -> EnqueueResult {
        if let Some(doubt) = &self.0.doubt {
            return self.doubted(doubt, job);
        }
        let reason = match job.topic.as_str() {
            topic if self.is_down(topic) => "SHARD_UNAVAILABLE",
            _ if self.0.away.as_ref().is_some_and(|away| away(&job)) => "SHARD_UNAVAILABLE",
            "unknown" => "OUTCOME_UNKNOWN",
            _ => {
                self.0.jobs.lock().unwrap().push(job.clone());
                return EnqueueResult { id: job.id, ..Default::default() };
            }
        };
        let (code, reason) = (Code::Unavailable.into(), reason.to_owned());
        let message = "shard s1 does not answer".to_owned();
        let error = Some(ItemError { code, reason, message, ..Default::default() });
        EnqueueResult { error, ..Default::default() }
    }
}

#[tonic::async_trait]
impl QueueService for Fake {
    type StreamStream = BoxStream<'static, Result<StreamResponse, Status>>;

    async fn batch_enqueue(
        &self,
        request: Request<BatchEnqueueRequest>,
    ) -> Answer<BatchEnqueueResponse> {
        let request = request.into_inner();
        self.0.enqueues.lock().unwrap().push(request.clone());
        if let Some(status) = self.0.verdict.as_ref().and_then(|verdict| verdict(&request)) {
            return Err(status);
        }
        let results = request.jobs.into_iter().map(|job| self.enqueued(job)).collect();
        Ok(Response::new(BatchEnqueueResponse { results, failed_count: 0 }))
    }

    async fn stream(&self, request: Request<StreamRequest>) -> Answer<Self::StreamStream> {
        self.0.streams.add();
        if self.0.streams.get() > 1 && self.0.cut.load(Ordering::SeqCst) {
            return Err(unknown());
        }
        let lease_duration = Some(proto(self.0.lease.unwrap_or(Duration::from_secs(30))));
        let delivery = |receipt: &str| Delivery {
            receipt: receipt.to_owned(),
            lease_duration,
            ..Default::default()
        };
        let receipts = std::mem::take(&mut *self.0.receipts.lock().unwrap());
        let max_in_flight = request.into_inner().max_in_flight;
        let first = StreamResponse {
            info: Some(StreamInfo {
                max_in_flight,
                orphan_grace: self.0.grace.map(proto),
                ..Default::default()
            }),
            deliveries: receipts.into_iter().map(delivery).collect(),
            ..Default::default()
        };
        let last = StreamResponse { draining: true, ..Default::default() };
        let breaks = |left: usize| left.checked_sub(1);
        if self.0.breaking.fetch_update(Ordering::SeqCst, Ordering::SeqCst, breaks).is_ok() {
            return Ok(Response::new(stream::iter([Ok(first), Err(unknown())]).boxed()));
        }
        Ok(Response::new(match self.0.leaving {
            true => stream::iter([Ok(first), Ok(last)]).boxed(),
            false => stream::iter([Ok(first)]).chain(stream::pending()).boxed(),
        }))
    }

    async fn ack(&self, request: Request<AckRequest>) -> Answer<AckResponse> {
        let request = request.into_inner();
        self.0.acks.lock().unwrap().push(request.clone());
        let failure = |(index, item): (usize, AckItem)| {
            let error = SettleError::Unavailable.into();
            let index = index.try_into().unwrap();
            self.is_down(&item.receipt).then(|| SettleFailure {
                index,
                error,
                ..Default::default()
            })
        };
        let failures = request.items.into_iter().enumerate().filter_map(failure).collect();
        Ok(Response::new(AckResponse { failures }))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Answer<ExtendResponse> {
        let request = request.into_inner();
        self.0.extends.lock().unwrap().push(request.clone());
        if self.0.cut.load(Ordering::SeqCst) {
            return Err(unknown());
        }
        let error = SettleError::Stale.into();
        let is_stale = self.0.stale && request.items.iter().any(|item| item.checkpoint.is_some());
        let failures = is_stale.then(|| SettleFailure { error, ..Default::default() });
        Ok(Response::new(ExtendResponse { failures: failures.into_iter().collect() }))
    }

    async fn enqueue(&self, request: Request<EnqueueRequest>) -> Answer<EnqueueResponse> {
        let EnqueueResult { id, outcome, error, .. } =
            self.enqueued(request.into_inner().job.unwrap_or_default());
        match error {
            Some(error) => Err(Status::new(Code::from_i32(error.code), error.message)),
            None => Ok(Response::new(EnqueueResponse { id, outcome, ..Default::default() })),
        }
    }

    async fn get(&self, _: Request<GetRequest>) -> Answer<GetResponse> {
        Err(Status::unimplemented(""))
    }

    async fn delete(&self, _: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        Err(Status::unimplemented(""))
    }

    async fn reschedule(&self, _: Request<RescheduleRequest>) -> Answer<RescheduleResponse> {
        Err(Status::unimplemented(""))
    }

    async fn pull(&self, _: Request<PullRequest>) -> Answer<PullResponse> {
        Err(Status::unimplemented(""))
    }

    async fn nack(&self, request: Request<NackRequest>) -> Answer<NackResponse> {
        self.0.nacks.lock().unwrap().push(request.into_inner());
        Ok(Response::new(NackResponse::default()))
    }
}
