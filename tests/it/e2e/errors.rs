use std::time::Duration;

use ringq::pb::{BatchEnqueueRequest, EnqueueRequest, JobState, ListWorkersRequest, PullRequest};
use tonic::{Code, Request};

use crate::harness::{
    Client, JobExt as _, Server, assert_refused, eventually, for_a_while, job, millis, proto,
    raw_queue, request, take,
};

#[tokio::test]
async fn calls_that_reach_no_handler_have_their_errors_and_the_connection_lives_on() {
    let server = Server::start().await;
    let client = server.connect().await;
    let status = client.send(request(job("mail").with_bytes(5 << 20))).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "TOO_LARGE", "");
    let jobs = vec![job("mail").with_bytes(900_000); 6];
    let batch = BatchEnqueueRequest { jobs, ..Default::default() };
    let status = client.queue.clone().batch_enqueue(batch).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "TOO_LARGE", "");
    client.enqueue(job("mail")).await;
    assert_eq!(client.stats("mail").await.ready, 1);

    // Without tonic's channel, which would answer in place of the server.
    let mut queue = raw_queue(server.grpc).await;
    for timeout in ["1n", "1u"] {
        let mut call = Request::new(request(job("mail")));
        call.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
        let status = queue.enqueue(call).await.unwrap_err();
        assert_refused(&status, Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "");
    }
    // A long deadline changes nothing.
    let mut call = Request::new(request(job("mail")));
    call.metadata_mut().insert("grpc-timeout", "10S".parse().unwrap());
    queue.enqueue(call).await.unwrap();

    // Calls of other versions.
    let mut grpc = tonic::client::Grpc::new(client.channel.clone());
    for path in [
        "/ringq.v1.AdminService/AuditShard",
        "/ringq.v1.QueueService/Watch",
        "/ringq.v1.ScheduleService/CreateSchedule",
        "/ringq.v1.PipelineService/CreatePipeline",
        "/ringq.v1.Nothing/Nothing",
    ] {
        grpc.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static(path);
        let codec = tonic_prost::ProstCodec::<EnqueueRequest, EnqueueRequest>::default();
        let call = Request::new(EnqueueRequest::default());
        let status = grpc.unary(call, path.clone(), codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

/// Sends a call that its caller cancels at some point of its way.
async fn give_up(client: &Client, n: u64) {
    match n % 5 {
        // A stream that is open.
        0 | 1 => {
            let opened = client.queue.clone().stream(take("cancelled")).await;
            if let Ok(stream) = opened
                && n.is_multiple_of(2)
            {
                let _ = stream.into_inner().message().await;
            }
        }
        // A pull that waits.
        2 | 3 => {
            let wait = Some(proto(millis(10_000)));
            let topics = vec!["cancelled".to_owned()];
            let pull = client.pull(PullRequest { topics, wait, ..Default::default() });
            for_a_while(millis(2), pull).await;
        }
        // A write that may or may not be applied.
        _ => {
            let enqueue = client.send(request(job("written").with_text("x")));
            for_a_while(Duration::from_micros(n % 900), enqueue).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_cancelled_calls_leak_nothing() {
    const CALLS: u64 = 10_000;
    const AT_ONCE: u64 = 50;
    let server = Server::start().await;
    let client = server.connect().await;
    let run = async |calls: u64| {
        let lanes = (0..AT_ONCE).map(|lane| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..calls / AT_ONCE {
                    give_up(&client, lane + n).await;
                }
            })
        });
        for lane in futures::future::join_all(lanes).await {
            lane.unwrap();
        }
    };
    let settled = async || {
        eventually("no stream is left", async || {
            let list = client.admin.clone().list_workers(ListWorkersRequest::default()).await;
            list.is_ok_and(|list| list.into_inner().workers.is_empty()).then_some(())
        })
        .await;
    };
    // The first calls fill caches and pools.
    run(1_000).await;
    settled().await;
    let (rss, fds) = (server.rss_bytes(), server.fds());
    run(CALLS).await;
    settled().await;
    let (rss_after, fds_after) = (server.rss_bytes(), server.fds());
    assert!(fds_after <= fds + 5, "{fds} open files before, {fds_after} after");
    let growth = rss_after.saturating_sub(rss);
    assert!(growth < 32 << 20, "resident memory grew by {} KiB", growth >> 10);

    // And jobs still flow.
    let id = client.enqueue(job("cancelled").with_id("after")).await.id;
    let mut worker = client.stream(take("cancelled")).await;
    let delivery = worker.next().await;
    assert_eq!((delivery.id, delivery.delivery), (id, 1));
    client.ack(&delivery.receipt).await;
    assert_eq!(client.state("cancelled", "after").await, JobState::Succeeded);
}
