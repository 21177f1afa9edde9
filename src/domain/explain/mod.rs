//! Reasons why a job does not run: which of them hold, from facts about the job, its topic, its shard and the streams
//! of this server.

mod sentences;
#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

use super::{Job, PriorityAgeing, State, StreamId, Time, Token};

pub use sentences::unreachable_shard;

/// Facts about one job at one time.
#[derive(Clone, Debug)]
pub struct ExplainFacts {
    /// The job.
    pub job: Job,
    /// Time of the store at which the job was read.
    pub now: Time,
    /// Jobs that come before it, if it is READY.
    pub ready_before: Option<ReadyBefore>,
    /// Turn of its group, if it is READY and its topic has groups.
    pub turn: Option<GroupTurn>,
    /// Ageing of the priorities of its topic.
    pub ageing: Option<PriorityAgeing>,
    /// Nonce of this server: part of the ids of its streams.
    pub server: u32,
    /// Lease of the job, if it runs.
    pub lease: Option<LeaseFacts>,
    /// Stream of this server that holds the lease, if one does.
    pub holder: Option<HolderFacts>,
    /// Record of the job, if it has ended.
    pub kept: Option<KeptRecord>,
    /// Number of failures allowed; `None`: no limit.
    pub attempts_max: Option<u32>,
    /// Streams of this server that ask for its topic.
    pub streams: StreamFacts,
    /// Number of other servers that are alive and serve its shard.
    pub other_servers: usize,
    /// Pause of its topic.
    pub topic_paused: Option<Pause>,
    /// Pause of its group.
    pub group_paused: Option<GroupPause>,
}

/// READY jobs of the topic on the shard of a job that come before it: by priority, due time and arrival, or by the order
/// of its ageing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadyBefore {
    /// Number of jobs.
    pub jobs: u64,
    /// True if there are more, because the read stops at a limit.
    pub has_more: bool,
}

/// Turn of a group of a topic on the shard of a job; the jobs without a group are one, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTurn {
    /// Running jobs of the group.
    pub running: u64,
    /// Groups with ready jobs that come before it.
    pub groups_before: u64,
    /// True if there are more, because the read stops at a limit.
    pub has_more: bool,
}

/// Facts about a lease that a stream of this server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderFacts {
    /// True if the worker has the job; false: the job waits for its stream to be read.
    pub is_sent: bool,
    /// Time since the last sign of the worker: its stream, or an Ack, Nack or Extend of a job of it.
    pub silent_for: Duration,
}

/// Lease of a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseFacts {
    /// Stream that holds the lease.
    pub stream: StreamId,
    /// Token of the lease.
    pub token: Token,
    /// Start of the lease.
    pub start: Time,
    /// Time of the last Extend.
    pub extended: Option<Time>,
    /// Deadline of the lease.
    pub deadline: Time,
    /// True if the lease lasts without its stream: of a Pull, or of a stream that the server has ended.
    pub outlives_stream: bool,
    /// True if a newer generation of the job waits for the end of the lease.
    pub next_waits: bool,
}

/// Record of an ended job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRecord {
    /// Time at which the record is removed.
    pub until: Time,
    /// True if only state and id are left.
    pub is_tombstone: bool,
}

/// Streams and waiting Pulls of this server that ask for a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFacts {
    /// Number of streams.
    pub streams: usize,
    /// Number of waiting Pulls.
    pub pulls: usize,
    /// Number of streams and Pulls with credit for the job.
    pub with_credit: usize,
    /// Number of streams whose client does not read its messages.
    pub unread: usize,
    /// Jobs that they hold; `None`: the caller may not see them, as they are also of topics hidden from it.
    pub held: Option<HeldJobs>,
    /// True if this server is shutting down: it opens no more streams.
    pub draining: bool,
}

/// Jobs that streams and Pulls hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldJobs {
    /// Number of jobs in flight.
    pub in_flight: u64,
    /// Number of jobs that may be in flight.
    pub max_in_flight: u64,
    /// Number of jobs in flight that belong to other topics.
    pub other_topics: u64,
}

