//! The answers to lines, and what they say about other lines.

use std::time::Duration;

use tonic::Code;

use crate::client::{Enqueued, Error, Producer, Repeats};
use crate::pb::{EnqueueResult, ItemError, JobSpec};

/// Sends jobs in one call, and waits no longer than that.
pub(super) async fn answers(
    producer: &Producer,
    jobs: Vec<JobSpec>,
    longest: Duration,
    repeats: &Repeats<'_>,
) -> Vec<Result<Enqueued, Error>> {
    let count = jobs.len();
    if count == 0 {
        return Vec::new();
    }
    let batch = producer.enqueue_batch_with(jobs, repeats);
    let answers = tokio::time::timeout(longest, batch).await;
    answers.unwrap_or_else(|_| vec![Err(no_answer()); count])
}

/// Nobody knows what became of a job.
pub(super) fn no_answer() -> Error {
    tonic::Status::deadline_exceeded("no answer").into()
}

/// A line that no server takes.
pub(super) fn too_long() -> Error {
    ItemError {
        code: Code::InvalidArgument.into(),
        reason: "TOO_LARGE".to_owned(),
        message: "the line is longer than 4 MiB".to_owned(),
        field: "payload".to_owned(),
    }
    .into()
}

/// Whether only this line is to blame. Everything else holds for the other lines, too: they have the
/// same flags, go to the same topic and meet the same server.
pub(super) fn is_of_the_line(error: &Error) -> bool {
    match error.code() {
        Code::AlreadyExists => true,
        Code::InvalidArgument => error.field().is_some_and(|field| {
            let field = field.split_once("].").map_or(field, |(_, field)| field);
            field.starts_with("payload") && field != "payload.content_type"
        }),
        _ => false,
    }
}

/// Whether the server itself does not know what became of this line, because of the shard that it was
/// for: others may go elsewhere.
pub(super) fn is_in_doubt(error: &Error) -> bool {
    error.outcome_unknown() && matches!(error.reason(), "OUTCOME_UNKNOWN" | "SHARD_UNAVAILABLE")
}

/// Whether this line surely is not in because of the shard that it is for: others may go elsewhere.
pub(super) fn is_left_out(error: &Error) -> bool {
    error.reason() == "SHARD_UNAVAILABLE" && !error.outcome_unknown()
}

/// What JSON says of a line.
pub(super) fn row(answer: &Result<Enqueued, Error>) -> EnqueueResult {
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
