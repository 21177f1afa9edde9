//! Quotas of the bytes that a namespace stores, on each kind of store.

use std::time::Duration;

use ringq::pb;

use crate::harness::{Program, Redis, Setup, eventually, job, millis};

use super::identities::{Caller, IdentityDir};
use super::quotas::{batch, enqueue, pull, ready, refused, tables, value, with_bytes};

const GAUGE: &str = "ringq_namespace_stored_bytes{namespace=\"shop.\"}";
/// Bytes of the payload of most jobs. Their number is so small that a Redis measures each of them.
const PAYLOAD: usize = 10_000;
/// Room for 9 of them, with their records.
const QUOTA: usize = 100_000;

fn quota(bytes: usize) -> String {
    format!("[[namespace]]\nname = 'shop.'\nstored_bytes = {bytes}\n")
}

fn with_quota() -> IdentityDir {
    let dir = IdentityDir::new(&tables(""));
    dir.write("quotas.toml", &quota(QUOTA));
    dir
}

/// Builds a server with these identities on this store; the embedded one without a url.
fn setup(dir: &IdentityDir, url: Option<&str>) -> Setup {
    let identities = format!("identities = {:?}\nmetrics_open = true", dir.path());
    url.map_or_else(Setup::new, Setup::on).config(&identities)
}

/// Enqueues jobs until one is refused; returns the number of jobs that were accepted.
async fn fill(caller: &Caller, topic: &str) -> usize {
    for n in 0..20 {
        if let Err(status) = enqueue(caller, with_bytes(topic, PAYLOAD)).await {
            let delay = refused::<()>(Err(status), "stored_bytes", "namespaces/shop.");
            assert_eq!(delay, millis(1_000));
            return n;
        }
    }
    panic!("20 jobs of {PAYLOAD} bytes in {QUOTA} bytes");
}

async fn delete(caller: &Caller, topic: &str, id: String) {
    let request = pb::DeleteRequest { topic: topic.to_owned(), id, ..Default::default() };
    let _: pb::DeleteResponse = caller.call("QueueService/Delete", &request).await.unwrap();
}

/// Fills a namespace, and makes room in each way.
async fn a_namespace_stays_within_its_quota(url: Option<&str>) {
    let dir = with_quota();
    let server = setup(&dir, url).start().await;
    let a = Caller::connect(&server, "a").await;
    let free = a.as_identity("free");
    let stored = fill(&a, "shop.a").await;
    assert!((8..=9).contains(&stored), "{stored}");
    refused(
        enqueue(&free, with_bytes("shop.b", PAYLOAD)).await,
        "stored_bytes",
        "namespaces/shop.",
    );
    enqueue(&free, with_bytes("other", PAYLOAD)).await.unwrap();
    let mixed = vec![job("other"), with_bytes("shop.a", PAYLOAD)];
    refused(batch(&a, mixed).await, "stored_bytes", "namespaces/shop.");
    assert_eq!(ready(&a, "other").await, 1, "nothing was applied");
    let too_large = enqueue(&a, with_bytes("shop.a", QUOTA)).await;
    let never = refused(too_large, "stored_bytes", "namespaces/shop.");
    assert_eq!(never, Duration::MAX, "no retry of so large a job can succeed");
    // What was read, after the own count has been replaced by it.
    let expected = (stored * PAYLOAD) as f64;
    let in_range = async || {
        let bytes = value(&server, GAUGE).await;
        (expected..=expected * 1.25).contains(&bytes).then_some(())
    };
    eventually("a read", in_range).await;
    fill(&a, "shop.a").await;
    // A running job does not wait any more, and is stored.
    let running = pull(&a, "shop.a", 3, Duration::ZERO).await.unwrap().deliveries;
    assert_eq!(running.len(), 3);
    // At least one read comes in between.
    tokio::time::sleep(millis(1_500)).await;
    refused(
        batch(&a, vec![with_bytes("shop.a", PAYLOAD); 2]).await,
        "stored_bytes",
        "namespaces/shop.",
    );
    let items = running.into_iter();
    let items = items.map(|d| pb::AckItem { receipt: d.receipt, ..Default::default() });
    let request = pb::AckRequest { items: items.collect() };
    let _: pb::AckResponse = a.call("QueueService/Ack", &request).await.unwrap();
    let two = async || batch(&a, vec![with_bytes("shop.a", PAYLOAD); 2]).await.ok();
    eventually("room, once they are done", two).await;
    // All deleted: room for one job as large as all.
    let left = pull(&a, "shop.a", 100, Duration::ZERO).await.unwrap().deliveries;
    for delivery in left {
        delete(&a, "shop.a", delivery.id).await;
    }
    let large = async || enqueue(&a, with_bytes("shop.b", QUOTA * 8 / 10)).await.ok();
    eventually("room, once all are gone", large).await;
    // Live changes.
    dir.write("quotas.toml", &quota(10 * QUOTA));
    let larger = async || enqueue(&a, with_bytes("shop.b", 5 * QUOTA)).await.ok();
    eventually("the larger quota", larger).await;
    refused(enqueue(&a, with_bytes("shop.b", 9 * QUOTA)).await, "stored_bytes", "namespaces/shop.");
    dir.write("quotas.toml", "");
    let unlimited = async || enqueue(&a, with_bytes("shop.b", 9 * QUOTA)).await.ok();
    eventually("no quota", unlimited).await;
    assert!(value(&server, GAUGE).await < 0.1, "its series is gone");
}

