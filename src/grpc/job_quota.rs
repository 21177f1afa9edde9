//! New jobs against the quotas of their caller and of the namespaces of their topics.

use tokio::time::Instant;

use crate::auth::{Authenticator, Caller, IdentityMeter, JobReservation, NamespaceMeters};
use crate::domain::{EnqueueOutcome, TopicName};
use crate::scheduler::{AcceptedJob, AckItem, Draft, SettleResult};

use super::status::RpcError;

/// Jobs that the quotas allow, until they are written. Dropped before that, because the client went away, they count as
/// written: they may be.
#[must_use]
pub(super) struct AdmittedJobs<'c> {
    meter: Option<&'c IdentityMeter>,
    namespaces: Option<&'c NamespaceMeters>,
    /// Topic and bytes of each job; empty if they are not counted.
    jobs: Vec<(TopicName, u64)>,
    room: Option<JobReservation>,
}

/// Follow-ups of the items of an Ack.
#[must_use]
pub(super) struct FollowUps<'c> {
    meter: Option<&'c IdentityMeter>,
    namespaces: Option<&'c NamespaceMeters>,
    /// Topic and bytes of each follow-up of each item; empty if there are no follow-ups, or they are not counted.
    items: Vec<Vec<(TopicName, u64)>>,
}

// === impl AdmittedJobs ===

impl<'c> AdmittedJobs<'c> {
    /// Admits all of these jobs, or none.
    ///
    /// # Errors
    /// QUOTA_EXCEEDED, with the quota that has no room; nothing is taken from the others.
    pub(super) async fn admit(
        authenticator: &'c Authenticator,
        caller: &'c Caller,
        drafts: &[Draft],
    ) -> Result<AdmittedJobs<'c>, RpcError> {
        let Some(meter) = caller.meter() else {
            return Ok(AdmittedJobs {
                meter: None,
                namespaces: None,
                jobs: Vec::new(),
                room: None,
            });
        };
        let jobs = sizes(drafts);
        // Before the rates: room that is not used is returned, tokens are not.
        let namespaces = authenticator.namespaces();
        let room = match namespaces {
            Some(namespaces) => Some(namespaces.reserve(&jobs).await.map_err(|exceeded| {
                meter.count_refusal(exceeded.kind);
                RpcError::quota_exceeded(&exceeded)
            })?),
            None => None,
        };
        let sum = jobs.iter().map(|(_, bytes)| bytes).sum();
        let admitted = meter.admit_jobs(jobs.len() as u64, sum, Instant::now());
        admitted.map_err(|exceeded| RpcError::quota_exceeded(&exceeded))?;
        Ok(AdmittedJobs { meter: Some(meter), namespaces, jobs, room })
    }

    /// Counts the jobs that were written, or may have been. A repeat that changes nothing is not paid for twice, and
    /// takes no room.
    pub(super) fn written<E>(mut self, results: &[Result<AcceptedJob, E>]) {
        let jobs = std::mem::take(&mut self.jobs);
        let (mut new, mut may_be_new) = (Vec::new(), Vec::new());
        for (job, result) in jobs.into_iter().zip(results) {
            match result {
                Ok(accepted) if accepted.outcome == EnqueueOutcome::Unchanged => {}
                Ok(_) => new.push(job),
                Err(_) => may_be_new.push(job),
            }
        }
        self.count(&new, &may_be_new);
    }

    fn count(&mut self, new: &[(TopicName, u64)], may_be_new: &[(TopicName, u64)]) {
        if let (Some(meter), false) = (self.meter, new.is_empty()) {
            meter.jobs_accepted(new.len() as u64, new.iter().map(|(_, bytes)| bytes).sum());
        }
        if let Some(namespaces) = self.namespaces {
            namespaces.count_written(new);
            namespaces.count_written(may_be_new);
        }
        // Its jobs have been counted.
        self.room = None;
    }
}

impl Drop for AdmittedJobs<'_> {
    fn drop(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        if !jobs.is_empty() {
            self.count(&jobs, &[]);
        }
    }
}

// === impl FollowUps ===

impl<'c> FollowUps<'c> {
    /// Takes the follow-ups of an Ack from the rates. They are never refused: that would cost the lease.
    pub(super) fn take(
        authenticator: &'c Authenticator,
        caller: &'c Caller,
        items: &[AckItem],
    ) -> FollowUps<'c> {
        let (Some(meter), true) =
            (caller.meter(), items.iter().any(|item| !item.follow_ups.is_empty()))
        else {
            return FollowUps { meter: None, namespaces: None, items: Vec::new() };
        };
        let items: Vec<_> = items.iter().map(|item| sizes(&item.follow_ups)).collect();
        let (jobs, bytes) =
            items.iter().flatten().fold((0, 0), |(n, sum), job| (n + 1, sum + job.1));
        meter.take_jobs(jobs, bytes, Instant::now());
        FollowUps { meter: Some(meter), namespaces: authenticator.namespaces(), items }
    }

    /// Counts the follow-ups of the items that were settled.
    pub(super) fn written(self, results: &[SettleResult]) {
        let settled = self.items.into_iter().zip(results).filter(|(_, result)| result.is_ok());
        let jobs: Vec<_> = settled.flat_map(|(jobs, _)| jobs).collect();
        if let (Some(meter), false) = (self.meter, jobs.is_empty()) {
            meter.jobs_accepted(jobs.len() as u64, jobs.iter().map(|(_, bytes)| bytes).sum());
        }
        if let Some(namespaces) = self.namespaces {
            namespaces.count_written(&jobs);
        }
    }
}

/// Returns the topic of each job, and the bytes that its client has filled.
fn sizes(drafts: &[Draft]) -> Vec<(TopicName, u64)> {
    let id = |draft: &Draft| draft.id.as_ref().map_or(0, |id| id.as_str().len());
    let bytes = |draft: &Draft| (draft.spec.filled_bytes() + id(draft)) as u64;
    drafts.iter().map(|draft| (draft.topic.clone(), bytes(draft))).collect()
}
