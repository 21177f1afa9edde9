//! `QueueService`: produce, consume, settle.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::auth::Authenticator;
use crate::contract::delivery::to_delivery;
use crate::contract::enums::{self, ReadView};
use crate::contract::metadata::{caller, trace};
use crate::contract::number::to_int32;
use crate::contract::reschedule::{self, RescheduleCall};
use crate::contract::settle::{ItemReceipts, SettleItems};
use crate::contract::spec::SpecContext;
use crate::contract::{
    FieldPath, InvalidRequest, enqueue, job, settle, stream, time, topic_limits,
};
use crate::dispatch::Dispatcher;
use crate::domain::{CrashTopic, Receipt};
use crate::log_limiter::LogLimiter;
use crate::pb;
use crate::pb::queue_service_server::QueueService;
use crate::rpc::Rpc;
use crate::scheduler::{AcceptedJob, AckItem, Draft, EnqueueError, Producer, Settler, WriteTerms};
use crate::trace::{CallSpan, SpanJob, Tracer};

use super::access::CallAccess;
use super::connection_age::ConnectionAge;
use super::delivery_spans::delivery_span;
use super::job_quota::{AdmittedJobs, FollowUps};
use super::layers::{CallDeadline, StreamCut, write_deadline};
use super::pulled_jobs::PulledJobs;
use super::status::{RpcError, safe_id};
use super::stream_messages::StreamMessages;

/// Handler of `QueueService`.
pub(super) struct QueueHandler {
    producer: Producer,
    settler: Settler,
    dispatcher: Dispatcher,
    tracer: Tracer,
    authenticator: Authenticator,
    /// Log limiter for forged receipts, by identity.
    forged_log: LogLimiter,
}

/// Interval in which forged receipts of an identity are logged at most once, with the number suppressed.
const FORGED_LOG_EVERY: Duration = Duration::from_secs(10);

/// Result of a call.
type RpcResult<T> = Result<Response<T>, Status>;

// === impl QueueHandler ===

impl QueueHandler {
    /// Creates the handler on top of these parts.
    pub(super) fn new(
        producer: Producer,
        settler: Settler,
        dispatcher: Dispatcher,
        tracer: Tracer,
        authenticator: Authenticator,
    ) -> QueueHandler {
        let forged_log = LogLimiter::new("forged receipts", FORGED_LOG_EVERY);
        QueueHandler { producer, settler, dispatcher, tracer, authenticator, forged_log }
    }

    /// Returns the context of new jobs; `own`: the `traceparent` of the call's span, if the call is recorded.
    fn context<'a>(&self, metadata: &'a MetadataMap, own: Option<&'a str>) -> SpecContext<'a> {
        SpecContext { now: self.producer.clock().now(), trace: trace(metadata, own) }
    }

    /// Splits the items of a call into those that its caller may settle and the receipts for its answer. Forged receipts
    /// are counted and logged.
    fn settled<I>(
        &self,
        access: &CallAccess,
        items: SettleItems<I>,
        receipt: impl Fn(&I) -> &Receipt,
    ) -> (Vec<I>, ItemReceipts) {
        if let Some(first) = items.forged().first() {
            access.note_forged(items.forged());
            let (identity, receipts) = (access.caller().to_string(), items.forged().len());
            if let Some(permit) = self.forged_log.allow_many(&[&identity], receipts as u64) {
                let (job, suppressed) = (first.to_string(), permit.suppressed());
                tracing::warn!(
                    identity,
                    receipts,
                    suppressed,
                    job,
                    "receipts that no server of their shard has made were answered STALE: they are guessed, or damaged"
                );
            }
        }
        items.split(|item| access.settles(receipt(item)))
    }

    /// Writes the jobs of a batch that are valid and allowed, and returns all results in order; refuses all of them
    /// beyond a quota.
    async fn write(
        &self,
        access: &CallAccess,
        batch: enqueue::EnqueueBatch,
        until: Option<Instant>,
    ) -> Result<Vec<pb::EnqueueResult>, RpcError> {
        let mut drafts = Vec::with_capacity(batch.drafts.len());
        let allowed = |draft: Result<Draft, InvalidRequest>| {
            let draft = draft?;
            access.touch(&draft.topic)?;
            may_move(access, &draft, "retry.crash_topic")?;
            topic_limits::check_job(self.producer.documents(), FieldPath::ROOT, &draft)?;
            Ok(draft)
        };
        let slots: Vec<_> =
            batch.drafts.into_iter().map(|draft| slot(allowed(draft), &mut drafts)).collect();
        let admitted = AdmittedJobs::admit(&self.authenticator, access.caller(), &drafts).await?;
        let written =
            self.producer.enqueue(drafts, WriteTerms::of_call(batch.durability, until)).await;
        admitted.written(&written);
        let mut written = written.into_iter();
        let result = |slot| match slot {
            Ok(chosen) => result(written.next(), chosen),
            Err(error) => refused(String::new(), error),
        };
        Ok(slots.into_iter().map(result).collect())
    }
}

