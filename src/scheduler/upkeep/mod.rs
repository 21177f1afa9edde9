//! Upkeep: verbs that the timers call. Each does a bounded piece and returns when there is more.
//!
//! - `close_rings`: the end of a change of the ring
//! - `topic_sums`: sums over many topics, for quotas

mod close_rings;
mod topic_sums;

use std::ops::Deref;
use std::time::Duration;

use crate::clock::Skew;
use crate::domain::engine::{Command, Extend};
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::outage::{ExpiredLease, ExpiryDecision};
use crate::domain::{Time, TopicName, limit};
use crate::shards::{self, Op, Shard};
use crate::store::{
    JobRequest, LeaseEvent, LeaseQuery, LeaseQueryResult, OutageExpiry, RunningLease,
};

use crate::scheduler::EndLeasesResult;

use super::Core;

/// Verbs of timers. Cheap to clone.
#[derive(Clone)]
pub struct Upkeep(pub(super) Core);

impl Deref for Upkeep {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}

/// Pause before leases that could not be ended are tried again, for example because the disk is full.
const LEFT_PAUSE: Duration = Duration::from_secs(1);

/// Time when there is more to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextUpkeep {
    /// Time by the shard's clock; `None`: nothing to do before anything changes.
    pub next: Option<Time>,
    /// Skew between that clock and this replica's.
    pub skew: Skew,
}

/// Leases whose deadline has passed, by what follows.
#[derive(Default)]
struct ExpiredLeases {
    expired: Vec<RunningLease>,
    unserved: Vec<RunningLease>,
    /// Leases with the time at which they end unless their workers extend or settle them.
    in_grace: Vec<(RunningLease, OutageExpiry, Time)>,
}

// === impl ExpiredLeases ===

impl ExpiredLeases {
    fn classify(reaped: LeaseQueryResult) -> ExpiredLeases {
        let Some(away) = reaped.outage else {
            return ExpiredLeases { expired: reaped.leases, ..ExpiredLeases::default() };
        };
        let mut lapses = ExpiredLeases::default();
        for lease in reaped.leases {
            let RunningLease {
                start_time: started, extend_time: extended, deadline, grace, ..
            } = lease;
            match away.decide(&ExpiredLease { started, extended, deadline, grace }, reaped.now) {
                ExpiryDecision::Expired => lapses.expired.push(lease),
                ExpiryDecision::Unserved => lapses.unserved.push(lease),
                ExpiryDecision::InGrace(end) => {
                    let lapsed = OutageExpiry { deadline, served_since: away.until };
                    lapses.in_grace.push((lease, lapsed, end));
                }
            }
        }
        lapses
    }
}

// === impl Upkeep ===

impl Upkeep {
    /// Ends leases whose deadline has passed. Leases whose workers could not extend them because no server served the
    /// shard get a grace first. Returns when the next lease is to be checked.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn reap(&self, shard: &Shard) -> shards::Result<NextUpkeep> {
        let before = self.now();
        let overdue = LeaseQuery::Overdue { limit: limit::CALL_JOBS_MAX };
        let reaped = shard.call(Op::Reap, |store| store.query_leases(overdue)).await?;
        let skew = Skew::measured(before, reaped.now, self.now());
        let (now, mut next) = (reaped.now, reaped.next_deadline);
        let ExpiredLeases { expired, unserved, in_grace: waiting } =
            ExpiredLeases::classify(reaped);
        let waits = self.postpone_expiry(shard, waiting).await?;
        for (leases, cause) in
            [(expired, LeaseEndCause::Expired), (unserved, LeaseEndCause::Unserved)]
        {
            if !leases.is_empty() {
                let EndLeasesResult { ended_here: here, not_ended: left, .. } =
                    self.settler().end_leases(shard, &leases, &cause).await?;
                tracing::debug!(shard = %shard.name(), ended = here, ?cause, "leases ended");
                let again = (!left.is_empty()).then(|| now.plus(LEFT_PAUSE));
                next = next.into_iter().chain(again).min();
            }
        }
        Ok(NextUpkeep { next: next.into_iter().chain(waits).min(), skew })
    }

    /// Moves deadlines so that workers have had time to extend or settle their leases. Returns the first new
    /// deadline.
    async fn postpone_expiry(
        &self,
        shard: &Shard,
        waiting: Vec<(RunningLease, OutageExpiry, Time)>,
    ) -> shards::Result<Option<Time>> {
        if waiting.is_empty() {
            return Ok(None);
        }
        let extend = |(lease, lapsed, end): &(RunningLease, OutageExpiry, Time)| {
            let extend = Extend {
                token: lease.token,
                duration: Some(end.since(lapsed.served_since)),
                progress: None,
                checkpoint: None,
                outage_expiry: Some(*lapsed),
            };
            JobRequest::new(lease.key.clone(), Command::Extend(extend))
        };
        let answers = shard.apply(waiting.iter().map(extend).collect()).await;
        let (mut moved, mut failed): (Vec<(RunningLease, Time)>, _) = (Vec::new(), None);
        for ((lease, ..), answer) in waiting.into_iter().zip(answers) {
            match answer.map(|extended| extended.extend_result()) {
                Ok(Ok(deadline)) => moved.push((lease, deadline)),
                // The worker has settled or extended it meanwhile.
                Ok(Err(_)) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        for (lease, deadline) in &moved {
            let (stream, tokens, deadline) = (lease.stream, vec![lease.token], *deadline);
            self.notify_stream(
                shard,
                lease.owner,
                LeaseEvent::Extended { stream, tokens, deadline },
            );
        }
        if let Some(error) = failed {
            return Err(error);
        }
        tracing::info!(
            shard = %shard.name(),
            leases = moved.len(),
            "leases ran out while no server served the shard: their workers have the grace of their streams to extend \
             or settle them, then the jobs are READY again, not counted as failed"
        );
        Ok(moved.iter().map(|(_, deadline)| *deadline).min())
    }

    /// Expires jobs, and deletes what has passed its time. Returns when there is more.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn prune(&self, shard: &Shard) -> shards::Result<NextUpkeep> {
        let before = self.now();
        let pruned = shard.call(Op::Prune, |store| store.prune(limit::CALL_JOBS_MAX)).await?;
        Ok(NextUpkeep {
            next: pruned.next_due,
            skew: Skew::measured(before, pruned.now, self.now()),
        })
    }

    /// Checks the topics after `after` and removes those that have been empty for long. Returns the last one checked,
    /// if there are more.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn tidy(
        &self,
        shard: &Shard,
        after: Option<TopicName>,
    ) -> shards::Result<Option<TopicName>> {
        let tidied = shard
            .call(Op::PruneTopics, |store| store.prune_topics(after, limit::CALL_JOBS_MAX))
            .await?;
        if !tidied.forgotten.is_empty() {
            let topics = tidied.forgotten.len();
            tracing::info!(shard = %shard.name(), topics, "removed topics without jobs");
        }
        Ok(tidied.last_topic)
    }
}
