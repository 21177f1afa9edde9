//! `AdminService`: the operator's view.

use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::contract::enums::{ReadView, to_durability};
use crate::contract::explain::{self, to_reason};
use crate::contract::number::to_int64;
use crate::contract::shard::{self, to_shard};
use crate::contract::time::to_timestamp;
use crate::contract::worker::{self, subscribes_to, to_worker};
use crate::contract::{job, list, redrive};
use crate::dispatch::{Dispatcher, WorkerInfo};
use crate::domain::explain::{ExplainFacts, GroupPause, Pause, reasons, unreachable_shard};
use crate::domain::{GroupName, limit};
use crate::pb;
use crate::pb::admin_service_server::AdminService;
use crate::rpc::Rpc;
use crate::scheduler::{FoundJob, JobExplanation, Operator};

use super::ServerFacts;
use super::access::CallAccess;
use super::jobs_page::jobs_page;
use super::layers::write_deadline;
use super::status::RpcError;

/// Features of this build beyond the first version of the contract.
const FEATURES: [&str; 11] = [
    "shard_state",
    "explain",
    "groups",
    "group_purge",
    "topic_admin",
    "topic_max_jobs",
    "topic_max_stored_bytes",
    "topic_purge",
    "topic_weights",
    "priority_ageing",
    "crash_topic",
];

/// Maximum number of pages with payloads that are read at once, each in pieces of about 35 MiB; other calls wait
/// until their deadline.
const FULL_PAGES_MAX: usize = 4;

/// Handler of `AdminService`.
pub(super) struct AdminHandler {
    operator: Operator,
    dispatcher: Dispatcher,
    about: ServerFacts,
    full_pages: Semaphore,
}

// === impl AdminHandler ===

impl AdminHandler {
    /// Creates the handler on top of these parts.
    pub(super) fn new(
        operator: Operator,
        dispatcher: Dispatcher,
        about: ServerFacts,
    ) -> AdminHandler {
        AdminHandler { operator, dispatcher, about, full_pages: Semaphore::new(FULL_PAGES_MAX) }
    }

    /// Returns the facts about a job that was read, with those about the streams of this server.
    fn facts(&self, access: &CallAccess, found: FoundJob) -> ExplainFacts {
        let FoundJob { explained, ageing, attempts_max, other_servers } = found;
        let job = &explained.job;
        let policy = self.operator.documents().of_topic(&job.key.topic);
        let group = &job.spec.group;
        let note = policy.as_ref().and_then(|policy| policy.paused_groups.get(group).cloned());
        let group_paused = note.map(|note| GroupPause {
            group: GroupName::text(group.as_ref()).to_owned(),
            pause: Pause { until: None, note },
        });
        let policy = policy.filter(|policy| policy.is_paused(explained.now));
        let pause = policy.and_then(|policy| policy.pause.clone());
        let streams = match job.state.is_waiting() {
            true => self.dispatcher.topic_streams(&job.key.topic, explained.bytes),
            false => Vec::new(),
        };
        let nonce = self.operator.replica().nonce;
        let own = explained.lease.filter(|lease| lease.stream.owner == nonce);
        let holder = own.and_then(|lease| self.dispatcher.holder(lease.stream.stream, lease.token));
        let workers = access.to(Rpc::ListWorkers);
        let shows_all = streams.iter().all(|stream| workers.shows_patterns(&stream.topics));
        ExplainFacts {
            streams: explain::stream_facts(&streams, shows_all, self.dispatcher.is_draining()),
            server: nonce,
            job: explained.job,
            now: explained.now,
            ready_before: explained.ready_before,
            turn: explained.turn,
            ageing,
            lease: explained.lease,
            holder,
            kept: explained.kept,
            attempts_max,
            other_servers,
            topic_paused: pause.map(|pause| Pause { until: pause.until, note: pause.note }),
            group_paused,
        }
    }
}

