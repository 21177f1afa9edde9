use ringq::pb::{
    Durability, GetServerInfoRequest, GetServerInfoResponse, ListShardsRequest, Shard, ShardState,
};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{
    Certificates, Client, Redis, Server, Setup, assert_refused, eventually, http_get, job, millis,
    request, take,
};

/// Checks that a job goes through, and that a worker is woken for another.
pub(super) async fn works(server: &Server) {
    let client = server.connect().await;
    let mut worker = client.stream(take("mail")).await;
    worker.quiet(millis(200)).await;
    client.enqueue(job("mail").with_id("a")).await;
    let delivery = worker.next().await;
    assert_eq!(delivery.id, "a");
    client.ack(&delivery.receipt).await;
}

async fn shards(client: &Client) -> Vec<Shard> {
    let answer = client.admin.clone().list_shards(ListShardsRequest {}).await.unwrap();
    answer.into_inner().shards
}

pub(super) async fn shard(client: &Client, name: &str) -> Shard {
    shards(client).await.into_iter().find(|shard| shard.name == name).unwrap()
}

async fn info(client: &Client) -> GetServerInfoResponse {
    client.admin.clone().get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner()
}

async fn health(client: &Client) -> ServingStatus {
    let service = "ringq.v1.QueueService".to_owned();
    let mut health = HealthClient::new(client.channel.clone());
    health.check(HealthCheckRequest { service }).await.unwrap().into_inner().status()
}

/// Waits until the only shard is reported as unusable for this reason.
async fn unusable(server: &Server, why: &str) {
    let client = server.connect().await;
    eventually(why, async || {
        let shard = shard(&client, "s0").await;
        let is_why = shard.state() == ShardState::Unreachable && shard.last_error.contains(why);
        is_why.then_some(())
    })
    .await;
    assert_eq!(health(&client).await, ServingStatus::NotServing);
    let status = client.send(request(job("mail"))).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "SHARD_UNAVAILABLE", "");
}

fn path(setting: &str, file: &std::path::Path) -> String {
    format!("{setting} = {file:?}")
}

#[tokio::test]
async fn an_encrypted_redis_is_trusted_by_its_own_authority() {
    let Some(files) = Certificates::make() else { return };
    let Some((_redis, port)) = Redis::secure(&files, false).await else { return };
    let secure = || Setup::on(&format!("rediss://localhost:{port}"));
    works(&secure().config(&path("redis_ca", &files.ca)).start().await).await;
    let others = Certificates::make().unwrap();
    let server = secure().config(&path("redis_ca", &others.ca)).start().await;
    unusable(&server, "certificate").await;
    unusable(&secure().start().await, "certificate").await;
    // The certificate is for another host.
    let by_address = Setup::on(&format!("rediss://127.0.0.1:{port}"));
    let server = by_address.config(&path("redis_ca", &files.ca)).start().await;
    unusable(&server, "certificate").await;
}

#[tokio::test]
async fn a_redis_that_asks_for_a_certificate_is_shown_one() {
    let Some(files) = Certificates::make() else { return };
    let Some((_redis, port)) = Redis::secure(&files, true).await else { return };
    let setup = || {
        let setup = Setup::on(&format!("rediss://localhost:{port}"));
        setup.config(&path("redis_ca", &files.ca))
    };
    let with_own = setup().config(&path("redis_cert", &files.cert));
    works(&with_own.config(&path("redis_key", &files.key)).start().await).await;
    unusable(&setup().start().await, "redis cannot be reached").await;
}

#[tokio::test]
async fn certificates_that_cannot_be_read_are_reported_at_start() {
    let setup = Setup::new().shard("s0=rediss://localhost:1");
    let failure = setup.config("redis_ca = \"nowhere.pem\"").fail().await;
    assert!(failure.stderr.contains("nowhere.pem: file cannot be read"), "{}", failure.stderr);
    assert!(failure.stderr.contains("check redis_ca"), "{}", failure.stderr);
}

#[tokio::test]
async fn a_socket_takes_user_password_and_database_from_the_url() {
    let Some(redis) = Redis::start().await else { return };
    redis
        .command(&["ACL", "SETUSER", "ring+q", "on", ">p&:/?#", "~ringq:*", "&ringq:*", "+@all"])
        .await;
    let socket = redis.socket().display().to_string();
    let login = "user=ring%2Bq&pass=p%26%3A%2F%3F%23&db=5";
    let server = Setup::on(&format!("redis+unix://{socket}?{login}")).start().await;
    works(&server).await;
    assert!(redis.command(&["INFO", "keyspace"]).await.contains("db5:"));
    let address = shard(&server.connect().await, "s0").await.address;
    assert_eq!(address, format!("redis+unix://{socket}?db=5"));
    assert!(!server.log().contains("p%26") && !server.log().contains("p&:"), "{}", server.log());
}

