//! A job of a certain shard, leased by the rig.

use ringq::pb::{AckItem, Delivery};

use crate::harness::{Client, job};

/// Leases a job of that shard.
pub(crate) async fn held(client: &Client, shard: usize) -> Delivery {
    loop {
        client.enqueue(job("held")).await;
        let held = client.pull_one("held").await;
        if lies_on(&held.id, shard) {
            return held;
        }
        client.ack(&held.receipt).await;
    }
}

/// Returns whether a server-made id lies on this shard.
fn lies_on(id: &str, shard: usize) -> bool {
    id.split_once('~').is_some_and(|(name, _)| name == format!("s{shard}"))
}

/// Acknowledges a job of a shard that takes no new ones, with a follow-up: that one goes to another shard.
pub(crate) async fn hand_on(client: &Client, held: Delivery, shard: usize) {
    let ack = AckItem { receipt: held.receipt, enqueue: vec![job("next")], ..AckItem::default() };
    assert_eq!(client.ack_items(vec![ack]).await, []);
    let next = client.pull_one("next").await;
    assert!(!lies_on(&next.id, shard), "{} lies where no new jobs go", next.id);
    client.ack(&next.receipt).await;
}
