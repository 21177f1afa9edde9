//! Durability of writes to Redis: requested, answered, and refused where it is not reached.

use ringq::pb::{
    BatchEnqueueRequest, Durability, EnqueueOutcome, EnqueueRequest, EnqueueResponse,
    GetServerInfoRequest,
};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, Program, Redis, Server, Setup, assert_refused, eventually, job, millis, request,
};

/// Starts a server on this Redis.
async fn serve(redis: &Redis) -> Server {
    Setup::on(&redis.url()).start().await
}

fn asking(id: &str, durability: Durability) -> EnqueueRequest {
    EnqueueRequest { durability: durability.into(), ..request(job("mail").with_id(id)) }
}

async fn ask(client: &Client, id: &str, durability: Durability) -> Result<EnqueueResponse, Status> {
    client.send(asking(id, durability)).await
}

/// Enqueues with this durability and returns the answered one.
async fn reached(client: &Client, id: &str, asked: Durability) -> Durability {
    ask(client, id, asked).await.unwrap().durability()
}

/// Returns the highest durability that can be requested.
async fn most(client: &Client) -> Durability {
    let info = client.admin.clone().get_server_info(GetServerInfoRequest {}).await.unwrap();
    info.into_inner().durability()
}

/// Returns the durability without a request, and the highest one.
async fn reach(client: &Client) -> (Durability, Durability) {
    let plain = reached(client, "plain", Durability::Unspecified).await;
    (plain, most(client).await)
}

async fn assert_unsupported(client: &Client, id: &str, asked: Durability) {
    let status = ask(client, id, asked).await.unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "DURABILITY_UNSUPPORTED", "");
    assert!(client.find("mail", id).await.is_none(), "it was written all the same");
}

/// Checks a refusal that is too late to undo the write: the job exists, and the error names it.
async fn assert_not_reached(client: &Client, id: &str, asked: Durability) {
    let status = ask(client, id, asked).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "DURABILITY_NOT_REACHED", "");
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().metadata["id"], id);
    assert!(details.retry_info().is_some(), "the error has a retry delay");
    assert!(client.find("mail", id).await.is_some(), "the job is not there");
}

/// Waits until the server reports that this is the highest durability.
async fn until_most(client: &Client, wanted: Durability) {
    let is_reported = async || (most(client).await == wanted).then_some(());
    eventually(&format!("the server reports {wanted:?}"), is_reported).await;
}

use Durability::{Fsynced, Memory, Replicated};

#[tokio::test]
async fn a_file_that_is_synced_always_needs_no_asking() {
    for program in [Program::Redis6, Program::Valkey] {
        let args = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
        let Some(redis) = Redis::of(program, &args).await else { return };
        let server = serve(&redis).await;
        let client = server.connect().await;
        assert_eq!(reach(&client).await, (Fsynced, Fsynced), "{program:?}");
        assert_eq!(reached(&client, "a", Fsynced).await, Fsynced);
        assert_unsupported(&client, "b", Replicated).await;
        let waits = redis.command(&["INFO", "commandstats"]).await;
        assert!(!waits.contains("cmdstat_wait"), "{program:?}: {waits}");
    }
}

/// Valkey 9.1 answers WAITAOF up to a second before it syncs, as Redis did before 7.4.3. If this fails with a newer
/// one, it may be fixed: check that before you change the test.
#[tokio::test]
async fn a_confirmation_that_comes_before_the_sync_is_not_believed() {
    let Some(redis) = Redis::every_second(Program::Valkey).await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    assert_eq!(reach(&client).await, (Memory, Memory));
    assert_unsupported(&client, "a", Fsynced).await;
    assert!(server.log().contains("set appendfsync to always"), "{}", server.log());
}

