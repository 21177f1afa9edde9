//! The stable reasons of the contract, their codes, and how long to wait before a repeat.

use std::time::Duration;

use tonic::Code;

/// Why something failed: the stable part of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::grpc) enum Reason {
    /// A field holds what it must not.
    InvalidField,
    /// A limit on a size or a count is exceeded.
    TooLarge,
    /// A field needs what this server does not have.
    FeatureUnsupported,
    /// There is no such job.
    JobNotFound,
    /// There is no such topic.
    TopicNotFound,
    /// There is no such shard.
    ShardNotFound,
    /// The id is taken.
    JobExists,
    /// The state of the job does not allow it.
    WrongJobState,
    /// The shard cannot reach what was asked.
    DurabilityUnsupported,
    /// No other shard takes new jobs.
    LastActiveShard,
    /// What was asked was not confirmed in time; it may have been written.
    DurabilityNotReached,
    /// Too many requests are under way.
    RateLimited,
    /// Too many streams are open.
    TooManyStreams,
    /// The store has no room.
    StoreFull,
    /// The shard does not answer; nothing was applied.
    ShardUnavailable,
    /// This replica is leaving; nothing was applied.
    Draining,
    /// It may have been applied.
    OutcomeUnknown,
    /// The caller's deadline passed.
    DeadlineExceeded,
    /// A fault of the server.
    Internal,
    /// The store holds what cannot be read.
    StoreCorrupt,
}

// === impl Reason ===

impl Reason {
    /// Its name in the contract.
    pub(in crate::grpc) fn name(self) -> &'static str {
        match self {
            Reason::InvalidField => "INVALID_FIELD",
            Reason::TooLarge => "TOO_LARGE",
            Reason::FeatureUnsupported => "FEATURE_UNSUPPORTED",
            Reason::JobNotFound => "JOB_NOT_FOUND",
            Reason::TopicNotFound => "TOPIC_NOT_FOUND",
            Reason::ShardNotFound => "SHARD_NOT_FOUND",
            Reason::JobExists => "JOB_EXISTS",
            Reason::WrongJobState => "WRONG_JOB_STATE",
            Reason::DurabilityUnsupported => "DURABILITY_UNSUPPORTED",
            Reason::LastActiveShard => "LAST_ACTIVE_SHARD",
            Reason::DurabilityNotReached => "DURABILITY_NOT_REACHED",
            Reason::RateLimited => "RATE_LIMITED",
            Reason::TooManyStreams => "TOO_MANY_STREAMS",
            Reason::StoreFull => "STORE_FULL",
            Reason::ShardUnavailable => "SHARD_UNAVAILABLE",
            Reason::Draining => "DRAINING",
            Reason::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Reason::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Reason::Internal => "INTERNAL",
            Reason::StoreCorrupt => "STORE_CORRUPT",
        }
    }

    /// Its code.
    pub(in crate::grpc) fn code(self) -> Code {
        match self {
            Reason::InvalidField | Reason::TooLarge | Reason::FeatureUnsupported => {
                Code::InvalidArgument
            }
            Reason::JobNotFound | Reason::TopicNotFound | Reason::ShardNotFound => Code::NotFound,
            Reason::JobExists => Code::AlreadyExists,
            Reason::WrongJobState | Reason::DurabilityUnsupported | Reason::LastActiveShard => {
                Code::FailedPrecondition
            }
            Reason::RateLimited | Reason::TooManyStreams | Reason::StoreFull => {
                Code::ResourceExhausted
            }
            Reason::ShardUnavailable
            | Reason::Draining
            | Reason::OutcomeUnknown
            | Reason::DurabilityNotReached => Code::Unavailable,
            Reason::DeadlineExceeded => Code::DeadlineExceeded,
            Reason::Internal | Reason::StoreCorrupt => Code::Internal,
        }
    }

    /// How long to wait before a repeat, where one can succeed: as long as its cause usually lasts.
    pub(super) fn retry_delay(self) -> Option<Duration> {
        match self {
            Reason::RateLimited | Reason::Draining => Some(Duration::from_millis(100)),
            Reason::OutcomeUnknown => Some(Duration::from_millis(500)),
            Reason::ShardUnavailable | Reason::DurabilityNotReached => Some(Duration::from_secs(1)),
            Reason::TooManyStreams => Some(Duration::from_secs(2)),
            Reason::StoreFull => Some(Duration::from_secs(5)),
            Reason::InvalidField
            | Reason::TooLarge
            | Reason::FeatureUnsupported
            | Reason::JobNotFound
            | Reason::TopicNotFound
            | Reason::ShardNotFound
            | Reason::JobExists
            | Reason::WrongJobState
            | Reason::DurabilityUnsupported
            | Reason::LastActiveShard
            | Reason::DeadlineExceeded
            | Reason::Internal
            | Reason::StoreCorrupt => None,
        }
    }
}
