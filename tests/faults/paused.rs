//! Topics and groups are paused and resumed while shards and servers die. A pause that all shards have taken holds at
//! once, whatever a server knows, until the first call that resumes it; and nothing is lost by it.

use std::time::Duration;

use rand::Rng as _;
use ringq::pb::{PauseGroupRequest, PauseTopicRequest, ResumeGroupRequest, ResumeTopicRequest};
use tokio::time::Instant;

use crate::checker::history::{Event, Nanos};
use crate::cluster::Shape;
use crate::harness::{Client, eventually_in, millis};
use crate::load::{Habits, TOPICS, job};
use crate::trial::{Trial, harm_time};

/// Time in which deliveries that were under way as a pause was answered reach their worker.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// Length of a pause.
const PAUSE_MS: std::ops::Range<u64> = 1_300..2_200;
/// Time within which a server and its shards take a call again after the end of all faults.
const BACK_MAX: Duration = Duration::from_secs(30);

/// Paused jobs: those of a topic, or of a group of it.
#[derive(Clone, Copy, Debug)]
struct Part {
    topic: &'static str,
    group: Option<&'static str>,
}

/// Time in which no job of a part may be delivered.
struct Quiet {
    part: Part,
    from: Nanos,
    to: Nanos,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_hold_while_shards_and_servers_die() {
    let shape = Shape { shards: 4, replicas: 3, ..Shape::default() };
    let Some(mut trial) = Trial::start("paused", shape, Habits::default()).await else { return };
    let (mut random, mut quiet) = (trial.random(), Vec::new());
    let end = Instant::now() + 2 * harm_time();
    for round in 0.. {
        if round >= 4 && Instant::now() >= end {
            break;
        }
        trial.run(millis(300)).await;
        let group = [None, job::group(0), None, job::group(1)][round % 4];
        let part = Part { topic: TOPICS[round % TOPICS.len()], group };
        let is_everywhere = part.pause(&trial).await;
        let from = trial.shared().history.now();
        let target = random.random_range(0..12);
        match round % 3 {
            0 => trial.kill_redis(target % 4),
            1 => trial.kill_replica(target % 3).await,
            _ => {}
        }
        trial.run(millis(random.random_range(PAUSE_MS))).await;
        // A Redis that syncs every second may come back without the pause, until a server has read that.
        let to = trial.shared().history.now();
        if is_everywhere {
            quiet.push(Quiet { part, from, to });
        }
        match round % 3 {
            0 => trial.restart_redis(target % 4).await,
            1 => trial.restart_replica(target % 3).await,
            _ => {}
        }
        part.resume(&trial).await;
    }
    assert!(!quiet.is_empty(), "no pause was taken by all shards");
    let outcome = trial.finish().await;
    let early = outcome.stood_still().max(ON_THE_WAY).as_nanos() as Nanos;
    for event in outcome.events() {
        let Event::Delivered(delivered) = event else { continue };
        let Some(number) = delivered.job else { continue };
        for Quiet { part, from, to } in &quiet {
            let is_quiet = (from + early..*to).contains(&delivered.at);
            assert!(!(is_quiet && part.has(number)), "{part:?} was paused: {delivered:?}");
        }
    }
}

// === impl Part ===

impl Part {
    fn has(self, number: u32) -> bool {
        job::topic(number) == self.topic
            && self.group.is_none_or(|group| job::group(number) == Some(group))
    }

    /// Pauses the part; returns whether all shards have taken that.
    async fn pause(self, trial: &Trial) -> bool {
        trial.note(format!("pause {self:?}"));
        let client = client(trial).await;
        let (topic, group) = (self.topic.to_owned(), self.group.map(str::to_owned));
        let mut topics = client.topics.clone();
        let unreachable = match group {
            None => {
                let request = PauseTopicRequest { name: topic, ..Default::default() };
                let answer = topics.pause_topic(request).await;
                answer.map(|answer| answer.into_inner().unreachable_shards)
            }
            Some(group) => {
                let request = PauseGroupRequest { topic, group, ..Default::default() };
                let answer = topics.pause_group(request).await;
                answer.map(|answer| answer.into_inner().unreachable_shards)
            }
        };
        unreachable.is_ok_and(|shards| shards.is_empty())
    }

    /// Resumes the part, as often as it takes.
    async fn resume(self, trial: &Trial) {
        let client = client(trial).await;
        eventually_in(BACK_MAX, "the part is resumed", async || {
            let mut topics = client.topics.clone();
            let topic = self.topic.to_owned();
            let resumed = match self.group {
                None => topics.resume_topic(ResumeTopicRequest { name: topic }).await.is_ok(),
                Some(group) => {
                    let request = ResumeGroupRequest { topic, group: group.to_owned() };
                    topics.resume_group(request).await.is_ok()
                }
            };
            resumed.then_some(())
        })
        .await;
        trial.note(format!("resumed {self:?}"));
    }
}

/// Opens a connection to a server that lives: one of three at most was killed, and it was started again.
async fn client(trial: &Trial) -> Client {
    trial.cluster.replica[0].connect().await
}
