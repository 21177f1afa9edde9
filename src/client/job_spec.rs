//! What a job should be, said in one chain: `JobSpec::new("emails").with_id("7").with_text("hello")`.

use std::time::Duration;

use bytes::Bytes;

use crate::pb::job_spec::{Expiration, Schedule};
use crate::pb::payload::Kind;
use crate::pb::{JobSpec, Payload, RetryPolicy};

// === impl Payload ===

impl Payload {
    /// Text, usually JSON: what operators and `grpcurl` see as it is.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Payload {
        Payload { kind: Some(Kind::Text(text.into())), content_type: String::new() }
    }

    /// Anything else.
    #[must_use]
    pub fn data(data: impl Into<Bytes>) -> Payload {
        Payload { kind: Some(Kind::Data(data.into())), content_type: String::new() }
    }

    /// The bytes, of either kind.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.kind {
            Some(Kind::Text(text)) => text.as_bytes(),
            Some(Kind::Data(data)) => data,
            None => &[],
        }
    }
}

// === impl JobSpec ===

impl JobSpec {
    /// A job for now, without payload, under the policy of its topic.
    #[must_use]
    pub fn new(topic: impl Into<String>) -> JobSpec {
        JobSpec { topic: topic.into(), ..Default::default() }
    }

    /// The identity inside the topic. With it, a repeated enqueue cannot double the job.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> JobSpec {
        self.id = id.into();
        self
    }

    /// A text as payload, usually JSON.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> JobSpec {
        self.payload = Some(Payload::text(text));
        self
    }

    /// Bytes as payload.
    #[must_use]
    pub fn with_data(mut self, data: impl Into<Bytes>) -> JobSpec {
        self.payload = Some(Payload::data(data));
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> JobSpec {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Runs this long after the server has accepted it, by the server's clock.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> JobSpec {
        self.schedule = Some(Schedule::Delay(to_proto_duration(delay)));
        self
    }

    /// Runs at this time; now, if that has passed.
    #[must_use]
    pub fn with_due(mut self, time: std::time::SystemTime) -> JobSpec {
        self.schedule = Some(Schedule::DueTime(time.into()));
        self
    }

    /// 0 (the default) to 9, which comes first.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> JobSpec {
        self.priority = Some(priority);
        self
    }

    /// How failures are retried.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> JobSpec {
        self.retry = Some(retry);
        self
    }

    /// How long an attempt may go without settling or extending, 1 s to 24 h.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> JobSpec {
        self.lease_duration = Some(to_proto_duration(lease));
        self
    }

    /// How long the finished job, its result and its id are kept.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> JobSpec {
        self.retention = Some(to_proto_duration(retention));
        self
    }

    /// A job that does not run within this time expires.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> JobSpec {
        self.expiration = Some(Expiration::Ttl(to_proto_duration(ttl)));
        self
    }
}

/// A duration as the contract has it; what no server takes is left to the server to refuse.
pub(crate) fn to_proto_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration)
        .unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}