#[tonic::async_trait]
impl QueueService for QueueHandler {
    type StreamStream = StreamMessages;

    async fn enqueue(
        &self,
        request: Request<pb::EnqueueRequest>,
    ) -> RpcResult<pb::EnqueueResponse> {
        let (metadata, extensions, request) = request.into_parts();
        let span = extensions.get::<CallSpan>();
        let own = span.map(CallSpan::traceparent);
        let access = CallAccess::of(&extensions, Rpc::Enqueue)?;
        let (draft, asked) = enqueue::enqueue(request, self.context(&metadata, own.as_deref()))?;
        access.touch(&draft.topic).map_err(|error| error.with_field("job.topic"))?;
        may_move(&access, &draft, "job.retry.crash_topic")?;
        let path = FieldPath::ROOT.field("job");
        topic_limits::check_job(self.producer.documents(), path, &draft)?;
        let topic = span.map(|_| draft.topic.clone());
        let drafts = vec![draft];
        let admitted = AdmittedJobs::admit(&self.authenticator, access.caller(), &drafts).await?;
        let terms = WriteTerms::of_call(asked, write_deadline(&extensions));
        let mut written = self.producer.enqueue(drafts, terms).await;
        admitted.written(&written);
        match written.pop() {
            Some(Ok(enqueued)) => {
                if let (Some(span), Some(topic)) = (span, topic) {
                    let (id, shard) = (enqueued.id.as_str(), enqueued.shard.as_str());
                    span.set_job(SpanJob { topic: topic.as_str(), id, shard });
                }
                Ok(Response::new(enqueue::to_enqueue_response(enqueued)))
            }
            Some(Err(error)) => Err(RpcError::from(error).in_field("job").into()),
            None => Err(RpcError::internal().into()),
        }
    }

