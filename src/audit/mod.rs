//! The audit log: which identity did what to which topic, job or shard, and how it ended. One JSON object on each line.
//!
//! - [`entry`]: one line, and what a call has touched
//! - [`writer`]: where lines go
//!
//! Calls that change what other callers rely on are always logged, refused credentials and missing rights too, also where
//! the answer hides them; all calls by a setting. A line is written when its call ends. Payloads, headers of jobs and tokens are never in it.

pub mod entry;
pub mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::rpc::Rpc;

pub use entry::{AuditNote, AuditedCall};
pub use writer::{AuditTarget, AuditWriter};

use entry::Entry;

/// Interval in which refusals of an identity, of one RPC with one code, are logged at most once, with the number
/// suppressed.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);

/// Interval in which lost lines are reported at most once.
const LOSSES_EVERY: Duration = Duration::from_secs(10);

/// Calls that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditCalls {
    /// RedriveJobs, PurgeTopic, SetShardState, Delete, Reschedule, and calls that are refused for their credentials or rights, as a
    /// whole or in part.
    #[default]
    Changes,
    /// Every call but health and reflection.
    All,
}

/// Audit log. Cloning shares it.
#[derive(Clone)]
pub struct AuditLog(Option<Arc<AuditState>>);

struct AuditState {
    clock: Clock,
    calls: AuditCalls,
    writer: AuditWriter,
    refusals: LogLimiter,
    /// Number of lost lines that is known.
    lost: AtomicU64,
    losses: LogLimiter,
}

// === impl AuditLog ===

impl AuditLog {
    /// Creates a log that writes nothing.
    #[must_use]
    pub fn off() -> AuditLog {
        AuditLog(None)
    }

    /// Creates a log of these calls.
    #[must_use]
    pub fn new(clock: Clock, calls: AuditCalls, writer: AuditWriter) -> AuditLog {
        AuditLog(Some(Arc::new(AuditState {
            clock,
            calls,
            writer,
            refusals: LogLimiter::new(REFUSALS_EVERY),
            lost: AtomicU64::new(0),
            losses: LogLimiter::new(LOSSES_EVERY),
        })))
    }

    /// Returns the note of a call, for what it touches and is denied.
    #[must_use]
    pub fn note(&self, rpc: Rpc) -> Option<AuditNote> {
        let state = self.0.as_ref()?;
        Some(AuditNote::new(state.calls == AuditCalls::All || is_change(rpc)))
    }

    /// Logs a call that has ended, if all such calls are logged or it was refused for its credentials or rights.
    pub fn call_ended(&self, call: &AuditedCall<'_>) {
        let Some(state) = &self.0 else { return };
        let is_logged = call.note.is_some_and(AuditNote::is_full);
        let is_refused = matches!(call.code, "UNAUTHENTICATED" | "PERMISSION_DENIED")
            || !is_logged && call.note.is_some_and(AuditNote::has_denials);
        let mut suppressed = None;
        if is_refused {
            let identity = call.identity.unwrap_or_default();
            match state.refusals.allow(&[call.rpc, call.code, identity]) {
                Some(permit) => suppressed = permit.suppressed(),
                None => return,
            }
        } else if !is_logged {
            return;
        }
        state.write(&Entry::of_call(state.clock.now(), call, suppressed));
    }

    /// Logs an event of the server itself, such as identities that were read again.
    pub fn event(&self, event: &'static str, error: Option<&str>) {
        if let Some(state) = &self.0 {
            state.write(&Entry::of_event(state.clock.now(), event, error));
        }
    }
}

// === impl AuditState ===

impl AuditState {
    fn write(&self, entry: &Entry<'_>) {
        self.writer.write(entry);
        let lost = self.writer.lost_lines();
        if lost > self.lost.fetch_max(lost, Ordering::Relaxed)
            && self.losses.allow(&["lost"]).is_some()
        {
            tracing::warn!(
                lost,
                "lines of the audit log were lost since the start: its target takes them too slowly"
            );
        }
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AuditLog").field(&self.0.is_some()).finish()
    }
}

/// Returns whether an RPC changes what other callers rely on.
fn is_change(rpc: Rpc) -> bool {
    match rpc {
        Rpc::Delete
        | Rpc::Reschedule
        | Rpc::RedriveJobs
        | Rpc::SetShardState
        | Rpc::CreateTopic
        | Rpc::UpdateTopic
        | Rpc::DeleteTopic
        | Rpc::PauseTopic
        | Rpc::ResumeTopic
        | Rpc::PauseGroup
        | Rpc::ResumeGroup
        | Rpc::PurgeTopic => true,
        Rpc::Enqueue
        | Rpc::BatchEnqueue
        | Rpc::Get
        | Rpc::Stream
        | Rpc::Pull
        | Rpc::Ack
        | Rpc::Nack
        | Rpc::Extend
        | Rpc::GetTopic
        | Rpc::ListTopics
        | Rpc::GetTopicStats
        | Rpc::ListGroups
        | Rpc::ListJobs
        | Rpc::ExplainJob
        | Rpc::ListWorkers
        | Rpc::ListShards
        | Rpc::GetServerInfo
        | Rpc::IsActive
        | Rpc::StreamIsActive
        | Rpc::GetMetricSpec
        | Rpc::GetMetrics => false,
    }
}
