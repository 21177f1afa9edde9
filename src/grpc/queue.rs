//! `QueueService`: produce, consume, settle.

use std::sync::Arc;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::dispatch::Dispatcher;
use crate::pb;
use crate::pb::queue_service_server::QueueService;
use crate::scheduler::{Draft, EnqueueError, Enqueued, Scheduler};

use super::convert::delivery::to_delivery;
use super::convert::enums::{self, View};
use super::convert::metadata::{caller, trace};
use super::convert::number::to_int32;
use super::convert::reschedule::{self, Reschedule};
use super::convert::spec::Context;
use super::convert::{Invalid, enqueue, job, settle, stream, time};
use super::layers::{Deadline, Ends, until};
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
        let (draft, asked) = enqueue::enqueue(request, self.context(&metadata))?;
        match self.scheduler.enqueue(vec![draft], asked, until(&extensions)).await.pop() {
            Some(Ok(enqueued)) => Ok(Response::new(enqueue::to_enqueue_response(enqueued))),
            Some(Err(error)) => Err(Failure::from(error).within("job").into()),
            None => Err(Failure::internal().into()),
        }
    }

    async fn batch_enqueue(
        &self,
        request: Request<pb::BatchEnqueueRequest>,
    ) -> Answer<pb::BatchEnqueueResponse> {
        let (metadata, extensions, request) = request.into_parts();
        let batch = enqueue::batch_enqueue(request, self.context(&metadata))?;
        let results = self.write(batch, until(&extensions)).await;
        let failed = results.iter().filter(|result| result.error.is_some()).count();
        let failed_count = to_int32(failed);
        Ok(Response::new(pb::BatchEnqueueResponse { results, failed_count }))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Answer<pb::GetResponse> {
        let (key, view) = job::get(&request.into_inner())?;
        let found = self.scheduler.get(key.clone(), view == View::Full).await;
        let found = found.map_err(Failure::of_read)?;
        let found = found.ok_or_else(|| Failure::job_not_found(&key))?;
        Ok(Response::new(pb::GetResponse { job: Some(job::to_job(found, view)) }))
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> Answer<pb::DeleteResponse> {
        let until = until(request.extensions());
        let (key, allow_missing) = job::delete(&request.into_inner())?;
        let previous = self.scheduler.delete(key.clone(), until).await?;
        if previous.is_none() && !allow_missing {
            return Err(Failure::job_not_found(&key).into());
        }
        let previous = previous.map_or(pb::JobState::Unspecified, enums::to_job_state);
        Ok(Response::new(pb::DeleteResponse { previous_state: previous.into() }))
    }

    async fn reschedule(
        &self,
        request: Request<pb::RescheduleRequest>,
    ) -> Answer<pb::RescheduleResponse> {
        let (now, until) = (self.scheduler.clock().now(), until(request.extensions()));
        let Reschedule { key, due, priority } = reschedule::reschedule(request.into_inner(), now)?;
        match self.scheduler.reschedule(key.clone(), due, priority, until).await? {
            Ok(Some(moved)) => {
                let job = Some(job::to_job(moved, View::Basic));
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
        let ends = Ends(outbox.cut());
        let mut answer = Response::new(Messages::new(outbox, self.scheduler.clone(), info));
        answer.extensions_mut().insert(ends);
        Ok(answer)
    }

    async fn pull(&self, request: Request<pb::PullRequest>) -> Answer<pb::PullResponse> {
        let left = request.extensions().get::<Deadline>().map(|deadline| deadline.left());
        let caller = caller(&request);
        let options = stream::pull(request.into_inner(), caller, left)?;
        let (deliveries, handover) = self.dispatcher.pull(options).await?;
        let policy = |over: &_| self.scheduler.retry_policy(over);
        let deliveries = deliveries.into_iter().map(|d| to_delivery(d, policy)).collect();
        let mut response = Response::new(pb::PullResponse { deliveries });
        response.extensions_mut().insert(Arc::new(handover));
        Ok(response)
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
        let until = until(request.extensions());
        let (items, receipts) = settle::extend(request.into_inner())?.split();
        let failures = receipts.failures(self.scheduler.extend(items, until).await);
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
        Some(Ok(enqueued)) => enqueue::to_enqueue_result(enqueued),
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
