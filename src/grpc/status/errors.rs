//! Conversions from the errors of the other modules: one exhaustive match each, so that a new error cannot be sent
//! without a reason.

use std::time::Duration;

use tonic::Status;

use crate::auth::{QuotaExceeded, QuotaKind, QuotaRetry};
use crate::contract::enums::{to_durability, to_job_state};
use crate::contract::{InvalidRequest, Violation};
use crate::dispatch::StreamOpenError;
use crate::documents::DocumentChangeError;
use crate::domain::{JobId, JobKey, ShardName, TopicName, TopicPattern, limit};
use crate::scheduler::{
    EnqueueError, FullTopic, SetShardStateError, ShardError, TopicChangeError, TopicRefusal,
};
use crate::store::{self, NotWrittenReason};

use super::{Reason, RpcError};

/// Delay before a retry of a call that has waited too long: about the time that the queue needs to get shorter.
const SHED_DELAY: Duration = Duration::from_secs(1);

impl From<InvalidRequest> for RpcError {
    fn from(InvalidRequest(violations): InvalidRequest) -> RpcError {
        let Some(first) = violations.first() else { return RpcError::internal() };
        let more = match violations.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let message = format!("{}: {}{more}", first.field, first.text);
        let mut failure = RpcError::new(first.reason, message).with("field", first.field.clone());
        if let Some(feature) = first.feature {
            failure = failure.with("feature", feature);
        }
        RpcError { violations, ..failure }
    }
}

impl From<InvalidRequest> for Status {
    fn from(invalid: InvalidRequest) -> Status {
        RpcError::from(invalid).into()
    }
}

// === impl RpcError ===

/// Errors of a shard. The message names the shard; the text of the store stays in the server's log and in ListShards.
impl RpcError {
    /// Converts an error of a call that only reads, which cannot have been applied.
    pub(in crate::grpc) fn of_read(error: ShardError) -> RpcError {
        let what = match error.error {
            store::Error::Full(_) => "is full; retry after the delay in RetryInfo",
            store::Error::Unavailable(_) if error.is_elsewhere => {
                "is not configured at this server, but at others; call one of those, or retry after the delay in \
                 RetryInfo"
            }
            store::Error::Unavailable(_) => {
                "is unavailable; retry after the delay in RetryInfo, ListShards has the cause"
            }
            store::Error::Overloaded(_) => {
                "is overloaded; retry after the delay in RetryInfo, or less often"
            }
            store::Error::DeadlineExceeded(_) => {
                "was busy until the end of the call; retry after the delay in RetryInfo"
            }
            store::Error::Contention(_) => {
                "has data that others changed during each attempt; retry after the delay in RetryInfo"
            }
            store::Error::OutcomeUnknown(_) => {
                "did not answer in time; retry after the delay in RetryInfo"
            }
            store::Error::Corrupt(_) => {
                "contains data that cannot be used; an operator must read the server's log"
            }
        };
        RpcError::of_shard(&error, what)
    }

    fn of_shard(ShardError { shard, error, .. }: &ShardError, what: &str) -> RpcError {
        let reason = match error {
            store::Error::Full(_) => Reason::StoreFull,
            store::Error::Unavailable(_) | store::Error::DeadlineExceeded(_) => {
                Reason::ShardUnavailable
            }
            store::Error::Overloaded(_) => Reason::RateLimited,
            store::Error::Contention(_) => Reason::Contention,
            store::Error::OutcomeUnknown(_) => Reason::OutcomeUnknown,
            store::Error::Corrupt(_) => Reason::StoreCorrupt,
        };
        let failure =
            RpcError::new(reason, format!("shard {shard} {what}")).with("shard", shard.as_str());
        match reason {
            Reason::StoreFull => failure.with_subject("limit", "store"),
            Reason::RateLimited => {
                failure.with_subject("limit", "time in queue").with_delay(SHED_DELAY)
            }
            _ => failure,
        }
    }
}

