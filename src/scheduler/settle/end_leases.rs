//! Ends of leases whose jobs did not succeed: writes and counts what follows. A worker ends a lease by a nack, which
//! is in [`super`]; a lease that runs out or whose stream breaks ends here.

use rand::Rng as _;

use crate::domain::engine::{Command, CrashMove, Settle, Unacked};
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::{JobKey, State, TopicName};
use crate::shards::{self, Shard};
use crate::store::{
    JobRequest, LeaseEvent, RequestResult, RevokeReason, RunningLease, SettleAction,
};

use crate::scheduler::Core;

use super::Settler;

/// Maximum number of jobs that move to their crash topics at once, because their payloads are read and written.
const MOVES_MAX: usize = 16;

/// Result of ending leases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndLeasesResult {
    /// Number of leases that are over: every replica looks for them, and another one may have been first.
    pub ended: usize,
    /// Number of leases that this call has ended.
    pub ended_here: usize,
    /// Leases that could not be ended because of their own jobs; they are unchanged.
    pub not_ended: Vec<RunningLease>,
}

// === impl Settler ===

impl Settler {
    /// Ends leases that their workers did not settle: expired ones, and those of broken streams. Each ends only if
    /// its deadline is still the one that was read. A lease that cannot be ended because of its own job does not hold
    /// up the others. Jobs that have crashed as often as they may move to their crash topics.
    ///
    /// # Errors
    /// Errors of the store that concern the shard as a whole.
    pub async fn end_leases(
        &self,
        shard: &Shard,
        leases: &[RunningLease],
        cause: &LeaseEndCause,
    ) -> shards::Result<EndLeasesResult> {
        let (mut moving, mut staying) = (Vec::new(), Vec::with_capacity(leases.len()));
        for lease in leases {
            match self.crash_topic(lease, cause) {
                Some(topic) => moving.push((lease.clone(), topic)),
                None => staying.push((lease.clone(), CrashMove::None)),
            }
        }
        let mut ended = EndLeasesResult::default();
        // Before the moves, which may wait for other shards.
        self.settle_ended(shard, staying, cause, &mut ended).await?;
        while !moving.is_empty() {
            let piece: Vec<_> = moving.drain(..moving.len().min(MOVES_MAX)).collect();
            let (settler, here, cause) = (self.clone(), shard.clone(), cause.clone());
            // A job that is written to its crash topic is removed here, whether or not the caller still waits.
            let moved = Core::run_to_completion(async move {
                let (copied, not_ended) = settler.copy_crashed(&here, piece, &cause).await?;
                let mut ended = EndLeasesResult { not_ended, ..EndLeasesResult::default() };
                settler.settle_ended(&here, copied, &cause, &mut ended).await?;
                Ok(ended)
            });
            let EndLeasesResult { ended: over, ended_here, not_ended } = moved.await?;
            ended.ended += over;
            ended.ended_here += ended_here;
            ended.not_ended.extend(not_ended);
        }
        Ok(ended)
    }

    /// Ends leases whose jobs with a crash topic were copied to it, and adds the results to `ended`.
    async fn settle_ended(
        &self,
        shard: &Shard,
        leases: Vec<(RunningLease, CrashMove)>,
        cause: &LeaseEndCause,
        ended: &mut EndLeasesResult,
    ) -> shards::Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        let settle = |(lease, crash_move): &(RunningLease, CrashMove)| {
            let action = self.unacked(&lease.key.topic, cause.clone(), crash_move.clone());
            let settle = Settle { token: lease.token, deadline: Some(lease.deadline), action };
            let request = JobRequest::new(lease.key.clone(), Command::Settle(settle));
            JobRequest { owner: lease.owner, ..request }
        };
        let results = shard.apply(leases.iter().map(settle).collect()).await;
        let mut failed = None;
        for ((lease, crash_move), result) in leases.into_iter().zip(results) {
            match result {
                Ok(applied) => {
                    self.log_crash_move(&lease, &crash_move, &applied);
                    self.after_lease_end(shard, &lease, cause, &applied, ended);
                }
                Err(error) if error.error.is_shard_failure() => failed = failed.or(Some(error)),
                // The health monitor has logged and counted it.
                Err(_) => ended.not_ended.push(lease),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Counts and logs the end of a lease, and notifies its stream.
    fn after_lease_end(
        &self,
        shard: &Shard,
        lease: &RunningLease,
        cause: &LeaseEndCause,
        applied: &RequestResult,
        ended: &mut EndLeasesResult,
    ) {
        let Ok(settled) = applied.settle_result() else { return };
        ended.ended += 1;
        ended.ended_here += usize::from(!settled.repeated);
        if *cause == LeaseEndCause::Expired && !settled.repeated {
            self.log_lease_expired(shard, lease);
        }
        let is_failure =
            cause.counts(&self.retry_policy(&lease.key.topic, lease.attempt.retry.as_deref()));
        self.count_end(&lease.key, cause, is_failure, applied);
        let (tokens, reason) = (vec![lease.token], RevokeReason::LeaseExpired);
        let hint = LeaseEvent::Revoked { stream: lease.stream, tokens, reason };
        self.notify_stream(shard, lease.owner, hint);
    }

    /// Returns the end of a lease for a cause; the shard decides what follows for the job.
    pub(in crate::scheduler) fn unacked(
        &self,
        topic: &TopicName,
        cause: LeaseEndCause,
        crash_move: CrashMove,
    ) -> SettleAction {
        SettleAction::Unacked(Unacked {
            cause,
            policy: self.retry_policy(topic, None),
            entropy: rand::rng().random(),
            dead_retention: self.dead_retention(topic),
            crash_move,
        })
    }

    /// Counts an end without an ack, unless it was a repeat or refused.
    pub(in crate::scheduler) fn count_end(
        &self,
        key: &JobKey,
        cause: &LeaseEndCause,
        is_failure: bool,
        applied: &RequestResult,
    ) {
        let state = match applied.settle_result() {
            Ok(settled) if !settled.repeated => settled.state,
            Ok(_) | Err(_) => return,
        };
        let outcome = match (state, cause) {
            // Only a job that has moved to its crash topic leaves no record.
            (State::Dead, _) if applied.record.is_none() => "moved",
            (State::Dead, _) => "dead",
            (_, LeaseEndCause::Failed { .. } | LeaseEndCause::DeadLettered { .. }) => "retried",
            (_, LeaseEndCause::Released { .. }) => "released",
            (_, LeaseEndCause::Expired) => "lease_expired",
            (
                _,
                LeaseEndCause::StreamBroken
                | LeaseEndCause::WorkerCrashed
                | LeaseEndCause::Unserved,
            ) => "orphaned",
        };
        if let (State::Dead, Some(record)) = (state, &applied.record) {
            self.log_dead_letter(key, record, cause);
        }
        self.inner.metrics.settled(key.topic.as_str(), outcome, 1);
        if is_failure {
            self.inner.rates.failed(&key.topic, 1, self.now());
        }
    }
}
