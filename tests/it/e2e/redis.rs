use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ringq::pb::{
    AckItem, DeleteRequest, EnqueueOutcome, ExtendItem, ExtendRequest, JobState, ListShardsRequest,
    NackAction, StreamRequest,
};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tonic::{Code, Request};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, JobExt as _, Redis, Server, Setup, assert_refused, eventually, job, millis, nack,
    refusal, request, take,
};

/// Starts a server on this Redis.
async fn serve(redis: &Redis) -> Server {
    Setup::on(&redis.url()).start().await
}

/// Returns the error of a server that cannot start on this Redis.
async fn refused(redis: &Redis, name: &str) -> String {
    let failure = Setup::new().shard(format!("{name}={}", redis.url())).fail().await;
    assert_ne!(failure.code, Some(0));
    failure.stderr.lines().find(|line| line.starts_with("ringq: ")).unwrap().to_owned()
}

/// Enqueues until the job is accepted.
async fn enqueue_in_the_end(client: &Client, id: &str) {
    eventually("jobs are accepted again", async || {
        client.send(request(job("mail").with_id(id))).await.ok()
    })
    .await;
}

#[tokio::test]
async fn what_builds_before_the_first_release_wrote_is_refused() {
    let Some(redis) = Redis::start().await else { return };
    redis.command(&["HSET", "ringq:shard", "name", "s0", "format", "0"]).await;
    let why = refused(&redis, "s0").await;
    assert!(why.contains("format 0, this build reads 1 and newer ones"), "{why}");
}

#[tokio::test]
async fn a_job_that_was_removed_by_hand_keeps_no_other_from_those_behind() {
    let Some(redis) = Redis::start().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    let mut names = vec![];
    for priority in [0, 5] {
        // Jobs that are due on arrival, and jobs that wait in an order by due time.
        for delay in [0, 200] {
            for n in 0..6 {
                let id = format!("p{priority}-d{delay}-{n}");
                let new = job("mail").with_id(&id).with_priority(priority);
                client.enqueue(new.with_delay(millis(delay + 100 * n * delay.min(1)))).await;
                names.push(id);
            }
        }
    }
    let (removed, kept): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|id| id.ends_with(['0', '1', '3']));
    let words = removed.iter().map(String::as_str);
    let words: Vec<_> = ["HDEL", "ringq:{s0}:jobs:mail"].into_iter().chain(words).collect();
    assert_eq!(redis.command(&words).await, format!(":{}", removed.len()));
    let mut came = BTreeSet::new();
    for _ in 0..3 {
        came.insert(client.pull_one("mail").await.id);
    }
    let mut worker = client.stream(take("mail")).await;
    while came.len() < kept.len() {
        came.insert(worker.next().await.id);
    }
    assert_eq!(came, kept.into_iter().collect());
    let stats = client.stats("mail").await;
    assert_eq!((stats.ready, stats.scheduled, stats.running), (0, 0, 12));

    // A removal of some hides others that have left: those are not delivered all the same.
    let ids: Vec<_> = (0..30).map(|n| format!("j{n}")).collect();
    let kept = |id| job("bills").with_id(id).with_retention(millis(60_000));
    client.enqueue_all(ids.iter().map(kept).collect()).await;
    assert_eq!(redis.command(&["HDEL", "ringq:{s0}:jobs:bills", "j0", "j1"]).await, ":2");
    assert_eq!(client.pull_one("bills").await.id, "j2");
    let (topic, id) = ("bills".to_owned(), "j25".to_owned());
    let delete = DeleteRequest { topic, id, ..Default::default() };
    client.queue.clone().delete(delete).await.unwrap();
    let mut came = vec![client.pull_one("bills").await.id];
    while came.len() < 26 {
        came.extend(client.pull_now("bills", 40).await.into_iter().map(|delivery| delivery.id));
    }
    let want: Vec<_> = ids[3..].iter().filter(|id| *id != "j25").cloned().collect();
    assert_eq!(came, want);
    assert!(client.pull_now("bills", 40).await.is_empty());
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}