#[tokio::test]
async fn a_file_that_is_synced_every_second_is_waited_for() {
    const JOBS: usize = 20;
    let Some(redis) = Redis::every_second(Program::Redis8).await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    // A machine that stands still may fail one trial; another one follows.
    until_most(&client, Fsynced).await;
    assert_eq!(reached(&client, "plain", Durability::Unspecified).await, Memory);
    let asks = (0..JOBS).map(|n| reached_by(&client, n, Fsynced)).collect::<Vec<_>>();
    let asked = futures::future::join_all(asks).await;
    assert!(asked.iter().all(|&reached| reached == Fsynced), "{asked:?}");
    // A repeat finds the job, and waits for its durability, too.
    let again = ask(&client, "asked0", Fsynced).await.unwrap();
    assert_eq!((again.outcome(), again.durability()), (EnqueueOutcome::Unchanged, Fsynced));
    let specs = (0..JOBS).map(|n| job("mail").with_id(format!("batch{n}"))).collect();
    let batch =
        BatchEnqueueRequest { jobs: specs, durability: Fsynced.into(), ..Default::default() };
    let batch = client.queue.clone().batch_enqueue(batch).await.unwrap().into_inner();
    assert!(batch.results.iter().all(|result| result.durability() == Fsynced), "{batch:?}");
    assert_unsupported(&client, "replicated", Replicated).await;
}

async fn reached_by(client: &Client, n: usize, asked: Durability) -> Durability {
    reached(client, &format!("asked{n}"), asked).await
}

#[tokio::test]
async fn a_sync_that_does_not_come_is_not_reached_and_a_repeat_waits_again() {
    let Some(redis) = Redis::every_second(Program::Redis8).await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    until_most(&client, Fsynced).await;
    redis.command(&["CONFIG", "SET", "appendfsync", "no"]).await;
    // Written without a requested durability; the repeat writes nothing, and waits all the same.
    reached(&client, "a", Durability::Unspecified).await;
    // At once, without a notice: some seconds later the server checks, and refuses.
    let asks = async {
        tokio::join!(
            assert_not_reached(&client, "a", Fsynced),
            assert_not_reached(&client, "b", Fsynced),
            assert_in_time(&client),
        )
    };
    let mut asks = Box::pin(asks);
    tokio::select! {
        biased;
        _ = &mut asks => panic!("who asks for nothing waits with those who ask"),
        reached = reached(&client, "c", Durability::Unspecified) => assert_eq!(reached, Memory),
    }
    asks.await;
    redis.command(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
    until_most(&client, Fsynced).await;
    assert_eq!(reached(&client, "b", Fsynced).await, Fsynced);
    // Seen at the next check.
    redis.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
    eventually("the new setting is seen", async || {
        (reached(&client, "d", Durability::Unspecified).await == Fsynced).then_some(())
    })
    .await;
    redis.command(&["CONFIG", "SET", "appendonly", "no"]).await;
    until_most(&client, Memory).await;
    assert_unsupported(&client, "e", Fsynced).await;
}

/// Checks that a caller gets its answer by its deadline: past it, the channel would answer in place of the server.
async fn assert_in_time(client: &Client) {
    let mut hasty = tonic::Request::new(asking("hasty", Fsynced));
    hasty.set_timeout(millis(1_000));
    let status = client.queue.clone().enqueue(hasty).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "DURABILITY_NOT_REACHED", "");
}

#[tokio::test]
async fn replicated_is_answered_with_a_replica_alone() {
    for program in [Program::Redis6, Program::Valkey] {
        let args = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
        let Some(redis) = Redis::of(program, &args).await else { return };
        let mut replica = redis.replica().await;
        let server = serve(&redis).await;
        let client = server.connect().await;
        until_most(&client, Replicated).await;
        assert_eq!(reached(&client, "plain", Durability::Unspecified).await, Fsynced);
        assert_eq!(reached(&client, "a", Replicated).await, Replicated, "{program:?}");
        let again = ask(&client, "a", Replicated).await.unwrap();
        assert_eq!((again.outcome(), again.durability()), (EnqueueOutcome::Unchanged, Replicated));
        assert_ne!(replica.command(&["HLEN", "ringq:{s0}:jobs:mail"]).await, ":0");
        replica.kill();
        assert_gone(&client).await;
        until_most(&client, Fsynced).await;
        assert_unsupported(&client, "late", Replicated).await;
        assert_eq!(reached(&client, "synced", Fsynced).await, Fsynced);
    }
}

/// Waits for the loss of a replica: right after it the server may not have seen it yet.
async fn assert_gone(client: &Client) {
    let status = ask(client, "gone", Replicated).await.unwrap_err();
    let details = status.get_error_details();
    let reason = &details.error_info().unwrap().reason;
    let expected = ["DURABILITY_NOT_REACHED", "DURABILITY_UNSUPPORTED"];
    assert!(expected.contains(&reason.as_str()), "{status:?}");
}

