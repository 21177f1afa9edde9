//! New jobs against the quotas of their caller and of the namespaces of their topics.

use tokio::time::Instant;

use crate::auth::{Authenticator, Caller, JobReservation};
use crate::domain::EnqueueOutcome;
use crate::scheduler::{AcceptedJob, AckItem, Draft, SettleResult};

use super::status::RpcError;

/// Jobs that the quotas allow, until they are written.
#[must_use]
pub(super) struct AdmittedJobs<'c> {
    caller: &'c Caller,
    /// Bytes of each job; empty if they are not counted.
    bytes: Vec<u64>,
    room: Option<JobReservation>,
}

/// Follow-ups of the items of an Ack.
#[must_use]
pub(super) struct FollowUps<'c> {
    caller: &'c Caller,
    /// Jobs and bytes of each item; empty if there are no follow-ups, or they are not counted.
    items: Vec<(u64, u64)>,
}

// === impl AdmittedJobs ===

impl<'c> AdmittedJobs<'c> {
    /// Admits all of these jobs, or none.
    ///
    /// # Errors
    /// QUOTA_EXCEEDED, with the quota that has no room; nothing is taken from the others.
    pub(super) fn admit(
        authenticator: &Authenticator,
        caller: &'c Caller,
        drafts: &[Draft],
    ) -> Result<AdmittedJobs<'c>, RpcError> {
        let Some(meter) = caller.meter() else {
            return Ok(AdmittedJobs { caller, bytes: Vec::new(), room: None });
        };
        let bytes: Vec<u64> = drafts.iter().map(bytes).collect();
        // Before the rates: room that is not used is returned, tokens are not.
        let reserve = |namespaces: &crate::auth::NamespaceMeters| {
            let topics = drafts.iter().map(|draft| &draft.topic);
            namespaces.reserve(topics.zip(bytes.iter().copied()))
        };
        let room = authenticator.namespaces().map(reserve).transpose().map_err(|exceeded| {
            meter.count_refusal(exceeded.kind);
            RpcError::quota_exceeded(&exceeded)
        })?;
        let (jobs, sum) = (drafts.len() as u64, bytes.iter().sum());
        let admitted = meter.admit_jobs(jobs, sum, Instant::now());
        admitted.map_err(|exceeded| RpcError::quota_exceeded(&exceeded))?;
        Ok(AdmittedJobs { caller, bytes, room })
    }

    /// Counts the jobs after they were written, or may have been.
    pub(super) fn written<E>(self, results: &[Result<AcceptedJob, E>]) {
        let Some(meter) = self.caller.meter() else { return };
        if let Some(room) = self.room {
            room.written();
        }
        // A repeat that changes nothing is not paid for twice.
        let is_new = |result: &Result<AcceptedJob, E>| {
            result.as_ref().is_ok_and(|job| job.outcome != EnqueueOutcome::Unchanged)
        };
        let new = results.iter().zip(&self.bytes).filter(|(result, _)| is_new(result));
        let (jobs, bytes) = new.fold((0, 0), |(jobs, sum), (_, bytes)| (jobs + 1, sum + bytes));
        meter.jobs_accepted(jobs, bytes);
    }
}

// === impl FollowUps ===

impl<'c> FollowUps<'c> {
    /// Takes the follow-ups of an Ack from the quotas. They are never refused: that would cost the lease.
    pub(super) fn take(
        authenticator: &Authenticator,
        caller: &'c Caller,
        items: &[AckItem],
    ) -> FollowUps<'c> {
        let (Some(meter), true) =
            (caller.meter(), items.iter().any(|item| !item.follow_ups.is_empty()))
        else {
            return FollowUps { caller, items: Vec::new() };
        };
        let counted = items.iter().map(|item| {
            let follow_ups = &item.follow_ups;
            (follow_ups.len() as u64, follow_ups.iter().map(bytes).sum::<u64>())
        });
        let counted: Vec<_> = counted.collect();
        let (jobs, sum) = counted.iter().fold((0, 0), |(a, b), (jobs, sum)| (a + jobs, b + sum));
        meter.take_jobs(jobs, sum, Instant::now());
        if let Some(namespaces) = authenticator.namespaces() {
            let follow_ups = items.iter().flat_map(|item| &item.follow_ups);
            namespaces.count_written(follow_ups.map(|draft| (&draft.topic, bytes(draft))));
        }
        FollowUps { caller, items: counted }
    }

    /// Counts the follow-ups of the items that were settled.
    pub(super) fn written(self, results: &[SettleResult]) {
        let settled = self.items.iter().zip(results).filter(|(_, result)| result.is_ok());
        let (jobs, bytes) = settled.fold((0, 0), |(a, b), ((jobs, sum), _)| (a + jobs, b + sum));
        if let (Some(meter), true) = (self.caller.meter(), jobs > 0) {
            meter.jobs_accepted(jobs, bytes);
        }
    }
}

fn bytes(draft: &Draft) -> u64 {
    draft.spec.bytes() as u64
}
