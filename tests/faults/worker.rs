//! Worker processes stand still or die with leased jobs: others get these, neither before their lease is over nor
//! long after, and all other load continues.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::Duration;

use ringq::pb::{Delivery, JobSpec, RetryPolicy, StreamRequest};
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::cluster::Shape;
use crate::harness::{
    Client, JobExt as _, SinceEpoch as _, Worker, eventually, eventually_in, http_get, job, millis,
    proto, receipts, take, wall_now,
};
use crate::load::Habits;
use crate::replica::signal;
use crate::trial::{Trial, harm_time, long};

/// Topic of these workers only.
const TOPIC: &str = "held";
/// Number of leased jobs: together far more bytes than fit into sockets and windows.
const HELD: usize = 50;
const BODY_BYTES: usize = 100_000;
/// Length of a lease that is not extended.
const LEASE: Duration = Duration::from_secs(2);
/// Time by which the leases of `ringq work` outlive its stream.
const GRACE: Duration = Duration::from_secs(5);
/// Allowance until others have all the jobs of a worker that is gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// Memory that a replica may use for a worker that reads nothing, and for the load meanwhile: far less than repeated
/// copies of its jobs.
const MEMORY_BYTES: u64 = 48 << 20;
/// Time after which a silent connection is probed, and closed without an answer, and a minute beyond that.
const SILENCE_MAX: Duration = Duration::from_secs(30 + 10 + 60);

/// `ringq work`, killed when it is dropped.
struct Process {
    child: Child,
    /// Its commands run as long as this file exists, also those that a killed worker leaves behind.
    busy: NamedTempFile,
}

