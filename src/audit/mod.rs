//! The audit log: which identity did what to which topic, job or shard, and how it ended. One JSON object on each line.
//!
//! - [`entry`]: one line, and what a call has touched
//! - [`writer`]: where lines go
//!
//! Calls that change what other callers rely on are always logged, refused credentials and missing rights too, also where
//! the answer hides them; all calls by a setting. A line is written when its call ends; of refusals that follow each other
//! within a second the first has one, and the next one that has a line counts the others, soon: the number of refusals is
//! that of the lines and of what they count. Payloads, headers of jobs and tokens are never in it.

pub mod entry;
pub mod writer;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::log_limiter::{LogLimiter, LogPermit};
use crate::rpc::Rpc;

pub use entry::{AuditNote, AuditedCall};
pub use writer::{AuditTarget, AuditWriter};

use entry::{Entry, SuppressedRefusals};

/// Interval in which refusals of an identity, of one RPC with one code, or of an address without an identity, with one code,
/// are logged at most once. The number suppressed, and topics of these, are logged too.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of addresses without an identity that have lines of their own in an interval; others share one.
const ADDRESSES_MAX: usize = 16;

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
    calls: AuditCalls,
    refusals: LogLimiter<SuppressedRefusals>,
    addresses: RecentAddresses,
    lines: Arc<AuditLines>,
}

/// Target of the lines, and the number of those that it did not take.
struct AuditLines {
    clock: Clock,
    writer: AuditWriter,
    /// Number of lost lines that is known.
    lost: Arc<AtomicU64>,
    losses: LogLimiter,
}

/// Addresses without an identity whose calls were refused in the last interval.
#[derive(Default)]
struct RecentAddresses(Mutex<HashMap<IpAddr, Instant>>);

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
        let lost = Arc::new(AtomicU64::new(0));
        let known = Arc::clone(&lost);
        let losses =
            LogLimiter::with_report(LOSSES_EVERY, move |_, _| log_losses(known.load(Relaxed)));
        let lines = Arc::new(AuditLines { clock, writer, lost, losses });
        let reports = Arc::clone(&lines);
        let refusals =
            LogLimiter::<SuppressedRefusals>::with_report(REFUSALS_EVERY, move |_, suppressed| {
                reports.write(&suppressed.noted.into_line(suppressed.count));
            });
        let addresses = RecentAddresses::default();
        AuditLog(Some(Arc::new(AuditState { calls, refusals, addresses, lines })))
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
        if is_refused {
            if let Some(permit) = state.admit_refusal(call) {
                let lines = &state.lines;
                lines.write(&Entry::of_call(lines.clock.now(), call, Some(&permit)));
            }
        } else if is_logged {
            state.lines.write(&Entry::of_call(state.lines.clock.now(), call, None));
        }
    }

    /// Logs an event of the server itself, such as identities that were read again.
    pub fn event(&self, event: &'static str, error: Option<&str>) {
        if let Some(state) = &self.0 {
            state.lines.write(&Entry::of_event(state.lines.clock.now(), event, error));
        }
    }
}

// === impl AuditState ===

impl AuditState {
    /// Returns a permit if a refusal may be logged now; otherwise counts it, and notes its topics. A caller that proves
    /// nothing is known by its address.
    fn admit_refusal(&self, call: &AuditedCall<'_>) -> Option<LogPermit<SuppressedRefusals>> {
        let note = |noted: &mut SuppressedRefusals| noted.add(self.lines.clock.now(), call);
        if let Some(identity) = call.identity {
            let name = [call.rpc, call.code, identity];
            return self.refusals.allow_noting(&name, 1, note);
        }
        let address = call.peer.map(|peer| peer.ip().to_canonical());
        let address = address.filter(|address| self.addresses.take(*address));
        let text = address.map_or(String::new(), |address| address.to_string());
        self.refusals.allow_noting(&[call.code, &text], 1, note)
    }
}

// === impl RecentAddresses ===

impl RecentAddresses {
    /// Returns whether an address has lines of its own now.
    fn take(&self, address: IpAddr) -> bool {
        let mut recent = self.0.lock();
        let now = Instant::now();
        if recent.len() >= ADDRESSES_MAX && !recent.contains_key(&address) {
            recent.retain(|_, last| now.duration_since(*last) < REFUSALS_EVERY);
        }
        let has_place = recent.len() < ADDRESSES_MAX || recent.contains_key(&address);
        if has_place {
            recent.insert(address, now);
        }
        has_place
    }
}

// === impl AuditLines ===

impl AuditLines {
    fn write(&self, entry: &impl Serialize) {
        self.writer.write(entry);
        let lost = self.writer.lost_lines();
        if lost > self.lost.fetch_max(lost, Relaxed) && self.losses.allow(&["lost"]).is_some() {
            log_losses(lost);
        }
    }
}

fn log_losses(lost: u64) {
    tracing::warn!(
        lost,
        "lines of the audit log were lost since the start: its target takes them too slowly"
    );
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
