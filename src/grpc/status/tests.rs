use super::*;
use crate::dispatch::StreamOpenError;
use crate::domain::{Durability, JobId, ShardName};
use crate::scheduler::{EnqueueError, SetShardStateError, ShardError};
use crate::store::{self, NotWrittenReason};

fn key() -> JobKey {
    JobKey { topic: TopicName::stored("t"), id: JobId::stored("i") }
}

fn violation(field: &str) -> Violation {
    Violation {
        field: field.into(),
        reason: Reason::InvalidField,
        text: "must not be empty".into(),
        feature: None,
    }
}

fn store(error: store::Error) -> EnqueueError {
    let error = ShardError::new(&ShardName::try_new("s1").unwrap(), error);
    EnqueueError::Store { error, id: Some(JobId::stored("i")) }
}

fn quota(retry: QuotaRetry) -> RpcError {
    let subject = "identities/shop".to_owned();
    RpcError::quota_exceeded(&QuotaExceeded { kind: QuotaKind::Jobs, subject, retry })
}

#[test]
fn a_quota_names_its_owner_and_the_delay() {
    let delay = Duration::from_millis(1_250);
    let status = Status::from(quota(QuotaRetry::After(delay)));
    let details = status.get_error_details();
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(delay));
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, "identities/shop");
    assert_eq!(details.error_info().unwrap().metadata["quota"], "jobs_per_second");
    let never = Status::from(quota(QuotaRetry::Never)).get_error_details();
    assert!(never.quota_failure().is_some() && never.retry_info().is_none());
}

/// Table of the contract, a row per error that this server has: code, reason, and the details beside ErrorInfo.
#[test]
fn the_table() {
    let secret = || "secret".to_owned();
    let shard = ShardName::try_new("s0").unwrap();
    let unsupported = EnqueueError::DurabilityUnsupported {
        shard: ShardName::try_new("s1").unwrap(),
        asked: Durability::Replicated,
        reached: Durability::Fsynced,
    };
    let exists =
        |other_job| EnqueueError::AlreadyExists { key: key(), state: State::Ready, other_job };
    let unwritten = |why| EnqueueError::NotWritten { key: key(), shard: shard.clone(), why };
    let unconfirmed =
        EnqueueError::DurabilityNotReached { asked: Durability::Fsynced, id: JobId::stored("i") };
    let cases: [(RpcError, &str); 28] = [
        (InvalidRequest(vec![violation("a")]).into(), "InvalidArgument INVALID_FIELD fields"),
        (RpcError::message_too_large(4), "InvalidArgument TOO_LARGE"),
        (RpcError::malformed("x"), "InvalidArgument INVALID_FIELD"),
        (EnqueueError::NoSuchShard(shard.clone()).into(), "InvalidArgument INVALID_FIELD fields"),
        (RpcError::job_not_found(&key()), "NotFound JOB_NOT_FOUND resource"),
        (RpcError::topic_not_found(&TopicName::stored("t")), "NotFound TOPIC_NOT_FOUND resource"),
        (SetShardStateError::NotFound(shard.clone()).into(), "NotFound SHARD_NOT_FOUND resource"),
        (
            SetShardStateError::LastActive(shard.clone()).into(),
            "FailedPrecondition LAST_ACTIVE_SHARD precondition",
        ),
        (exists(false).into(), "AlreadyExists JOB_EXISTS resource"),
        (exists(true).into(), "AlreadyExists JOB_EXISTS resource"),
        (unwritten(NotWrittenReason::TooOld).into(), "Unavailable OUTCOME_UNKNOWN"),
        (unwritten(NotWrittenReason::HistoryLost).into(), "Unavailable OUTCOME_UNKNOWN"),
        (unwritten(NotWrittenReason::FromFuture).into(), "InvalidArgument INVALID_FIELD fields"),
        (
            unwritten(NotWrittenReason::Draining).into(),
            "FailedPrecondition SHARD_DRAINING precondition",
        ),
        (
            RpcError::wrong_state(&key(), State::Running),
            "FailedPrecondition WRONG_JOB_STATE precondition",
        ),
        (unsupported.into(), "FailedPrecondition DURABILITY_UNSUPPORTED precondition"),
        (RpcError::too_many_requests(9), "ResourceExhausted RATE_LIMITED quota retry"),
        (
            StreamOpenError::TooManyStreams { max: 9 }.into(),
            "ResourceExhausted TOO_MANY_STREAMS quota retry",
        ),
        (quota(QuotaRetry::Unknown), "ResourceExhausted QUOTA_EXCEEDED quota retry"),
        (store(store::Error::Full(secret())).into(), "ResourceExhausted STORE_FULL quota retry"),
        (
            store(store::Error::Overloaded(secret())).into(),
            "ResourceExhausted RATE_LIMITED quota retry",
        ),
        (store(store::Error::Unavailable(secret())).into(), "Unavailable SHARD_UNAVAILABLE retry"),
        (StreamOpenError::Draining.into(), "Unavailable DRAINING retry"),
        (store(store::Error::OutcomeUnknown(secret())).into(), "Unavailable OUTCOME_UNKNOWN retry"),
        (unconfirmed.into(), "Unavailable DURABILITY_NOT_REACHED retry"),
        (RpcError::deadline_exceeded(), "DeadlineExceeded DEADLINE_EXCEEDED"),
        (RpcError::internal(), "Internal INTERNAL"),
        (store(store::Error::Corrupt(secret())).into(), "Internal STORE_CORRUPT"),
    ];
    for (failure, expected) in cases {
        assert_eq!(row(failure), expected);
    }
}

