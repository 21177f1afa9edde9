//! Quotas: what one identity may use in a second, and what one namespace may keep.
//!
//! - [`quota_file`]: figures as text, in the files of identities
//! - `token_bucket`: one rate of one identity on this server
//! - [`identity_meter`]: rates, streams and usage of one identity
//! - [`namespace_meter`]: waiting jobs and stored bytes of the namespaces with a quota, and their quotas of settings
//! - `read_progress`: reads of these numbers, also before their time

pub mod identity_meter;
pub mod namespace_meter;
pub mod quota_file;
mod read_progress;
#[cfg(test)]
mod tests;
mod token_bucket;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

pub use identity_meter::{IdentityMeter, StreamSlot};
pub use namespace_meter::{JobReservation, NamespaceFigure, NamespaceMeters, NamespaceTable};

/// Quotas of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Figures by the name of the identity.
    pub identities: HashMap<String, IdentityQuota>,
    /// Figures by the name of the namespace.
    pub namespaces: BTreeMap<String, NamespaceQuota>,
}

/// Figures of one identity; `None`: without limit. They hold for all servers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityQuota {
    /// Calls per second, health checks aside.
    pub calls: Option<Rate>,
    /// Jobs per second.
    pub jobs: Option<Rate>,
    /// Bytes per second that clients fill in jobs.
    pub bytes: Option<Rate>,
    /// Streams and waiting Pulls at once.
    pub streams: Option<u32>,
}

/// Figures of one namespace; `None`: without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceQuota {
    /// Jobs that wait: SCHEDULED, READY or BACKOFF.
    pub waiting_jobs: Option<u64>,
    /// Bytes that its topics take in the stores, about, with all jobs that are still there.
    pub stored_bytes: Option<u64>,
    /// Topics with settings by calls.
    pub topic_settings: Option<u64>,
}

/// Number per second, in thousandths, so that it can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

/// Kind of a quota. Names are those of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// [`IdentityQuota::calls`]
    Calls,
    /// [`IdentityQuota::jobs`]
    Jobs,
    /// [`IdentityQuota::bytes`]
    Bytes,
    /// [`IdentityQuota::streams`]
    Streams,
    /// [`NamespaceQuota::waiting_jobs`]
    WaitingJobs,
    /// [`NamespaceQuota::stored_bytes`]
    StoredBytes,
    /// [`NamespaceQuota::topic_settings`]
    TopicSettings,
}

/// Refusal by a quota: nothing was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// Kind of the quota.
    pub kind: QuotaKind,
    /// Owner of the quota, as `identities/NAME` or `namespaces/NAME`.
    pub subject: String,
    /// Delay after which the same call may succeed.
    pub retry: QuotaRetry,
}

/// Delay after which a call that a quota refused may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaRetry {
    /// The quota allows it after this time, unless other calls of the identity come first.
    After(Duration),
    /// Not known: streams have to end first.
    Unknown,
    /// Never: the call asks for more than the quota.
    Never,
}

// === impl Rate ===

impl Rate {
    /// Largest number per second.
    pub const MAX: f64 = 1e12;
    /// Smallest number per second.
    pub const MIN: f64 = 0.001;

    /// Creates a rate of `number` per second, from [`Rate::MIN`] to [`Rate::MAX`].
    #[must_use]
    pub fn per_second(number: f64) -> Option<Rate> {
        let is_valid = (Rate::MIN..=Rate::MAX).contains(&number);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the number is in the range that was checked"
        )]
        is_valid.then_some(Rate((number * 1_000.0).round() as u64))
    }

    /// Returns the number per second.
    #[must_use]
    pub fn number(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

// === impl QuotaKind ===

impl QuotaKind {
    /// All kinds.
    pub const ALL: [QuotaKind; 7] = [
        QuotaKind::Calls,
        QuotaKind::Jobs,
        QuotaKind::Bytes,
        QuotaKind::Streams,
        QuotaKind::WaitingJobs,
        QuotaKind::StoredBytes,
        QuotaKind::TopicSettings,
    ];

    /// Returns the key of the files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QuotaKind::Calls => "calls_per_second",
            QuotaKind::Jobs => "jobs_per_second",
            QuotaKind::Bytes => "bytes_per_second",
            QuotaKind::Streams => "streams",
            QuotaKind::WaitingJobs => "waiting_jobs",
            QuotaKind::StoredBytes => "stored_bytes",
            QuotaKind::TopicSettings => "topic_settings",
        }
    }
}

// === impl Quotas ===

impl Quotas {
    /// Adds the quotas of another file; `place` is that file.
    ///
    /// # Errors
    /// Texts about namespaces that both have. Identities that both have are found elsewhere.
    pub fn extend(&mut self, place: &str, more: Quotas) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        self.identities.extend(more.identities);
        for (name, quota) in more.namespaces {
            if self.namespaces.insert(name.clone(), quota).is_some() {
                problems.push(format!("{place}: namespace {name}: another file has it, too"));
            }
        }
        if self.namespaces.len() > quota_file::NAMESPACES_MAX {
            let max = quota_file::NAMESPACES_MAX;
            problems.push(format!("{place}: there are more than {max} [[namespace]] tables"));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}
