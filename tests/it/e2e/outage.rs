use std::time::Duration;

use ringq::pb::{ListShardsRequest, RedriveJobsRequest};
use tokio::time::Instant;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::reach::works;
use crate::harness::{
    Client, HoldingProxy, Redis, Server, Setup, eventually, http_get, job, millis, request, take,
};

/// Time in which every retry loop has tried more than once.
const SETTLED: Duration = Duration::from_secs(4);

async fn on(redis: &Redis) -> Server {
    Setup::new().shard(format!("s0={}", redis.url())).start().await
}

/// Returns the lines of its log of that level, from the `from`th line on.
fn lines(server: &Server, level: &str, from: usize) -> Vec<String> {
    let (log, level) = (server.log(), format!(" {level} "));
    log.lines().skip(from).filter(|line| line.contains(&level)).map(str::to_owned).collect()
}

fn length(server: &Server) -> usize {
    server.log().lines().count()
}

async fn is_ready(server: &Server) -> bool {
    http_get(server.http, "/readyz").await.0 == 200
}

async fn health(client: &Client) -> ServingStatus {
    let service = "ringq.v1.QueueService".to_owned();
    let mut health = HealthClient::new(client.channel.clone());
    health.check(HealthCheckRequest { service }).await.unwrap().into_inner().status()
}

/// Waits until it is not ready; returns the error of its shard then. The HTTP port, which is open to all, shows neither
/// error nor address.
async fn unready(server: &Server) -> String {
    let body = eventually("it is not ready", async || {
        let (status, body) = http_get(server.http, "/readyz").await;
        (status == 503).then_some(body)
    })
    .await;
    assert!(body.starts_with("not ready: no shard answers: s0; the log "), "{body}");
    last_error(server).await
}

async fn last_error(server: &Server) -> String {
    let client = server.connect().await;
    let shards = client.admin.clone().list_shards(ListShardsRequest::default()).await.unwrap();
    shards.into_inner().shards.remove(0).last_error
}

#[tokio::test]
async fn an_idle_server_whose_redis_dies_reports_it_in_one_line() {
    let Some(mut redis) = Redis::durable().await else { return };
    let server = on(&redis).await;
    let client = server.connect().await;
    let before = length(&server);
    redis.kill();
    let error = unready(&server).await;
    assert!(error.contains("Connection refused"), "{error}");
    assert_eq!(health(&client).await, ServingStatus::NotServing);
    tokio::time::sleep(SETTLED).await;
    let warned = lines(&server, "WARN", before);
    assert_eq!(warned.len(), 1, "{}", server.log());
    let address = format!("address=\"{}\"", redis.url());
    for part in ["the shard does not answer", "shard=s0", &address, "check that redis runs there"] {
        assert!(warned[0].contains(part), "{part}: {}", warned[0]);
    }
    redis.restart().await;
    eventually("it is ready", async || is_ready(&server).await.then_some(())).await;
    works(&server).await;
    let logged = lines(&server, "INFO", before);
    let back = logged.iter().filter(|line| line.contains("the shard answers again")).count();
    assert_eq!(back, 1, "{logged:?}");
    assert_eq!(lines(&server, "WARN", before).len(), 1, "{}", server.log());
}

#[tokio::test]
async fn what_had_to_be_mended_is_reported_as_over_also_when_redis_ended_in_between() {
    let Some(mut redis) = Redis::durable().await else { return };
    let server = on(&redis).await;
    let before = length(&server);
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let logged =
        eventually("the error is logged", async || lines(&server, "ERROR", before).pop()).await;
    assert!(logged.contains("redis is a read-only replica"), "{logged}");
    let error = unready(&server).await;
    assert!(error.contains("replica"), "{error}");
    // Another process takes its place, with its data, and is a primary.
    redis.kill();
    eventually("its end is seen", async || {
        last_error(&server).await.contains("Connection refused").then_some(())
    })
    .await;
    redis.restart().await;
    eventually("it is ready", async || is_ready(&server).await.then_some(())).await;
    works(&server).await;
    let log = server.log();
    let (_, after) = log.split_once(&logged).unwrap();
    assert_eq!(after.matches("the shard is reached and can be used").count(), 1, "{log}");
    assert!(!after.contains(" ERROR "), "{log}");
}