    async fn batch_enqueue(
        &self,
        request: Request<pb::BatchEnqueueRequest>,
    ) -> RpcResult<pb::BatchEnqueueResponse> {
        let (metadata, extensions, request) = request.into_parts();
        let span = extensions.get::<CallSpan>();
        let own = span.map(CallSpan::traceparent);
        let access = CallAccess::of(&extensions, Rpc::BatchEnqueue)?;
        let batch = enqueue::batch_enqueue(request, self.context(&metadata, own.as_deref()))?;
        if let Some(span) = span {
            span.set_jobs(batch.drafts.len());
        }
        let results = self.write(&access, batch, write_deadline(&extensions)).await?;
        let failed = results.iter().filter(|result| result.error.is_some()).count();
        let failed_count = to_int32(failed);
        Ok(Response::new(pb::BatchEnqueueResponse { results, failed_count }))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> RpcResult<pb::GetResponse> {
        let access = CallAccess::of(request.extensions(), Rpc::Get)?;
        let request = request.into_inner();
        let (key, view) = job::get(&request)?;
        access.touch_job(&key)?;
        let view = access.view(&key.topic, view, request.view)?;
        let found = self.producer.get(key.clone(), view == ReadView::Full).await;
        let found = found.map_err(RpcError::of_read)?;
        let found = found.ok_or_else(|| RpcError::job_not_found(&key))?;
        Ok(Response::new(pb::GetResponse { job: Some(job::to_job(found, view)) }))
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> RpcResult<pb::DeleteResponse> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::Delete)?;
        let (key, allow_missing) = job::delete(&request.into_inner())?;
        let previous = match access.touch_job(&key) {
            Ok(()) => self.producer.delete(key.clone(), until).await?,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        if previous.is_none() && !allow_missing {
            return Err(RpcError::job_not_found(&key).into());
        }
        let previous = previous.map_or(pb::JobState::Unspecified, enums::to_job_state);
        Ok(Response::new(pb::DeleteResponse { previous_state: previous.into() }))
    }

    async fn reschedule(
        &self,
        request: Request<pb::RescheduleRequest>,
    ) -> RpcResult<pb::RescheduleResponse> {
        let (now, until) = (self.producer.clock().now(), write_deadline(request.extensions()));
        let access = CallAccess::of(request.extensions(), Rpc::Reschedule)?;
        let RescheduleCall { key, due, priority } =
            reschedule::reschedule(request.into_inner(), now)?;
        access.touch_job(&key)?;
        match self.producer.reschedule(key.clone(), due, priority, until).await? {
            Ok(Some(moved)) => {
                let job = Some(job::to_job(moved, ReadView::Basic));
                Ok(Response::new(pb::RescheduleResponse { job }))
            }
            Ok(None) => Err(RpcError::job_not_found(&key).into()),
            Err(state) => Err(RpcError::wrong_state(&key, state).into()),
        }
    }

    async fn stream(&self, request: Request<pb::StreamRequest>) -> RpcResult<StreamMessages> {
        let caller = caller(&request);
        let age = request.extensions().get::<ConnectionAge>().cloned();
        let access = CallAccess::of(request.extensions(), Rpc::Stream)?;
        let (mut options, mut info) = stream::stream(request.into_inner(), caller)?;
        options.topics = access.narrow(options.topics)?;
        options.identity = access.caller().identity().cloned();
        let slot = access.open_stream()?;
        if let Some(age) = age {
            age.stream_opened(&options);
        }
        let worker_id = Arc::clone(&options.worker_id);
        let (authenticator, caller) = (self.authenticator.clone(), access.caller().clone());
        let ends = async move { authenticator.ended(&caller).await };
        let outbox = self.dispatcher.open_until(options, ends)?;
        info.stream_id = outbox.stream_id();
        info.replica.clone_from(&self.producer.replica().name);
        info.server_time = Some(time::to_timestamp(self.producer.clock().now()));
        let ends = StreamCut(outbox.reset_token());
        let mut answer = Response::new(StreamMessages::new(
            outbox,
            (*self.settler).clone(),
            (self.tracer.clone(), worker_id),
            info,
            slot,
        ));
        answer.extensions_mut().insert(ends);
        Ok(answer)
    }

    async fn pull(&self, request: Request<pb::PullRequest>) -> RpcResult<pb::PullResponse> {
        let left = request.extensions().get::<CallDeadline>().map(|deadline| deadline.left());
        let caller = caller(&request);
        let span = request.extensions().get::<CallSpan>().cloned();
        let access = CallAccess::of(request.extensions(), Rpc::Pull)?;
        let mut options = stream::pull(request.into_inner(), caller, left)?;
        options.topics = access.narrow(options.topics)?;
        let worker_id = Arc::clone(&options.worker_id);
        let slot = access.open_stream()?;
        // A caller that loses its rights while it waits gets nothing, and its next call is refused.
        let pulled = tokio::select! {
            biased;
            pulled = self.dispatcher.pull(options) => pulled?,
            () = self.authenticator.ended(access.caller()) => return Ok(Response::new(pb::PullResponse::default())),
        };
        let (deliveries, handover) = pulled;
        drop(slot);
        if let Some(span) = span {
            span.set_jobs(deliveries.len());
        }
        let span = |job| delivery_span(&self.tracer, job, &worker_id);
        let pulled = PulledJobs::new(handover, deliveries.iter().filter_map(span).collect());
        let policy = |topic: &_, over: Option<&_>| self.producer.retry_policy(topic, over);
        let key = |shard: &_| self.settler.receipt_key(shard);
        let deliveries = deliveries.into_iter().map(|d| to_delivery(d, policy, key)).collect();
        let mut response = Response::new(pb::PullResponse { deliveries });
        response.extensions_mut().insert(Arc::new(pulled));
        Ok(response)
    }

    async fn ack(&self, request: Request<pb::AckRequest>) -> RpcResult<pb::AckResponse> {
        let (metadata, extensions, request) = request.into_parts();
        let span = extensions.get::<CallSpan>();
        let own = span.map(CallSpan::traceparent);
        let access = CallAccess::of(&extensions, Rpc::Ack)?;
        let key = |shard: &_| self.settler.receipt_key(shard);
        let items = settle::ack(request, self.context(&metadata, own.as_deref()), key)?;
        may_follow_up(&access, &items)?;
        topic_limits::check_follow_ups(self.producer.documents(), items.valid())?;
        let (items, receipts) = self.settled(&access, items, |item| &item.receipt);
        describe_settles(span, items.iter().map(|item| &item.receipt));
        let follow_ups = FollowUps::take(&self.authenticator, access.caller(), &items);
        let results = self.settler.ack(items).await;
        follow_ups.written(&results);
        let failures = receipts.failures(results);
        Ok(Response::new(pb::AckResponse { failures }))
    }

    async fn nack(&self, request: Request<pb::NackRequest>) -> RpcResult<pb::NackResponse> {
        let (_, extensions, request) = request.into_parts();
        let access = CallAccess::of(&extensions, Rpc::Nack)?;
        let items = settle::nack(request, |shard| self.settler.receipt_key(shard))?;
        let (items, receipts) = self.settled(&access, items, |item| &item.receipt);
        describe_settles(extensions.get(), items.iter().map(|item| &item.receipt));
        let failures = receipts.failures(self.settler.nack(items).await);
        Ok(Response::new(pb::NackResponse { failures }))
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> RpcResult<pb::ExtendResponse> {
        let (_, extensions, request) = request.into_parts();
        let until = write_deadline(&extensions);
        let access = CallAccess::of(&extensions, Rpc::Extend)?;
        let items = settle::extend(request, |shard| self.settler.receipt_key(shard))?;
        let (items, receipts) = self.settled(&access, items, |item| &item.receipt);
        describe_settles(extensions.get(), items.iter().map(|item| &item.receipt));
        let failures = receipts.failures(self.settler.extend(items, until).await);
        Ok(Response::new(pb::ExtendResponse { failures }))
    }
}

/// Allows or refuses the crash topic that a job names in this field: the job arrives there as by an Enqueue.
fn may_move(access: &CallAccess, draft: &Draft, field: &str) -> Result<(), RpcError> {
    let setting = draft.spec.retry.as_ref().and_then(|retry| retry.crash_topic.as_ref());
    match setting.and_then(CrashTopic::name).map(|topic| access.touch(topic)) {
        Some(Err(error)) => Err(error.with_field(field)),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Allows or refuses the follow-up jobs of an Ack, as Enqueue would.
fn may_follow_up(access: &CallAccess, items: &SettleItems<AckItem>) -> Result<(), RpcError> {
    let access = access.to(Rpc::Enqueue);
    for item in items.valid() {
        for follow_up in &item.follow_ups {
            access
                .touch(&follow_up.topic)
                .map_err(|error| error.with_field("items.enqueue.topic"))?;
            may_move(&access, follow_up, "items.enqueue.retry.crash_topic")?;
        }
    }
    Ok(())
}

/// Adds the jobs of an Ack, Nack or Extend to its span, if the call is recorded.
fn describe_settles<'a>(
    span: Option<&CallSpan>,
    receipts: impl ExactSizeIterator<Item = &'a Receipt>,
) {
    let Some(span) = span else { return };
    span.set_jobs(receipts.len());
    let mut receipts = receipts;
    if let (Some(Receipt { shard, key, .. }), None) = (receipts.next(), receipts.next()) {
        let (topic, id) = (key.topic.as_str(), key.id.as_str());
        span.set_job(SpanJob { topic, id, shard: shard.as_str() });
    }
}

/// Moves an allowed draft to the others and keeps the id that its result may have to contain.
fn slot(draft: Result<Draft, RpcError>, drafts: &mut Vec<Draft>) -> Result<String, RpcError> {
    draft.map(|draft| {
        let id = draft.id.as_ref().map_or(String::new(), |id| id.as_str().to_owned());
        drafts.push(draft);
        id
    })
}

fn result(written: Option<Result<AcceptedJob, EnqueueError>>, chosen: String) -> pb::EnqueueResult {
    match written {
        Some(Ok(enqueued)) => enqueue::to_enqueue_result(enqueued),
        Some(Err(error)) => {
            let id = safe_id(&error).map_or(chosen, |id| id.as_str().to_owned());
            refused(id, RpcError::from(error))
        }
        None => refused(chosen, RpcError::internal()),
    }
}

fn refused(id: String, failure: RpcError) -> pb::EnqueueResult {
    pb::EnqueueResult { id, error: Some(failure.into()), ..pb::EnqueueResult::default() }
}
