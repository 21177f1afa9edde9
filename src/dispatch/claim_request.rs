//! Claim requests of a feed to its shard.

use std::sync::Arc;

use crate::domain::TopicPattern;
use crate::domain::credit::CreditShare;
use crate::store::{StreamDemand, TopicDemand};

use super::claim_planner::{ClaimPlan, TopicClaim};
use super::stream::Stream;
use super::stream_ledger::StreamMode;

/// Returns whether the stream subscribes to a glob.
pub(super) fn has_globs(stream: &Stream) -> bool {
    let mut topics = stream.options().topics.iter();
    topics.any(|topic| matches!(topic, TopicPattern::Prefix(_)))
}

/// Converts a plan to the demands of the store's claim call.
pub(super) fn topic_demands(plan: &ClaimPlan) -> Vec<TopicDemand> {
    let ask = |asked: &TopicClaim| TopicDemand {
        topic: asked.topic.clone(),
        streams: asked.takers.iter().map(|taker| taker_of(&taker.stream, taker.share)).collect(),
    };
    plan.topics.iter().map(ask).collect()
}

fn taker_of(stream: &Stream, share: CreditShare) -> StreamDemand {
    let options = stream.options();
    StreamDemand {
        stream: stream.id(),
        worker_id: Arc::clone(&options.worker_id),
        lease: options.lease,
        grace: (stream.mode() == StreamMode::Stream).then_some(options.orphan_grace),
        jobs: share.jobs,
        bytes: share.bytes,
        oversize: share.oversize,
    }
}
