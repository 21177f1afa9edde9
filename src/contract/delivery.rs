//! Deliveries and revocations: messages to a worker.

use crate::dispatch::{JobDelivery, StreamBatch};
use crate::domain::{
    GroupName, Receipt, ReceiptKey, RetryOverrides, RetryPolicy, ShardName, TopicName,
};
use crate::pb;

use super::number::to_int32;
use super::{enums, payload, time};

/// Converts a batch to a message of a stream; `policy` returns the retry policy in force for the overrides of a
/// job of a topic, `key` the key of the receipts of a shard.
pub(crate) fn to_stream_response(
    batch: StreamBatch,
    policy: impl Fn(&TopicName, Option<&RetryOverrides>) -> RetryPolicy,
    key: impl Fn(&ShardName) -> Option<ReceiptKey>,
) -> pb::StreamResponse {
    let revocation = |(receipt, revoked): (Receipt, _)| pb::Revocation {
        receipt: receipt.encode(key(&receipt.shard)),
        reason: enums::to_revocation_reason(revoked).into(),
    };
    pb::StreamResponse {
        deliveries: batch.deliveries.into_iter().map(|d| to_delivery(d, &policy, &key)).collect(),
        revocations: batch.revocations.into_iter().map(revocation).collect(),
        info: None,
        in_flight: to_int32(batch.in_flight),
        draining: batch.draining,
    }
}

/// Converts one job for its worker.
pub(crate) fn to_delivery(
    delivery: JobDelivery,
    policy: impl Fn(&TopicName, Option<&RetryOverrides>) -> RetryPolicy,
    key: impl Fn(&ShardName) -> Option<ReceiptKey>,
) -> pb::Delivery {
    let JobDelivery { receipt, job, lease_left, lag: _ } = delivery;
    let max_attempts = policy(&job.key.topic, job.spec.retry.as_deref()).max_attempts;
    pb::Delivery {
        receipt: receipt.encode(key(&receipt.shard)),
        topic: job.key.topic.as_str().to_owned(),
        id: job.key.id.as_str().to_owned(),
        payload: job.spec.payload.map(payload::to_payload),
        headers: job.spec.headers.into_iter().collect(),
        attempt: to_int32(job.failures.saturating_add(1)),
        max_attempts: max_attempts.map_or(-1, to_int32),
        lease_duration: Some(time::to_duration(lease_left)),
        due_time: Some(time::to_timestamp(job.due)),
        create_time: Some(time::to_timestamp(job.create_time)),
        priority: i32::from(job.priority),
        last_error: if job.failures == 0 { String::new() } else { job.last_error },
        delivery: to_int32(job.deliveries.saturating_add(1)),
        group: GroupName::text(job.spec.group.as_ref()).to_owned(),
        fence: job.fence.0,
        checkpoint: job.checkpoint.map(payload::to_payload),
        crashes: to_int32(job.crashes),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::{JobId, JobKey, Payload, Spec, Time, Token};
    use crate::scheduler::RevokeReason;
    use crate::store::LeasedJob;

    #[test]
    fn a_delivery_counts_attempts_and_hand_overs_from_one() {
        let key = JobKey { topic: TopicName::stored("t"), id: JobId::stored("i") };
        let shard = ShardName::try_new("s0").unwrap();
        let receipt_key = Some(ReceiptKey::new(7));
        let receipt = Receipt { shard, owner: 1, stream: 2, token: Token(3), key: key.clone() };
        let job = LeasedJob {
            key,
            token: Token(3),
            fence: Time(8),
            deadline: Time(9),
            spec: Spec::default(),
            priority: 4,
            failures: 2,
            deliveries: 5,
            crashes: 0,
            due: Time(1_000_000),
            create_time: Time(0),
            last_error: "no".into(),
            checkpoint: Some(Payload {
                text: true,
                body: "half".into(),
                content_type: String::new(),
            }),
        };
        let delivery = JobDelivery {
            receipt: receipt.clone(),
            job,
            lease_left: Duration::from_secs(7),
            lag: Duration::ZERO,
        };
        let unlimited =
            |_: &_, _: Option<&_>| RetryPolicy { max_attempts: None, ..Default::default() };
        let sent = to_delivery(delivery.clone(), unlimited, |_| receipt_key);
        assert_eq!((sent.attempt, sent.delivery, sent.max_attempts), (3, 6, -1));
        assert_eq!((sent.fence, sent.checkpoint), (8, Some(pb::Payload::text("half"))));
        assert_eq!(sent.lease_duration, Some(prost_types::Duration { seconds: 7, nanos: 0 }));
        let batch = StreamBatch {
            deliveries: vec![delivery],
            revocations: vec![(receipt.clone(), RevokeReason::Deleted)],
            in_flight: 1,
            draining: true,
        };
        let sent = to_stream_response(batch, |_, _| RetryPolicy::default(), |_| receipt_key);
        assert_eq!((sent.deliveries[0].max_attempts, sent.in_flight, sent.draining), (25, 1, true));
        assert_eq!(sent.revocations[0].receipt, receipt.encode(receipt_key));
        assert_eq!(sent.revocations[0].reason(), pb::RevocationReason::Deleted);
    }
}