#[tokio::test]
async fn a_replica_that_stands_still_is_not_reached_in_time_and_the_job_is_there() {
    let Some(redis) = Redis::durable().await else { return };
    let replica = redis.replica().await;
    let server = serve(&redis).await;
    let client = server.connect().await;
    until_most(&client, Replicated).await;
    replica.pause();
    assert_not_reached(&client, "a", Replicated).await;
    // Callers that request less do not wait.
    tokio::select! {
        biased;
        _ = ask(&client, "b", Replicated) => panic!("who asks for less waits with those who ask"),
        reached = reached(&client, "c", Fsynced) => assert_eq!(reached, Fsynced),
    }
    // The error contains a server-made id, too: with it a repeat is safe.
    let unnamed = EnqueueRequest { durability: Replicated.into(), ..request(job("mail")) };
    let status = client.send(unnamed).await.unwrap_err();
    let id = status.get_error_details().error_info().unwrap().metadata["id"].clone();
    assert!(client.find("mail", &id).await.is_some(), "no job {id}");
    replica.resume();
    assert_eq!(reached(&client, &id, Replicated).await, Replicated);
}

#[tokio::test]
async fn a_server_made_id_goes_where_what_is_asked_is_reached() {
    let (Some(safe), Some(unsafe_)) = (Redis::durable().await, Redis::start().await) else {
        return;
    };
    let server = Setup::new()
        .shard(format!("s0={}", unsafe_.url()))
        .and_shard(format!("s1={}", safe.url()))
        .start()
        .await;
    let client = server.connect().await;
    assert_eq!(most(&client).await, Memory, "of every shard");
    for _ in 0..20 {
        let asked = EnqueueRequest { durability: Fsynced.into(), ..request(job("mail")) };
        let answer = client.send(asked).await.unwrap();
        assert_eq!((answer.shard.as_str(), answer.durability()), ("s1", Fsynced));
    }
    let mut shards = std::collections::BTreeSet::new();
    while shards.len() < 2 {
        shards.insert(client.send(request(job("mail"))).await.unwrap().shard);
    }
    // A client-chosen id lies on one shard only.
    let mut answers = std::collections::BTreeSet::new();
    for n in 0..100 {
        answers.insert(match ask(&client, &format!("n{n}"), Fsynced).await {
            Ok(answer) => answer.shard,
            Err(status) => status.get_error_details().error_info().unwrap().reason.clone(),
        });
        if answers.len() == 2 {
            break;
        }
    }
    assert!(answers.contains("s1") && answers.contains("DURABILITY_UNSUPPORTED"), "{answers:?}");
}

#[tokio::test]
async fn settings_that_may_not_be_read_count_for_nothing_unless_confirmed() {
    for (program, policy, limit) in
        [(Program::Redis, "always", Memory), (Program::Redis8, "everysec", Fsynced)]
    {
        let args = ["--save", "", "--appendonly", "yes", "--appendfsync", policy];
        let Some(redis) = Redis::of(program, &args).await else { return };
        let rights =
            ["ACL", "SETUSER", "ringq", "on", ">pass", "~ringq:*", "&ringq:*", "+@all", "-config"];
        redis.command(&rights).await;
        let url = redis.url().replace("redis://", "redis://ringq:pass@");
        let server = Setup::on(&url).start().await;
        let client = server.connect().await;
        until_most(&client, limit).await;
        assert_eq!(reached(&client, "plain", Durability::Unspecified).await, Memory);
        if limit == Fsynced {
            assert_eq!(reached(&client, "a", Fsynced).await, Fsynced);
        }
    }
}

#[tokio::test]
async fn a_file_that_is_begun_while_redis_runs_is_none_before_it_is_whole() {
    let Some(redis) = Redis::start().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    assert_eq!(reached(&client, "plain", Durability::Unspecified).await, Memory);
    redis.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
    // The first rewrite does not end.
    redis.command(&["CONFIG", "SET", "rdb-key-save-delay", "2000000"]).await;
    redis.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    assert_eq!(redis.info("persistence", "aof_enabled").await, 1);
    let server = serve(&redis).await;
    let client = server.connect().await;
    assert_eq!(reach(&client).await, (Memory, Memory));
}
