//! What a feed asks its shard for.

use std::sync::Arc;

use crate::domain::credit::Share;
use crate::store::{Ask, Taker};

use super::TopicPattern;
use super::board::{Asked, Plan};
use super::ledger::Mode;
use super::stream::Stream;

/// Whether the stream means topics that it does not name.
pub(super) fn wants_globs(stream: &Stream) -> bool {
    let mut topics = stream.options().topics.iter();
    topics.any(|topic| matches!(topic, TopicPattern::Prefix(_)))
}

/// What a plan asks of the store.
pub(super) fn asks(plan: &Plan) -> Vec<Ask> {
    let ask = |asked: &Asked| Ask {
        topic: asked.topic.clone(),
        takers: asked.takers.iter().map(|taker| taker_of(&taker.stream, taker.share)).collect(),
    };
    plan.asks.iter().map(ask).collect()
}

fn taker_of(stream: &Stream, share: Share) -> Taker {
    let options = stream.options();
    Taker {
        stream: stream.id(),
        worker_id: Arc::clone(&options.worker_id),
        lease: options.lease,
        grace: (stream.mode() == Mode::Stream).then_some(options.orphan_grace),
        jobs: share.jobs,
        bytes: share.bytes,
        oversize: share.oversize,
    }
}
