//! A running Redis is reconfigured to evict jobs when memory runs out: it takes no new ones until that is set back,
//! finishes those that it has, and new jobs with server-made ids go to the other shards.

use std::time::Duration;

use ringq::pb::{ListShardsRequest, Shard, ShardState};

use crate::cluster::Shape;
use crate::harness::{Client, eventually, http_get};
use crate::held::{hand_on, held};
use crate::load::{Habits, NO_ID};
use crate::redis::HIT;
use crate::trial::{Trial, harm_time};

const POLICY: &str = "maxmemory-policy";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_redis_begins_to_evict_and_is_set_back() {
    let name = "redis_evicts";
    // Jobs that an ack enqueues are new jobs, too.
    let habits = Habits { chained: 0.0, ..Habits::default() };
    let Some(trial) = Trial::start(name, Shape::default(), habits).await else { return };
    let turn = (harm_time() / 4).min(Duration::from_secs(10));
    trial.run(turn).await;
    let client = Client::connect(trial.cluster.replica[0].grpc).await;
    let held = held(&client, HIT).await;
    trial.note("it evicts");
    trial.command(HIT, &["CONFIG", "SET", POLICY, "allkeys-lru"]).await;
    trial.all_say(1).await;
    trial.run(turn).await;
    let (written, refused) = (trial.written().await, trial.settles_refused());
    trial.run(turn).await;
    assert_eq!(trial.written().await, written, "it takes jobs that it might drop");
    assert_eq!(trial.settles_refused(), refused, "it does not finish those that it has");

    // Neither does it get the follow-up of one of its jobs.
    hand_on(&client, held, HIT).await;

    trial.note("it keeps what it has");
    trial.command(HIT, &["CONFIG", "SET", POLICY, "noeviction"]).await;
    trial.all_say(0).await;
    let back = trial.written().await;
    eventually("it takes jobs again", async || (trial.written().await > back).then_some(())).await;
    trial.run(turn).await;
    let outcome = trial.finish().await;
    assert!(outcome.troubles("enqueue: SHARD_UNAVAILABLE") > 0, "no producer was refused");
    assert_eq!(outcome.troubles(&format!("{NO_ID}: SHARD_UNAVAILABLE")), 0);
}

impl Trial {
    /// Waits until every replica reports that the Redis refuses jobs, by metric and by error text, or until none
    /// does.
    async fn all_say(&self, refuses: u8) {
        // A Redis is checked when a connection is made; otherwise the change is noticed some seconds later.
        self.command(HIT, &["CLIENT", "KILL", "TYPE", "normal"]).await;
        let metric = format!("ringq_shard_refuses_jobs{{shard=\"s{HIT}\"}} {refuses}");
        for replica in &self.cluster.replica {
            eventually(&metric, async || {
                http_get(replica.http, "/metrics").await.1.contains(&metric).then_some(())
            })
            .await;
            let shard = hit(&Client::connect(replica.grpc).await).await;
            assert_eq!(shard.state(), ShardState::Active);
            let is_reported = shard.last_error.contains("set maxmemory-policy to noeviction");
            assert_eq!(is_reported, refuses == 1, "{:?}", shard.last_error);
        }
    }

    /// Returns the number of settles that were refused so far.
    fn settles_refused(&self) -> usize {
        let troubles = &self.shared().troubles;
        ["ack", "nack", "extend"].iter().map(|verb| troubles.times(verb)).sum()
    }

    /// Returns the number of jobs that the load has written to the Redis so far.
    async fn written(&self) -> i64 {
        let mut written = 0;
        for topic in crate::load::TOPICS {
            let key = format!("ringq:{{s{HIT}}}:topic:{topic}");
            let answer = self.cluster.redis[HIT].command(&["HGET", &key, "arrived"]).await;
            written += answer.parse::<i64>().unwrap();
        }
        written
    }
}

async fn hit(client: &Client) -> Shard {
    let answer = client.admin.clone().list_shards(ListShardsRequest {}).await;
    let shards = answer.unwrap().into_inner().shards;
    shards.into_iter().find(|shard| shard.name == format!("s{HIT}")).expect("the shard")
}
