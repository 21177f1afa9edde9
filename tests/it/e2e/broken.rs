use std::collections::HashSet;
use std::time::Duration;

use http::uri::PathAndQuery;
use ringq::pb::{
    AttemptOutcome, DeleteRequest, Delivery, ExtendItem, JobState, ListWorkersRequest, NackAction,
    PullRequest, PullResponse, StreamRequest,
};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Streaming};

use crate::harness::{
    Client, JobExt as _, Server, Setup, SinceEpoch as _, Worker, eventually, job, millis, nack,
    proto, raw_queue, receipts, take,
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
async fn what_a_cut_stream_held_comes_back_after_the_grace_and_is_no_failure() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_max_attempts(1)).await;
    let mut worker = client.stream(with_grace("mail", millis(800))).await;
    assert_eq!(worker.next().await.id, "a");
    let cut = Instant::now();
    drop(worker);
    let again = client.pull_one("mail").await;
    let after = cut.elapsed();
    assert!(after >= millis(750), "given back after {after:?}, before the grace was over");
    assert!(after < millis(4_000), "given back after {after:?}");
    assert_eq!((again.id.as_str(), again.attempt, again.delivery), ("a", 1, 2));
    let stored = client.get("mail", "a").await;
    assert_eq!((stored.failures, stored.deliveries), (0, 2));
    assert_eq!(stored.attempts[0].outcome(), AttemptOutcome::Released);
    client.ack(&again.receipt).await;
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
    let grace = millis(3_500);
    let request = StreamRequest { max_in_flight: 1_000, ..with_grace("files", grace) };
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
    let cut = Instant::now();
    worker.cut();
    // Within the grace: only the jobs that were sent are still leased.
    let sent = eventually("what was never sent is ready again", async || {
        let running = client.stats("files").await.running;
        (running < claimed).then_some(running)
    })
    .await;
    let took = cut.elapsed();
    assert!(took < grace, "{took:?}, {sent} of {claimed} left, claimed over time: {samples:?}");
    assert!(sent >= 3, "{sent} of {claimed} claimed jobs are kept for the grace");
    let stats = eventually("all is back", async || {
        let stats = client.stats("files").await;
        (stats.ready == JOBS as i64).then_some(stats)
    })
    .await;
    assert_eq!((stats.running, stats.backoff, stats.dead), (0, 0, 0));
    let jobs = client.list("files", JobState::Ready).await;
    assert!(jobs.iter().all(|job| job.failures == 0));
    let counted: HashSet<_> = jobs
        .into_iter()
        .filter(|job| job.deliveries > 0)
        .map(|job| {
            assert_eq!(job.deliveries, 1);
            job.spec.unwrap().id
        })
        .collect();
    assert!(counted.is_superset(&received), "what was received is counted");
    assert!(counted.len() <= sent as usize, "{} counted, {sent} sent", counted.len());
    assert!(counted.len() < claimed as usize, "what was never sent is not counted");
}

/// The order in which a stopping worker extends its job and reopens its stream.
#[derive(Clone, Copy, Debug)]
enum Order {
    ExtendThenCancel,
    CancelThenExtend,
    Together,
    Silent,
}

async fn stop(client: Client, order: Order) -> (Order, Vec<(String, i32)>) {
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
    // Longer than the grace and than the first lease.
    let mut other = client.stream(take(&topic)).await;
    let mut came = Vec::new();
    while let Ok(delivery) = tokio::time::timeout(millis(3_600), other.next()).await {
        came.push((delivery.id, delivery.attempt));
        client.ack(&delivery.receipt).await;
    }
    if !matches!(order, Order::Silent) {
        client.ack(&receipt).await;
        let stored = client.get(&topic, "a").await;
        assert_eq!(stored.state(), JobState::Succeeded);
        assert_eq!((stored.deliveries, stored.failures), (1, 0), "{order:?}");
    }
    (order, came)
}

#[tokio::test]
async fn one_extend_keeps_the_job_of_a_worker_that_stops_whichever_comes_first() {
    let server = Server::start().await;
    let client = server.connect().await;
    let orders = [Order::ExtendThenCancel, Order::CancelThenExtend, Order::Together, Order::Silent];
    let stops = orders.map(|order| stop(client.clone(), order));
    for (order, came) in futures::future::join_all(stops).await {
        let expected = match order {
            Order::Silent => vec![("a".to_owned(), 1)],
            _ => Vec::new(),
        };
        assert_eq!(came, expected, "{order:?}: it runs exactly once");
    }
}

/// Time that a job runs after its worker got it. The test waits for it in real time, because the grace and the lease
/// are real: the defaults of 5 s and 30 s.
const RUN: Duration = millis(20_000);

/// A job at work, in a topic of its own.
struct Run {
    held: Delivery,
    came: Instant,
}

/// Opens a stream with the default grace, whose heartbeats come often enough to show that it lives.
async fn other(client: &Client, topic: &str) -> Worker {
    let heartbeat_interval = Some(proto(millis(2_000)));
    let worker = client.stream(StreamRequest { heartbeat_interval, ..take(topic) }).await;
    assert_eq!(worker.info.orphan_grace, Some(proto(millis(5_000))));
    worker
}

