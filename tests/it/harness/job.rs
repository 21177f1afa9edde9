//! Builders of job specs.

use ringq::pb::{EnqueueRequest, JobSpec, RetryPolicy};

/// Builds a job of this topic with default settings.
pub(crate) fn job(topic: &str) -> JobSpec {
    JobSpec { topic: topic.to_owned(), ..Default::default() }
}

/// Builds an EnqueueRequest with default settings.
pub(crate) fn request(job: JobSpec) -> EnqueueRequest {
    EnqueueRequest { job: Some(job), ..Default::default() }
}

/// Setters for settings that the client library has no builder for.
pub(crate) trait JobExt: Sized {
    fn with_bytes(self, bytes: usize) -> Self;
    fn with_max_attempts(self, max_attempts: i32) -> Self;
}

impl JobExt for JobSpec {
    fn with_bytes(self, bytes: usize) -> Self {
        self.with_data(vec![b'x'; bytes])
    }

    fn with_max_attempts(self, max_attempts: i32) -> Self {
        self.with_retry(RetryPolicy { max_attempts, ..Default::default() })
    }
}
