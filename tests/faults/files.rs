//! The server on SQLite files under the same load: it is killed again and again, another process opens its files, and
//! they neither grow without end nor break.

use std::fs;
use std::path::{Path, PathBuf};

use rand::Rng as _;
use rusqlite::Connection;
use tokio::time::Instant;

use crate::cluster::Shape;
use crate::harness::{Client, JobExt as _, Setup, job, millis, receipts};
use crate::load::Habits;
use crate::setting::number;
use crate::trial::{Trial, harm_time};

const SHARDS: usize = 2;
/// Range of the lifetimes of the server in a loop of kills.
const LIVES_MS: std::ops::Range<u64> = 300..1000;
/// Share of kills that are repeated while it starts, and the time of them.
const AGAIN: f64 = 0.2;
const STARTS_MS: std::ops::Range<u64> = 0..30;
/// Load through the files beside the trial's: far more than a write-ahead log holds.
const BATCHES: usize = 35;
const BATCH: usize = 20;
const BODY_BYTES: usize = 100_000;
/// Limit of a log: it is checkpointed into its file at 16 MiB; readers may delay that a little.
const LOG_BYTES_MAX: u64 = 24 << 20;

async fn on_files(name: &'static str) -> Option<Trial> {
    let shape = Shape { files: true, shards: SHARDS, replicas: 1, ..Shape::default() };
    // As many producers and streams as on three replicas, and enough jobs that each kill interrupts some.
    let habits = Habits { producers: 8, streams: 6, ..Habits::default() };
    Trial::start(name, shape, habits).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again() {
    let Some(mut trial) = on_files("files_killed").await else { return };
    let mut random = trial.random();
    let (end, mut kills) = (Instant::now() + harm_time(), 0);
    while Instant::now() < end || kills < number("RINGQ_KILLS", 3) {
        trial.run(millis(random.random_range(LIVES_MS))).await;
        trial.kill_replica(0).await;
        kills += 1;
        if random.random_bool(AGAIN) {
            let after = millis(random.random_range(STARTS_MS));
            trial.cluster.replica[0].start_and_kill(after).await;
            kills += 1;
        }
        trial.files().iter().for_each(|file| is_sound(file));
        trial.restart_replica(0).await;
    }
    // At the end it starts once more, and no job comes back.
    trial.come_to_rest().await;
    trial.kill_replica(0).await;
    trial.restart_replica(0).await;
    trial.run(2 * trial.shared().habits.lease).await;
    println!("files_killed: {kills} kills, {} jobs", trial.shared().jobs());
    let outcome = trial.finish().await;
    assert!(outcome.verdict.cuts > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn another_process_is_refused_and_logs_stay_small() {
    let name = "files_wanted";
    let Some(mut trial) = on_files(name).await else { return };
    let client = Client::connect(trial.cluster.replica[0].grpc).await;
    let shard = format!("s0=sqlite:{}", trial.files()[0].display());
    trial.note("another process opens a file");
    let (refused, largest) =
        tokio::join!(Setup::new().shard(shard).fail(), write_much(&trial, &client));
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let why = refused.stderr.lines().find(|line| line.starts_with("ringq: ")).unwrap_or_default();
    assert!(why.contains("s0.db is in use by another server"), "{}", refused.stderr);
    println!("{name}: refused, the largest log had {largest} bytes");
    assert!(largest < LOG_BYTES_MAX, "a log of {largest} bytes");
    trial.run(harm_time() / 4).await;
    trial.kill_replica(0).await;
    trial.files().iter().for_each(|file| is_sound(file));
    trial.restart_replica(0).await;
    let outcome = trial.finish().await;
    assert_eq!(outcome.verdict.cuts, 1);
}

/// Sends large jobs through the files; returns the largest size of a log.
async fn write_much(trial: &Trial, client: &Client) -> u64 {
    let mut largest = 0;
    for _ in 0..BATCHES {
        client.enqueue_all(vec![job("large").with_bytes(BODY_BYTES); BATCH]).await;
        let mut left = BATCH;
        while left > 0 {
            let jobs = client.pull_now("large", 10).await;
            client.ack_all(&receipts(&jobs)).await;
            left -= jobs.len();
        }
        let logs = trial.files().into_iter().map(|file| size(&beside(&file, "-wal")));
        largest = largest.max(logs.max().unwrap());
    }
    largest
}

impl Trial {
    fn files(&self) -> Vec<PathBuf> {
        (0..SHARDS).map(|n| self.cluster.replica[0].shard_file(&format!("s{n}"))).collect()
    }
}

fn size(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |data| data.len())
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Checks a copy of a file that no process writes just now, with its log.
fn is_sound(file: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.db");
    fs::copy(file, &copy).unwrap();
    if size(&beside(file, "-wal")) > 0 {
        fs::copy(beside(file, "-wal"), beside(&copy, "-wal")).unwrap();
    }
    let connection = Connection::open(&copy).unwrap();
    let found: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok", "{}", file.display());
}
