//! Connections that break and servers that die.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ringq::client::{Client, Delivery, Worker};
use ringq::pb::JobState;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;

use super::proxy::Proxy;
use super::{Count, Running, connect, enqueue, jobs};
use crate::harness::{Server, Setup, eventually, millis, within};

#[tokio::test]
async fn jobs_survive_a_killed_server() {
    let mut server = Setup::new().restartable().start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 2_000)).await;
    let runs = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let (seen, begun, done) = (Arc::clone(&runs), Count::default(), Count::default());
    let (count, counted) = (begun.clone(), done.clone());
    let handler = move |job: Delivery| {
        *seen.lock().unwrap().entry(job.id.clone()).or_default() += 1;
        count.add();
        let counted = counted.clone();
        async move {
            tokio::time::sleep(millis(2)).await;
            counted.add();
        }
    };
    // The leases are longer than the grace of streams: jobs on their way to this worker when the server died are
    // released after the grace, where an expired lease would count as a failure.
    let worker = Running::start(Worker::new(client, ["t"]).concurrency(32), handler);
    for at in [500, 1_000] {
        begun.reaches(at).await;
        server.kill().await;
        server.restart().await;
    }
    let look = server.connect().await;
    eventually("all are done", async || {
        (look.stats("t").await.succeeded_total == 2_000).then_some(())
    })
    .await;
    let summary = worker.stop().await;
    assert_eq!(runs.lock().unwrap().len(), 2_000);
    assert_eq!(summary.failed, 0, "{summary:?}");
    let all = look.list("t", JobState::Succeeded).await;
    assert_eq!((all.len(), all.iter().map(|job| job.failures).sum::<i32>()), (2_000, 0));
}

/// Running jobs continue over the break, and the number of jobs is exact.
#[tokio::test]
async fn max_jobs_is_exact_over_cut_connections() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.grpc).await;
    let client = Client::new(format!("http://{}", proxy.address)).unwrap();
    enqueue(&client, jobs("t", 200)).await;
    let begun = Count::default();
    let count = begun.clone();
    let handler = move |_| {
        count.add();
        tokio::time::sleep(millis(20))
    };
    let worker = Worker::new(client, ["t"]).concurrency(4).max_jobs(100);
    let worker = Running::start(worker, handler);
    for at in [20, 50, 97] {
        begun.reaches(at).await;
        proxy.cut();
    }
    let summary = worker.ended().await;
    assert_eq!((begun.get(), summary.acked, summary.failed, summary.unsettled), (100, 100, 0, 0));
    let look = server.connect().await;
    assert_eq!(look.list("t", JobState::Succeeded).await.len(), 100);
}

/// A handler that is longer than the grace of a broken stream, with a lease that is much longer.
#[tokio::test]
async fn a_long_job_outlives_the_stream_that_brought_it() {
    let mut server = Setup::new().restartable().start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 1)).await;
    let begun = Count::default();
    let count = begun.clone();
    let handler = move |_| {
        count.add();
        tokio::time::sleep(millis(6_500))
    };
    let worker = Worker::new(client, ["t"]).concurrency(2).lease(millis(600_000)).max_jobs(1);
    let worker = Running::start(worker, handler);
    begun.reaches(1).await;
    // The Extend that follows the break reaches no server; a tenth of the lease would be too late.
    server.kill().await;
    tokio::time::sleep(millis(300)).await;
    server.restart().await;
    let summary = worker.ended().await;
    assert_eq!((summary.acked, summary.unsettled, begun.get()), (1, 0, 1), "{summary:?}");
    let job = server.connect().await.get("t", "0").await;
    assert_eq!((job.state(), job.deliveries), (JobState::Succeeded, 1));
}

/// The server drains: its worker settles its jobs, and continues with the next server.
#[tokio::test]
async fn a_worker_moves_on_from_a_server_that_drains() {
    let mut server = Setup::new().restartable().config("shutdown_grace = \"10s\"").start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 60)).await;
    let begun = Count::default();
    let count = begun.clone();
    let handler = move |_| {
        count.add();
        tokio::time::sleep(millis(50))
    };
    let worker = Running::start(Worker::new(client, ["t"]).concurrency(4), handler);
    begun.reaches(10).await;
    server.terminate();
    assert!(server.exit().await.success());
    server.restart().await;
    begun.reaches(60).await;
    let summary = worker.stop().await;
    assert_eq!((summary.acked, summary.failed, summary.unsettled), (60, 0, 0), "{summary:?}");
    assert_eq!(begun.get(), 60, "none ran twice");
}

/// An ingress during a reload answers 404, which is UNIMPLEMENTED in gRPC.
#[tokio::test]
async fn a_refusal_that_is_not_the_servers_own_ends_nothing() {
    let mut server = Setup::new().restartable().start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 2)).await;
    let (begun, go) = (Count::default(), Arc::new(Notify::new()));
    let (count, gone) = (begun.clone(), Arc::clone(&go));
    let handler = move |_| {
        let first = count.add() == 1;
        let go = Arc::clone(&gone);
        async move {
            if first {
                go.notified().await;
            }
        }
    };
    let worker = Running::start(Worker::new(client, ["t"]).prefetch(0), handler);
    begun.reaches(1).await;
    server.kill().await;
    let other = EmptyServer::listen(server.grpc).await;
    eventually("it is asked", async || (other.asked.get() >= 2).then_some(())).await;
    // The Ack gets the same answer.
    go.notify_one();
    tokio::time::sleep(millis(500)).await;
    other.stop().await;
    server.restart().await;
    begun.reaches(2).await;
    let look = server.connect().await;
    eventually("both are done", async || {
        (look.stats("t").await.succeeded_total == 2).then_some(())
    })
    .await;
    let summary = worker.stop().await;
    assert_eq!((summary.acked, summary.unsettled), (2, 0), "{summary:?}");
}

/// A gRPC server without any service: it answers each call UNIMPLEMENTED.
struct EmptyServer {
    asked: Count,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl EmptyServer {
    async fn listen(address: SocketAddr) -> EmptyServer {
        let incoming = TcpIncoming::from(TcpListener::bind(address).await.unwrap());
        let (asked, stop) = (Count::default(), CancellationToken::new());
        let (count, stopped) = (asked.clone(), stop.clone().cancelled_owned());
        let routes = tonic::service::Routes::default();
        let mut server = tonic::transport::Server::builder().trace_fn(move |_| {
            count.add();
            tracing::Span::none()
        });
        let task = tokio::spawn(async move {
            let served = server.add_routes(routes).serve_with_incoming_shutdown(incoming, stopped);
            served.await.unwrap();
        });
        EmptyServer { asked, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        within("its end", self.task).await.unwrap();
    }
}