/// Converts an error of a call that writes.
impl From<ShardError> for RpcError {
    fn from(error: ShardError) -> RpcError {
        let what = match error.error {
            store::Error::Full(_) => {
                "is full and nothing was written; retry after the delay in RetryInfo"
            }
            store::Error::Unavailable(_) if error.is_elsewhere => {
                "is not configured at this server, but at others, and nothing was applied; call one of those, or \
                 retry after the delay in RetryInfo"
            }
            store::Error::Unavailable(_) => {
                "is unavailable and nothing was applied; retry after the delay in RetryInfo, ListShards has the cause"
            }
            store::Error::Overloaded(_) => {
                "is overloaded: the call waited too long for its turn, and nothing was written; retry after the delay \
                 in RetryInfo, or less often"
            }
            store::Error::DeadlineExceeded(_) => {
                "was busy until the end of the call, and nothing was applied; retry after the delay in RetryInfo"
            }
            store::Error::Contention(_) => {
                "has a job that other servers changed during each attempt, and nothing was applied; retry after the \
                 delay in RetryInfo"
            }
            store::Error::OutcomeUnknown(_) => {
                "did not answer in time and may have applied the call; retry with the same id"
            }
            store::Error::Corrupt(_) => {
                "contains data that cannot be used, and a part may be written; an operator must read the server's log"
            }
        };
        RpcError::of_shard(&error, what)
    }
}

impl From<SetShardStateError> for RpcError {
    fn from(error: SetShardStateError) -> RpcError {
        match error {
            SetShardStateError::NotFound(name) => {
                let message = "there is no such shard; ListShards returns those that exist";
                RpcError::new(Reason::ShardNotFound, message)
                    .with("shard", name.as_str())
                    .with_subject("ringq.dev/Shard", format!("shards/{name}"))
            }
            SetShardStateError::LastActive(name) => {
                let message = "no other shard takes new jobs; activate another one first";
                RpcError::new(Reason::LastActiveShard, message)
                    .with("shard", name.as_str())
                    .with_subject("ringq.dev/Shard", format!("shards/{name}"))
            }
            SetShardStateError::Store(error) => error.into(),
        }
    }
}

impl RpcError {
    /// Converts the error of a change of a topic.
    pub(in crate::grpc) fn of_topic(error: TopicChangeError, topic: &TopicName) -> RpcError {
        let refusal = match error {
            DocumentChangeError::Refused(refusal) => refusal,
            DocumentChangeError::NoActiveShard => return EnqueueError::NoActiveShard.into(),
            DocumentChangeError::NoRoom(Some(namespace)) => {
                let subject = format!("namespaces/{namespace}");
                let (kind, retry) = (QuotaKind::TopicSettings, QuotaRetry::Unknown);
                return RpcError::quota_exceeded(&QuotaExceeded { kind, subject, retry });
            }
            DocumentChangeError::NoRoom(None) => {
                let message = format!(
                    "{} topics and patterns have settings and nothing was applied; delete topics, unset their settings, or \
                     give many the settings of one pattern in a file",
                    limit::POLICIES_MAX
                );
                return RpcError::new(Reason::TooManyTopicSettings, message)
                    .with("topic", topic.as_str())
                    .with("limit", limit::POLICIES_MAX.to_string())
                    .with_subject("limit", "topics with settings");
            }
            DocumentChangeError::Shard(error) => return error.into(),
        };
        let failure = match refusal {
            TopicRefusal::NotFound => return RpcError::topic_not_found(topic),
            TopicRefusal::Exists => {
                let message =
                    "the topic exists; change it with UpdateTopic, or choose another name";
                RpcError::new(Reason::TopicExists, message)
            }
            TopicRefusal::EtagMismatch { current } => {
                let message = "the topic has changed since its etag was read; read it again, and decide again";
                RpcError::new(Reason::EtagMismatch, message).with("etag", current)
            }
            TopicRefusal::ReadOnly { name, revision } => {
                let message = match name == TopicPattern::Exact(topic.clone()) {
                    true => format!(
                        "the settings of the topic come from a file of revision {revision}; change the file"
                    ),
                    false => format!(
                        "the settings of the topic come from the pattern {name} in a file of revision {revision}; \
                         change the file, or give the topic a table there"
                    ),
                };
                RpcError::new(Reason::TopicReadOnly, message)
                    .with("revision", revision.to_string())
                    .with("settings_from", name.to_string())
            }
            TopicRefusal::NotEmpty { jobs } => {
                let message = format!("the topic has {jobs} jobs; purge it first, or force");
                RpcError::new(Reason::TopicNotEmpty, message).with("jobs", jobs.to_string())
            }
            TopicRefusal::TooManyGroups => {
                let max = limit::GROUP_SETTINGS_MAX;
                let text = format!(
                    "{max} groups of the topic are paused; resume some, or pause the topic"
                );
                let (field, reason) = ("group".into(), Reason::TooLarge);
                let violation = Violation { field, reason, text, feature: None };
                return RpcError::from(InvalidRequest(vec![violation]));
            }
        };
        failure
            .with("topic", topic.as_str())
            .with_subject("ringq.dev/Topic", format!("topics/{topic}"))
    }
}

