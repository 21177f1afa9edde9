//! Results of the lines of `--lines`.

use std::time::Duration;

use tonic::Code;

use crate::client::{EnqueueReply, Error, OnRetry, Producer};
use crate::pb::{EnqueueResult, ItemError, JobSpec};

/// Enqueues a batch of jobs within `longest`; returns one answer per job, in order.
pub(super) async fn send_batch(
    producer: &Producer,
    jobs: Vec<JobSpec>,
    longest: Duration,
    on_retry: OnRetry<'_>,
) -> Vec<Result<EnqueueReply, Error>> {
    let count = jobs.len();
    if count == 0 {
        return Vec::new();
    }
    let batch = producer.enqueue_batch_with(jobs, on_retry);
    let answers = tokio::time::timeout(longest, batch).await;
    answers.unwrap_or_else(|_| vec![Err(no_answer_error()); count])
}

/// Returns the error of a job whose outcome is unknown.
pub(super) fn no_answer_error() -> Error {
    tonic::Status::deadline_exceeded("no answer").into()
}

/// Returns the error of a line that is longer than any request.
pub(super) fn too_long_error() -> Error {
    ItemError {
        code: Code::InvalidArgument.into(),
        reason: "TOO_LARGE".to_owned(),
        message: "the line is longer than 4 MiB".to_owned(),
        field: "payload".to_owned(),
    }
    .into()
}

/// Returns whether the error is about this line alone. All other errors hold for the other lines, too, which have the
/// same flags, topic and server.
pub(super) fn is_line_error(error: &Error) -> bool {
    match error.code() {
        Code::AlreadyExists => true,
        Code::InvalidArgument => error.field().is_some_and(|field| {
            let field = field.split_once("].").map_or(field, |(_, field)| field);
            field.starts_with("payload") && field != "payload.content_type"
        }),
        _ => false,
    }
}

/// Returns the JSON row of a line.
pub(super) fn row(answer: &Result<EnqueueReply, Error>) -> EnqueueResult {
    match answer {
        Ok(job) => EnqueueResult {
            id: job.id.clone(),
            outcome: job.outcome.into(),
            due_time: job.due_time.map(Into::into),
            durability: job.durability.into(),
            shard: job.shard.clone(),
            state: job.state.into(),
            error: None,
        },
        Err(error) => EnqueueResult {
            id: error.metadata("id").unwrap_or_default().to_owned(),
            error: Some(ItemError {
                code: error.code().into(),
                reason: error.reason().to_owned(),
                message: error.message().to_owned(),
                field: error.field().unwrap_or_default().to_owned(),
            }),
            ..Default::default()
        },
    }
}
