//! What a feed says to its shard, and what the answer says about the shard's clock.

use std::sync::Arc;

use crate::domain::Time;
use crate::store::{Ask, Taker};

use super::TopicPattern;
use super::board::{Asked, Plan};
use super::ledger::{Mode, Share};
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

/// How far the shard's clock is ahead of this replica's, which said `before` and `after` around a
/// call that was answered with `shard`. Clocks that agree as far as one can tell are the same.
pub(super) fn skew(before: Time, shard: Time, after: Time) -> i64 {
    if (before..=after).contains(&shard) { 0 } else { shard.0.saturating_sub(after.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_agree_are_the_same() {
        assert_eq!(skew(Time(10), Time(12), Time(14)), 0);
        assert_eq!(skew(Time(10), Time(9), Time(14)), -5);
        assert_eq!(skew(Time(10), Time(20), Time(14)), 6);
    }
}