impl From<ShardError> for Status {
    fn from(error: ShardError) -> Status {
        RpcError::from(error).into()
    }
}

impl From<EnqueueError> for RpcError {
    fn from(error: EnqueueError) -> RpcError {
        match error {
            EnqueueError::AlreadyExists { key, state, other_job } => {
                let message = if other_job {
                    "the request_id was sent before with another job; send a fresh one for each job and each change"
                } else {
                    "the id is taken; read the job with Get, or ask for another conflict policy"
                };
                RpcError::new(Reason::JobExists, message)
                    .with("state", to_job_state(state).as_str_name())
                    .with_job(&key)
            }
            EnqueueError::DurabilityUnsupported { shard, asked, reached } => {
                let [asked, reached] = [asked, reached].map(|d| to_durability(d).as_str_name());
                let message = format!("shard {shard} reaches {reached}, not {asked}; ask for less");
                RpcError::new(Reason::DurabilityUnsupported, message)
                    .with("shard", shard.as_str())
                    .with("asked", asked)
                    .with("reached", reached)
                    .with_subject("durability", "durability")
            }
            EnqueueError::DurabilityNotReached { asked, id } => {
                let asked = to_durability(asked).as_str_name();
                let message = format!(
                    "{asked} was not confirmed in time and the job may have been written; retry \
                     with the same id"
                );
                RpcError::new(Reason::DurabilityNotReached, message)
                    .with("asked", asked)
                    .with("id", id.as_str())
            }
            EnqueueError::TopicFull(full) => topic_full(&full),
            EnqueueError::NotWritten { key, shard, why } => unwritten(&key, &shard, why),
            EnqueueError::NoSuchShard(shard) => {
                let text = format!("names the shard {shard}, which this server does not have");
                bad_id(text).with("shard", shard.as_str())
            }
            EnqueueError::NoActiveShard => {
                let message = "no shard takes new jobs and nothing was written; ListShards returns their states";
                RpcError::new(Reason::ShardUnavailable, message)
            }
            EnqueueError::Store { error, id } => {
                let failure = RpcError::from(error);
                match id {
                    Some(id) => failure.with("id", id.as_str()),
                    None => failure,
                }
            }
        }
    }
}