/// Returns code, reason and details of an error.
fn row(failure: RpcError) -> String {
    let status = Status::from(failure);
    assert!(!status.message().contains("secret"), "{status:?}");
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!(info.domain, "ringq.dev");
    let pushback = status.metadata().get(RETRY_PUSHBACK).map(|millis| millis.to_str().unwrap());
    let delay = details.retry_info().and_then(|retry| retry.retry_delay);
    assert_eq!(pushback.map(str::to_owned), delay.map(|delay| delay.as_millis().to_string()));
    let mut row = format!("{:?} {}", status.code(), info.reason);
    let present = [
        (details.bad_request().is_some(), " fields"),
        (details.resource_info().is_some(), " resource"),
        (details.precondition_failure().is_some(), " precondition"),
        (details.quota_failure().is_some(), " quota"),
        (details.retry_info().is_some(), " retry"),
    ];
    row.extend(present.iter().filter(|(there, _)| *there).map(|(_, name)| *name));
    row
}

#[test]
fn every_violation_is_reported_first_one_in_the_message() {
    let mut unsupported = violation("job.group");
    unsupported.reason = Reason::FeatureUnsupported;
    unsupported.feature = Some("groups");
    let status = Status::from(InvalidRequest(vec![unsupported, violation("b"), violation("c")]));
    assert_eq!(status.message(), "job.group: must not be empty (and 2 more)");
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((&*info.reason, &*info.metadata["feature"]), ("FEATURE_UNSUPPORTED", "groups"));
    let fields = details.bad_request().unwrap().field_violations.iter();
    assert_eq!(fields.map(|v| &*v.field).collect::<Vec<_>>(), ["job.group", "b", "c"]);
}

/// Details are sent in a header; with more of them than clients accept the client would lose the status.
#[test]
fn the_details_of_the_worst_request_fit_into_a_header() {
    let path = format!("items[999].enqueue[15].retry.{}", "delays[99]");
    let worst = Violation { text: "x".repeat(80), ..violation(&path) };
    let status = Status::from(InvalidRequest(vec![worst; 16_000]));
    let mut headers = http::HeaderMap::new();
    status.add_header(&mut headers).unwrap();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    assert!(bytes < 8 << 10, "{bytes}");
    assert!(status.message().ends_with("(and 15999 more)"));
}

#[test]
fn an_enqueue_of_unknown_outcome_names_the_id_that_makes_a_repeat_safe() {
    let error = store(store::Error::OutcomeUnknown(String::new()));
    assert_eq!(safe_id(&error), Some(&JobId::stored("i")));
    let status = Status::from(RpcError::from(error));
    assert!(status.message().starts_with("shard s1 did not answer in time"), "{status:?}");
    let details = status.get_error_details();
    let metadata = &details.error_info().unwrap().metadata;
    assert_eq!((&*metadata["id"], &*metadata["shard"]), ("i", "s1"));
}

#[test]
fn failed_read_reports_no_unknown_outcome() {
    let text = String::new;
    let errors: [fn(String) -> store::Error; 4] = [
        store::Error::Full,
        store::Error::Unavailable,
        store::Error::OutcomeUnknown,
        store::Error::Corrupt,
    ];
    for error in errors {
        let error = ShardError::new(&ShardName::try_new("s1").unwrap(), error(text()));
        let (read, write) = (RpcError::of_read(error.clone()), RpcError::from(error));
        assert_eq!((read.reason, &read.metadata), (write.reason, &write.metadata));
        let mentions_outcome = |failure: &RpcError| {
            let (what, _) = failure.message.split_once("; ").unwrap();
            ["applied", "written"].iter().any(|word| what.contains(word))
        };
        assert_eq!(
            (mentions_outcome(&read), mentions_outcome(&write)),
            (false, true),
            "{}",
            read.message
        );
    }
}

#[test]
fn a_resource_is_named_as_a_path() {
    let details = Status::from(RpcError::wrong_state(&key(), State::Running)).get_error_details();
    let violation = &details.precondition_failure().unwrap().violations[0];
    assert_eq!((&*violation.r#type, &*violation.subject), ("WRONG_JOB_STATE", "topics/t/jobs/i"));
    assert_eq!(details.error_info().unwrap().metadata["state"], "JOB_STATE_RUNNING");
    let details = Status::from(RpcError::job_not_found(&key())).get_error_details();
    assert_eq!(details.resource_info().unwrap().resource_name, "topics/t/jobs/i");
}

#[test]
fn an_item_has_the_same_vocabulary_with_its_field() {
    let shard = ShardName::try_new("s9").unwrap();
    let item = pb::ItemError::from(RpcError::from(EnqueueError::NoSuchShard(shard.clone())));
    assert_eq!((item.code, &*item.reason, &*item.field), (3, "INVALID_FIELD", "id"));
    let status = Status::from(RpcError::from(EnqueueError::NoSuchShard(shard)).in_field("job"));
    let details = status.get_error_details();
    assert_eq!(details.bad_request().unwrap().field_violations[0].field, "job.id");
    assert!(status.message().starts_with("job.id: "), "{}", status.message());
}
