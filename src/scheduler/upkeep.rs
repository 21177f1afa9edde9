//! Upkeep: what the timers call. Each verb does a bounded piece and says when there is more.

use std::time::Duration;

use crate::clock::Skew;
use crate::domain::away::{Lapse, Term};
use crate::domain::lifecycle::Cause;
use crate::domain::{Time, TopicName, limit};
use crate::shards::{self, Shard};
use crate::store::{Extend, Hint, Lapsed, Lease, LeaseRef, Selected};

use super::{Ended, Scheduler};

/// When leases are looked at again that could not be ended, say because the disk is full.
const LEFT_PAUSE: Duration = Duration::from_secs(1);

/// When there is more to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// By the shard's clock; `None`: before anything changes there is nothing.
    pub next: Option<Time>,
    /// How that clock stands to this replica's.
    pub skew: Skew,
}

/// Leases whose deadline has passed, by what follows.
#[derive(Default)]
struct Lapses {
    expired: Vec<Lease>,
    unserved: Vec<Lease>,
    /// With the time at which they end unless their workers speak for them.
    waiting: Vec<(Lease, Lapsed, Time)>,
}

// === impl Lapses ===

impl Lapses {
    fn of(reaped: Selected) -> Lapses {
        let Some(away) = reaped.away else {
            return Lapses { expired: reaped.leases, ..Lapses::default() };
        };
        let mut lapses = Lapses::default();
        for lease in reaped.leases {
            let Lease { start_time: started, extend_time: extended, deadline, grace, .. } = lease;
            match away.lapse(&Term { started, extended, deadline, grace }, reaped.now) {
                Lapse::Expired => lapses.expired.push(lease),
                Lapse::Unserved => lapses.unserved.push(lease),
                Lapse::Waits(end) => {
                    let lapsed = Lapsed { deadline, served: away.until };
                    lapses.waiting.push((lease, lapsed, end));
                }
            }
        }
        lapses
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Ends leases whose deadline has passed, but those whose workers could not extend them because no server served the
    /// shard: these wait for a while. Answers when the next one is to be looked at.
    ///
    /// # Errors
    /// As the store's.
    pub async fn reap(&self, shard: &Shard) -> shards::Result<Due> {
        let before = self.now();
        let reaped = shard.reap(limit::CALL_JOBS_MAX).await?;
        let skew = Skew::measured(before, reaped.now, self.now());
        let (now, mut next) = (reaped.now, reaped.next);
        let Lapses { expired, unserved, waiting } = Lapses::of(reaped);
        let waits = self.put_off(shard, waiting).await?;
        for (leases, cause) in [(expired, Cause::Expired), (unserved, Cause::Unserved)] {
            if !leases.is_empty() {
                let Ended { here, left, .. } = self.end_leases(shard, &leases, &cause).await?;
                tracing::debug!(shard = %shard.name(), ended = here, ?cause, "leases ended");
                let again = (!left.is_empty()).then(|| now.plus(LEFT_PAUSE));
                next = next.into_iter().chain(again).min();
            }
        }
        Ok(Due { next: next.into_iter().chain(waits).min(), skew })
    }

    /// Moves the ends of leases to where their workers have had time to speak for them; the first of these.
    async fn put_off(
        &self,
        shard: &Shard,
        waiting: Vec<(Lease, Lapsed, Time)>,
    ) -> shards::Result<Option<Time>> {
        if waiting.is_empty() {
            return Ok(None);
        }
        let extend = |(lease, lapsed, end): &(Lease, Lapsed, Time)| Extend {
            lease: LeaseRef { key: lease.key.clone(), token: lease.token },
            duration: Some(end.since(lapsed.served)),
            progress: None,
            checkpoint: None,
            lapsed: Some(*lapsed),
            until: None,
        };
        let answers = shard.extend(waiting.iter().map(extend).collect()).await;
        let (mut moved, mut failed): (Vec<(Lease, Time)>, _) = (Vec::new(), None);
        for ((lease, ..), answer) in waiting.into_iter().zip(answers) {
            match answer {
                Ok(Ok(deadline)) => moved.push((lease, deadline)),
                // It was settled or extended by its worker meanwhile.
                Ok(Err(_)) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        for (lease, deadline) in &moved {
            let (stream, tokens, deadline) = (lease.stream, vec![lease.token], *deadline);
            self.hint(shard, lease.owner, Hint::Extended { stream, tokens, deadline });
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

    /// Expires and forgets what has passed its time; answers when there is more.
    ///
    /// # Errors
    /// As the store's.
    pub async fn prune(&self, shard: &Shard) -> shards::Result<Due> {
        let before = self.now();
        let pruned = shard.prune(limit::CALL_JOBS_MAX).await?;
        Ok(Due { next: pruned.next, skew: Skew::measured(before, pruned.now, self.now()) })
    }

    /// Looks at the topics behind `after` and forgets those that have been empty for long; the last one of them, if
    /// there are more.
    ///
    /// # Errors
    /// As the store's.
    pub async fn tidy(
        &self,
        shard: &Shard,
        after: Option<TopicName>,
    ) -> shards::Result<Option<TopicName>> {
        let tidied = shard.tidy(after, limit::CALL_JOBS_MAX).await?;
        if !tidied.forgotten.is_empty() {
            let topics = tidied.forgotten.len();
            tracing::info!(shard = %shard.name(), topics, "forgot topics without jobs");
        }
        Ok(tidied.next)
    }
}
