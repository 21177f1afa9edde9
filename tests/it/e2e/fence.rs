use std::time::Duration;

use ringq::pb::{
    ExtendItem, JobState, NackAction, Payload, RedriveJobsRequest, SettleError, SettleFailure,
    StreamRequest,
};

use crate::harness::{Client, Redis, Setup, eventually, job, millis, nack, proto, take};

/// Age of an Extend from which on it no longer keeps a lease when its stream breaks or its server dies: a heartbeat
/// interval of a server, and a little more.
const SPOKEN: Duration = Duration::from_secs(3);

fn saving(receipt: &str, checkpoint: Payload) -> ExtendItem {
    ExtendItem {
        receipt: receipt.to_owned(),
        checkpoint: Some(checkpoint),
        ..ExtendItem::default()
    }
}

async fn save(client: &Client, receipt: &str, text: &str) -> Vec<SettleFailure> {
    client.extend_items(vec![saving(receipt, Payload::text(text))]).await
}

fn half() -> Option<Payload> {
    Some(Payload::text("half"))
}

#[tokio::test]
async fn a_checkpoint_survives_kill_9_on_files_and_on_redis() {
    let redis = Redis::start().await;
    let mut setups = vec![Setup::new().restartable()];
    setups.extend(redis.as_ref().map(|redis| Setup::on(&redis.url()).restartable()));
    for setup in setups {
        let mut server = setup.start().await;
        let client = server.connect().await;
        client.enqueue(job("t").with_id("a")).await;
        let orphan_grace = Some(proto(millis(100)));
        let mut worker = client.stream(StreamRequest { orphan_grace, ..take("t") }).await;
        let held = worker.next().await;
        assert_eq!(save(&client, &held.receipt, "half").await, []);
        tokio::time::sleep(SPOKEN).await;
        server.kill().await;
        server.restart().await;
        let client = server.connect().await;
        client.until("t", "a", JobState::Ready).await;
        let mut worker = client.stream(take("t")).await;
        let again = worker.next().await;
        assert_eq!((again.id.as_str(), again.checkpoint.as_ref()), ("a", half().as_ref()));
        assert!(again.fence > held.fence);
        client.ack(&again.receipt).await;
    }
}

/// In another topic a client-chosen id may belong to another shard.
#[tokio::test]
async fn a_checkpoint_goes_along_to_another_shard() {
    let server = Setup::new().shards(3).start().await;
    let client = server.connect().await;
    let ids: Vec<String> = (0..20).map(|n| format!("job-{n}")).collect();
    for id in &ids {
        client.enqueue(job("t").with_id(id)).await;
        let held = client.pull_one("t").await;
        assert_eq!(save(&client, &held.receipt, id).await, []);
        client.nack(nack(&held.receipt, NackAction::DeadLetter)).await;
    }
    let shards = async |topic: &str| -> Vec<String> {
        let mut shards = Vec::new();
        for id in &ids {
            shards.push(client.get(topic, id).await.shard);
        }
        shards
    };
    let before = shards("t").await;
    let redrive = RedriveJobsRequest {
        topic: "t".into(),
        ids: ids.clone(),
        target_topic: "u".into(),
        ..RedriveJobsRequest::default()
    };
    client.admin.clone().redrive_jobs(redrive).await.unwrap();
    assert_ne!(shards("u").await, before, "some have moved");
    for _ in &ids {
        let held = client.pull_one("u").await;
        assert_eq!(held.checkpoint, Some(Payload::text(held.id.as_str())));
        client.ack(&held.receipt).await;
    }
}

#[tokio::test]
async fn a_full_redis_refuses_checkpoints_and_extends_all_others() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    for id in ["a", "b", "c"] {
        client.enqueue(job("t").with_id(id).with_lease(millis(60_000))).await;
    }
    let held = client.pull_now("t", 3).await;
    assert_eq!(save(&client, &held[0].receipt, "half").await, []);
    let before = client.get("t", "a").await;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let longer = |item: ExtendItem| ExtendItem {
        lease_duration: Some(prost_types::Duration { seconds: 600, nanos: 0 }),
        progress: "note".into(),
        ..item
    };
    let items = vec![
        longer(saving(&held[0].receipt, Payload::text("more"))),
        longer(ExtendItem { receipt: held[1].receipt.clone(), ..ExtendItem::default() }),
        // A cleared checkpoint needs no room.
        longer(saving(&held[2].receipt, Payload::default())),
    ];
    let [failure] = client.extend_items(items).await.try_into().unwrap();
    assert_eq!((failure.index, failure.error()), (0, SettleError::Unavailable));
    assert!(failure.message.contains("shard s0 is full"), "{}", failure.message);
    let after = client.get("t", "a").await;
    assert_eq!(after.progress, "", "nothing of the item was applied");
    assert_eq!(after.lease_expire_time, before.lease_expire_time);
    for id in ["b", "c"] {
        assert_eq!(client.get("t", id).await.progress, "note");
    }
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    eventually("there is room again", async || {
        save(&client, &held[0].receipt, "more").await.is_empty().then_some(())
    })
    .await;
    for held in &held {
        client.ack(&held.receipt).await;
    }
    let left = redis.command(&["EXISTS", "ringq:{s0}:more:t"]).await;
    assert_eq!(left, ":0", "nothing is left");
}
