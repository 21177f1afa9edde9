//! Streams of replicas behind a load balancer that chooses a replica for each connection, as a Kubernetes Service does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringq::pb::StreamRequest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::harness::{Client, Redis, Server, Setup, Worker, job, millis, request, take, within};

/// `stream_max_age` of the replicas.
const AGE: Duration = Duration::from_secs(2);
const WORKERS: usize = 30;

/// Balancer in front of replicas, which may be added.
struct Balancer {
    address: SocketAddr,
    replicas: Arc<Mutex<Vec<SocketAddr>>>,
    _tasks: JoinSet<()>,
}

impl Balancer {
    /// Starts one that sends each connection to the next replica.
    async fn start() -> Balancer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let replicas = Arc::<Mutex<Vec<SocketAddr>>>::default();
        let (known, mut tasks) = (Arc::clone(&replicas), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for turn in 0.. {
                let (mut client, _) = listener.accept().await.unwrap();
                let replica = {
                    let known = known.lock().unwrap();
                    known[turn % known.len()]
                };
                connections.spawn(async move {
                    let mut server = TcpStream::connect(replica).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Balancer { address, replicas, _tasks: tasks }
    }

    fn add(&self, replica: &Server) {
        self.replicas.lock().unwrap().push(replica.grpc);
    }
}

/// Replica of each stream that a worker has had, in their order.
type Streams = Arc<watch::Sender<Vec<String>>>;

/// Keeps a stream open, as docs/workers.md asks for: the next one has the id of the last one, if `names_last`.
async fn work(address: SocketAddr, worker_id: String, names_last: bool, had: Streams) {
    let client = Client::connect(address).await;
    let mut last = String::new();
    loop {
        let continues_stream_id = if names_last { last } else { String::new() };
        let request =
            StreamRequest { worker_id: worker_id.clone(), continues_stream_id, ..take("t") };
        let mut stream = Worker::open(&client, request).await;
        had.send_modify(|had| had.push(stream.info.replica.clone()));
        stream.end().await;
        last = stream.info.stream_id.clone();
    }
}

/// Waits until a worker has had this number of streams; returns their replicas.
async fn until_had(had: &Streams, count: usize) -> Vec<String> {
    let mut seen = had.subscribe();
    let streams = within("streams", seen.wait_for(|had| had.len() >= count)).await.unwrap();
    streams.clone()
}

async fn serve(redis: &Redis, name: &str) -> Server {
    let config = format!("stream_max_age = \"{}s\"\nreplica = {name:?}", AGE.as_secs());
    Setup::on(&redis.url()).config(&config).start().await
}

/// Two streams later each worker may have changed its connection twice, and each replica has its share.
#[tokio::test]
async fn streams_even_out_within_two_ages_of_a_stream() {
    let Some(redis) = Redis::start().await else { return };
    let balancer = Balancer::start().await;
    let mut replicas = vec![serve(&redis, "a").await];
    balancer.add(&replicas[0]);
    let (mut workers, mut all) = (JoinSet::new(), Vec::new());
    for n in 0..WORKERS {
        let had = Streams::default();
        workers.spawn(work(balancer.address, format!("w{n}"), true, had.clone()));
        all.push(had);
    }
    // From the second stream on, a worker has shown that it may change its connection.
    for had in &all {
        until_had(had, 2).await;
    }
    for name in ["b", "c"] {
        let replica = serve(&redis, name).await;
        balancer.add(&replica);
        replicas.push(replica);
    }
    let counts: Vec<_> = all.iter().map(|had| had.borrow().len()).collect();
    let mut shares = BTreeMap::<String, usize>::new();
    for (had, count) in all.iter().zip(counts) {
        let of_worker = until_had(had, count + 2).await;
        *shares.entry(of_worker[count + 1].clone()).or_default() += 1;
    }
    println!("{shares:?}");
    assert!(shares.len() == 3 && shares.values().all(|share| *share >= WORKERS / 5), "{shares:?}");
}

#[tokio::test]
async fn a_worker_that_is_known_by_its_connection_keeps_it() {
    let Some(redis) = Redis::start().await else { return };
    let balancer = Balancer::start().await;
    let replicas = [serve(&redis, "a").await, serve(&redis, "b").await];
    balancer.add(&replicas[0]);
    let (mut workers, had) = (JoinSet::new(), Streams::default());
    workers.spawn(work(balancer.address, "w".to_owned(), false, had.clone()));
    until_had(&had, 1).await;
    balancer.add(&replicas[1]);
    assert_eq!(until_had(&had, 3).await, ["a"; 3]);
}

#[tokio::test]
async fn a_connection_of_a_producer_is_not_retired() {
    let server = Setup::new().config("stream_max_age = \"1s\"").start().await;
    let end = Instant::now() + millis(2_500);
    let mut producers = JoinSet::new();
    for _ in 0..8 {
        let client = server.connect().await;
        producers.spawn(async move {
            let mut calls = 0;
            while Instant::now() < end {
                // Several at once: tonic fails calls that are opened while GOAWAY is on its way.
                let call = || client.send(request(job("t")));
                let answers = futures::future::join_all((0..4).map(|_| call())).await;
                answers.into_iter().for_each(|answer| drop(answer.expect("it succeeds")));
                calls += 4;
            }
            calls
        });
    }
    let calls: i64 = producers.join_all().await.into_iter().sum();
    assert_eq!(server.connect().await.stats("t").await.ready, calls, "each was stored once");
}