// === impl Run ===

impl Run {
    fn began(held: Delivery) -> Run {
        Run { held, came: Instant::now() }
    }

    /// Sends the one call that a worker owes for a running job: a plain Extend.
    async fn keep(&self, client: &Client) {
        let item = ExtendItem { receipt: self.held.receipt.clone(), ..Default::default() };
        assert_eq!(client.extend_items(vec![item]).await, []);
    }

    /// Works to the end and acks; meanwhile and after it no stream of `others` gets the job.
    async fn finish(self, client: &Client, mut others: Vec<Worker>) {
        let left = RUN.saturating_sub(self.came.elapsed());
        futures::future::join_all(others.iter_mut().map(|other| other.quiet(left))).await;
        client.ack(&self.held.receipt).await;
        for other in &mut others {
            other.quiet(millis(500)).await;
        }
        let job = client.get(&self.held.topic, &self.held.id).await;
        assert_eq!((job.state(), job.deliveries, job.failures), (JobState::Succeeded, 1, 0));
        let [attempt] = &job.attempts[..] else { panic!("{:?}", job.attempts) };
        assert_eq!((attempt.number, attempt.outcome()), (1, AttemptOutcome::Succeeded));
        let ran = attempt.finish_time.since_epoch() - attempt.start_time.since_epoch();
        assert!(ran >= RUN, "it ran for {ran:?}");
    }
}

/// The connection dies under a stream; the worker's process lives, extends its job on another connection and opens
/// another stream.
async fn cut_under_a_job(server: &Server) {
    let client = server.connect().await;
    client.enqueue(job("cut").with_id("a").with_retention(millis(60_000))).await;
    let (sent, first) = oneshot::channel();
    let worker = elsewhere(server, async move |client, cut| {
        let mut worker = client.stream(take("cut")).await;
        sent.send(worker.next().await).unwrap();
        cut.await.unwrap();
    });
    let run = Run::began(first.await.unwrap());
    let idle = other(&client, "cut").await;
    worker.cut();
    let client = server.connect().await;
    run.keep(&client).await;
    let again = other(&client, "cut").await;
    run.finish(&client, vec![idle, again]).await;
}

/// Stops a worker, which finishes its job.
async fn stop_with_a_job(server: &Server) {
    let client = server.connect().await;
    client.enqueue(job("stop").with_id("a").with_retention(millis(60_000))).await;
    let mut worker = client.stream(take("stop")).await;
    let run = Run::began(worker.next().await);
    let idle = other(&client, "stop").await;
    run.keep(&client).await;
    drop(worker);
    run.finish(&client, vec![idle]).await;
}

#[tokio::test]
async fn a_job_of_20_s_runs_once_under_a_cut_stream_or_a_worker_that_stops_by_one_extend() {
    let server = Server::start().await;
    tokio::join!(cut_under_a_job(&server), stop_with_a_job(&server));
}

#[tokio::test]
async fn a_settle_after_the_break_keeps_the_job_settled() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_retention(millis(60_000))).await;
    let mut worker = client.stream(with_grace("mail", millis(500))).await;
    let receipt = worker.next().await.receipt;
    drop(worker);
    client.ack(&receipt).await;
    let mut other = client.stream(take("mail")).await;
    other.quiet(millis(1_200)).await;
    let stored = client.get("mail", "a").await;
    assert_eq!((stored.state(), stored.deliveries), (JobState::Succeeded, 1));
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

#[tokio::test]
async fn releasing_in_a_loop_does_not_burn_a_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_max_attempts(1)).await;
    let mut worker = client.stream(take("mail")).await;
    let end = Instant::now() + millis(5_000);
    let mut deliveries = 0;
    while let Ok(delivery) = tokio::time::timeout_at(end, worker.next()).await {
        assert_eq!(delivery.attempt, 1, "a release is no failure");
        deliveries = delivery.delivery;
        client.nack(nack(&delivery.receipt, NackAction::Release)).await;
    }
    // At once the first time, then after 1 s, 2 s, 4 s.
    assert!((3..=4).contains(&deliveries), "{deliveries} deliveries in 5 s");
    let stored = client.get("mail", "a").await;
    assert_eq!(stored.state(), JobState::Scheduled, "it waits, and has not failed");
    assert_eq!((stored.failures, stored.deliveries), (0, deliveries));
}

