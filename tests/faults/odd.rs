//! Bodies of all sizes and malformed calls, while a load runs: each has one answer, always the same, nothing of a
//! refused call is stored or held in memory, and the connection that brought it stays open.

use std::time::Duration;

use futures::future::join_all;
use ringq::pb::{EnqueueResponse, Payload};
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::cluster::Shape;
use crate::harness::{Client, JobExt as _, job, millis, refusal, request, take};
use crate::load::Habits;
use crate::trial::{Trial, harm_time};

const TOPIC: &str = "odd";
/// Largest body, largest message, and a size beyond every limit.
const BODY_MAX: usize = 1 << 20;
const MESSAGE_MAX: usize = 4 << 20;
const HUGE: usize = 16 << 20;
/// Number of clients that send odd calls at once.
const CLIENTS: usize = 3;
/// Interval of memory checks.
const LOOK_EVERY: Duration = millis(20);
/// Allowed growth of a replica: one huge body of each client.
const MEMORY_BYTES: u64 = 48 << 20;

/// A job as on the wire, where text is bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct AnyJob {
    #[prost(bytes = "vec", tag = "1")]
    topic: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyEnqueue {
    #[prost(message, optional, tag = "1")]
    job: Option<AnyJob>,
}

/// A kind of odd call.
#[derive(Clone, Copy, Debug)]
enum Odd {
    Body(usize),
    /// An id that is no valid text.
    NoText,
    /// A message with the compressed flag, by which a few bytes could expand without limit.
    Compressed,
}

/// Odd calls, and their refusals; empty: accepted.
const ODD: [(Odd, &str); 7] = [
    (Odd::Body(0), ""),
    (Odd::Body(BODY_MAX), ""),
    (Odd::Body(BODY_MAX + 1), "InvalidArgument TOO_LARGE job.payload"),
    (Odd::Body(MESSAGE_MAX), "InvalidArgument TOO_LARGE"),
    (Odd::Body(HUGE), "InvalidArgument TOO_LARGE"),
    (Odd::NoText, "InvalidArgument INVALID_FIELD"),
    (Odd::Compressed, "Unimplemented (no ErrorInfo)"),
];

impl Odd {
    async fn send(self, client: &Client) -> Result<EnqueueResponse, Status> {
        match self {
            Odd::Body(bytes) => client.send(request(job(TOPIC).with_bytes(bytes))).await,
            Odd::NoText => {
                let job = AnyJob { topic: TOPIC.into(), id: b"no \xff text".to_vec() };
                let path = http::uri::PathAndQuery::from_static("/ringq.v1.QueueService/Enqueue");
                let codec = ProstCodec::<AnyEnqueue, EnqueueResponse>::default();
                let mut grpc = Grpc::new(client.channel.clone());
                grpc.ready().await.unwrap();
                let request = Request::new(AnyEnqueue { job: Some(job) });
                Ok(grpc.unary(request, path, codec).await?.into_inner())
            }
            Odd::Compressed => {
                let mut request = Request::new(request(job(TOPIC).with_bytes(BODY_MAX)));
                request.metadata_mut().insert("grpc-encoding", "gzip".parse().unwrap());
                Ok(client.queue.clone().enqueue(request).await?.into_inner())
            }
        }
    }
}

/// Sends one of each; returns how many were accepted.
async fn send_each(client: &Client) -> usize {
    let mut accepted = 0;
    for (odd, expected) in ODD {
        match odd.send(client).await {
            Ok(_) => {
                assert_eq!(expected, "", "{odd:?} was accepted");
                accepted += 1;
            }
            Err(status) => assert_eq!(refusal(&status), expected, "{odd:?}: {status:?}"),
        }
    }
    accepted
}

/// Takes this number of jobs and checks that each body is unchanged.
async fn take_all(client: Client, jobs: usize) {
    let mut worker = client.stream(take(TOPIC)).await;
    for _ in 0..jobs {
        let job = worker.next().await;
        let body = job.payload.as_ref().map_or(&[][..], Payload::bytes);
        assert!(body.iter().all(|byte| *byte == b'x'), "a damaged body");
        assert!(body.is_empty() || body.len() == BODY_MAX, "{} bytes", body.len());
        client.ack(&job.receipt).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn each_has_one_answer_and_takes_no_memory() {
    let name = "odd_bodies";
    let Some(trial) = Trial::start(name, Shape::default(), Habits::default()).await else { return };
    let replica = &trial.cluster.replica[0];
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(replica.grpc).await);
    }
    // The first calls allocate memory that is no growth.
    let mut accepted = send_each(&clients[0]).await;
    let (before, mut grown, mut laps) = (replica.rss_bytes(), 0, 0);
    trial.note("odd bodies");
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        let lap = join_all(clients.iter().map(send_each));
        tokio::pin!(lap);
        let counts = loop {
            tokio::select! {
                counts = &mut lap => break counts,
                () = tokio::time::sleep(LOOK_EVERY) => {
                    grown = grown.max(replica.rss_bytes().saturating_sub(before));
                }
            }
        };
        // Taken each time, so that they do not add up.
        take_all(clients[0].clone(), counts.iter().sum()).await;
        accepted += counts.iter().sum::<usize>();
        laps += 1;
    }
    take_all(clients[0].clone(), ODD.iter().filter(|(_, expected)| expected.is_empty()).count())
        .await;
    println!("{name}: {laps} laps, {accepted} jobs, grown by {grown} bytes");
    assert!(grown < MEMORY_BYTES, "the replica has grown by {grown} bytes");
    let stats = clients[0].stats(TOPIC).await;
    let counted = (stats.enqueued_total, stats.succeeded_total, stats.ready + stats.running);
    let accepted = i64::try_from(accepted).unwrap();
    assert_eq!(counted, (accepted, accepted, 0), "{stats:?}");
    let outcome = trial.finish().await;
    assert_eq!(outcome.troubles(""), 0, "the load noticed");
}
