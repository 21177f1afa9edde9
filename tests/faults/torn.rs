//! A Redis comes back from a kill with a log that is torn at its end, as by a power cut, or damaged in the middle, as
//! by a bad disk. It repairs the first by itself; with the second it does not start, and its shard is away until an
//! operator restores the file.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::Rng as _;
use ringq::pb::{ListShardsRequest, ShardState};
use tokio::time::Instant;

use crate::cluster::Shape;
use crate::harness::{Client, Redis, eventually, millis};
use crate::load::{Habits, NO_ID};
use crate::redis::HIT;
use crate::trial::{Trial, harm_time};

/// The last two commands of the log. They do not belong to the load: the torn one belongs to no job.
const WHOLE: &str = "*3\r\n$3\r\nSET\r\n$5\r\nwhole\r\n$3\r\nyes\r\n";
const TORN: &str =
    "*3\r\n$3\r\nSET\r\n$4\r\ntorn\r\n$40\r\n1234567890123456789012345678901234567890\r\n";
/// Number of bytes that a tear removes.
const TEAR: std::ops::RangeInclusive<usize> = 1..=50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn at_its_end() {
    let name = "log_torn";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(mut trial) = trial else { return };
    let mut random = trial.random();
    let turn = (harm_time() / 4).min(Duration::from_secs(5));
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        trial.run(turn).await;
        trial.kill_redis(HIT);
        let torn = random.random_range(TEAR);
        trial.note(format!("{torn} bytes are torn off"));
        append(&trial.cluster.redis[HIT].append_only_file(), &TORN[..TORN.len() - torn]);
        trial.restart_redis(HIT).await;
        let redis = &trial.cluster.redis[HIT];
        assert_eq!(redis.command(&["GET", "whole"]).await, "yes", "more than the end is lost");
        assert_eq!(redis.command(&["GET", "torn"]).await, "$-1");
        redis.command(&["DEL", "whole"]).await;
        trial.run(turn).await;
    }
    assert!(trial.cluster.redis[HIT].log().contains("loaded anyway"), "nothing was torn");
    trial.finish().await;
}

fn append(log: &Path, torn: &str) {
    let mut file = OpenOptions::new().append(true).open(log).unwrap();
    file.write_all(WHOLE.as_bytes()).unwrap();
    file.write_all(torn.as_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn in_the_middle() {
    let name = "log_damaged";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(mut trial) = trial else { return };
    let turn = (harm_time() / 2).min(Duration::from_secs(10));
    trial.run(turn).await;
    trial.kill_redis(HIT);
    let log = trial.cluster.redis[HIT].append_only_file();
    let whole = fs::read(&log).unwrap();
    trial.note("a byte is damaged");
    fs::write(&log, damaged(&whole)).unwrap();
    let redis = &mut trial.cluster.redis[HIT];
    assert!(!redis.starts_again().await, "it starts with a damaged log");
    assert!(redis.log().contains("Bad file format"), "{}", redis.log());
    let away = trial.run(turn).await;

    let client = Client::connect(trial.cluster.replica[0].grpc).await;
    trial.only_one_is_away(&client).await;
    let others = trial.shared().latencies.without(&format!("s{HIT}"), &away);
    println!("{name}: enqueues on the other shards: {others:?}");
    assert!(others.count > 0, "no enqueue on another shard was answered meanwhile");

    fs::write(&log, whole).unwrap();
    trial.restart_redis(HIT).await;
    eventually("the shard is back", async || {
        (state(&client, HIT).await == ShardState::Active).then_some(())
    })
    .await;
    trial.run(millis(500)).await;
    let outcome = trial.finish().await;
    assert_eq!(outcome.troubles(&format!("{NO_ID}: SHARD_UNAVAILABLE")), 0);
}

/// Returns the log with another byte where a command begins, next to the middle.
fn damaged(log: &[u8]) -> Vec<u8> {
    let begin = b"\r\n*";
    let middle = log.len() / 2;
    let next = log[middle..].windows(begin.len()).position(|bytes| bytes == begin);
    let mut log = log.to_vec();
    log[middle + next.expect("a command behind the middle") + 2] = b'!';
    log
}

async fn state(client: &Client, number: usize) -> ShardState {
    let answer = client.admin.clone().list_shards(ListShardsRequest {}).await;
    let shards = answer.unwrap().into_inner().shards;
    let shard = shards.into_iter().find(|shard| shard.name == format!("s{number}"));
    shard.expect("a shard of that name").state()
}

impl Redis {
    /// Returns its log since the first start.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir().join("log")).unwrap()
    }

    /// Returns the file that it appends to.
    fn append_only_file(&self) -> PathBuf {
        let files = fs::read_dir(self.dir().join("appendonlydir")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let newest = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max();
        newest.expect("a file that it appends to")
    }
}

impl Trial {
    async fn only_one_is_away(&self, client: &Client) {
        for number in 0..self.cluster.redis.len() {
            let expected = if number == HIT { ShardState::Unreachable } else { ShardState::Active };
            assert_eq!(state(client, number).await, expected, "s{number}");
        }
    }
}
