//! A ring of shards in memory that fail on demand, with short timeouts.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::BackoffRange;
use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{JobId, JobKey, OnConflict, Spec, TopicName, When};
use crate::metrics::Metrics;
use crate::scheduler::{AcceptedJob, Draft, EnqueueError, ReplicaIdentity, Scheduler, WriteTerms};
use crate::shards::{ShardMember, ShardTimeouts, Shards};
use crate::store::faulty_store::FaultyStore;
use crate::store::{ShardTopicStats, StatsOptions};

/// Time limit for anything that should come at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

pub(crate) struct TestRing {
    pub(crate) stores: Vec<Arc<FaultyStore>>,
    pub(crate) scheduler: Scheduler,
}

impl TestRing {
    /// Creates a ring of active shards, `s0` and on.
    pub(crate) fn new(shards: usize) -> TestRing {
        TestRing::with_states(&vec![ShardState::Active; shards])
    }

    pub(crate) fn with_states(states: &[ShardState]) -> TestRing {
        TestRing::with_stores(TestRing::stores(states.len()), states, 1)
    }

    /// Creates shards without a server.
    pub(crate) fn stores(count: usize) -> Vec<Arc<FaultyStore>> {
        let clock = Clock::system();
        (0..count).map(|n| FaultyStore::new(&format!("s{n}"), &clock)).collect()
    }

    /// Creates a replica with that nonce over these shards.
    pub(crate) fn with_stores(
        stores: Vec<Arc<FaultyStore>>,
        states: &[ShardState],
        nonce: u32,
    ) -> TestRing {
        let (clock, metrics) = (Clock::system(), Metrics::new());
        let member = |(store, &state): (&Arc<FaultyStore>, &ShardState)| ShardMember {
            state,
            ..ShardMember::from(Arc::clone(store))
        };
        let members = stores.iter().zip(states).map(member).collect();
        let shards = Shards::with_timeouts(test_timeouts(), members, &metrics);
        let replica = ReplicaIdentity { name: "r".into(), nonce };
        TestRing { stores, scheduler: Scheduler::new(shards, clock, metrics, replica) }
    }

    /// Creates a replica over these shards that has joined the others.
    pub(crate) async fn joined(stores: &[Arc<FaultyStore>], nonce: u32) -> TestRing {
        let states = vec![ShardState::Active; stores.len()];
        let ring = TestRing::with_stores(stores.to_vec(), &states, nonce);
        ring.scheduler.shards().join(nonce, ring.scheduler.clock()).await;
        ring
    }

    /// Enqueues without a deadline.
    pub(crate) async fn enqueue(
        &self,
        drafts: Vec<Draft>,
    ) -> Vec<Result<AcceptedJob, EnqueueError>> {
        self.scheduler.producer.enqueue(drafts, WriteTerms::of_call(None, None)).await
    }

    /// Enqueues with a deadline of `time` from now.
    pub(crate) async fn enqueue_for(
        &self,
        time: Duration,
        draft: Draft,
    ) -> Result<AcceptedJob, EnqueueError> {
        let until = Some(Instant::now() + time);
        self.scheduler
            .producer
            .enqueue(vec![draft], WriteTerms::of_call(None, until))
            .await
            .remove(0)
    }

    /// Enqueues and expects all to be accepted.
    pub(crate) async fn enqueue_accepted(&self, drafts: Vec<Draft>) -> Vec<AcceptedJob> {
        self.enqueue(drafts).await.into_iter().map(Result::unwrap).collect()
    }

    /// Returns drafts with ids that the shard `n` owns.
    pub(crate) fn owned_by(&self, n: usize, topic: &str, count: usize) -> Vec<Draft> {
        let owner = self.stores[n].name();
        let drafts = (0..).map(|id| draft_with_id(topic, &format!("n{id}")));
        let owned = |draft: &Draft| {
            let key = key(topic, draft.id.as_ref().unwrap().as_str());
            self.scheduler.shards().owner(&key).unwrap().name() == owner
        };
        drafts.filter(owned).take(count).collect()
    }

    /// Returns the statistics of a topic on each shard.
    pub(crate) async fn stats(&self, topic: &str) -> Vec<ShardTopicStats> {
        let mut all = Vec::new();
        for store in &self.stores {
            let stats = store
                .sqlite_store()
                .stats(vec![TopicName::stored(topic)], StatsOptions::default())
                .await
                .unwrap();
            all.push(stats[0].unwrap_or_default());
        }
        all
    }

    /// Waits until the shard `n` is down, or is not.
    pub(crate) async fn until_down(&self, n: usize, down: bool) {
        let shard = &self.scheduler.shards().all()[n];
        eventually("it is noticed", async || (shard.is_down() == down).then_some(())).await;
    }
}

pub(crate) fn test_timeouts() -> ShardTimeouts {
    let ms = Duration::from_millis;
    ShardTimeouts {
        call: ms(600),
        claim: ms(400),
        fan_out: ms(200),
        retry_max: ms(700),
        ring_agreement: ms(1_400),
        probe_pauses: BackoffRange { min: ms(20), max: ms(80) },
    }
}

/// Returns a draft without an id.
pub(crate) fn draft(topic: &str) -> Draft {
    Draft {
        topic: TopicName::stored(topic),
        id: None,
        request_id: None,
        spec: Spec::default(),
        due: When::Now,
        priority: None,
        expire: None,
        on_conflict: OnConflict::Keep,
    }
}

/// Returns a draft with an id that its producer chose.
pub(crate) fn draft_with_id(topic: &str, id: &str) -> Draft {
    Draft { id: Some(JobId::try_chosen(id).unwrap()), ..draft(topic) }
}

pub(crate) fn key(topic: &str, id: &str) -> JobKey {
    JobKey { topic: TopicName::stored(topic), id: JobId::stored(id) }
}

/// Polls `look` until it returns a value.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begin.elapsed() < SOON, "{what}: never");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
