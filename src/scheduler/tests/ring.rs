//! A ring of shards in memory that fail on demand, with little patience.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::domain::{JobId, JobKey, OnConflict, Spec, TopicName, When};
use crate::metrics::Metrics;
use crate::scheduler::{Draft, EnqueueError, Enqueued, Replica, Scheduler};
use crate::shards::{Member, Patience, Shards};
use crate::store::Stats;
use crate::store::faulty::FaultStore;

/// Longer than anything that should come at once, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

pub(crate) struct Ring {
    pub(crate) stores: Vec<Arc<FaultStore>>,
    pub(crate) scheduler: Scheduler,
}

impl Ring {
    /// So many active shards, `s0` and on.
    pub(crate) fn new(shards: usize) -> Ring {
        Ring::of(&vec![ShardState::Active; shards])
    }

    pub(crate) fn of(states: &[ShardState]) -> Ring {
        Ring::over(Ring::stores(states.len()), states, 1)
    }

    /// So many shards without a server.
    pub(crate) fn stores(count: usize) -> Vec<Arc<FaultStore>> {
        let clock = Clock::system();
        (0..count).map(|n| FaultStore::new(&format!("s{n}"), &clock)).collect()
    }

    /// A replica of that nonce over these shards.
    pub(crate) fn over(stores: Vec<Arc<FaultStore>>, states: &[ShardState], nonce: u32) -> Ring {
        let (clock, metrics) = (Clock::system(), Metrics::new());
        let member = |(store, &state): (&Arc<FaultStore>, &ShardState)| Member {
            state,
            ..Member::from(Arc::clone(store))
        };
        let members = stores.iter().zip(states).map(member).collect();
        let shards = Shards::with(patience(), members, &metrics);
        let replica = Replica { name: "r".into(), nonce };
        Ring { stores, scheduler: Scheduler::new(shards, clock, metrics, replica) }
    }

    /// A replica over these shards that has joined the others.
    pub(crate) async fn joined(stores: &[Arc<FaultStore>], nonce: u32) -> Ring {
        let states = vec![ShardState::Active; stores.len()];
        let ring = Ring::over(stores.to_vec(), &states, nonce);
        ring.scheduler.shards().join(nonce, ring.scheduler.clock()).await;
        ring
    }

    /// Enqueues without a deadline.
    pub(crate) async fn enqueue(&self, drafts: Vec<Draft>) -> Vec<Result<Enqueued, EnqueueError>> {
        self.scheduler.enqueue(drafts, None, None).await
    }

    /// Enqueues until so much later.
    pub(crate) async fn enqueue_for(
        &self,
        time: Duration,
        draft: Draft,
    ) -> Result<Enqueued, EnqueueError> {
        let until = Some(Instant::now() + time);
        self.scheduler.enqueue(vec![draft], None, until).await.remove(0)
    }

    /// Enqueues and expects all to be accepted.
    pub(crate) async fn accept(&self, drafts: Vec<Draft>) -> Vec<Enqueued> {
        self.enqueue(drafts).await.into_iter().map(Result::unwrap).collect()
    }

    /// Jobs with ids that the shard `n` owns.
    pub(crate) fn owned_by(&self, n: usize, topic: &str, count: usize) -> Vec<Draft> {
        let owner = self.stores[n].name();
        let drafts = (0..).map(|id| named(topic, &format!("n{id}")));
        let owned = |draft: &Draft| {
            let key = key(topic, draft.id.as_ref().unwrap().as_str());
            self.scheduler.shards().owner(&key).unwrap().name() == owner
        };
        drafts.filter(owned).take(count).collect()
    }

    /// The numbers of a topic on each shard.
    pub(crate) async fn stats(&self, topic: &str) -> Vec<Stats> {
        let mut all = Vec::new();
        for store in &self.stores {
            let stats = store.inner().stats(vec![TopicName::stored(topic)]).await.unwrap();
            all.push(stats[0].unwrap_or_default());
        }
        all
    }

    /// Waits until the shard `n` is left alone, or is not.
    pub(crate) async fn until_down(&self, n: usize, down: bool) {
        let shard = &self.scheduler.shards().all()[n];
        soon("it is noticed", async || (shard.is_down() == down).then_some(())).await;
    }
}

pub(crate) fn patience() -> Patience {
    let ms = Duration::from_millis;
    Patience {
        answer: ms(600),
        claim: ms(400),
        others: ms(200),
        repeats: ms(700),
        agreement: ms(1_400),
        probes: (ms(20), ms(80)),
    }
}

/// A job without an id.
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

/// A job with an id of its producer's choice.
pub(crate) fn named(topic: &str, id: &str) -> Draft {
    Draft { id: Some(JobId::try_chosen(id).unwrap()), ..draft(topic) }
}

pub(crate) fn key(topic: &str, id: &str) -> JobKey {
    JobKey { topic: TopicName::stored(topic), id: JobId::stored(id) }
}

/// Looks until there is something to see.
pub(crate) async fn soon<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begin.elapsed() < SOON, "{what}: never");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
