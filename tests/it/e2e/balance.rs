//! Streams of replicas behind a load balancer that chooses a replica for each connection, as a Kubernetes Service does.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringq::pb::{ListWorkersRequest, StreamRequest};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::harness::{
    Client, Redis, Server, Setup, Worker, eventually_in, job, millis, request, take,
};

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

/// Keeps a stream open, as docs/workers.md asks for: the next one has the id of the last one, if `names_last`.
async fn work(address: SocketAddr, worker_id: String, names_last: bool) {
    let client = Client::connect(address).await;
    let mut last = String::new();
    loop {
        let continues_stream_id = if names_last { last } else { String::new() };
        let request =
            StreamRequest { worker_id: worker_id.clone(), continues_stream_id, ..take("t") };
        let mut stream = Worker::open(&client, request).await;
        stream.end().await;
        last = stream.info.stream_id.clone();
    }
}

/// Returns the number of streams of each replica.
async fn streams(replicas: &[Server]) -> Vec<usize> {
    let mut counts = Vec::new();
    for replica in replicas {
        let mut admin = replica.connect().await.admin;
        let workers = admin.list_workers(ListWorkersRequest::default()).await.unwrap();
        counts.push(workers.into_inner().workers.len());
    }
    counts
}

async fn serve(redis: &Redis) -> Server {
    let age = format!("stream_max_age = \"{}s\"", AGE.as_secs());
    Setup::on(&redis.url()).config(&age).start().await
}

#[tokio::test]
async fn streams_even_out_within_two_ages_of_a_stream() {
    let Some(redis) = Redis::start().await else { return };
    let balancer = Balancer::start().await;
    let mut replicas = vec![serve(&redis).await];
    balancer.add(&replicas[0]);
    let mut workers = JoinSet::new();
    for n in 0..WORKERS {
        workers.spawn(work(balancer.address, format!("w{n}"), true));
    }
    // From the second stream on, a worker has shown that it may change its connection.
    tokio::time::sleep(AGE + AGE / 4).await;
    assert_eq!(streams(&replicas).await, [WORKERS]);
    for _ in 0..2 {
        let replica = serve(&redis).await;
        balancer.add(&replica);
        replicas.push(replica);
    }
    let begin = Instant::now();
    let counts = eventually_in(2 * AGE, "each replica has its share", async || {
        let counts = streams(&replicas).await;
        counts.iter().all(|count| *count >= WORKERS / 5).then_some(counts)
    })
    .await;
    println!("{counts:?} after {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_worker_that_is_known_by_its_connection_keeps_it() {
    let Some(redis) = Redis::start().await else { return };
    let balancer = Balancer::start().await;
    let replicas = [serve(&redis).await, serve(&redis).await];
    balancer.add(&replicas[0]);
    let mut workers = JoinSet::new();
    workers.spawn(work(balancer.address, "w".to_owned(), false));
    tokio::time::sleep(millis(200)).await;
    balancer.add(&replicas[1]);
    tokio::time::sleep(AGE * 5 / 2).await;
    assert_eq!(streams(&replicas).await, [1, 0]);
}

#[tokio::test]
async fn a_connection_of_a_producer_is_not_retired() {
    let server = Setup::new().config("stream_max_age = \"1s\"").start().await;
    let end = Instant::now() + millis(4_500);
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
