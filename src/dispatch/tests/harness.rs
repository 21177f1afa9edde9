//! Test server: dispatcher, scheduler and store, without the network.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, ManualClock};
use crate::dispatch::{
    Config, Dispatcher, JobDelivery, Outbox, PullOptions, StreamBatch, StreamOptions,
};
use crate::domain::{
    OnConflict, Payload, Receipt, Spec, StreamId, Time, TopicName, TopicPattern, When, limit,
};
use crate::metrics::Metrics;
use crate::scheduler::{AckItem, Draft, ExtendItem, ReplicaIdentity, Scheduler, WriteTerms};
use crate::shards::Shards;
use crate::store::faulty_store::FaultyStore;
use crate::store::{LeaseQuery, ShardTopicStats, StatsOptions, Store as _};
use futures::StreamExt as _;

pub(super) const STREAMS_MAX: usize = 10;
pub(super) const AGE_MAX: Duration = Duration::from_secs(1_800);
pub(super) const SOON: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::from_millis(50);

pub(super) struct TestServer {
    pub(super) clock: ManualClock,
    pub(super) store: Arc<FaultyStore>,
    pub(super) scheduler: Scheduler,
    pub(super) dispatcher: Dispatcher,
}

/// Client side of a stream.
pub(super) struct TestWorker(Outbox);

impl TestServer {
    pub(super) fn start() -> TestServer {
        let clock = ManualClock::new(Time(1_700_000_000_000_000));
        let time = Clock::Manual(clock.clone());
        TestServer::over(store(&time), clock, &time, 1)
    }

    /// Starts one of several replicas on a store: lease events of the others do not arrive.
    pub(super) fn start_among_others() -> TestServer {
        let clock = ManualClock::new(Time(1_700_000_000_000_000));
        let time = Clock::Manual(clock.clone());
        let store = store(&time);
        store.share_without_events();
        TestServer::over(store, clock, &time, 1)
    }

    /// Starts a server with the system clock.
    pub(super) fn start_in_real_time() -> TestServer {
        let time = Clock::system();
        TestServer::over(store(&time), ManualClock::new(Time(0)), &time, 1)
    }

    /// Starts the next run of the server on the same store.
    pub(super) fn restart(&self) -> TestServer {
        let time = Clock::Manual(self.clock.clone());
        TestServer::over(Arc::clone(&self.store), self.clock.clone(), &time, 2)
    }

    pub(super) fn over(
        store: Arc<FaultyStore>,
        clock: ManualClock,
        time: &Clock,
        nonce: u32,
    ) -> TestServer {
        let metrics = Metrics::new();
        let shards = Shards::new(vec![Arc::clone(&store).into()], &metrics);
        let replica = ReplicaIdentity { name: "r".into(), nonce };
        let scheduler = Scheduler::new(shards, time.clone(), metrics, replica);
        let config = Config { streams_max: STREAMS_MAX, stream_max_age: AGE_MAX };
        let dispatcher = Dispatcher::spawn(scheduler.settler.clone(), config);
        TestServer { clock, store, scheduler, dispatcher }
    }

    /// Advances the time while this replica, which has joined, and these others send heartbeats.
    pub(super) async fn advance_with_heartbeats(&self, time: Duration, others: &[u32]) {
        let end = self.clock.now().plus(time);
        while self.clock.now() < end {
            let left = end.since(self.clock.now());
            self.clock.advance(left.min(limit::REPLICA_HEARTBEAT));
            others.iter().for_each(|&other| self.store.add_heartbeat(other, self.clock.now()));
            self.beat().await;
        }
        run_pending_tasks().await;
    }

    /// Sends a heartbeat of this replica.
    pub(super) async fn beat(&self) {
        let shard = &self.scheduler.shards().all()[0];
        let mut censuses = shard.watch_shared_state();
        censuses.borrow_and_update();
        shard.report_replicas(&[]);
        tokio::time::timeout(SOON, censuses.changed()).await.expect("an answer").unwrap();
    }

