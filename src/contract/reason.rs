//! Stable reasons of the contract, their codes, and delays before a retry: the rows of the table at `ItemError` that
//! this server uses.

use std::time::Duration;

use tonic::Code;

/// Reason of a failure: the stable part of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// A field has a value that is not allowed.
    InvalidField,
    /// A limit on a size or a count is exceeded.
    TooLarge,
    /// A field needs a feature that this server does not have.
    FeatureUnsupported,
    /// There is no such job.
    JobNotFound,
    /// There is no such topic.
    TopicNotFound,
    /// There is no such shard.
    ShardNotFound,
    /// The call proves no identity.
    Unauthenticated,
    /// The keys that the caller's JSON Web Token is checked with could not be fetched.
    KeysUnavailable,
    /// The identity has no right to the call.
    PermissionDenied,
    /// The id is taken.
    JobExists,
    /// There is such a topic.
    TopicExists,
    /// The settings of the topic come from a file.
    TopicReadOnly,
    /// The topic has jobs.
    TopicNotEmpty,
    /// The policy of the topic has changed since it was read.
    EtagMismatch,
    /// The state of the job does not allow the call.
    WrongJobState,
    /// The shard cannot reach the requested durability.
    DurabilityUnsupported,
    /// No other shard takes new jobs.
    LastActiveShard,
    /// The requested durability was not confirmed in time; the job may have been written.
    DurabilityNotReached,
    /// Too many requests are in flight.
    RateLimited,
    /// Too many streams are open.
    TooManyStreams,
    /// The topic has as many waiting jobs as it may have; nothing was applied.
    TopicFull,
    /// A quota of the caller or of a namespace is used up; nothing was applied.
    QuotaExceeded,
    /// As many topics have settings as may have; nothing was applied.
    TooManyTopicSettings,
    /// The store has no room.
    StoreFull,
    /// The shard does not answer; nothing was applied.
    ShardUnavailable,
    /// Other servers changed the job each time before it could be written; nothing was applied.
    Contention,
    /// The shard that the id names takes no new jobs; nothing was applied.
    ShardDraining,
    /// This replica is draining; nothing was applied.
    Draining,
    /// The call may have been applied.
    OutcomeUnknown,
    /// The caller's deadline passed.
    DeadlineExceeded,
    /// The server has an internal error.
    Internal,
    /// The store contains data that cannot be read.
    StoreCorrupt,
}

// === impl Reason ===

impl Reason {
    /// Returns the name in the contract.
    pub(crate) fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the code.
    pub(crate) fn code(self) -> Code {
        self.row().1
    }

    /// Returns the delay before a retry, where one can succeed: as long as the cause usually lasts.
    pub(crate) fn retry_delay(self) -> Option<Duration> {
        self.row().2
    }

    /// Returns whether a failure with this reason names a shard that exists. With another reason the caller may have
    /// made up the name.
    pub(crate) fn is_shard_reason(name: &str) -> bool {
        let reasons = [
            Reason::DurabilityUnsupported,
            Reason::LastActiveShard,
            Reason::StoreFull,
            Reason::ShardUnavailable,
            Reason::Contention,
            Reason::ShardDraining,
            Reason::OutcomeUnknown,
            Reason::StoreCorrupt,
        ];
        reasons.iter().any(|reason| reason.name() == name)
    }

