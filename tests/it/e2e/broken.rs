use std::collections::HashSet;
use std::time::Duration;

use http::uri::PathAndQuery;
use ringq::pb::{AttemptOutcome, JobState, PullRequest, PullResponse, StreamRequest};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Streaming};

use crate::harness::{
    Client, JobExt as _, Server, Setup, eventually, job, millis, proto, raw_queue, receipts, take,
};

fn with_grace(topic: &str, grace: Duration) -> StreamRequest {
    StreamRequest { orphan_grace: Some(proto(grace)), ..take(topic) }
}

/// A client on a runtime of its own. Cutting it off ends it at once: the socket closes without a cancel or a window
/// update, as when a machine dies.
struct Elsewhere {
    cut: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

/// Runs `work`, which ends when `cut` is sent.
fn elsewhere<W>(server: &Server, work: W) -> Elsewhere
where
    W: AsyncFnOnce(Client, oneshot::Receiver<()>) + Send + 'static,
{
    let (cut, is_cut) = oneshot::channel();
    let grpc = server.grpc;
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { work(Client::connect(grpc).await, is_cut).await });
    });
    Elsewhere { cut, thread }
}

impl Elsewhere {
    fn cut(self) {
        self.cut.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[tokio::test]
async fn what_a_cut_stream_was_never_sent_goes_back_at_once_and_uncounted() {
    const JOBS: usize = 120;
    const BYTES: usize = 100_000;
    let server = Server::start().await;
    let client = server.connect().await;
    for _ in 0..JOBS / 20 {
        client.enqueue_all(vec![job("files").with_bytes(BYTES); 20]).await;
    }
    // A worker that does not read: the transport takes as much as its windows allow, the rest stays.
    let request = StreamRequest { max_in_flight: 1_000, ..with_grace("files", millis(600_000)) };
    let (sent, first) = oneshot::channel();
    let worker = elsewhere(&server, async move |client, cut| {
        let mut worker = client.stream(request).await;
        let ids: HashSet<_> = worker.next_many(3).await.into_iter().map(|d| d.id).collect();
        sent.send(ids).unwrap();
        cut.await.unwrap();
    });
    let received = first.await.unwrap();
    let mut samples = Vec::new();
    let claimed = eventually("the claims come to rest", async || {
        samples.push(client.stats("files").await.running);
        tokio::time::sleep(millis(100)).await;
        let last = samples.last_chunk::<5>()?;
        last.iter().all(|&sample| sample == last[0]).then_some(last[0])
    })
    .await;
    assert!(claimed < JOBS as i64, "{claimed} claimed: what is not read is not claimed");
    worker.cut();
    eventually("what was never sent is ready again", async || {
        (client.stats("files").await.running < claimed).then_some(())
    })
    .await;
    let ready = client.list("files", JobState::Ready).await;
    assert!(ready.iter().all(|job| (job.failures, job.deliveries) == (0, 0)), "uncounted");
    let kept = client.list("files", JobState::Running).await;
    let kept: HashSet<_> = kept.into_iter().map(|job| job.spec.unwrap().id).collect();
    assert!(kept.is_superset(&received), "what was received is kept for the grace");
}

/// The order in which a stopping worker extends its job and reopens its stream.
#[derive(Clone, Copy, Debug)]
enum Order {
    ExtendThenCancel,
    CancelThenExtend,
    Together,
    Silent,
}

async fn stop(client: Client, order: Order) {
    let topic = format!("stop.{order:?}");
    let spec = job(&topic).with_id("a").with_lease(millis(3_000)).with_max_attempts(1);
    client.enqueue(spec.with_retention(millis(60_000))).await;
    let mut worker = client.stream(with_grace(&topic, millis(1_000))).await;
    let receipt = worker.next().await.receipt;
    let lease = millis(10_000);
    match order {
        Order::ExtendThenCancel => {
            client.extend(&receipt, lease).await;
            drop(worker);
        }
        Order::CancelThenExtend => {
            drop(worker);
            client.extend(&receipt, lease).await;
        }
        Order::Together => {
            let extend = client.extend(&receipt, lease);
            tokio::join!(extend, async { drop(worker) });
        }
        Order::Silent => drop(worker),
    }
    let mut other = client.stream(take(&topic)).await;
    if matches!(order, Order::Silent) {
        let again = other.next().await;
        assert_eq!((again.id.as_str(), again.attempt, again.delivery), ("a", 1, 2));
        return client.ack(&again.receipt).await;
    }
    // Longer than the grace and than the first lease.
    other.quiet(millis(3_600)).await;
    client.ack(&receipt).await;
    let stored = client.get(&topic, "a").await;
    assert_eq!(stored.state(), JobState::Succeeded);
    assert_eq!((stored.deliveries, stored.failures), (1, 0), "{order:?}: it runs exactly once");
}

#[tokio::test]
async fn one_extend_keeps_the_job_of_a_worker_that_stops_whichever_comes_first() {
    let server = Server::start().await;
    let client = server.connect().await;
    let orders = [Order::ExtendThenCancel, Order::CancelThenExtend, Order::Together, Order::Silent];
    futures::future::join_all(orders.map(|order| stop(client.clone(), order))).await;
}

#[tokio::test]
async fn leases_of_a_killed_server_come_back_after_the_grace_unless_their_workers_speak_up() {
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    for id in ["silent", "extended", "acked", "waiting"] {
        let spec = job("mail").with_id(id).with_max_attempts(1).with_retention(millis(60_000));
        client.enqueue(spec).await;
    }
    let request = StreamRequest { max_in_flight: 3, ..with_grace("mail", millis(2_000)) };
    let mut worker = client.stream(request).await;
    let [silent, extended, acked]: [_; 3] = worker.next_many(3).await.try_into().unwrap();
    server.kill().await;
    assert!(worker.any_end().await.is_err(), "a killed server breaks its streams");
    let began = Instant::now();
    server.restart().await;
    // A receipt is valid on any server, also after a restart.
    let client = server.connect().await;
    client.extend(&extended.receipt, millis(30_000)).await;
    client.ack(&acked.receipt).await;

    let mut other = client.stream(take("mail")).await;
    assert_eq!(other.next().await.id, "waiting");
    let back = other.next().await;
    assert!(began.elapsed() >= millis(1_900), "back after {:?}", began.elapsed());
    assert_eq!((back.id.as_str(), back.attempt, back.delivery), (silent.id.as_str(), 1, 2));
    assert_ne!(back.receipt, silent.receipt);
    other.quiet(millis(1_500)).await;
    assert_eq!(client.state("mail", "extended").await, JobState::Running);
    assert_eq!(client.state("mail", "acked").await, JobState::Succeeded);
    client.ack(&extended.receipt).await;
    let stored = client.get("mail", "extended").await;
    assert_eq!((stored.state(), stored.deliveries), (JobState::Succeeded, 1));
    let stale = client
        .ack_items(vec![ringq::pb::AckItem { receipt: silent.receipt, ..Default::default() }]);
    assert_eq!(stale.await[0].error(), ringq::pb::SettleError::Stale);
}

/// Calls Pull on a connection of its own and reads only the headers of the answer: jobs of this size do not fit into
/// its window.
async fn pull_headers(server: &Server, topic: &str) -> Response<Streaming<PullResponse>> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    let channel = endpoint.initial_stream_window_size(1_024).connect().await.unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let wait = Some(proto(millis(10_000)));
    let (topics, max_jobs) = (vec![topic.to_owned()], 16);
    let request = PullRequest { topics, max_jobs, wait, ..Default::default() };
    let path = PathAndQuery::from_static("/ringq.v1.QueueService/Pull");
    let codec = tonic_prost::ProstCodec::<PullRequest, PullResponse>::default();
    grpc.server_streaming(Request::new(request), path, codec).await.unwrap()
}

#[tokio::test]
async fn jobs_of_a_pull_whose_caller_goes_before_the_answer_was_written_wait_again_uncounted() {
    let server = Server::start().await;
    let client = server.connect().await;
    for jobs in [1, 2, 3, 7] {
        let topic = format!("gone.{jobs}");
        client.enqueue_all(vec![job(&topic).with_bytes(100_000); jobs]).await;
        let answer = pull_headers(&server, &topic).await;
        assert_eq!(client.stats(&topic).await.running, jobs as i64);
        drop(answer);
        let waiting = eventually("what its caller did not get waits again", async || {
            let waiting = client.list(&topic, JobState::Ready).await;
            (waiting.len() == jobs).then_some(waiting)
        })
        .await;
        assert!(waiting.iter().all(|job| (job.deliveries, job.failures) == (0, 0)));
        let taken = client.pull_now(&topic, 16).await;
        assert_eq!(taken.len(), jobs);
        assert!(taken.iter().all(|job| job.delivery == 1));
        assert_eq!(
            client.stats(&topic).await.running,
            jobs as i64,
            "an answer that was sent stays"
        );
        client.ack_all(&receipts(&taken)).await;
    }
}

#[tokio::test]
async fn jobs_that_come_at_the_end_of_a_pull_are_answered_or_untouched() {
    let server = Server::start().await;
    let client = server.connect().await;
    let one = async |n: u64| {
        let topic = format!("edge.{n}");
        let mut request = tonic::Request::new(PullRequest {
            topics: vec![topic.clone()],
            wait: Some(proto(millis(10_000))),
            ..Default::default()
        });
        request.set_timeout(millis(1_000));
        let mut queue = raw_queue(server.grpc).await;
        let pull = queue.pull(request);
        let enqueue = async {
            tokio::time::sleep(millis(700 + n * 10)).await;
            client.enqueue(job(&topic).with_id("a")).await;
        };
        let (answer, ()) = tokio::join!(pull, enqueue);
        if answer.as_ref().is_ok_and(|answer| answer.get_ref().deliveries.len() == 1) {
            let stored = client.get(&topic, "a").await;
            assert_eq!((stored.state(), stored.deliveries), (JobState::Running, 1), "{topic}");
            return;
        }
        // The answer is late only if the machine stands still for the 200 ms that it has.
        let code = answer.err().map_or(Code::DeadlineExceeded, |status| status.code());
        assert_eq!(code, Code::DeadlineExceeded);
        // Jobs that were claimed and not sent come back, without a delivery.
        eventually("it is untouched", async || {
            let stored = client.get(&topic, "a").await;
            ((stored.state(), stored.deliveries) == (JobState::Ready, 0)).then_some(())
        })
        .await;
    };
    futures::future::join_all((0..25).map(one)).await;
}

#[tokio::test]
async fn a_vanished_connection_breaks_its_streams_like_a_cancel() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    let (sent, first) = oneshot::channel();
    let worker = elsewhere(&server, async move |client, cut| {
        let mut worker = client.stream(with_grace("mail", millis(300))).await;
        sent.send(worker.next().await.receipt).unwrap();
        cut.await.unwrap();
    });
    let receipt = first.await.unwrap();
    worker.cut();
    let cut = Instant::now();
    let again = client.pull_one("mail").await;
    assert!(cut.elapsed() >= millis(250), "given back before the grace was over");
    assert_ne!(again.receipt, receipt);
    assert_eq!((again.attempt, again.delivery), (1, 2));
    let stored = client.get("mail", "a").await;
    assert_eq!((stored.failures, stored.deliveries), (0, 2));
    assert_eq!(stored.attempts[0].outcome(), AttemptOutcome::Released);
}
