//! A client with all services, and calls that a test expects to succeed.

use std::net::SocketAddr;
use std::time::Duration;

use ringq::pb::admin_service_client::AdminServiceClient;
use ringq::pb::queue_service_client::QueueServiceClient;
use ringq::pb::topic_service_client::TopicServiceClient;
use ringq::pb::{
    AckItem, AckRequest, BatchEnqueueRequest, ConflictPolicy, Delivery, EnqueueRequest,
    EnqueueResponse, ExtendItem, ExtendRequest, GetRequest, GetTopicStatsRequest, Job, JobSpec,
    JobState, JobView, ListJobsRequest, NackAction, NackItem, NackRequest, PullRequest,
    SettleFailure, StreamRequest, TopicStats,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{PATIENCE, Worker, eventually, job::request, proto};

/// A connection and a client of each service on it.
#[derive(Clone)]
pub(crate) struct Client {
    /// The data plane.
    pub(crate) queue: QueueServiceClient<Channel>,
    /// Topics.
    pub(crate) topics: TopicServiceClient<Channel>,
    /// The operator's view.
    pub(crate) admin: AdminServiceClient<Channel>,
    /// The connection.
    pub(crate) channel: Channel,
}

/// Builds Ack receipts of these deliveries.
pub(crate) fn receipts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.receipt.clone()).collect()
}

/// Builds a Nack item with this action.
pub(crate) fn nack(receipt: &str, action: NackAction) -> NackItem {
    NackItem { receipt: receipt.to_owned(), action: action.into(), ..Default::default() }
}

/// Builds a Nack item for a failed attempt, with its error.
pub(crate) fn nack_retry(receipt: &str, error: &str) -> NackItem {
    NackItem { error: error.to_owned(), ..nack(receipt, NackAction::Retry) }
}

// === impl Client ===