    /// Returns the row of the table at `ItemError`.
    fn row(self) -> (&'static str, Code, Option<Duration>) {
        let after = |millis| Some(Duration::from_millis(millis));
        match self {
            Reason::InvalidField => ("INVALID_FIELD", Code::InvalidArgument, None),
            Reason::TooLarge => ("TOO_LARGE", Code::InvalidArgument, None),
            Reason::FeatureUnsupported => ("FEATURE_UNSUPPORTED", Code::InvalidArgument, None),
            Reason::JobNotFound => ("JOB_NOT_FOUND", Code::NotFound, None),
            Reason::TopicNotFound => ("TOPIC_NOT_FOUND", Code::NotFound, None),
            Reason::ShardNotFound => ("SHARD_NOT_FOUND", Code::NotFound, None),
            Reason::Unauthenticated => ("UNAUTHENTICATED", Code::Unauthenticated, None),
            Reason::KeysUnavailable => ("KEYS_UNAVAILABLE", Code::Unavailable, after(2_000)),
            Reason::PermissionDenied => ("PERMISSION_DENIED", Code::PermissionDenied, None),
            Reason::JobExists => ("JOB_EXISTS", Code::AlreadyExists, None),
            Reason::TopicExists => ("TOPIC_EXISTS", Code::AlreadyExists, None),
            Reason::TopicReadOnly => ("TOPIC_READ_ONLY", Code::FailedPrecondition, None),
            Reason::TopicNotEmpty => ("TOPIC_NOT_EMPTY", Code::FailedPrecondition, None),
            Reason::EtagMismatch => ("ETAG_MISMATCH", Code::Aborted, None),
            Reason::WrongJobState => ("WRONG_JOB_STATE", Code::FailedPrecondition, None),
            Reason::DurabilityUnsupported => {
                ("DURABILITY_UNSUPPORTED", Code::FailedPrecondition, None)
            }
            Reason::LastActiveShard => ("LAST_ACTIVE_SHARD", Code::FailedPrecondition, None),
            Reason::DurabilityNotReached => {
                ("DURABILITY_NOT_REACHED", Code::Unavailable, after(1_000))
            }
            Reason::RateLimited => ("RATE_LIMITED", Code::ResourceExhausted, after(100)),
            Reason::TooManyStreams => ("TOO_MANY_STREAMS", Code::ResourceExhausted, after(2_000)),
            Reason::TopicFull => ("TOPIC_FULL", Code::ResourceExhausted, after(1_000)),
            Reason::QuotaExceeded => ("QUOTA_EXCEEDED", Code::ResourceExhausted, after(1_000)),
            Reason::TooManyTopicSettings => {
                ("TOO_MANY_TOPIC_SETTINGS", Code::ResourceExhausted, None)
            }
            Reason::StoreFull => ("STORE_FULL", Code::ResourceExhausted, after(5_000)),
            Reason::ShardUnavailable => ("SHARD_UNAVAILABLE", Code::Unavailable, after(1_000)),
            Reason::Contention => ("CONTENTION", Code::Unavailable, after(100)),
            Reason::ShardDraining => ("SHARD_DRAINING", Code::FailedPrecondition, None),
            Reason::Draining => ("DRAINING", Code::Unavailable, after(100)),
            Reason::OutcomeUnknown => ("OUTCOME_UNKNOWN", Code::Unavailable, after(500)),
            Reason::DeadlineExceeded => ("DEADLINE_EXCEEDED", Code::DeadlineExceeded, None),
            Reason::Internal => ("INTERNAL", Code::Internal, None),
            Reason::StoreCorrupt => ("STORE_CORRUPT", Code::Internal, None),
        }
    }
}

