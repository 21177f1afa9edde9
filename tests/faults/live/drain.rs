//! A shard drains.

use std::process::Stdio;
use std::time::Duration;

use ringq::pb::ShardState;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::old::Old;
use super::{ONE, SHARD, careful, turn};
use crate::checker::history::{Delivered, Event, Nanos};
use crate::cluster::Shape;
use crate::harness::{eventually, within};
use crate::held::{hand_on, held};
use crate::load::Habits;
use crate::trial::{Trial, long};

/// Longest time until a shard is empty: the last tombstone goes after a minute, and the shard leaves the ring some
/// seconds later.
const EMPTY_WITHIN: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_shard_drains_and_is_taken_back() {
    // Dead letters would stay for days.
    let habits = Habits { buried: 0.0, failing: 0.0, ..careful() };
    let Some(trial) = Trial::start("shard_drains", Shape::default(), habits).await else { return };
    let name = format!("s{SHARD}");
    trial.run(turn()).await;
    let old = Old::make(&trial.client(ONE).await, "before").await;

    let client = trial.client(ONE).await;
    let held = held(&client, SHARD).await;
    let before = trial.ring_changes();
    trial.shared().send_ids_through(Some(ONE));
    trial.note(format!("drain {name}"));
    let mut drain = trial.ringq(&["shard", "drain", &name, "--wait"]);
    let lines = read_lines(&mut drain, 3).await;
    assert_eq!(lines[0], format!("{name} DRAINING: new jobs go elsewhere"));
    assert!(lines[1].starts_with("on it: ") && lines[1].contains(" scheduled"), "{lines:?}");
    assert!(lines[2].starts_with("the last delayed or retried one is due "), "{lines:?}");
    trial.another_ring(&before).await;
    trial.shared().send_ids_through(None);
    let left = trial.shared().history.now();
    hand_on(&client, held, SHARD).await;

    trial.only_far_is_left(&name, &old).await;
    trial.run(turn()).await;
    trial.only_far_is_left(&name, &old).await;
    for replica in 0..trial.cluster.replica.len() {
        old.are_known(&trial.client(replica).await).await;
    }
    let events = trial.shared().history.events();
    assert_eq!(new_on(&name, &events, left), 0, "a draining shard got new jobs");
    println!("shard_drains: {} links of chains left the shard", chains_from(&name, &events));

    if long() {
        old.delete_on(&trial.client(ONE).await, &name).await;
        let ended = tokio::time::timeout(EMPTY_WITHIN, drain.wait()).await.expect("it gets empty");
        assert!(ended.unwrap().success());
    }
    let before = trial.ring_changes();
    trial.shared().send_ids_through(Some(ONE));
    trial.note(format!("activate {name}"));
    let mut activate = trial.ringq(&["shard", "activate", &name]);
    assert!(within("the end of activate", activate.wait()).await.unwrap().success());
    if !long() {
        // The shard still had jobs.
        assert_eq!(within("the end of drain", drain.wait()).await.unwrap().code(), Some(1));
    }
    trial.another_ring(&before).await;
    trial.shared().send_ids_through(None);
    let back = trial.shared().history.now();
    trial.run(turn()).await;
    let events = trial.shared().history.events();
    assert!(new_on(&name, &events, back) > 0, "the shard gets no new jobs");
    let outcome = trial.finish().await;
    assert_eq!(outcome.verdict.duplicates, 0);
    assert_eq!(outcome.troubles(""), 0, "a client had a failure");
}

/// Returns the first lines that a command prints.
async fn read_lines(command: &mut Child, count: usize) -> Vec<String> {
    let mut lines = BufReader::new(command.stdout.take().unwrap()).lines();
    let mut first = Vec::new();
    while first.len() < count {
        first.push(within("a line", lines.next_line()).await.unwrap().expect("a line"));
    }
    // A process that writes into a closed pipe fails.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    first
}

/// Returns the number of jobs that were written to a shard since then, by their ids.
fn new_on(shard: &str, events: &[Event], since: Nanos) -> usize {
    let asked_since = |of: u32| {
        let asked = events.iter().find_map(|event| match event {
            Event::Enqueue { job, at, .. } if *job == of => Some(*at),
            _ => None,
        });
        asked.is_some_and(|at| at > since)
    };
    let on_it = |id: &str| id.strip_prefix(shard).is_some_and(|rest| rest.starts_with('~'));
    let new = |event: &&Event| match event {
        Event::Enqueued { job, id, .. }
        | Event::Delivered(Delivered { job: Some(job), id, .. }) => on_it(id) && asked_since(*job),
        _ => false,
    };
    events.iter().filter(new).count()
}

/// Returns the number of links with server-made ids that followed one on this shard and lie elsewhere.
fn chains_from(shard: &str, events: &[Event]) -> usize {
    let id = |of: u32| {
        events.iter().find_map(|event| match event {
            Event::Delivered(Delivered { job: Some(job), id, .. }) if *job == of => Some(id),
            _ => None,
        })
    };
    let place = |job| id(job).and_then(|id| id.split_once('~')).map(|(shard, _)| shard);
    let left = |event: &&Event| match event {
        Event::FollowsOn { job, after, .. } => {
            place(*after) == Some(shard) && place(*job).is_some_and(|to| to != shard)
        }
        _ => false,
    };
    events.iter().filter(left).count()
}

impl Trial {
    /// Runs a command of the operator.
    fn ringq(&self, args: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringq"));
        let server = format!("http://{}", self.cluster.replica[ONE].grpc);
        command.env_clear().env("RINGQ_SERVER", server).args(args).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until a shard has only jobs that are due in hours or retained; every replica reports their number and
    /// the time until which they stay.
    async fn only_far_is_left(&self, name: &str, old: &Old) {
        let (far, last) = old.far_on(name);
        for replica in 0..self.cluster.replica.len() {
            let mut shard = self.shard(replica, name).await;
            eventually("ready, running and near-due jobs leave", async || {
                shard = self.shard(replica, name).await;
                let coming = (shard.ready, shard.running, shard.backoff);
                (coming == (0, 0, 0) && shard.scheduled == far).then_some(())
            })
            .await;
            assert_eq!((shard.role(), shard.dead), (ShardState::Draining, 0));
            assert_eq!(shard.latest_due_time, Some(last), "{shard:?}");
            assert_eq!(shard.jobs, shard.scheduled + shard.finished);
        }
    }
}
