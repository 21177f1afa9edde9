//! Several servers on one Redis, and clients that name all of them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use ringq::client::{Client, Delivery, Error, Worker};
use ringq::pb::{EnqueueRequest, GetServerInfoRequest, JobSpec, JobState, ListWorkersRequest};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::fake::{Fake, Script, not_done, unknown};
use super::{Count, Running, jobs};
use crate::harness::{
    PATIENCE, Redis, Server, Setup, eventually, eventually_in, for_a_while, free_port, millis,
    within,
};

/// Guard of the wait for the jobs of a killed server: it is found dead after 12 s, and their grace is 5 s.
const RELEASED: Duration = Duration::from_secs(90);

/// Servers on one Redis, by their names.
pub(crate) struct Several {
    _redis: Redis,
    pub(crate) servers: BTreeMap<String, Server>,
}

// === impl Several ===

impl Several {
    /// Starts servers named `a`, `b`, ….
    pub(crate) async fn start(names: &[&str]) -> Option<Several> {
        let redis = Redis::start().await?;
        let mut servers = BTreeMap::new();
        for name in names {
            let setup = Setup::on(&redis.url()).restartable();
            let server = setup.config(&format!("replica = \"{name}\"")).start().await;
            servers.insert((*name).to_owned(), server);
        }
        Some(Several { _redis: redis, servers })
    }