/// Returns the name of a code as the protocol spells it.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::iter::successors;

    use prost::Message as _;
    use prost_types::{FileDescriptorProto, FileDescriptorSet};

    use super::*;

    /// Reasons of the contract for features which this server does not have.
    const NOT_YET: [&str; 3] = ["HTTP_TOPIC", "RESUME_TOKEN_EXPIRED", "STORE_NOT_REPLICATED"];

    /// Returns every reason. The compiler reports one that is missing here.
    fn all() -> Vec<Reason> {
        let next = |reason: &Reason| match reason {
            Reason::InvalidField => Some(Reason::TooLarge),
            Reason::TooLarge => Some(Reason::FeatureUnsupported),
            Reason::FeatureUnsupported => Some(Reason::JobNotFound),
            Reason::JobNotFound => Some(Reason::TopicNotFound),
            Reason::TopicNotFound => Some(Reason::ShardNotFound),
            Reason::ShardNotFound => Some(Reason::Unauthenticated),
            Reason::Unauthenticated => Some(Reason::KeysUnavailable),
            Reason::KeysUnavailable => Some(Reason::PermissionDenied),
            Reason::PermissionDenied => Some(Reason::JobExists),
            Reason::JobExists => Some(Reason::TopicExists),
            Reason::TopicExists => Some(Reason::TopicReadOnly),
            Reason::TopicReadOnly => Some(Reason::TopicNotEmpty),
            Reason::TopicNotEmpty => Some(Reason::EtagMismatch),
            Reason::EtagMismatch => Some(Reason::WrongJobState),
            Reason::WrongJobState => Some(Reason::DurabilityUnsupported),
            Reason::DurabilityUnsupported => Some(Reason::LastActiveShard),
            Reason::LastActiveShard => Some(Reason::DurabilityNotReached),
            Reason::DurabilityNotReached => Some(Reason::RateLimited),
            Reason::RateLimited => Some(Reason::TooManyStreams),
            Reason::TooManyStreams => Some(Reason::TopicFull),
            Reason::TopicFull => Some(Reason::QuotaExceeded),
            Reason::QuotaExceeded => Some(Reason::TooManyTopicSettings),
            Reason::TooManyTopicSettings => Some(Reason::StoreFull),
            Reason::StoreFull => Some(Reason::ShardUnavailable),
            Reason::ShardUnavailable => Some(Reason::Contention),
            Reason::Contention => Some(Reason::ShardDraining),
            Reason::ShardDraining => Some(Reason::Draining),
            Reason::Draining => Some(Reason::OutcomeUnknown),
            Reason::OutcomeUnknown => Some(Reason::DeadlineExceeded),
            Reason::DeadlineExceeded => Some(Reason::Internal),
            Reason::Internal => Some(Reason::StoreCorrupt),
            Reason::StoreCorrupt => None,
        };
        successors(Some(Reason::InvalidField), next).collect()
    }

    fn contract() -> Vec<FileDescriptorProto> {
        let files = FileDescriptorSet::decode(crate::pb::FILE_DESCRIPTOR_SET).unwrap().file;
        files.into_iter().filter(|file| file.package() == "ringq.v1").collect()
    }

    /// Returns the comments of a file, each on one line.
    fn comments(file: &FileDescriptorProto) -> Vec<&str> {
        let places = &file.source_code_info.as_ref().unwrap().location;
        places.iter().filter_map(|place| place.leading_comments.as_deref()).collect()
    }

    /// Returns whether the comment has the table.
    fn is_table(comment: &str) -> bool {
        comment.contains("| Code | Reason | What to do |")
    }

    /// Returns the table of the contract: code and advice by reason.
    fn table() -> BTreeMap<String, (String, String)> {
        let files = contract();
        let tables: Vec<_> = files.iter().flat_map(comments).filter(|c| is_table(c)).collect();
        let [table] = tables[..] else { panic!("{} tables", tables.len()) };
        let rows = table.lines().filter_map(|line| line.trim().strip_prefix("| "));
        let rows = rows.filter_map(|row| {
            let cells: Vec<_> = row.trim_end_matches('|').split(" | ").map(str::trim).collect();
            let [code, reason, what] = cells[..] else { panic!("{row}") };
            let row = (reason.to_owned(), (code.to_owned(), what.to_owned()));
            is_name(code).then_some(row)
        });
        rows.collect()
    }

    /// Returns whether the word is UPPER_SNAKE_CASE.
    fn is_name(word: &str) -> bool {
        word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    }

    #[test]
    fn every_reason_is_a_row_of_the_contract() {
        let mut table = table();
        for reason in all() {
            let row = table.remove(reason.name());
            let (code, what) = row.unwrap_or_else(|| panic!("{} is no row", reason.name()));
            assert_eq!(code, code_name(reason.code()), "{}", reason.name());
            assert!(!what.is_empty());
            let waits = what.contains("RetryInfo");
            assert!(!waits || reason.retry_delay().is_some(), "{}: {what}", reason.name());
        }
        assert_eq!(table.keys().map(String::as_str).collect::<Vec<_>>(), NOT_YET);
    }

    /// Returns the values of all enumerations, with the prefix that they share and without it.
    fn values() -> BTreeSet<String> {
        let files = contract();
        let enums = files.iter().flat_map(|file| &file.enum_type);
        let names = enums.flat_map(|e| {
            let zero = e.value[0].name().strip_suffix("UNSPECIFIED").unwrap();
            e.value.iter().flat_map(move |value| [value.name(), &value.name()[zero.len()..]])
        });
        names.map(str::to_owned).collect()
    }

    /// Each reason in another comment is one of the table and stands behind its own code.
    #[test]
    fn comments_name_no_reason_that_the_table_does_not_have() {
        let (table, values, files) = (table(), values(), contract());
        let codes = (0..=16).map(|code| code_name(Code::from_i32(code)));
        let codes: BTreeSet<_> = codes.collect();
        let mut named = BTreeSet::new();
        // The reasons why a job does not run have a vocabulary of their own, which is described there.
        let others = |comment: &&str| !is_table(comment) && !comment.contains("Stable: NOT_DUE");
        for comment in files.iter().flat_map(comments).filter(others) {
            for clause in comment.split([';', '.']) {
                let mut code = None;
                let words = clause.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                for word in words.filter(|word| is_name(word)) {
                    if codes.contains(word) {
                        code = Some(word);
                    } else if let Some((its, _)) = table.get(word) {
                        assert!(code.is_none_or(|code| code == its), "{word} in: {clause}");
                        named.insert(word.to_owned());
                    } else {
                        let known = values.contains(word) || word == "UPPER_SNAKE_CASE";
                        assert!(known || !word.contains('_'), "{word} in: {clause}");
                    }
                }
            }
        }
        assert!(named.len() > 12, "{named:?}");
    }
}