/// Returns the error for an id that a server made and that has no record. No retry with it can succeed.
fn unwritten(key: &JobKey, shard: &ShardName, why: NotWrittenReason) -> RpcError {
    let minutes = limit::REPEAT_MAX.as_secs() / 60;
    let failure = match why {
        NotWrittenReason::TooOld => {
            let message = format!(
                "the id is too old to repeat: a server made it {minutes} minutes ago or earlier, nothing was written \
                 now, and shard {shard} has no record whether its job has ended; look for the effect of the job, and \
                 enqueue it without the id if there is none"
            );
            RpcError::new(Reason::OutcomeUnknown, message).without_retry()
        }
        NotWrittenReason::HistoryLost => {
            let message = format!(
                "shard {shard} has no record any more whether the job of this id has ended, and nothing was written \
                 now; look for the effect of the job, and enqueue it without the id if there is none"
            );
            RpcError::new(Reason::OutcomeUnknown, message).without_retry()
        }
        NotWrittenReason::FromFuture => {
            bad_id("was not made by a server: its time is ahead of the clock of the shard".into())
        }
        NotWrittenReason::TopicFull => {
            let topic = key.topic.clone();
            let (has_max_jobs, has_max_stored_bytes, max_job_bytes) = (true, true, None);
            return topic_full(&FullTopic {
                topic,
                has_max_jobs,
                has_max_stored_bytes,
                max_job_bytes,
            });
        }
        NotWrittenReason::Draining => {
            let message = format!(
                "shard {shard} is draining and nothing was written under this id; enqueue the job without it"
            );
            RpcError::new(Reason::ShardDraining, message)
                .with_subject("ringq.dev/Job", key.to_string())
        }
    };
    failure.with("shard", shard.as_str())
}

fn topic_full(full: &FullTopic) -> RpcError {
    if let Some(max) = full.max_job_bytes {
        let message = format!(
            "the job has more than {max} bytes, the part of max_stored_bytes that its shard has, and nothing was written; \
             raise max_stored_bytes"
        );
        return full_error(full, "max_stored_bytes", message).without_retry();
    }
    let (limit, text) = match full {
        FullTopic { has_max_stored_bytes: false, .. } => {
            ("max_jobs", "the topic has as many waiting jobs as max_jobs allows")
        }
        FullTopic { has_max_jobs: false, .. } => (
            "max_stored_bytes",
            "the topic has no room for the bytes of the job below max_stored_bytes",
        ),
        FullTopic { .. } => (
            "max_jobs or max_stored_bytes",
            "the topic has no room for the job below max_jobs and max_stored_bytes",
        ),
    };
    let finished = if full.has_max_stored_bytes { "delete dead and finished jobs, " } else { "" };
    let message = format!(
        "{text}, and nothing was written; retry after the delay in RetryInfo, add workers, {finished}or raise {limit}"
    );
    full_error(full, limit, message)
}

fn full_error(full: &FullTopic, limit: &str, message: String) -> RpcError {
    RpcError::new(Reason::TopicFull, message)
        .with("topic", full.topic.as_str())
        .with_subject("limit", format!("topics/{} {limit}", full.topic))
}

fn bad_id(text: String) -> RpcError {
    let (field, reason) = ("id".into(), Reason::InvalidField);
    RpcError::from(InvalidRequest(vec![Violation { field, reason, text, feature: None }]))
}

impl From<StreamOpenError> for RpcError {
    fn from(error: StreamOpenError) -> RpcError {
        match error {
            StreamOpenError::TooManyStreams { max } => {
                let message = "too many streams are open on this server; close some, or retry after the delay in RetryInfo";
                RpcError::new(Reason::TooManyStreams, message)
                    .with("limit", max.to_string())
                    .with_subject("limit", "streams")
            }
            StreamOpenError::Draining => RpcError::new(
                Reason::Draining,
                "this replica is draining; retry on another connection",
            ),
        }
    }
}

impl From<StreamOpenError> for Status {
    fn from(error: StreamOpenError) -> Status {
        RpcError::from(error).into()
    }
}

/// Returns the id with which a retry of this failed enqueue is safe, if the error has one.
pub(in crate::grpc) fn safe_id(error: &EnqueueError) -> Option<&JobId> {
    match error {
        EnqueueError::AlreadyExists { key, .. } => Some(&key.id),
        EnqueueError::DurabilityNotReached { id, .. } => Some(id),
        EnqueueError::Store { id, .. } => id.as_ref(),
        EnqueueError::DurabilityUnsupported { .. }
        | EnqueueError::NotWritten { .. }
        | EnqueueError::TopicFull(_)
        | EnqueueError::NoSuchShard(_)
        | EnqueueError::NoActiveShard => None,
    }
}