impl Process {
    /// Starts a worker that takes all the jobs and works on a few.
    fn start(replica: &str, lease: Duration) -> Process {
        let (lease, prefetch) = (format!("{}s", lease.as_secs()), (HELD - 4).to_string());
        let busy = NamedTempFile::new().unwrap();
        let exec = format!("while test -e {}; do sleep 0.2; done", busy.path().display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringq"));
        command.env_clear().env("RINGQ_SERVER", replica).kill_on_drop(true);
        command.args(["work", TOPIC, "--concurrency", "4", "--prefetch", &prefetch]);
        command.args(["--lease", &lease, "--exec", &exec]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Process { child: command.spawn().unwrap(), busy }
    }

    fn signal(&self, name: &str) {
        signal(self.child.id().expect("the worker has ended"), name);
    }

    /// Ends its commands.
    fn is_done(&self) {
        std::fs::remove_file(self.busy.path()).unwrap();
    }

    async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// A cluster under load, and a worker that holds all the jobs of the topic.
struct Scene {
    trial: Trial,
    client: Client,
    ids: Vec<String>,
    worker: Process,
}

impl Scene {
    async fn set(name: &'static str, lease: Duration) -> Option<Scene> {
        let trial = Trial::start(name, Shape::default(), Habits::default()).await?;
        let client = Client::connect(trial.cluster.replica[1].grpc).await;
        let mut ids = Vec::new();
        for jobs in vec![large(); HELD].chunks(20) {
            ids.extend(client.enqueue_all(jobs.to_vec()).await);
        }
        let worker = Process::start(&format!("http://{}", trial.cluster.replica[0].grpc), lease);
        // Leased is not enough: jobs that did not leave the server are released at once, and do not count.
        let all = format!(" {HELD}");
        eventually("the worker is sent all jobs", async || {
            let metrics = http_get(trial.cluster.replica[0].http, "/metrics").await.1;
            metrics.lines().any(|line| is_delivered(line) && line.ends_with(&all)).then_some(())
        })
        .await;
        Some(Scene { trial, client, ids, worker })
    }

    /// Returns the deadline of the worker's leases, on the clock of this machine.
    async fn leased_until(&self) -> Duration {
        let mut first = Duration::MAX;
        for id in &self.ids {
            if let Some(job) = self.client.find(TOPIC, id).await
                && job.lease_expire_time.is_some()
            {
                first = first.min(job.lease_expire_time.since_epoch());
            }
        }
        first
    }

    /// Checks that a worker on another replica takes all, none before `not_before`, and acknowledges them.
    async fn others_take_all(&self, not_before: Duration, within: Duration) -> Vec<Delivery> {
        let limit = Instant::now() + within;
        let credit = i32::try_from(HELD).unwrap();
        let request = StreamRequest { max_in_flight: credit, max_batch: 10, ..take(TOPIC) };
        let mut other = self.client.stream(request).await;
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        while seen.len() < self.ids.len() {
            let next = tokio::time::timeout_at(limit, other.next()).await;
            let next = next.unwrap_or_else(|_| panic!("only {} jobs came", seen.len()));
            assert!(wall_now() >= not_before, "{} comes while it is leased", next.id);
            self.client.ack(&next.receipt).await;
            assert!(seen.insert(next.id.clone()), "{} comes after its ack", next.id);
            all.push(Delivery { payload: None, ..next });
        }
        all
    }

    async fn is_settled(&self) {
        let stats = self.client.stats(TOPIC).await;
        let (done, of) = (stats.succeeded_total, stats.enqueued_total);
        assert_eq!((done, stats.dead_total, stats.running), (of, 0, 0), "{stats:?}");
    }
}

/// Returns whether the metric shows the number of delivered jobs.
fn is_delivered(metric: &str) -> bool {
    metric.starts_with("ringq_jobs_delivered_total{") && metric.contains(&format!("\"{TOPIC}\""))
}

/// Builds a large job that is retried soon, and never given up.
fn large() -> JobSpec {
    let delays = vec![proto(millis(50))];
    let retry = RetryPolicy { max_attempts: -1, delays, ..RetryPolicy::default() };
    job(TOPIC).with_bytes(BODY_BYTES).with_retry(retry)
}

/// Its connection stays open: only its leases and its unread data show that it stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn stands_still() {
    let Some(scene) = Scene::set("worker_stands_still", LEASE).await else { return };
    let replica = &scene.trial.cluster.replica[0];
    scene.trial.note("stop the worker");
    scene.worker.signal("STOP");
    let (stopped, before) = (Instant::now(), replica.rss_bytes());
    let leased_until = scene.leased_until().await;
    let others = scene.others_take_all(leased_until, LEASE + PATIENCE);
    let all = {
        tokio::pin!(others);
        loop {
            tokio::select! {
                all = &mut others => break all,
                () = tokio::time::sleep(millis(100)) => {
                    let grown = replica.rss_bytes().saturating_sub(before);
                    assert!(grown < MEMORY_BYTES, "the replica has grown by {grown} bytes");
                }
            }
        }
    };
    println!("worker_stands_still: others had all jobs after {:?}", stopped.elapsed());
    // A lease that expired is a failure of the job, however often it did.
    assert!(all.iter().all(|job| job.delivery >= 2 && job.attempt >= 2), "a lease has not run out");
    if long() {
        scene.connection_is_ended().await;
    }
    scene.worker.is_done();
    scene.worker.signal("CONT");
    scene.trial.note("the worker goes on");
    scene.trial.run(harm_time() / 4).await;
    // Late settles have no effect; it gets new jobs as before.
    scene.is_settled().await;
    let more = scene.client.enqueue(job(TOPIC)).await;
    eventually("the worker is of use again", async || {
        scene.client.find(TOPIC, &more.id).await.is_none().then_some(())
    })
    .await;
    scene.trial.finish().await;
}

impl Scene {
    /// Checks that the server closes a connection that does not answer.
    async fn connection_is_ended(&self) {
        let begin = Instant::now();
        // Each replica counts its own streams.
        let client = Client::connect(self.trial.cluster.replica[0].grpc).await;
        eventually_in(SILENCE_MAX, "the stream of a stopped worker ends", async || {
            (client.stats(TOPIC).await.streams == 0).then_some(())
        })
        .await;
        println!("worker_stands_still: its connection was ended after {:?}", begin.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dies() {
    // Its leases are far longer than the test: the break of its stream ends them.
    let Some(scene) = Scene::set("worker_dies", Duration::from_secs(3600)).await else { return };
    let Scene { trial, client, ids, mut worker } = scene;
    trial.note("kill the worker");
    let killed = Instant::now();
    worker.kill().await;
    let mut other = other(&client).await;
    let first = other.next().await;
    let after = killed.elapsed();
    assert!(after + millis(100) > GRACE, "the first job was given back after {after:?}");
    let mut back = other.next_many(ids.len() - 1).await;
    back.push(first);
    println!("worker_dies: its jobs were back after {:?}", killed.elapsed());
    // A dead worker is no failure of its jobs.
    assert!(back.iter().all(|job| (job.delivery, job.attempt) == (2, 1)));
    client.ack_all(&receipts(&back)).await;
    let stats = client.stats(TOPIC).await;
    assert_eq!(stats.succeeded_total, stats.enqueued_total);
    trial.finish().await;
}

async fn other(client: &Client) -> Worker {
    let max_in_flight = i32::try_from(HELD).unwrap();
    client.stream(StreamRequest { max_in_flight, ..take(TOPIC) }).await
}