    /// Returns their URLs, separated by commas.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<_> = self.servers.values().map(|server| url(server.grpc)).collect();
        urls.join(",")
    }

    fn client(&self) -> Client {
        Client::new(self.urls()).unwrap()
    }

    pub(crate) fn server(&mut self, name: &str) -> &mut Server {
        self.servers.get_mut(name).unwrap()
    }

    /// Returns the name of the server of the only worker: each server lists its own.
    pub(crate) async fn of_worker(&self) -> String {
        eventually("a worker is connected", async || {
            for (name, server) in &self.servers {
                let mut admin = Client::new(url(server.grpc)).unwrap().admin();
                let answer = admin.list_workers(ListWorkersRequest::default()).await;
                if answer.is_ok_and(|answer| !answer.into_inner().workers.is_empty()) {
                    return Some(name.clone());
                }
            }
            None
        })
        .await
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Returns the URL of a port without a listener.
pub(crate) fn dead() -> String {
    format!("http://127.0.0.1:{}", free_port())
}

/// Makes a call; returns the name of the server that answered.
async fn asked(client: &Client) -> Result<String, Error> {
    let answer = client.admin().get_server_info(GetServerInfoRequest {}).await?;
    Ok(answer.into_inner().replica)
}

/// Counts runs of each job.
#[derive(Clone, Default)]
struct Runs {
    of_job: Arc<Mutex<HashMap<String, u32>>>,
    begun: Count,
}

impl Runs {
    fn handler(&self, each: Duration) -> impl Fn(Delivery) -> tokio::time::Sleep + use<> {
        let runs = self.clone();
        move |job: Delivery| {
            *runs.of_job.lock().unwrap().entry(job.id.clone()).or_default() += 1;
            runs.begun.add();
            tokio::time::sleep(each)
        }
    }
}

#[tokio::test]
async fn jobs_survive_the_kill_of_one_of_two_servers() {
    let Some(mut several) = Several::start(&["a", "b"]).await else { return };
    let client = several.client();
    let runs = Runs::default();
    let worker = Worker::new(client.clone(), ["t"]).concurrency(16);
    let worker = Running::start(worker, runs.handler(millis(2)));
    let killed = several.of_worker().await;
    let producer = client.producer();
    let produce = tokio::spawn(async move {
        let mut refused = Vec::new();
        for part in jobs("t", 2_000).chunks(25) {
            let answers = producer.enqueue_batch(part.to_vec()).await;
            refused.extend(answers.into_iter().filter_map(Result::err));
        }
        refused
    });
    runs.begun.reaches(500).await;
    several.server(&killed).kill().await;
    let before = runs.begun.get();
    // As many as may have waited in the worker, and one more.
    runs.begun.reaches(before + 33).await;
    let refused = within("all are enqueued", produce).await.unwrap();
    assert!(refused.is_empty(), "{refused:?}");
    let other = if killed == "a" { "b" } else { "a" };
    let look = several.server(other).connect().await;
    eventually_in(RELEASED, "all are done", async || {
        (look.stats("t").await.succeeded_total == 2_000).then_some(())
    })
    .await;
    let summary = worker.stop().await;
    assert_eq!(runs.of_job.lock().unwrap().len(), 2_000);
    assert_eq!(summary.failed, 0, "{summary:?}");
    let all = look.list("t", JobState::Succeeded).await;
    assert_eq!((all.len(), all.iter().map(|job| job.failures).sum::<i32>()), (2_000, 0));
}

#[tokio::test]
async fn a_worker_goes_on_while_one_of_three_servers_is_left() {
    let Some(mut several) = Several::start(&["a", "b", "c"]).await else { return };
    let client = several.client();
    let look = several.client();
    let runs = Runs::default();
    let worker = Running::start(Worker::new(client, ["t"]), runs.handler(millis(0)));
    for round in 1..=3 {
        let added = super::enqueue(&look, vec![JobSpec::new("t").with_id(round.to_string())]);
        within("the enqueue", added).await;
        runs.begun.reaches(round).await;
        if round < 3 {
            let name = several.of_worker().await;
            several.servers.remove(&name).unwrap().kill().await;
        }
    }
    let summary = worker.stop().await;
    assert_eq!((summary.acked, summary.failed, summary.unsettled), (3, 0, 0));
}

/// Unary calls without the repeats of the library, and a worker, while the server of both drains.
#[tokio::test]
async fn no_call_fails_while_a_server_drains_and_nothing_runs_twice() {
    let Some(mut several) = Several::start(&["a", "b"]).await else { return };
    let client = several.client();
    let runs = Runs::default();
    let worker = Worker::new(client.clone(), ["t"]).concurrency(4);
    let worker = Running::start(worker, runs.handler(millis(5)));
    let draining = several.of_worker().await;
    let (stop, calls) = (CancellationToken::new(), Count::default());
    let callers = (0..4).map(|caller| {
        let (client, stop, calls) = (client.clone(), stop.clone(), calls.clone());
        tokio::spawn(async move {
            let mut number = 0;
            while !stop.is_cancelled() {
                let job = JobSpec::new("t").with_id(format!("{caller}-{number}"));
                let job = Some(job.with_retention(Duration::from_secs(600)));
                let request = EnqueueRequest { job, ..Default::default() };
                client.queue().enqueue(request).await.map_err(Error::from)?;
                calls.add();
                number += 1;
                tokio::time::sleep(millis(3)).await;
            }
            Ok::<usize, Error>(number)
        })
    });
    let callers: Vec<_> = callers.collect();
    calls.reaches(100).await;
    several.server(&draining).terminate();
    assert!(several.server(&draining).exit().await.success());
    calls.reaches(calls.get() + 100).await;
    stop.cancel();
    let mut enqueued = 0;
    for caller in callers {
        enqueued += caller.await.unwrap().expect("no call fails");
    }
    let other = if draining == "a" { "b" } else { "a" };
    let look = several.server(other).connect().await;
    eventually_in(RELEASED, "all are done", async || {
        (usize::try_from(look.stats("t").await.succeeded_total).unwrap() == enqueued).then_some(())
    })
    .await;
    let summary = worker.stop().await;
    assert_eq!((summary.acked, summary.failed, summary.unsettled), (enqueued as u64, 0, 0));
    let twice = runs.of_job.lock().unwrap().values().filter(|runs| **runs > 1).count();
    assert_eq!((runs.begun.get(), twice), (enqueued, 0), "none ran twice");
}

/// Calls of several clients, none of which fails: each of the servers is the first one of some.
async fn calls_succeed(list: &str) {
    for _ in 0..6 {
        let client = Client::new(list).unwrap();
        for _ in 0..20 {
            within("a call", asked(&client)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_dead_server_in_the_list_fails_no_call() {
    let server = Server::start().await;
    for list in [
        format!("{},{}", dead(), url(server.grpc)),
        format!("{}, {}, {}", url(server.grpc), dead(), dead()),
    ] {
        calls_succeed(&list).await;
    }
}

/// Listeners that do not answer: one accepts connections, the other one has no place for them.
#[tokio::test]
async fn a_server_that_does_not_answer_fails_no_call() {
    let server = Server::start().await;
    let listen = |backlog| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.listen(backlog).unwrap()
    };
    let (silent, full) = (listen(100), listen(0));
    let blackhole = full.local_addr().unwrap();
    let mut fill = Vec::new();
    while let Some(Ok(stream)) = for_a_while(millis(300), TcpStream::connect(blackhole)).await {
        fill.push(stream);
    }
    for away in [silent.local_addr().unwrap(), blackhole] {
        let list = format!("{},{}", url(away), url(server.grpc));
        calls_succeed(&list).await;
    }
}

/// A server that stands still, with connections that stay open.
#[tokio::test]
async fn a_server_that_stops_answering_is_left() {
    let Some(several) = Several::start(&["a", "b"]).await else { return };
    let client = several.client();
    let first = asked(&client).await.unwrap();
    several.servers[&first].pause();
    let error = within("the end of the call", asked(&client)).await.unwrap_err();
    assert!(error.is_unavailable() && error.outcome_unknown(), "{error:?}");
    assert_ne!(within("an answer", asked(&client)).await.unwrap(), first);
    several.servers[&first].resume();
    eventually("its client is back", async || (asked(&client).await.ok()? == first).then_some(()))
        .await;
}

#[tokio::test]
async fn a_client_returns_to_a_server_that_is_back() {
    let Some(mut several) = Several::start(&["a", "b"]).await else { return };
    let client = several.client();
    let first = asked(&client).await.unwrap();
    several.server(&first).kill().await;
    // A call in flight may fail, but none after that.
    let _ = asked(&client).await;
    for _ in 0..20 {
        assert_ne!(asked(&client).await.unwrap(), first);
    }
    several.server(&first).restart().await;
    eventually("its client is back", async || {
        (asked(&client).await.unwrap() == first).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_any_server_one_error_names_all() {
    let (a, b) = (dead(), dead());
    let client = Client::new(format!("{a},{b}")).unwrap();
    for _ in 0..3 {
        let error = within("the error", asked(&client)).await.unwrap_err();
        let want = format!("no connection to {a} (connection refused), {b} (connection refused)");
        assert_eq!((error.code(), error.message()), (Code::Unavailable, &*want));
        assert!(!error.outcome_unknown() && error.reason().is_empty());
    }
}

#[tokio::test]
async fn the_part_of_a_list_that_is_wrong_is_named() {
    for (list, part) in [
        ("http://a:1,ftp://b", "`ftp://b` is not a server URL"),
        ("http://a:1, http://b:port", "`http://b` is not a server URL"),
        ("http://a:1,", "`http://a:1,` has an empty entry"),
    ] {
        let error = Client::new(list).unwrap_err();
        assert!(error.message().starts_with(part), "{error}");
        assert_eq!(error.field(), Some("server"));
    }
}

#[tokio::test]
async fn forty_clients_spread_over_two_servers() {
    let Some(several) = Several::start(&["a", "b"]).await else { return };
    let clients: Vec<_> = (0..40).map(|_| several.client()).collect();
    let mut of_server = BTreeMap::<String, usize>::new();
    for client in &clients {
        let names = join_all((0..3).map(|_| asked(client))).await;
        let name = names[0].as_ref().unwrap().clone();
        assert!(names.iter().all(|other| *other.as_ref().unwrap() == name), "one server each");
        *of_server.entry(name).or_default() += 1;
    }
    assert!(of_server.len() == 2 && of_server.values().all(|count| *count >= 10), "{of_server:?}");
}

/// Starts two scripted servers; returns a list of both for as many clients as begin at each.
async fn two_fakes(first: Script) -> ([Fake; 2], String) {
    let (first, one) = Fake::start(first).await;
    let (second, two) = Fake::start(Script::default()).await;
    ([first, second], format!("{},{}", one.url(), two.url()))
}

#[tokio::test]
async fn a_refusal_of_a_draining_server_is_not_seen_by_the_caller() {
    let script = Script::failing(|_| Some(not_done(Duration::from_secs(60))));
    let (fakes, list) = two_fakes(script).await;
    for number in 0..6 {
        let producer = Client::new(&*list).unwrap().producer().repeat_for(Duration::ZERO);
        let job = JobSpec::new("t").with_id(number.to_string());
        within("the answer", producer.enqueue(job)).await.unwrap();
    }
    let refused = fakes[0].0.enqueues.lock().unwrap().len();
    assert!((1..=6).contains(&refused), "{refused} calls began at the server that drains");
    assert_eq!(fakes[1].0.jobs.lock().unwrap().len(), 6);
}

#[tokio::test]
async fn a_repeat_of_a_call_with_an_unknown_outcome_goes_to_the_other_server() {
    let (fakes, list) = two_fakes(Script::failing(|_| Some(unknown()))).await;
    for number in 0..6 {
        let producer = Client::new(&*list).unwrap().producer().repeat_for(PATIENCE);
        let job = JobSpec::new("t").with_id(number.to_string());
        within("the answer", producer.enqueue(job)).await.unwrap();
        // Without an id the caller decides.
        let unnamed = within("the answer", producer.enqueue(JobSpec::new("u"))).await;
        assert!(unnamed.map_or_else(|error| error.outcome_unknown(), |_| true));
    }
    let calls = fakes[0].0.enqueues.lock().unwrap();
    let named = calls.iter().filter(|call| !call.jobs[0].id.is_empty()).count();
    assert!((1..=6).contains(&named), "{named}: each job was sent there once at most");
}