impl Client {
    /// Connects to a server.
    pub(crate) async fn connect(grpc: SocketAddr) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).unwrap();
        // A server that never answers fails the test instead of hanging it.
        let endpoint = endpoint.timeout(PATIENCE);
        let channel = endpoint.connect().await.expect("a connection");
        Client {
            queue: QueueServiceClient::new(channel.clone()),
            topics: TopicServiceClient::new(channel.clone()),
            admin: AdminServiceClient::new(channel.clone()),
            channel,
        }
    }

    /// Enqueues a job and expects success.
    pub(crate) async fn enqueue(&self, job: JobSpec) -> EnqueueResponse {
        self.send(request(job)).await.expect("an accepted job")
    }

    /// Enqueues a job under an `on_conflict` policy.
    pub(crate) async fn enqueue_by(
        &self,
        policy: ConflictPolicy,
        job: JobSpec,
    ) -> Result<EnqueueResponse, Status> {
        self.send(EnqueueRequest { on_conflict: policy.into(), ..request(job) }).await
    }

    /// Sends an Enqueue.
    pub(crate) async fn send(&self, request: EnqueueRequest) -> Result<EnqueueResponse, Status> {
        self.queue.clone().enqueue(request).await.map(tonic::Response::into_inner)
    }

    /// Enqueues several jobs, expects success for each, and returns their ids.
    pub(crate) async fn enqueue_all(&self, jobs: Vec<JobSpec>) -> Vec<String> {
        let mut ids = Vec::with_capacity(jobs.len());
        for jobs in jobs.chunks(1_000) {
            let batch = BatchEnqueueRequest { jobs: jobs.to_vec(), ..Default::default() };
            let answer = self.queue.clone().batch_enqueue(batch).await.unwrap().into_inner();
            assert_eq!(answer.failed_count, 0, "{:?}", answer.results);
            ids.extend(answer.results.into_iter().map(|result| result.id));
        }
        ids
    }

    /// Opens a stream.
    pub(crate) async fn stream(&self, request: StreamRequest) -> Worker {
        Worker::open(self, request).await
    }

    /// Calls Pull.
    pub(crate) async fn pull(&self, request: PullRequest) -> Result<Vec<Delivery>, Status> {
        Ok(self.queue.clone().pull(request).await?.into_inner().deliveries)
    }

    /// Pulls one job, waiting for it if necessary.
    pub(crate) async fn pull_one(&self, topic: &str) -> Delivery {
        let mut deliveries = self.pull_waiting(topic, 1, PATIENCE / 2).await;
        assert_eq!(deliveries.len(), 1, "no job came on {topic}");
        deliveries.remove(0)
    }

    /// Pulls the jobs that are ready now, at most `max_jobs`.
    pub(crate) async fn pull_now(&self, topic: &str, max_jobs: i32) -> Vec<Delivery> {
        self.pull_waiting(topic, max_jobs, Duration::ZERO).await
    }

    async fn pull_waiting(&self, topic: &str, max_jobs: i32, wait: Duration) -> Vec<Delivery> {
        let (topics, wait) = (vec![topic.to_owned()], Some(proto(wait)));
        let request = PullRequest { topics, max_jobs, wait, ..Default::default() };
        self.pull(request).await.expect("a pull")
    }

    /// Acks a job.
    pub(crate) async fn ack(&self, receipt: &str) {
        self.ack_all(&[receipt.to_owned()]).await;
    }

    /// Acks jobs.
    pub(crate) async fn ack_all(&self, receipts: &[String]) {
        for receipts in receipts.chunks(1_000) {
            let item =
                |receipt: &String| AckItem { receipt: receipt.clone(), ..Default::default() };
            let failures = self.ack_items(receipts.iter().map(item).collect()).await;
            assert_eq!(failures, [], "all receipts are good");
        }
    }

    /// Acks jobs and returns the failures.
    pub(crate) async fn ack_items(&self, items: Vec<AckItem>) -> Vec<SettleFailure> {
        self.try_ack(items).await.expect("an Ack")
    }

    /// Sends an Ack.
    pub(crate) async fn try_ack(&self, items: Vec<AckItem>) -> Result<Vec<SettleFailure>, Status> {
        Ok(self.queue.clone().ack(AckRequest { items }).await?.into_inner().failures)
    }

    /// Nacks a job.
    pub(crate) async fn nack(&self, item: NackItem) {
        assert_eq!(self.nack_items(vec![item]).await, [], "the receipt is good");
    }

    /// Nacks jobs and returns the failures.
    pub(crate) async fn nack_items(&self, items: Vec<NackItem>) -> Vec<SettleFailure> {
        self.queue.clone().nack(NackRequest { items }).await.unwrap().into_inner().failures
    }

    /// Extends a lease.
    pub(crate) async fn extend(&self, receipt: &str, lease: Duration) {
        let (receipt, lease_duration) = (receipt.to_owned(), Some(proto(lease)));
        let item = ExtendItem { receipt, lease_duration, ..Default::default() };
        assert_eq!(self.extend_items(vec![item]).await, [], "the receipt is good");
    }

    /// Extends leases and returns the failures.
    pub(crate) async fn extend_items(&self, items: Vec<ExtendItem>) -> Vec<SettleFailure> {
        self.queue.clone().extend(ExtendRequest { items }).await.unwrap().into_inner().failures
    }

    /// Reads a job that must exist.
    pub(crate) async fn get(&self, topic: &str, id: &str) -> Job {
        self.find(topic, id).await.unwrap_or_else(|| panic!("{topic}/{id} is gone"))
    }

    /// Reads a job, if it exists.
    pub(crate) async fn find(&self, topic: &str, id: &str) -> Option<Job> {
        let view = JobView::Unspecified.into();
        let request = GetRequest { topic: topic.to_owned(), id: id.to_owned(), view };
        match self.queue.clone().get(request).await {
            Ok(answer) => Some(answer.into_inner().job.expect("a job")),
            Err(status) if status.code() == Code::NotFound => None,
            Err(status) => panic!("{topic}/{id}: {status:?}"),
        }
    }

    /// Returns the state of a job that must exist.
    pub(crate) async fn state(&self, topic: &str, id: &str) -> JobState {
        self.get(topic, id).await.state()
    }

    /// Waits until a job is in this state.
    pub(crate) async fn until(&self, topic: &str, id: &str, state: JobState) -> Job {
        eventually(&format!("{topic}/{id} is {state:?}"), async || {
            self.find(topic, id).await.filter(|job| job.state() == state)
        })
        .await
    }

    /// Reads the statistics of a topic.
    pub(crate) async fn stats(&self, topic: &str) -> TopicStats {
        let request = GetTopicStatsRequest { name: topic.to_owned() };
        let answer = self.topics.clone().get_topic_stats(request).await.expect("a topic");
        answer.into_inner().stats.expect("numbers")
    }

    /// All jobs of a topic in one state, without payloads.
    pub(crate) async fn list(&self, topic: &str, state: JobState) -> Vec<Job> {
        let (mut jobs, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = ListJobsRequest {
                topic: topic.to_owned(),
                state: state.into(),
                page_size: 500,
                page_token,
                ..Default::default()
            };
            let page = self.admin.clone().list_jobs(request).await.expect("a page").into_inner();
            assert_eq!(page.unreachable_shards, Vec::<String>::new());
            jobs.extend(page.jobs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return jobs;
            }
        }
    }
}
