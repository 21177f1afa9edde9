//! Jobs in few words.

use ringq::pb::{EnqueueRequest, JobSpec, RetryPolicy};

/// A job of this topic that asks for nothing else.
pub(crate) fn job(topic: &str) -> JobSpec {
    JobSpec { topic: topic.to_owned(), ..Default::default() }
}

/// A request to enqueue it that asks for nothing else.
pub(crate) fn request(job: JobSpec) -> EnqueueRequest {
    EnqueueRequest { job: Some(job), ..Default::default() }
}

/// What tests ask for beyond what the client library has words for.
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