#[tokio::test]
async fn a_login_that_lacks_a_right_is_refused_with_its_name() {
    let Some(redis) = Redis::start().await else { return };
    for (rights, lacks) in [
        ([">p", "~ringq:*", "&ringq:*", "+@all", "-lindex", "-hsetnx"], "HSETNX LINDEX"),
        ([">p", "~ringq:*", "resetchannels", "+@all", "on", "on"], "PUBLISH SUBSCRIBE"),
    ] {
        let user = ["ACL", "SETUSER", "ringq", "reset", "on"].into_iter().chain(rights);
        assert_eq!(redis.command(&user.collect::<Vec<_>>()).await, "+OK");
        let url = redis.url().replace("redis://", "redis://ringq:p@");
        let failure = Setup::on(&url).fail().await;
        let text = failure.stderr;
        assert!(text.contains(&format!("may not use {lacks} on keys")), "{text}");
    }
}

/// Repeats an ack until it is accepted.
async fn ack_in_the_end(client: &Client, receipt: &str) {
    eventually("the ack is accepted", async || {
        let item = AckItem { receipt: receipt.to_owned(), ..Default::default() };
        client.ack_items(vec![item]).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_right_that_is_lost_while_the_server_runs_is_named_and_no_job_stays_running() {
    let Some(redis) = Redis::start().await else { return };
    let user = ["ACL", "SETUSER", "ringq"];
    let rights = ["on", ">p", "~ringq:*", "&ringq:*", "+@all"];
    redis.command(&[&user[..], &rights].concat()).await;
    let url = redis.url().replace("redis://", "redis://ringq:p@");
    let server = Setup::on(&url).start().await;
    let client = server.connect().await;
    // Scripts write before each of these commands.
    for lost in ["zadd", "publish", "lpop", "hset"] {
        let topic = format!("no-{lost}");
        let ids = client.enqueue_all(vec![job(&topic); 3]).await;
        redis.command(&[&user[..], &[&format!("-{lost}")]].concat()).await;

        let mut worker = client.stream(take(&topic)).await;
        let named = format!("may not use {}", lost.to_uppercase());
        eventually("new jobs are refused for the missing right", async || {
            let mut late = Request::new(request(job(&topic)));
            late.set_timeout(millis(700));
            client.queue.clone().enqueue(late).await.err()?;
            let list = client.admin.clone().list_shards(ListShardsRequest {}).await.unwrap();
            list.into_inner().shards[0].last_error.contains(&named).then_some(())
        })
        .await;
        assert!(server.log().contains(&named), "{}", server.log());

        redis.command(&[&user[..], &[&format!("+{lost}")]].concat()).await;
        let mut left: BTreeSet<_> = ids.into_iter().collect();
        while !left.is_empty() {
            let delivery = worker.next().await;
            ack_in_the_end(&client, &delivery.receipt).await;
            left.remove(&delivery.id);
        }
        eventually("no job is left", async || {
            while let Some(delivery) = worker.next_within(millis(50)).await {
                ack_in_the_end(&client, &delivery.receipt).await;
            }
            let left = client.stats(&topic).await;
            (left.ready + left.running == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn what_one_replica_takes_in_another_hands_out() {
    let Some(redis) = Redis::start().await else { return };
    let (one, other) = (serve(&redis).await, serve(&redis).await);
    let (producer, consumer) = (one.connect().await, other.connect().await);
    let mut worker = consumer.stream(take("mail")).await;
    worker.quiet(millis(300)).await;
    let delays: Vec<_> = (0..4).map(|n| millis(300 + 250 * n)).collect();
    let begin = Instant::now();
    for delay in &delays {
        producer.enqueue(job("mail").with_delay(*delay)).await;
    }
    for delay in &delays {
        let delivery = worker.next().await;
        let took = begin.elapsed();
        assert!(took >= *delay, "{took:?} is before {delay:?}");
        consumer.ack(&delivery.receipt).await;
    }
    producer.enqueue(job("mail").with_id("later")).await;
    let delivery = worker.next().await;
    // Settled at another server than the one that delivered it: the receipt contains its shard.
    producer.ack(&delivery.receipt).await;
    assert_eq!(consumer.state("mail", "later").await, JobState::Succeeded);
}

#[tokio::test]
async fn nothing_is_lost_when_redis_is_killed_and_comes_back() {
    const JOBS: usize = 300;
    let Some(mut redis) = Redis::durable().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    // The server repeats an interrupted call for half a minute: its outcome is unknown.
    let lasting = job("mail").with_id("first").with_lease(millis(600_000));
    let written = client.enqueue(lasting).await;
    assert_eq!(written.durability(), ringq::pb::Durability::Fsynced);
    let held = client.pull_one("mail").await;
    let ids = client.enqueue_all(vec![job("mail"); JOBS]).await;
    let mut waiting = client.stream(take("other")).await;
    waiting.quiet(millis(200)).await;
    redis.kill();
    let status = client.send(request(job("mail"))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let status = client.send(request(job("mail").with_id("meanwhile"))).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    redis.restart().await;
    enqueue_in_the_end(&client, "last").await;
    // A lease from before is valid after.
    client.ack(&held.receipt).await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 1_000, ..take("mail") }).await;
    let deliveries = worker.next_many(JOBS + 1).await;
    let found: std::collections::HashSet<_> = deliveries.iter().map(|d| d.id.clone()).collect();
    assert!(ids.iter().all(|id| found.contains(id)), "a job is lost");
    assert!(found.contains("last") && found.len() == JOBS + 1);
    // Wake-ups arrive again, too, for streams from before as for those from after.
    client.enqueue(job("mail").with_id("woken")).await;
    assert_eq!(worker.next().await.id, "woken");
    client.enqueue(job("other").with_id("awaited")).await;
    assert_eq!(waiting.next().await.id, "awaited");
}

#[tokio::test]
async fn scripts_are_loaded_again_after_a_flush() {
    let Some(redis) = Redis::start().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    redis.command(&["SCRIPT", "FLUSH"]).await;
    client.enqueue(job("mail").with_id("b")).await;
    redis.command(&["SCRIPT", "FLUSH"]).await;
    let delivery = client.pull_one("mail").await;
    redis.command(&["SCRIPT", "FLUSH"]).await;
    client.ack(&delivery.receipt).await;
    assert_eq!(client.state("mail", "a").await, JobState::Succeeded);
    assert_eq!(client.pull_one("mail").await.id, "b");
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_an_unknown_outcome_and_a_repeat_is_safe() {
    let Some(redis) = Redis::start().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("before").with_delay(millis(600_000))).await;
    redis.pause();
    let status = client.send(request(job("mail").with_id("a"))).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "OUTCOME_UNKNOWN", "");
    // Certain not to have been sent, from then on.
    let status = client.send(request(job("mail").with_id("b"))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    redis.resume();
    enqueue_in_the_end(&client, "a").await;
    let stats = client.stats("mail").await;
    assert_eq!(stats.enqueued_total - i64::from(client.find("mail", "b").await.is_some()), 2);
    assert_eq!(client.pull_now("mail", 10).await.iter().filter(|d| d.id == "a").count(), 1);
}

/// A client with less patience gave up a call on the same connection, which is only slow.
#[tokio::test]
async fn a_redis_that_stands_still_for_less_than_a_call_waits_fails_no_enqueue() {
    let Some(redis) = Redis::start().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("held").with_lease(millis(60_000))).await;
    let held = client.pull_one("mail").await;
    redis.pause();
    let item = ExtendItem { receipt: held.receipt.clone(), ..Default::default() };
    let mut impatient = Request::new(ExtendRequest { items: vec![item] });
    impatient.set_timeout(millis(400));
    let given_up = client.queue.clone().extend(impatient).await;
    assert!(given_up.is_err() || given_up.unwrap().into_inner().failures.len() == 1);
    let stands_still = async {
        tokio::time::sleep(millis(2_200)).await;
        redis.resume();
    };
    let enqueued = client.send(request(job("mail").with_id("a")));
    let (enqueued, ()) = tokio::join!(enqueued, stands_still);
    assert_eq!(enqueued.unwrap().outcome(), EnqueueOutcome::Created);
    client.ack(&held.receipt).await;
    assert_eq!(client.pull_one("mail").await.id, "a");
}

#[tokio::test]
async fn a_full_redis_refuses_jobs_settles_those_it_has_and_recovers() {
    let Some(redis) = Redis::start().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    for id in ["acked", "nacked", "extended", "rest"] {
        client.enqueue(job("mail").with_id(id).with_retention(millis(600_000))).await;
    }
    let used = redis.info("memory", "used_memory").await;
    redis.command(&["CONFIG", "SET", "maxmemory", &(used + (2 << 20)).to_string()]).await;
    let mut accepted = 0;
    let status = loop {
        match client.send(request(job("bulk").with_bytes(100_000))).await {
            Ok(_) => accepted += 1,
            Err(status) => break status,
        }
        assert!(accepted < 400, "the memory has no end");
    };
    assert_refused(&status, Code::ResourceExhausted, "STORE_FULL", "");
    assert!(status.get_details_retry_info().is_some(), "the error has a retry delay");
    assert_eq!(client.stats("bulk").await.ready, accepted, "what was refused was not written");
    // A Redis beyond its limit still accepts calls that make room, and the calls before them.
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let held = client.pull_now("mail", 3).await;
    assert_eq!(held.len(), 3);
    client.ack(&held[0].receipt).await;
    client.nack(nack(&held[1].receipt, NackAction::Release)).await;
    let item = ExtendItem { receipt: held[2].receipt.clone(), ..Default::default() };
    let failures = client.extend_items(vec![item]).await;
    assert!(failures.is_empty(), "{failures:?}");
    client.ack(&held[2].receipt).await;
    let status = client.send(request(job("bulk"))).await.unwrap_err();
    assert_eq!(refusal(&status), "ResourceExhausted STORE_FULL");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    enqueue_in_the_end(&client, "after").await;
    assert_eq!(client.state("mail", "acked").await, JobState::Succeeded);
    assert_eq!(client.state("mail", "nacked").await, JobState::Ready);
}

#[tokio::test]
async fn a_redis_that_became_a_replica_is_unavailable_until_it_is_none() {
    let Some(redis) = Redis::start().await else { return };
    let server = serve(&redis).await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let status = client.send(request(job("mail").with_id("b"))).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    enqueue_in_the_end(&client, "b").await;
    assert_eq!(client.pull_now("mail", 5).await.len(), 2);
}

/// Starts a TCP proxy to the Redis on `port`, which may change between connections; returns the proxy's port.
async fn relay(port: Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let to = ("127.0.0.1", port.load(Ordering::SeqCst));
            let mut redis = TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut redis).await });
        }
    });
    own
}