#[tonic::async_trait]
impl AdminService for AdminHandler {
    async fn list_jobs(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListJobsResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::ListJobs)?;
        let request = request.into_inner();
        let (mut asked, view) = list::list_jobs(&request)?;
        access.touch_existing(&asked.topic)?;
        let view = access.view(&asked.topic, view, request.view)?;
        asked.full = view == ReadView::Full;
        let _place = match view {
            ReadView::Full => self.full_pages.acquire().await.ok(),
            _ => None,
        };
        let read = |piece| self.operator.list_jobs(piece);
        let page = jobs_page(asked, view, read).await.map_err(RpcError::of_read)?;
        let token =
            page.next.map(|places| list::to_jobs_token(list::jobs_query(&request), &places));
        Ok(Response::new(pb::ListJobsResponse {
            jobs: page.jobs,
            next_page_token: token.unwrap_or_default(),
            unreachable_shards: page.unreachable,
        }))
    }

    async fn redrive_jobs(
        &self,
        request: Request<pb::RedriveJobsRequest>,
    ) -> Result<Response<pb::RedriveJobsResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::RedriveJobs)?;
        let redrive = redrive::redrive_jobs(&request.into_inner())?;
        access.touch_existing(&redrive.topic)?;
        redrive.ids.iter().for_each(|id| access.note_job(&redrive.topic, id.as_str()));
        if let Some(target) = redrive.target.as_ref().filter(|target| **target != redrive.topic) {
            // Jobs arrive there as by an Enqueue, and with payloads that the caller may take from there.
            access.touch(target).map_err(|error| error.with_field("target_topic"))?;
            let enqueue = access.to(Rpc::Enqueue);
            enqueue.touch(target).map_err(|error| error.with_field("target_topic"))?;
            access.touch_payloads(&redrive.topic)?;
        }
        if self.operator.topic(redrive.topic.clone()).await?.is_none() {
            return Err(RpcError::topic_not_found(&redrive.topic).into());
        }
        let done = self.operator.redrive(redrive, until).await?;
        Ok(Response::new(pb::RedriveJobsResponse {
            redriven_count: to_int64(done.redriven),
            skipped_count: to_int64(done.skipped),
            unreachable_shards: done.unreachable,
        }))
    }

    async fn explain_job(
        &self,
        request: Request<pb::ExplainJobRequest>,
    ) -> Result<Response<pb::ExplainJobResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::ExplainJob)?;
        let key = explain::explain_job(&request.into_inner())?;
        access.touch_job(&key)?;
        let found = self.operator.explain(key.clone()).await.map_err(RpcError::of_read)?;
        let (job, reasons) = match found.ok_or_else(|| RpcError::job_not_found(&key))? {
            JobExplanation::Found(found) => {
                let facts = self.facts(&access, *found);
                let reasons = reasons(&facts);
                (job::to_job(facts.job, ReadView::Basic), reasons)
            }
            JobExplanation::Unknown { shard, silence } => {
                (explain::unknown_job(&key), vec![unreachable_shard(&key, &shard, silence)])
            }
        };
        let reasons = reasons.into_iter().map(to_reason).collect();
        Ok(Response::new(pb::ExplainJobResponse { job: Some(job), reasons }))
    }

    async fn list_workers(
        &self,
        request: Request<pb::ListWorkersRequest>,
    ) -> Result<Response<pb::ListWorkersResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::ListWorkers)?;
        let topic = worker::list_workers(&request.into_inner())?;
        let mut workers = self.dispatcher.workers();
        for worker in &mut workers {
            let topics = access.shown_part(worker.topics.clone());
            if topics != worker.topics {
                hide_other_topics(worker);
            }
            worker.topics = topics;
        }
        workers.retain(|worker| !worker.topics.is_empty());
        if let Some(topic) = topic {
            workers.retain(|worker| subscribes_to(&worker.topics, &topic));
        }
        let replica = &self.operator.replica().name;
        let workers = workers.into_iter().map(|worker| to_worker(worker, replica)).collect();
        Ok(Response::new(pb::ListWorkersResponse { workers }))
    }

    async fn list_shards(
        &self,
        _: Request<pb::ListShardsRequest>,
    ) -> Result<Response<pb::ListShardsResponse>, Status> {
        let infos = self.operator.shard_infos().await;
        let mut shards: Vec<_> = infos.into_iter().map(to_shard).collect();
        shards.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Response::new(pb::ListShardsResponse { shards }))
    }

    async fn set_shard_state(
        &self,
        request: Request<pb::SetShardStateRequest>,
    ) -> Result<Response<pb::SetShardStateResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::SetShardState)?;
        let (name, state) = shard::set_shard_state(&request.into_inner())?;
        access.note_shard(name.as_str());
        let set = self.operator.set_shard_state(name, state, until).await;
        let set = set.map_err(RpcError::from)?;
        Ok(Response::new(pb::SetShardStateResponse { shard: Some(to_shard(set)) }))
    }

    async fn get_server_info(
        &self,
        _: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::GetServerInfoResponse>, Status> {
        let limits = limit::all().into_iter().map(|(name, value)| (name.to_owned(), value));
        let durability = self.operator.durability().map(to_durability);
        Ok(Response::new(pb::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            replica: self.operator.replica().name.clone(),
            store: self.about.store.to_owned(),
            features: FEATURES.map(str::to_owned).into(),
            start_time: Some(to_timestamp(self.about.start_time)),
            server_time: Some(to_timestamp(self.operator.clock().now())),
            limits: limits.collect(),
            durability: durability.unwrap_or_default().into(),
            unreachable_shards: self.operator.unreachable(),
        }))
    }
}

/// Removes what concerns the topics of a worker that its viewer does not see.
fn hide_other_topics(worker: &mut WorkerInfo) {
    worker.stream_id.clear();
    worker.peer.clear();
    worker.user_agent.clear();
    worker.max_in_flight = 0;
    worker.in_flight = 0;
}
