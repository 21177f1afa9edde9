//! Tests of `ringq::client` against a real server: guarantees for programs that use it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they fail, and they measure real time from outside"
)]

/// Texts of failures.
mod errors;
/// The programs under `examples/`.
mod examples;
/// A server with scripted answers.
pub(crate) mod fake;
/// A server that accepts one token.
pub(crate) mod guarded;
/// Jobs that a worker holds: over a break, and while their settles are repeated.
mod held;
/// Ends of workers: stop, max_jobs, idle_exit, a refused stream.
mod life;
/// Enqueues: calls, policies, repeats.
mod producer;
/// Enqueues with an unknown outcome.
mod producer_repeats;
/// A TCP proxy that cuts connections.
mod proxy;
/// Behaviour that only a scripted server can show.
mod scripted;
/// Several servers: failover, spread, servers that are away.
pub(crate) mod servers;
/// TLS and tokens.
mod tls;
/// Connections that break and servers that die.
mod trouble;
/// Handlers, outcomes, leases.
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringq::client::{Client, Outcome, Summary, Worker};
use ringq::pb::JobSpec;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::harness::{Server, http_get, within};

/// A client of the library.
fn connect(server: &Server) -> Client {
    Client::new(format!("http://{}", server.grpc)).unwrap()
}

/// Builds jobs of a topic with the ids `0`, `1`, …, kept as tombstones when they are done.
fn jobs(topic: &str, count: usize) -> Vec<JobSpec> {
    let job = |n: usize| JobSpec::new(topic).with_id(n.to_string());
    (0..count).map(|n| job(n).with_retention(std::time::Duration::from_secs(600))).collect()
}

/// Enqueues jobs and expects success.
async fn enqueue(client: &Client, jobs: Vec<JobSpec>) -> Vec<String> {
    let answers = client.producer().enqueue_batch(jobs).await;
    answers.into_iter().map(|answer| answer.unwrap().id).collect()
}

/// Counter of handler calls on which a test can wait.
#[derive(Clone, Default)]
struct Count(Arc<(AtomicUsize, Notify)>);

impl Count {
    fn add(&self) -> usize {
        let count = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.notify_waiters();
        count
    }

    fn sub(&self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn get(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    async fn reaches(&self, count: usize) {
        within(&format!("{count} of them"), async {
            loop {
                let changed = self.0.1.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.get() >= count {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }
}

/// A worker that runs until [`Running::request_stop`].
struct Running {
    stop: Arc<Notify>,
    task: JoinHandle<Result<Summary, ringq::client::Error>>,
}

impl Running {
    fn start<F, R>(worker: Worker, handler: F) -> Running
    where
        F: Fn(ringq::client::Delivery) -> R + Send + Sync + 'static,
        R: Future<Output: Into<Outcome>> + Send + 'static,
    {
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let task =
            tokio::spawn(
                async move { worker.run(handler, async { stopped.notified().await }).await },
            );
        Running { stop, task }
    }

    fn request_stop(&self) {
        self.stop.notify_one();
    }

    async fn ended(self) -> Summary {
        within("the worker's end", self.task).await.unwrap().unwrap()
    }

    async fn stop(self) -> Summary {
        self.request_stop();
        self.ended().await
    }
}

/// Returns the number of calls of an RPC that ended with OK.
async fn calls(server: &Server, method: &str) -> u64 {
    let (_, metrics) = http_get(server.http, "/metrics").await;
    let line = |line: &&str| {
        line.starts_with("ringq_rpc_seconds_count")
            && line.contains(&format!("{method}\""))
            && line.contains("\"OK\"")
    };
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    metrics.lines().filter(line).map(count).sum()
}