/// Returns the number of INFO calls of a Redis.
async fn looks(redis: &Redis) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_info:calls=")).unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}

/// Each check finds another process than the last connection did, and causes the next check.
#[tokio::test]
async fn an_address_that_leads_to_two_redis_is_looked_at_with_pauses() {
    let Some(first) = Redis::start().await else { return };
    let second = Redis::start().await.expect("the same program again");
    let port = Arc::new(AtomicU16::new(first.port()));
    let url = format!("redis://127.0.0.1:{}", relay(Arc::clone(&port)).await);
    let server = Setup::on(&url).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    // The connection for claims is the last one that is made.
    port.store(second.port(), Ordering::SeqCst);
    assert!(client.pull_now("mail", 1).await.is_empty(), "the job is on the other one");
    let (begun, before) = (Instant::now(), looks(&first).await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let seen = looks(&first).await - before;
    let most = 10.0 * begun.elapsed().as_secs_f64();
    assert!(seen as f64 <= most, "{seen} looks, at most {most}");
    let (before, mut own) = (looks(&first).await, 0);
    eventually("it is looked at again", async || {
        own += 1;
        (looks(&first).await >= before + own + 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_is_no_safe_place_is_refused_with_the_way_out() {
    let evicting = ["--save", "", "--maxmemory-policy", "allkeys-lru"];
    let Some(redis) = Redis::with(&evicting).await else { return };
    let text = refused(&redis, "s0").await;
    assert!(text.contains("set maxmemory-policy to noeviction"), "{text}");
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let text = refused(&redis, "s0").await;
    assert!(text.contains("give the address of its primary"), "{text}");
    redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    let server = serve(&redis).await;
    assert!(server.log().contains("opened"));
    drop(server);
    let text = refused(&redis, "s1").await;
    assert!(text.contains("redis belongs to shard s0, not s1"), "{text}");
}