    pub(super) fn open(&self, options: StreamOptions) -> TestWorker {
        TestWorker(self.dispatcher.open(options).unwrap())
    }

    pub(super) async fn pull(&self, options: PullOptions) -> Vec<JobDelivery> {
        let (deliveries, handover) = self.dispatcher.pull(options).await.unwrap();
        handover.confirm();
        deliveries
    }

    pub(super) async fn enqueue(&self, topic: &str, jobs: usize) {
        self.write(topic, When::Now, jobs).await;
    }

    pub(super) async fn enqueue_after(&self, topic: &str, delay: Duration) {
        self.write(topic, When::After(delay), 1).await;
    }

    /// Enqueues jobs with this many bytes of payload.
    pub(super) async fn enqueue_large(&self, topic: &str, jobs: usize, bytes: usize) {
        let payload = Payload { body: vec![0; bytes].into(), ..Payload::default() };
        let spec = Spec { payload: Some(payload), ..Spec::default() };
        self.write_all(topic, When::Now, jobs, spec).await;
    }

    async fn write(&self, topic: &str, due: When, jobs: usize) {
        self.write_all(topic, due, jobs, Spec::default()).await;
    }

    async fn write_all(&self, topic: &str, due: When, jobs: usize, spec: Spec) {
        let draft = Draft {
            topic: TopicName::stored(topic),
            id: None,
            request_id: None,
            spec,
            due,
            priority: None,
            expire: None,
            on_conflict: OnConflict::Keep,
        };
        for result in self
            .scheduler
            .producer
            .enqueue(vec![draft; jobs], WriteTerms::of_call(None, None))
            .await
        {
            result.unwrap();
        }
    }

    pub(super) async fn ack(&self, deliveries: &[JobDelivery]) {
        let item = |delivery: &JobDelivery| AckItem {
            receipt: delivery.receipt.clone(),
            result: None,
            follow_ups: Vec::new(),
        };
        for result in self.scheduler.settler.ack(deliveries.iter().map(item).collect()).await {
            result.unwrap();
        }
    }

    pub(super) async fn extend(&self, deliveries: &[JobDelivery]) {
        self.extend_by(deliveries.iter().map(|delivery| delivery.receipt.clone())).await;
    }

    pub(super) async fn extend_by(&self, receipts: impl IntoIterator<Item = Receipt>) {
        let item =
            |receipt| ExtendItem { receipt, duration: None, progress: None, checkpoint: None };
        for result in
            self.scheduler.settler.extend(receipts.into_iter().map(item).collect(), None).await
        {
            result.unwrap();
        }
    }

    /// Number of leases that the next run would release.
    pub(super) async fn leases_left_in_store(&self) -> usize {
        let orphans = LeaseQuery::Orphaned { live_owners: vec![0] };
        self.store.sqlite_store().query_leases(orphans).await.unwrap().leases.len()
    }

    pub(super) async fn reap(&self) {
        self.scheduler.upkeep.reap(&self.scheduler.shards().all()[0]).await.unwrap();
    }

    pub(super) async fn stats(&self, topic: &str) -> ShardTopicStats {
        let stats = self
            .store
            .stats(vec![TopicName::stored(topic)], StatsOptions::default())
            .await
            .unwrap();
        stats[0].unwrap_or_default()
    }

    pub(super) async fn succeeded(&self, topics: [&str; 3]) -> u64 {
        let names = topics.iter().map(|topic| TopicName::stored(topic)).collect();
        let stats = self.store.stats(names, StatsOptions::default()).await.unwrap();
        stats.into_iter().flatten().map(|stats| stats.succeeded_total).sum()
    }

