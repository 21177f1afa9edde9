//! `QueueService`: produce, consume, settle.

use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Response, Status};

use crate::dispatch::Dispatcher;
use crate::domain::JobKey;
use crate::pb;
use crate::pb::queue_service_server::QueueService;
use crate::scheduler::{Draft, EnqueueError, Enqueued, Scheduler};

use super::convert::delivery::to_delivery;
use super::convert::enums::{self, View};
use super::convert::spec::{Context, Trace};
use super::convert::stream::Caller;
use super::convert::{Invalid, Path, enqueue, job, names, redrive, settle, stream, time};
use super::layers::Deadline;
use super::messages::Messages;
use super::status::{Failure, safe_id};

/// The data plane.
pub(super) struct Queue {
    scheduler: Scheduler,
    dispatcher: Dispatcher,
}

/// What a call answers.
type Answer<T> = Result<Response<T>, Status>;

// === impl Queue ===

impl Queue {
    /// Over these.
    pub(super) fn new(scheduler: Scheduler, dispatcher: Dispatcher) -> Queue {
        Queue { scheduler, dispatcher }
    }

    fn context<'a>(&self, metadata: &'a MetadataMap) -> Context<'a> {
        Context { now: self.scheduler.clock().now(), trace: trace(metadata) }
    }

    /// Writes the jobs of a batch that are good, and puts all results in order.
    async fn write(&self, batch: enqueue::Batch, until: Option<Instant>) -> Vec<pb::EnqueueResult> {
        let mut drafts = Vec::with_capacity(batch.drafts.len());
        let slots: Vec<_> =
            batch.drafts.into_iter().map(|draft| slot(draft, &mut drafts)).collect();
        let written = self.scheduler.enqueue(drafts, batch.durability, until).await;
        let mut written = written.into_iter();
        let result = |slot| match slot {
            Ok(chosen) => result(written.next(), chosen),
            Err(invalid) => refused(String::new(), Failure::from(invalid)),
        };
        slots.into_iter().map(result).collect()
    }
}

#[tonic::async_trait]
impl QueueService for Queue {
    type StreamStream = Messages;

    async fn enqueue(&self, request: Request<pb::EnqueueRequest>) -> Answer<pb::EnqueueResponse> {
        let (metadata, extensions, request) = request.into_parts();
        let (draft, asked) = enqueue::one(request, self.context(&metadata))?;
        match self.scheduler.enqueue(vec![draft], asked, until(&extensions)).await.pop() {
            Some(Ok(enqueued)) => Ok(Response::new(enqueue::to_response(enqueued))),
            Some(Err(error)) => Err(Failure::from(error).within("job").into()),
            None => Err(Failure::internal().into()),
        }
    }

