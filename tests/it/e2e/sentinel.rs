use std::sync::atomic::{AtomicBool, Ordering};

use ringq::pb::{AckItem, GetRequest, StreamRequest};
use tonic::Code;

use crate::harness::{Client, Sentinel, Server, Setup, eventually, job, millis, request, take};

/// Enqueues one job after the other until `stop` is set; returns the ids that were accepted.
async fn produce(client: Client, name: &str, stop: &AtomicBool) -> Vec<String> {
    let (mut accepted, mut refused) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let id = format!("{name}-{}-{refused}", accepted.len());
        match client.send(request(job("mail").with_id(&id))).await {
            Ok(_) => accepted.push(id),
            Err(_) => refused += 1,
        }
        tokio::time::sleep(millis(2)).await;
    }
    println!("{name}: {} accepted, {refused} refused", accepted.len());
    accepted
}

/// Produces jobs while `fault` happens and until they are accepted again. Jobs that were accepted before it exist
/// after it; some that were accepted meanwhile may be gone, because replication is asynchronous.
async fn goes_on(server: &Server, sentinel: &mut Sentinel, name: &str) {
    let client = server.connect().await;
    client.enqueue(job("mail").with_id(format!("{name}-before"))).await;
    sentinel.replicated().await;
    let stop = AtomicBool::new(false);
    let accepted = async {
        let faulty = async {
            tokio::time::sleep(millis(300)).await;
            match name {
                "kill" => sentinel.kill_primary().await,
                _ => sentinel.fail_over().await,
            }
            let id = format!("{name}-after");
            // Jobs that are accepted in the first moment may still be written to the old primary.
            eventually("jobs are written to the new primary", async || {
                client.send(request(job("mail").with_id(&id))).await.ok()?;
                let primary = sentinel.primary().await?;
                let has = primary.command(&["HEXISTS", "ringq:{s0}:jobs:mail", &id]).await;
                (has == ":1").then_some(())
            })
            .await;
            tokio::time::sleep(millis(300)).await;
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(produce(client.clone(), name, &stop), faulty).0
    }
    .await;
    assert!(has(&client, &format!("{name}-before")).await, "{name}");
    assert!(has(&client, &format!("{name}-after")).await, "{name}");
    let mut lost = 0;
    for id in &accepted {
        lost += usize::from(!has(&client, id).await);
    }
    println!("{name}: {lost} of {} accepted jobs are lost", accepted.len());
    let last = accepted.last().unwrap();
    assert!(has(&client, last).await, "{name}: the last is on the new primary");
}

/// Returns whether the job exists. Asks again while no shard answers: sentinels on a busy machine may begin one more
/// failover at any time.
async fn has(client: &Client, id: &str) -> bool {
    eventually("a shard answers", async || {
        let request = GetRequest { topic: "mail".into(), id: id.into(), ..Default::default() };
        match client.queue.clone().get(request).await {
            Ok(_) => Some(true),
            Err(status) if status.code() == Code::NotFound => Some(false),
            Err(_) => None,
        }
    })
    .await
}

/// Acks a job, and retries like [`has`].
async fn ack(client: &Client, receipt: &str) {
    let item = AckItem { receipt: receipt.to_owned(), ..Default::default() };
    eventually("the ack is taken", async || {
        client.try_ack(vec![item.clone()]).await.ok().filter(Vec::is_empty)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_and_the_death_of_the_primary_are_lived_through() {
    let Some(mut sentinel) = Sentinel::start().await else { return };
    let server = Setup::on(&sentinel.url()).start().await;
    let client = server.connect().await;
    let mut waiting = client.stream(take("other")).await;
    waiting.quiet(millis(200)).await;
    goes_on(&server, &mut sentinel, "failover").await;
    client.enqueue(job("other").with_id("a")).await;
    assert_eq!(waiting.next().await.id, "a", "wake-ups arrive from the new primary");
    sentinel.settled().await;
    goes_on(&server, &mut sentinel, "kill").await;
    client.enqueue(job("other").with_id("b")).await;
    assert_eq!(waiting.next().await.id, "b");
    let request = StreamRequest { max_in_flight: 100, ..take("mail") };
    let mut worker = client.stream(request).await;
    let found = eventually("the jobs drain", async || {
        let delivery = worker.next().await;
        ack(&client, &delivery.receipt).await;
        (delivery.id == "kill-after").then_some(())
    });
    found.await;
}

/// No replica can take over, so the failover ends as soon as it has begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_stays_after_all_is_used_again() {
    let Some(mut sentinel) = Sentinel::start().await else { return };
    let server = Setup::on(&sentinel.url()).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("before")).await;
    sentinel.kill_replica().await;
    let primary = sentinel.primary().await.unwrap();
    primary.pause();
    sentinel.gives_up().await;
    primary.resume();
    eventually("jobs are accepted again", async || {
        client.send(request(job("mail").with_id("after"))).await.ok()
    })
    .await;
    assert!(has(&client, "before").await);
}

#[tokio::test]
async fn a_sentinel_that_knows_no_such_primary_is_reported() {
    let Some(sentinel) = Sentinel::start().await else { return };
    let url = sentinel.url().replace("/main", "/other");
    let server = Setup::on(&url).start().await;
    let log = server.log();
    assert!(log.contains("watches no primary called other; check that name in the url"), "{log}");
}

#[tokio::test]
async fn sentinels_and_their_redis_have_logins_of_their_own() {
    let Some(sentinel) = Sentinel::start().await else { return };
    let primary = sentinel.primary().await.unwrap();
    primary.command(&["ACL", "SETUSER", "ringq", "on", ">pa:ss", "~*", "&*", "+@all"]).await;
    for one in sentinel.sentinels() {
        one.command(&["ACL", "SETUSER", "watch", "on", ">se@cret", "&*", "+@all"]).await;
    }
    let url = sentinel.url().replace("//", "//ringq:pa%3Ass@") + "/2?sentinel_user=watch";
    let setup = |password: &str| Setup::on(&format!("{url}&sentinel_password={password}"));
    let server = setup("se%40cret").start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    assert!(primary.command(&["INFO", "keyspace"]).await.contains("db2:"));
    assert!(primary.command(&["CLIENT", "LIST"]).await.contains("user=ringq"));
    eventually("news are listened to", async || {
        sentinel.sentinels()[0]
            .command(&["CLIENT", "LIST"])
            .await
            .contains("user=watch")
            .then_some(())
    })
    .await;
    let log = setup("wrong").start().await.log();
    assert!(log.contains("does not answer the query: Password authentication failed"), "{log}");
    assert!(log.contains("check sentinel_user and sentinel_password"), "{log}");
    assert!(!log.contains("pa%3A") && !log.contains("pa:ss"), "{log}");
}
