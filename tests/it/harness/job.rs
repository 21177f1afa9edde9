//! Jobs in few words.

use std::time::Duration;

use ringq::pb::job_spec::{Expiration, Schedule};
use ringq::pb::payload::Kind;
use ringq::pb::{EnqueueRequest, JobSpec, Payload, RetryPolicy};

use super::proto;

/// A job of this topic that asks for nothing else.
pub(crate) fn job(topic: &str) -> JobSpec {
    JobSpec { topic: topic.to_owned(), ..Default::default() }
}

/// A request to enqueue it that asks for nothing else.
pub(crate) fn request(job: JobSpec) -> EnqueueRequest {
    EnqueueRequest { job: Some(job), ..Default::default() }
}

/// What a job asks for, one thing at a time.
pub(crate) trait JobExt: Sized {
    fn with_id(self, id: &str) -> Self;
    fn with_text(self, text: &str) -> Self;
    fn with_bytes(self, bytes: usize) -> Self;
    fn with_header(self, name: &str, value: &str) -> Self;
    fn with_delay(self, delay: Duration) -> Self;
    fn with_ttl(self, ttl: Duration) -> Self;
    fn with_lease(self, lease: Duration) -> Self;
    fn with_retention(self, retention: Duration) -> Self;
    fn with_priority(self, priority: i32) -> Self;
    fn with_retry(self, retry: RetryPolicy) -> Self;
    fn with_max_attempts(self, max_attempts: i32) -> Self;
}

impl JobExt for JobSpec {
    fn with_id(mut self, id: &str) -> Self {
        self.id = id.to_owned();
        self
    }

    fn with_text(mut self, text: &str) -> Self {
        let kind = Some(Kind::Text(text.to_owned()));
        self.payload = Some(Payload { kind, ..Default::default() });
        self
    }

    fn with_bytes(mut self, bytes: usize) -> Self {
        let kind = Some(Kind::Data(vec![b'x'; bytes].into()));
        self.payload = Some(Payload { kind, ..Default::default() });
        self
    }

    fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_owned(), value.to_owned());
        self
    }

    fn with_delay(mut self, delay: Duration) -> Self {
        self.schedule = Some(Schedule::Delay(proto(delay)));
        self
    }

    fn with_ttl(mut self, ttl: Duration) -> Self {
        self.expiration = Some(Expiration::Ttl(proto(ttl)));
        self
    }

    fn with_lease(mut self, lease: Duration) -> Self {
        self.lease_duration = Some(proto(lease));
        self
    }

    fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = Some(proto(retention));
        self
    }

    fn with_priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    fn with_max_attempts(self, max_attempts: i32) -> Self {
        self.with_retry(RetryPolicy { max_attempts, ..Default::default() })
    }
}