#[tokio::test]
async fn a_namespace_in_a_sqlite_file_stays_within_its_quota() {
    a_namespace_stays_within_its_quota(None).await;
}

#[tokio::test]
async fn a_namespace_on_a_redis_stays_within_its_quota() {
    let Some(redis) = Redis::start().await else { return };
    a_namespace_stays_within_its_quota(Some(&redis.url())).await;
}

/// The second server knows what the first one has stored, and the other way round.
#[tokio::test]
async fn two_servers_keep_one_quota() {
    let Some(redis) = Redis::start().await else { return };
    let dir = with_quota();
    let (url, mut callers) = (redis.url(), Vec::new());
    let servers = [setup(&dir, Some(&url)).start().await, setup(&dir, Some(&url)).start().await];
    for server in &servers {
        callers.push(Caller::connect(server, "a").await);
    }
    let [first, second] = &callers[..] else { panic!("two servers") };
    let stored = fill(first, "shop.a").await;
    assert!((8..=9).contains(&stored), "{stored}");
    let is_full = async || value(&servers[1], GAUGE).await > (stored * PAYLOAD) as f64;
    eventually("the other one has read it", async || is_full().await.then_some(())).await;
    assert_eq!(fill(second, "shop.b").await, 0);
    let pulled = pull(second, "shop.a", 100, Duration::ZERO).await.unwrap().deliveries;
    for delivery in pulled {
        delete(second, "shop.a", delivery.id).await;
    }
    let room = async || enqueue(first, with_bytes("shop.a", PAYLOAD)).await.ok();
    eventually("room at the first one", room).await;
}

/// A login from before this quota existed: its shard stays in use, the log names the right, and with it the quota holds.
#[tokio::test]
async fn a_redis_user_without_the_right_to_measure_keys_is_warned_about() {
    for program in [Program::Redis, Program::Redis6] {
        let Some(redis) = Redis::of(program, &["--save", "", "--appendonly", "no"]).await else {
            continue;
        };
        let user = ["ACL", "SETUSER", "ringq", "on", ">password", "~ringq:*"];
        let rights = ["resetchannels", "&ringq:*", "+@all", "-memory"];
        assert_eq!(redis.command(&[&user[..], &rights].concat()).await, "+OK");
        let dir = with_quota();
        let url = redis.url().replace("redis://", "redis://ringq:password@");
        let server = setup(&dir, Some(&url)).start().await;
        let a = Caller::connect(&server, "a").await;
        for n in 0..2 * QUOTA / PAYLOAD {
            let accepted = async || enqueue(&a, with_bytes("shop.a", PAYLOAD)).await.ok();
            eventually(&format!("job {n} is accepted"), accepted).await;
        }
        let warnings = || server.log().matches("redis does not report the memory of keys").count();
        assert_eq!(warnings(), 1, "once, not with each read");
        assert!(server.log().contains("grant +memory|usage"), "{}", server.log());
        assert!(value(&server, "ringq_shard_up{shard=\"s0\"}").await > 0.9);
        let grant = ["ACL", "SETUSER", "ringq", "+memory|usage"];
        assert_eq!(redis.command(&grant).await, "+OK");
        let holds = async || enqueue(&a, with_bytes("shop.a", PAYLOAD)).await.err();
        let status = eventually("the quota holds", holds).await;
        refused::<()>(Err(status), "stored_bytes", "namespaces/shop.");
        let known = async || (value(&server, GAUGE).await > (2 * QUOTA) as f64).then_some(());
        eventually("it is measured", known).await;
        assert!(server.log().contains("redis reports the memory of keys again"));
    }
}