#[tokio::test]
async fn a_pull_that_is_cancelled_or_runs_out_of_time_costs_the_job_nothing() {
    let server = Server::start().await;
    let client = server.connect().await;
    let wait = Some(proto(millis(10_000)));
    let pull = |topic: &str| PullRequest {
        topics: vec![topic.to_owned()],
        max_jobs: 5,
        wait,
        ..Default::default()
    };
    // Cancelled while it waits.
    for _ in 0..5 {
        let waiting = client.pull(pull("mail"));
        assert!(tokio::time::timeout(millis(60), waiting).await.is_err(), "nothing to pull");
    }
    client.enqueue(job("mail").with_id("a")).await;
    let mut worker = client.stream(take("mail")).await;
    let delivery = worker.next().await;
    assert_eq!((delivery.attempt, delivery.delivery), (1, 1), "no pull had it before");
    drop(worker);

    // With a deadline of its own, it answers 200 ms before that, and in any case long before its wait is over. This
    // client would receive late answers, too.
    let begin = Instant::now();
    let mut request = tonic::Request::new(pull("calm"));
    request.set_timeout(millis(800));
    let mut queue = raw_queue(server.grpc).await;
    let answer = queue.pull(request).await.unwrap().into_inner();
    assert_eq!(answer.deliveries, []);
    let took = begin.elapsed();
    assert!(took > millis(400) && took < millis(5_000), "answered after {took:?}");
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
    let again = client.pull_one("mail").await;
    assert_ne!(again.receipt, receipt);
    assert_eq!((again.attempt, again.delivery), (1, 2));
}

#[tokio::test]
async fn a_stream_that_the_server_ended_gives_nothing_back_after_a_restart_either() {
    let mut server = Setup::new().config("shutdown_grace = \"100ms\"").restartable().start().await;
    let client = server.connect().await;
    for id in ["ended", "drained"] {
        client.enqueue(job("mail").with_id(id)).await;
    }
    let one = StreamRequest { max_jobs: 1, ..with_grace("mail", millis(300)) };
    let mut worker = client.stream(one).await;
    let ended = worker.next().await;
    worker.end().await;
    let mut worker = client.stream(with_grace("mail", millis(300))).await;
    let drained = worker.next().await;
    server.terminate();
    assert!(server.exit().await.success());
    server.restart().await;
    let client = server.connect().await;
    // Longer than the grace: leases of a stream from before the restart would be free by now.
    let mut idle = client.stream(take("mail")).await;
    idle.quiet(millis(1_200)).await;
    for delivery in [ended, drained] {
        assert_eq!(client.state("mail", &delivery.id).await, JobState::Running);
        client.ack(&delivery.receipt).await;
    }
}

/// Break, Extend, a new stream: the new stream has the leases from then on, by the stream's name or by the
/// connection.
#[tokio::test]
async fn what_was_extended_at_a_break_is_revoked_on_the_next_stream_and_comes_back_with_it() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (lease, names_it) in [(30, false), (86_400, false), (30, true), (86_400, true)] {
        let lease = Duration::from_secs(lease);
        // A deleted id stays taken for a while.
        let (gone, kept) =
            (format!("gone-{lease:?}-{names_it}"), format!("kept-{lease:?}-{names_it}"));
        client.enqueue(job("mail").with_id(&gone).with_lease(lease)).await;
        client.enqueue(job("mail").with_id(&kept).with_lease(lease)).await;
        let request = StreamRequest { worker_id: "w".into(), ..with_grace("mail", millis(1_500)) };
        let mut worker = client.stream(request.clone()).await;
        let sent = worker.next_many(2).await;
        let former = worker.info.stream_id.clone();
        drop(worker);
        for delivery in &sent {
            client.extend(&delivery.receipt, lease).await;
        }
        let mut next = if names_it {
            let request = StreamRequest { continues_stream_id: former, ..request };
            server.connect().await.stream(request).await
        } else {
            client.stream(request).await
        };
        // A revocation before the server sees the break, and the next stream has adopted the leases, does not come.
        eventually("the next stream alone has both jobs", async || {
            let workers = client.admin.clone().list_workers(ListWorkersRequest::default()).await;
            let workers = workers.unwrap().into_inner().workers;
            matches!(workers.as_slice(), [next] if next.in_flight == 2).then_some(())
        })
        .await;
        let request =
            DeleteRequest { topic: "mail".into(), id: gone.clone(), ..Default::default() };
        client.queue.clone().delete(request).await.unwrap();
        let revoked = next.revocation().await;
        assert!(sent.iter().any(|sent| sent.id == gone && sent.receipt == revoked.receipt));
        // An Extend up to 500 ms before a break keeps its lease.
        tokio::time::sleep(millis(600)).await;
        drop(next);
        let again = client.pull_one("mail").await;
        assert_eq!((again.id, again.attempt, again.delivery), (kept, 1, 2));
        client.ack(&again.receipt).await;
    }
}

/// Invalid names: each worker gets its stream all the same.
#[tokio::test]
async fn a_stream_may_name_any_former_one() {
    let server = Server::start().await;
    let client = server.connect().await;
    let live = client.stream(take("t")).await;
    for id in ["x", "00000000-1", "ffffffff-4294967295", &live.info.stream_id, &"y".repeat(9_000)] {
        let continues_stream_id = id.to_owned();
        let mut worker = client.stream(StreamRequest { continues_stream_id, ..take("u") }).await;
        client.enqueue(job("u")).await;
        let delivery = worker.next().await;
        client.ack(&delivery.receipt).await;
    }
}