    pub(super) async fn eventually(&self, topic: &str, holds: impl Fn(&ShardTopicStats) -> bool) {
        let waiting = async {
            while !holds(&self.stats(topic).await) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(SOON, waiting).await.is_err() {
            panic!("the expected state did not occur: {:?}", self.stats(topic).await);
        }
    }

    /// Waits as [`TestServer::eventually`] while the clock goes on: the wait that leads there may begin later than the call.
    pub(super) async fn in_time(&self, topic: &str, holds: impl Fn(&ShardTopicStats) -> bool) {
        self.eventually(topic, |stats| {
            self.clock.advance(Duration::from_millis(10));
            holds(stats)
        })
        .await;
    }
}

impl TestWorker {
    /// Returns the token of [`Outbox::reset_token`].
    pub(super) fn cut(&self) -> tokio_util::sync::CancellationToken {
        self.0.reset_token()
    }

    pub(super) fn new(outbox: Outbox) -> TestWorker {
        TestWorker(outbox)
    }

    pub(super) fn id(&self) -> StreamId {
        self.0.stream_id().parse().unwrap()
    }

    pub(super) async fn batch(&mut self) -> StreamBatch {
        self.0.next().await.expect("the stream goes on")
    }

    /// Receives this many jobs, in any number of messages.
    pub(super) async fn jobs(&mut self, n: usize) -> Vec<JobDelivery> {
        let mut jobs = Vec::new();
        while jobs.len() < n {
            let batch = tokio::time::timeout(SOON, self.batch()).await.expect("a message comes");
            jobs.extend(batch.deliveries);
        }
        assert_eq!(jobs.len(), n);
        jobs
    }

    /// Receives the jobs of the next message that has any.
    pub(super) async fn some_jobs(&mut self) -> Vec<JobDelivery> {
        loop {
            let batch = tokio::time::timeout(SOON, self.batch()).await.expect("a message comes");
            if !batch.deliveries.is_empty() {
                return batch.deliveries;
            }
        }
    }

    pub(super) async fn nothing(&mut self) {
        let batch = tokio::time::timeout(NEVER, self.0.next()).await;
        assert!(batch.is_err(), "{batch:?}");
    }

    pub(super) async fn nothing_now(&mut self) {
        tokio::task::yield_now().await;
        assert!(futures::poll!(self.0.next()).is_pending());
    }

    pub(super) async fn ended(&mut self) -> bool {
        self.0.next().await.is_none()
    }
}

pub(super) fn store(time: &Clock) -> Arc<FaultyStore> {
    FaultyStore::new("s0", time)
}

/// Waits until pending tasks have run.
pub(super) async fn run_pending_tasks() {
    tokio::time::sleep(NEVER).await;
}

/// Returns the failures and deliveries before this one.
pub(super) fn attempt(delivery: &JobDelivery) -> (u32, u32) {
    (delivery.job.failures, delivery.job.deliveries)
}

pub(super) fn patterns(topics: &[&str]) -> Vec<TopicPattern> {
    let pattern = |topic: &&str| match topic.strip_suffix('*') {
        Some(prefix) => TopicPattern::Prefix(prefix.into()),
        None => TopicPattern::Exact(TopicName::stored(topic)),
    };
    topics.iter().map(pattern).collect()
}

pub(super) fn options(topics: &[&str]) -> StreamOptions {
    StreamOptions {
        topics: patterns(topics),
        topic_weights: Vec::new(),
        max_in_flight: 16,
        max_in_flight_bytes: 64 << 20,
        max_batch: 64,
        lease: Duration::from_secs(30),
        names_lease: false,
        heartbeat: Duration::from_secs(20),
        max_jobs: None,
        idle_timeout: None,
        orphan_grace: Duration::from_secs(5),
        worker_id: "w".into(),
        identity: None,
        continues: None,
        peer: String::new(),
        user_agent: "test".into(),
    }
}

pub(super) fn pull_options(topics: &[&str], max_jobs: u32, wait: Duration) -> PullOptions {
    PullOptions {
        topics: patterns(topics),
        max_jobs,
        lease: Duration::from_secs(30),
        names_lease: false,
        worker_id: "w".into(),
        wait,
        peer: "here".into(),
        user_agent: "test".into(),
    }
}