#[tokio::test]
async fn a_redis_that_stood_still_is_not_reported_to_have_answered_meanwhile() {
    let Some(redis) = Redis::durable().await else { return };
    let setup = Setup::on(&redis.url()).config("log_filter = \"ringq=debug\"");
    let server = setup.start().await;
    let before = length(&server);
    redis.pause();
    // Too short for a new subscription to fail.
    let logged = async |what: &str| {
        let has = || lines(&server, "DEBUG", before).iter().any(|line| line.contains(what));
        eventually(what, async || has().then_some(())).await;
    };
    logged("the subscription to wake-ups is lost").await;
    redis.resume();
    logged("events were missed").await;
    works(&server).await;
    assert!(!server.log().contains("redis answers"), "{}", server.log());
}

#[tokio::test]
async fn a_subscription_that_is_lost_alone_is_warned_of_and_makes_no_server_unready() {
    let Some(redis) = Redis::durable().await else { return };
    let server = on(&redis).await;
    let client = server.connect().await;
    let before = length(&server);
    for kind in ["pubsub", "normal"] {
        redis.command(&["CLIENT", "KILL", "TYPE", kind]).await;
        let begin = Instant::now();
        while begin.elapsed() < millis(700) {
            assert!(is_ready(&server).await, "{kind}\n{}", server.log());
            assert_eq!(health(&client).await, ServingStatus::Serving, "{kind}");
            // Each check is a connection of its own: more than 1,000 a second wait for their turn, with a warning.
            tokio::time::sleep(millis(2)).await;
        }
    }
    works(&server).await;
    let warned = lines(&server, "WARN", before);
    assert_eq!(warned.len(), 1, "{}", server.log());
    for part in ["resubscribed to wake-ups after a loss", "shard=s0"] {
        assert!(warned[0].contains(part), "{part}: {}", warned[0]);
    }
}

/// A firewall may drop connections without notice: packets get no answer and no reset. What is held here stays held.
#[tokio::test]
async fn connections_that_die_unnoticed_are_replaced_and_deliveries_go_on() {
    for is_open in [true, false] {
        let Some(redis) = Redis::start().await else { return };
        let proxy = HoldingProxy::start(&redis).await;
        let server = Setup::on(&proxy.url()).start().await;
        let client = server.connect().await;
        works(&server).await;
        let topic = format!("unnoticed.{is_open}");
        let mut before = None;
        if is_open {
            before = Some(client.stream(take(&topic)).await);
        }
        proxy.hold();
        // A writer notices the loss of its own connection.
        let written = async || {
            let written = client.queue.clone().enqueue(request(job(&topic).with_id("1"))).await;
            written.ok().map(drop)
        };
        eventually("a job is written", written).await;
        let mut worker = match before {
            Some(worker) => worker,
            None => client.stream(take(&topic)).await,
        };
        assert_eq!(worker.next().await.id, "1", "open: {is_open}");
    }
}

#[tokio::test]
async fn refusals_that_were_not_logged_are_counted_in_another_line() {
    let server = Server::start().await;
    let client = server.connect().await;
    let bad = || request(job("mail").with_id("a~b"));
    let refuse = async || {
        assert_eq!(client.send(bad()).await.unwrap_err().code(), Code::InvalidArgument);
    };
    for _ in 0..20 {
        refuse().await;
    }
    tokio::time::sleep(millis(1_100)).await;
    refuse().await;
    let suppressed = |line: &String| {
        let count = line.split(' ').find_map(|word| word.strip_prefix("suppressed="));
        count.map_or(0, |count| count.parse::<usize>().unwrap())
    };
    // Whatever the time of the calls, each is in the log as a line or in a count, of the next line or of one that has
    // counts alone.
    eventually("all are in the log", async || {
        let lines = lines(&server, "INFO", 0);
        let refused = lines.iter().filter(|line| line.contains("call refused")).count();
        let counted = lines.iter().map(suppressed).sum::<usize>();
        (refused + counted == 21 && counted > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn jobs_that_are_not_put_back_are_reported_with_their_topic_and_their_shard_once() {
    let Some(mut redis) = Redis::durable().await else { return };
    let Some(other) = Redis::durable().await else { return };
    let setup = Setup::new().shard(format!("s0={}", other.url()));
    let server = setup.and_shard(format!("s1={}", redis.url())).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    redis.kill();
    let all = RedriveJobsRequest { topic: "mail".into(), all: true, ..Default::default() };
    let answer = client.admin.clone().redrive_jobs(all).await.unwrap().into_inner();
    assert_eq!(answer.unreachable_shards, ["s1"]);
    let line = eventually("the change is logged", async || {
        lines(&server, "WARN", 0)
            .into_iter()
            .find(|line| line.contains("redrive failed on this shard"))
    })
    .await;
    for part in [" shard=s1 ", "topic=mail", "error=\""] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("shard s1: "), "{line}");
}