/// Pause of a topic or a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// End of the pause; `None`: until it is resumed.
    pub until: Option<Time>,
    /// Note of the operator; empty: none.
    pub note: String,
}

/// Pause of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPause {
    /// Name of the group.
    pub group: String,
    /// Its pause.
    pub pause: Pause,
}

/// Cause for which a shard gives no information about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardSilence {
    /// The shard is down or refuses the call.
    Unavailable,
    /// The shard did not answer in time.
    TimedOut,
    /// Only other servers are configured with the shard.
    Elsewhere,
}

/// Stable code of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplainCode {
    /// The due time is ahead.
    NotDue,
    /// The topic is paused.
    TopicPaused,
    /// The group is paused.
    GroupPaused,
    /// No stream of this server asks for the topic.
    NoStream,
    /// Streams ask for the topic, and none has credit.
    NoCredit,
    /// Other groups of its topic come first.
    GroupTurn,
    /// Other jobs come first.
    BehindOthers,
    /// A worker receives the job within moments.
    Delivering,
    /// A worker has the job.
    Leased,
    /// The shard of the job does not answer.
    ShardUnreachable,
    /// The job has ended.
    Finished,
}

/// Reason why a job does not run, or that it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainReason {
    /// Code.
    pub code: ExplainCode,
    /// Sentence with the facts.
    pub message: String,
    /// Time at which this may change by itself.
    pub until: Option<Time>,
    /// Sentence with the next step.
    pub remedy: String,
}

// === impl ExplainCode ===

impl ExplainCode {
    /// Returns the name in the contract.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ExplainCode::NotDue => "NOT_DUE",
            ExplainCode::TopicPaused => "TOPIC_PAUSED",
            ExplainCode::GroupPaused => "GROUP_PAUSED",
            ExplainCode::NoStream => "NO_STREAM",
            ExplainCode::NoCredit => "NO_CREDIT",
            ExplainCode::GroupTurn => "GROUP_TURN",
            ExplainCode::BehindOthers => "BEHIND_OTHERS",
            ExplainCode::Delivering => "DELIVERING",
            ExplainCode::Leased => "LEASED",
            ExplainCode::ShardUnreachable => "SHARD_UNREACHABLE",
            ExplainCode::Finished => "FINISHED",
        }
    }
}

/// Returns every reason that holds, at least one.
#[must_use]
pub fn reasons(facts: &ExplainFacts) -> Vec<ExplainReason> {
    match facts.job.state {
        State::Running => vec![facts.leased()],
        state if state.is_terminal() => vec![facts.finished()],
        _ => facts.of_waiting(),
    }
}

// === impl ExplainFacts ===

impl ExplainFacts {
    /// Returns the reasons of a job that waits for its time or for a worker.
    fn of_waiting(&self) -> Vec<ExplainReason> {
        let is_ready = self.job.state == State::Ready;
        let mut reasons = Vec::new();
        reasons.extend((!is_ready).then(|| self.not_due()));
        reasons.extend(self.topic_paused.as_ref().map(|pause| self.paused_topic(pause)));
        reasons.extend(self.group_paused.as_ref().map(|paused| self.paused_group(paused)));
        if self.streams.total() == 0 {
            reasons.push(self.no_stream());
        } else if is_ready && self.streams.with_credit == 0 {
            reasons.push(self.no_credit());
        }
        let turn = self.turn.filter(|turn| is_ready && turn.groups_before > 0);
        reasons.extend(turn.map(|turn| self.group_turn(turn)));
        let before = self.ready_before.filter(|before| is_ready && before.is_some());
        reasons.extend(before.map(|before| self.behind_others(before)));
        if reasons.is_empty() {
            reasons.push(self.delivering());
        }
        reasons
    }
}

// === impl ReadyBefore ===

impl ReadyBefore {
    /// Returns whether there are any, or may be.
    fn is_some(self) -> bool {
        self.jobs > 0 || self.has_more
    }
}

// === impl StreamFacts ===

impl StreamFacts {
    /// Number of streams and waiting Pulls.
    #[must_use]
    pub fn total(&self) -> usize {
        self.streams + self.pulls
    }
}
