//! Builders of jobs: `JobSpec::new("emails").with_id("7").with_text("hello")`.

use std::time::Duration;

use bytes::Bytes;

use crate::pb::job_spec::{Expiration, Schedule};
use crate::pb::payload::Kind;
use crate::pb::{JobSpec, Payload, RetryPolicy};

// === impl Payload ===

impl Payload {
    /// Creates a text payload, usually JSON, which operators and `grpcurl` can read.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Payload {
        Payload { kind: Some(Kind::Text(text.into())), content_type: String::new() }
    }

    /// Creates a payload of any other bytes.
    #[must_use]
    pub fn data(data: impl Into<Bytes>) -> Payload {
        Payload { kind: Some(Kind::Data(data.into())), content_type: String::new() }
    }

    /// Returns the bytes, of either kind.
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
    /// Creates a job that is due now, without payload, under the policy of its topic.
    #[must_use]
    pub fn new(topic: impl Into<String>) -> JobSpec {
        JobSpec { topic: topic.into(), ..Default::default() }
    }

    /// Sets the identity inside the topic. With it, a repeated enqueue cannot create the job twice.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> JobSpec {
        self.id = id.into();
        self
    }

    /// Sets a text payload, usually JSON.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> JobSpec {
        self.payload = Some(Payload::text(text));
        self
    }

    /// Sets a payload of bytes.
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

    /// Sets the delay from the time at which the server accepts the job, by the server's clock.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> JobSpec {
        self.schedule = Some(Schedule::Delay(to_proto_duration(delay)));
        self
    }

    /// Sets the due time; a time in the past means now.
    #[must_use]
    pub fn with_due(mut self, time: std::time::SystemTime) -> JobSpec {
        self.schedule = Some(Schedule::DueTime(time.into()));
        self
    }

    /// Sets the group: a tenant, a customer. Groups of a topic take turns.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<String>) -> JobSpec {
        self.group = group.into();
        self
    }

    /// Sets the priority, 0 (the default) to 9, which comes first.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> JobSpec {
        self.priority = Some(priority);
        self
    }

    /// Sets the retry policy.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> JobSpec {
        self.retry = Some(retry);
        self
    }

    /// Sets the lease: time without settle or extend after which the server takes the job back, 1 s to 24 h.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> JobSpec {
        self.lease_duration = Some(to_proto_duration(lease));
        self
    }

    /// Sets how long the finished job, its result and its id are kept.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> JobSpec {
        self.retention = Some(to_proto_duration(retention));
        self
    }

    /// Sets the ttl: a job that does not run within this time expires.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> JobSpec {
        self.expiration = Some(Expiration::Ttl(to_proto_duration(ttl)));
        self
    }
}

/// Converts a duration; one that is too large is left to the server to reject.
pub(crate) fn to_proto_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration)
        .unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}
