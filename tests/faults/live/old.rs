//! Jobs from before a change: in every later ring each is found, and a repeated enqueue under its id finds the same
//! job.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::join_all;
use prost_types::Timestamp;
use ringq::pb::{BatchEnqueueRequest, DeleteRequest, EnqueueOutcome, EnqueueResult, JobSpec};

use crate::harness::{Client, job, receipts};

/// Jobs of each kind: several times more than shards.
const EACH: usize = 64;
const FAR: Duration = Duration::from_secs(2 * 3600);
const KEPT: Duration = Duration::from_secs(3600);
/// Topics of jobs that are due in hours, of finished jobs that are retained, and of finished jobs with a tombstone
/// only.
const TOPICS: [&str; 3] = ["old.far", "old.kept", "old.done"];

/// The old jobs and their shards.
pub(super) struct Old {
    /// Half of the jobs that are due in hours have server-made ids.
    all: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    spec: JobSpec,
    id: String,
    shard: String,
    due: Timestamp,
}

impl Known {
    async fn make(client: Client, spec: JobSpec) -> Known {
        let answer = client.enqueue(spec.clone()).await;
        let due = answer.due_time.expect("a due time");
        Known { spec, id: answer.id, shard: answer.shard, due }
    }
}

impl Old {
    /// Creates new ones, under ids with this prefix.
    pub(super) async fn make(client: &Client, name: &str) -> Old {
        let [far, kept, done] = TOPICS;
        let id = |n: usize| format!("{name}-{n}");
        let delay = |n: usize| FAR + Duration::from_secs(u64::try_from(n).unwrap());
        let mut specs: Vec<JobSpec> = Vec::new();
        specs.extend((0..EACH).map(|n| job(far).with_delay(delay(n)).with_id(id(n))));
        // Several calls, so that they are placed on all shards.
        specs.extend((0..EACH).map(|n| job(far).with_delay(delay(EACH + n))));
        specs.extend((0..EACH).map(|n| job(kept).with_retention(KEPT).with_id(id(n))));
        specs.extend((0..EACH).map(|n| job(done).with_id(id(n))));
        let all = join_all(specs.into_iter().map(|spec| Known::make(client.clone(), spec))).await;
        for topic in [kept, done] {
            let mut count = 0;
            while count < EACH {
                let deliveries = client.pull_now(topic, 1_000).await;
                client.ack_all(&receipts(&deliveries)).await;
                count += deliveries.len();
            }
        }
        Old { all }
    }

    /// Returns how many of the jobs that are due in hours lie on a shard, and the due time of the last one.
    pub(super) fn far_on(&self, shard: &str) -> (i64, Timestamp) {
        let far = self.all.iter().filter(|old| old.shard == shard && old.spec.topic == TOPICS[0]);
        let due: Vec<_> = far.map(|old| old.due).collect();
        let last = due.iter().max_by_key(|due| (due.seconds, due.nanos)).expect("some lie there");
        (i64::try_from(due.len()).unwrap(), *last)
    }

    /// Checks that all of them are found through this replica on their shards, and that each client-chosen id is
    /// taken.
    pub(super) async fn are_known(&self, client: &Client) {
        let find = async |old: &Known| client.find(&old.spec.topic, &old.id).await.is_some();
        let found = join_all(self.all.iter().map(find)).await;
        let gone: Vec<_> = self.all.iter().zip(found).filter(|(_, found)| !found).collect();
        assert!(gone.is_empty(), "{} are gone: {gone:?}", gone.len());
        for result in self.enqueue_again(client).await {
            assert_eq!(result.outcome(), EnqueueOutcome::Unchanged, "{result:?}");
        }
    }

    async fn enqueue_again(&self, client: &Client) -> Vec<EnqueueResult> {
        let specs = self.all.iter().filter(|old| !old.spec.id.is_empty());
        let places: HashMap<_, _> =
            self.all.iter().map(|old| ((&old.spec.topic, &old.id), &old.shard)).collect();
        let jobs: Vec<_> = specs.map(|old| old.spec.clone()).collect();
        let batch = BatchEnqueueRequest { jobs: jobs.clone(), ..Default::default() };
        let results = client.queue.clone().batch_enqueue(batch).await.unwrap().into_inner().results;
        for (job, result) in jobs.iter().zip(&results) {
            assert_eq!(Some(&&result.shard), places.get(&(&job.topic, &result.id)), "{result:?}");
        }
        results
    }

    /// Deletes the jobs of a shard.
    pub(super) async fn delete_on(&self, client: &Client, shard: &str) {
        let delete = async |old: &Known| {
            let (topic, id) = (old.spec.topic.clone(), old.id.clone());
            let request = DeleteRequest { topic, id, ..Default::default() };
            client.queue.clone().delete(request).await
        };
        let here = self.all.iter().filter(|old| old.shard == shard);
        join_all(here.map(delete)).await.into_iter().for_each(|deleted| drop(deleted.unwrap()));
    }
}