    async fn batch_enqueue(
        &self,
        request: Request<pb::BatchEnqueueRequest>,
    ) -> Answer<pb::BatchEnqueueResponse> {
        let (metadata, extensions, request) = request.into_parts();
        let batch = enqueue::batch(request, self.context(&metadata))?;
        let results = self.write(batch, until(&extensions)).await;
        let failed = results.iter().filter(|result| result.error.is_some()).count();
        let failed_count = i32::try_from(failed).unwrap_or(i32::MAX);
        Ok(Response::new(pb::BatchEnqueueResponse { results, failed_count }))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Answer<pb::GetResponse> {
        let (key, view) = read(&request.into_inner())?;
        let found = self.scheduler.get(key.clone(), view == View::Full).await?;
        let found = found.ok_or_else(|| Failure::job_not_found(&key))?;
        Ok(Response::new(pb::GetResponse { job: Some(job::to_pb(found, view)) }))
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> Answer<pb::DeleteResponse> {
        let request = request.into_inner();
        let key = names::key(&request.topic, &request.id)?;
        let previous = self.scheduler.delete(key.clone()).await?;
        if previous.is_none() && !request.allow_missing {
            return Err(Failure::job_not_found(&key).into());
        }
        let previous = previous.map_or(pb::JobState::Unspecified, enums::from_state);
        Ok(Response::new(pb::DeleteResponse { previous_state: previous.into() }))
    }

    async fn reschedule(
        &self,
        request: Request<pb::RescheduleRequest>,
    ) -> Answer<pb::RescheduleResponse> {
        let now = self.scheduler.clock().now();
        let redrive::Move { key, due, priority } = redrive::reschedule(request.into_inner(), now)?;
        match self.scheduler.reschedule(key.clone(), due, priority).await? {
            Ok(Some(moved)) => {
                let job = Some(job::to_pb(moved, View::Basic));
                Ok(Response::new(pb::RescheduleResponse { job }))
            }
            Ok(None) => Err(Failure::job_not_found(&key).into()),
            Err(state) => Err(Failure::wrong_state(&key, state).into()),
        }
    }

    async fn stream(&self, request: Request<pb::StreamRequest>) -> Answer<Messages> {
        let caller = caller(&request);
        let (options, mut info) = stream::stream(request.into_inner(), caller)?;
        let outbox = self.dispatcher.open(options)?;
        info.stream_id = outbox.stream_id();
        info.replica.clone_from(&self.scheduler.replica().name);
        info.server_time = Some(time::to_timestamp(self.scheduler.clock().now()));
        Ok(Response::new(Messages::new(outbox, self.scheduler.clone(), info)))
    }

    async fn pull(&self, request: Request<pb::PullRequest>) -> Answer<pb::PullResponse> {
        let left = request.extensions().get::<Deadline>().map(|deadline| deadline.left());
        let caller = caller(&request);
        let options = stream::pull(request.into_inner(), caller, left)?;
        let deliveries = self.dispatcher.pull(options).await?;
        let policy = |over: &_| self.scheduler.retry_policy(over);
        let deliveries = deliveries.into_iter().map(|d| to_delivery(d, policy)).collect();
        Ok(Response::new(pb::PullResponse { deliveries }))
    }

    async fn ack(&self, request: Request<pb::AckRequest>) -> Answer<pb::AckResponse> {
        let (metadata, _, request) = request.into_parts();
        let (items, receipts) = settle::ack(request, self.context(&metadata))?.split();
        let failures = receipts.failures(self.scheduler.ack(items).await);
        Ok(Response::new(pb::AckResponse { failures }))
    }

    async fn nack(&self, request: Request<pb::NackRequest>) -> Answer<pb::NackResponse> {
        let (items, receipts) = settle::nack(request.into_inner())?.split();
        let failures = receipts.failures(self.scheduler.nack(items).await);
        Ok(Response::new(pb::NackResponse { failures }))
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Answer<pb::ExtendResponse> {
        let (items, receipts) = settle::extend(request.into_inner())?.split();
        let failures = receipts.failures(self.scheduler.extend(items).await);
        Ok(Response::new(pb::ExtendResponse { failures }))
    }
}

/// Moves a good draft to the others and keeps the id that its result may have to name.
fn slot(draft: Result<Draft, Invalid>, drafts: &mut Vec<Draft>) -> Result<String, Invalid> {
    draft.map(|draft| {
        let id = draft.id.as_ref().map_or(String::new(), |id| id.as_str().to_owned());
        drafts.push(draft);
        id
    })
}

fn result(written: Option<Result<Enqueued, EnqueueError>>, chosen: String) -> pb::EnqueueResult {
    match written {
        Some(Ok(enqueued)) => enqueue::to_result(enqueued),
        Some(Err(error)) => {
            let id = safe_id(&error).map_or(chosen, |id| id.as_str().to_owned());
            refused(id, Failure::from(error))
        }
        None => refused(chosen, Failure::internal()),
    }
}

fn refused(id: String, failure: Failure) -> pb::EnqueueResult {
    pb::EnqueueResult { id, error: Some(failure.into()), ..pb::EnqueueResult::default() }
}

fn read(request: &pb::GetRequest) -> Result<(JobKey, View), Invalid> {
    let mut checks = super::convert::Checks::default();
    let key = names::key_in(&mut checks, &request.topic, &request.id);
    let view = enums::view(&mut checks, Path::ROOT.field("view"), request.view, View::Full);
    checks.finish(key.zip(view))
}

/// When an enqueue stops trying.
fn until(extensions: &Extensions) -> Option<Instant> {
    extensions.get::<Deadline>().map(|deadline| deadline.last_word())
}

fn caller<T>(request: &Request<T>) -> Caller {
    let user_agent = request.metadata().get("user-agent").and_then(|value| value.to_str().ok());
    Caller {
        peer: request.remote_addr().map_or(String::new(), |peer| peer.to_string()),
        user_agent: user_agent.unwrap_or_default().to_owned(),
    }
}

/// The trace context of a call, if its version is one that can be passed on unread: two digits, a
/// trace id, a span id and flags (W3C Trace Context, section 3.2).
fn trace(metadata: &MetadataMap) -> Option<Trace<'_>> {
    let parent = metadata.get("traceparent")?.to_str().ok()?;
    let plain = parent.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let parent = Some(parent).filter(|parent| parent.len() == 55 && plain)?;
    let state = metadata.get("tracestate").and_then(|state| state.to_str().ok());
    let state = state.filter(|state| state.len() <= 512).unwrap_or_default();
    Some(Trace { parent, state })
}