#[tokio::test]
async fn a_wrong_password_that_is_found_later_is_unavailable_until_it_is_right() {
    let Some(mut redis) = Redis::start().await else { return };
    let url = redis.url().replace("redis://", "redis://ringq:secret@");
    redis.kill();
    let server = Setup::on(&url).start().await;
    redis.restart().await;
    let user = ["ACL", "SETUSER", "ringq", "on", "~*", "&*", "+@all"];
    unusable(&server, "user and password").await;
    redis.command(&[&user[..], &[">secret"]].concat()).await;
    let client = server.connect().await;
    eventually("it serves", async || {
        (health(&client).await == ServingStatus::Serving).then_some(())
    })
    .await;
    works(&server).await;
    assert!(!server.log().contains("secret"), "{}", server.log());
}

#[tokio::test]
async fn a_server_starts_without_its_redis_and_serves_when_it_comes() {
    let Some(mut redis) = Redis::durable().await else { return };
    redis.kill();
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    assert_eq!(health(&client).await, ServingStatus::NotServing);
    assert_eq!(http_get(server.http, "/readyz").await.0, 503);
    unusable(&server, "redis cannot be reached").await;
    assert_eq!(shard(&client, "s0").await.address, redis.url());
    let report = info(&client).await;
    assert_eq!((&*report.store, report.durability()), ("redis", Durability::Unspecified));
    assert_eq!(report.unreachable_shards, ["s0"]);
    redis.restart().await;
    eventually("it serves", async || {
        let ready = http_get(server.http, "/readyz").await.0 == 200;
        (ready && health(&client).await == ServingStatus::Serving).then_some(())
    })
    .await;
    works(&server).await;
    eventually("its durability is known", async || {
        (info(&client).await.durability() == Durability::Fsynced).then_some(())
    })
    .await;
    assert_eq!(info(&client).await.unreachable_shards, Vec::<String>::new());
    assert!(!server.log().contains("answers again"), "{}", server.log());
}

#[tokio::test]
async fn one_of_two_shards_serves_while_the_other_is_awaited() {
    let Some(mut redis) = Redis::durable().await else { return };
    let Some(other) = Redis::durable().await else { return };
    redis.kill();
    let setup = Setup::on(&redis.url());
    let server = setup.and_shard(format!("s1={}", other.url())).start().await;
    let client = server.connect().await;
    assert_eq!(health(&client).await, ServingStatus::Serving);
    assert_eq!(http_get(server.http, "/readyz").await.0, 200);
    let report = info(&client).await;
    assert_eq!(report.durability(), Durability::Unspecified, "unknown, unless all reach it");
    assert_eq!(report.unreachable_shards, ["s0"]);
    for _ in 0..20 {
        assert_eq!(client.enqueue(job("mail")).await.shard, "s1");
    }
    assert_eq!(shard(&client, "s0").await.state(), ShardState::Unreachable);
    redis.restart().await;
    eventually("both take jobs", async || {
        (client.enqueue(job("mail")).await.shard == "s0").then_some(())
    })
    .await;
    assert!(shards(&client).await.iter().all(|shard| shard.state() == ShardState::Active));
}

#[tokio::test]
async fn a_redis_that_turns_out_to_be_another_shards_is_not_touched() {
    let Some(mut redis) = Redis::durable().await else { return };
    redis.command(&["HSET", "ringq:shard", "name", "s1", "format", "1"]).await;
    redis.kill();
    let server = Setup::on(&redis.url()).start().await;
    redis.restart().await;
    eventually("the wrong name is seen", async || {
        server.log().contains("redis belongs to shard s1, not s0").then_some(())
    })
    .await;
    unusable(&server, "redis belongs to shard s1, not s0").await;
    assert_eq!(redis.command(&["DBSIZE"]).await, ":1", "nothing was written");
    redis.command(&["HSET", "ringq:shard", "name", "s0"]).await;
    let client = server.connect().await;
    eventually("it serves", async || {
        (health(&client).await == ServingStatus::Serving).then_some(())
    })
    .await;
    works(&server).await;
}

#[tokio::test]
async fn a_redis_that_begins_to_evict_takes_no_jobs_and_finishes_those_it_has() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    client.enqueue(job("mail").with_id("b")).await;
    let held = client.pull_one("mail").await;
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    // Seen on the next connection, and without one within seconds.
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let refusal =
        eventually("jobs are refused", async || client.send(request(job("other"))).await.err())
            .await;
    assert_refused(&refusal, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    for _ in 0..20 {
        assert!(client.send(request(job("mail").with_id("late"))).await.is_err());
    }
    // However many enqueues are refused, existing jobs continue at once.
    client.ack(&held.receipt).await;
    client.ack(&client.pull_one("mail").await.receipt).await;
    assert_eq!(client.find("mail", "late").await, None);
    let hit = shard(&client, "s0").await;
    assert_eq!(hit.state(), ShardState::Active);
    assert!(hit.last_error.contains("set maxmemory-policy to noeviction"), "{}", hit.last_error);
    let metrics = http_get(server.http, "/metrics").await.1;
    assert!(metrics.contains("ringq_shard_refuses_jobs{shard=\"s0\"} 1"), "{metrics}");
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    eventually("jobs are taken again", async || {
        client.send(request(job("mail").with_id("late"))).await.ok()
    })
    .await;
    assert_eq!(shard(&client, "s0").await.last_error, "");
}
