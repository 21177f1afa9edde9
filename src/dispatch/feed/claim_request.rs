//! Claim requests of a feed to its shard.

use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::streams::ledger::StreamMode;
use crate::dispatch::streams::stream::Stream;
use crate::documents::DocumentView;
use crate::domain::credit::CreditShare;
use crate::domain::{TopicPattern, TopicSettings};
use crate::store::{StreamDemand, TopicDemand};

use super::claim_planner::{ClaimPlan, TopicClaim};

/// Returns whether the stream subscribes to a glob.
pub(in crate::dispatch) fn has_globs(stream: &Stream) -> bool {
    let mut topics = stream.options().topics.iter();
    topics.any(|topic| matches!(topic, TopicPattern::Prefix(_)))
}

/// Converts a plan to the demands of the store's claim call; `documents` have the leases and the ageing of topics.
pub(in crate::dispatch) fn topic_demands(
    plan: &ClaimPlan,
    documents: Option<&DocumentView>,
) -> Vec<TopicDemand> {
    let ask = |asked: &TopicClaim| {
        let settings = documents.and_then(|documents| documents.settings(&asked.topic));
        let lease = settings.and_then(|settings| settings.lease);
        let takers = asked.takers.iter();
        TopicDemand {
            topic: asked.topic.clone(),
            ageing: settings.and_then(TopicSettings::ageing),
            streams: takers.map(|taker| taker_of(&taker.stream, taker.share, lease)).collect(),
        }
    };
    plan.topics.iter().map(ask).collect()
}

fn taker_of(stream: &Stream, share: CreditShare, topic_lease: Option<Duration>) -> StreamDemand {
    let options = stream.options();
    let topic_lease = topic_lease.filter(|_| !options.names_lease);
    StreamDemand {
        stream: stream.id(),
        worker_id: Arc::clone(&options.worker_id),
        lease: topic_lease.unwrap_or(options.lease),
        grace: (stream.mode() == StreamMode::Stream).then_some(options.orphan_grace),
        jobs: share.jobs,
        bytes: share.bytes,
        oversize: share.oversize,
    }
}
