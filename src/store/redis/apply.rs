//! Implements [`Store::apply`](crate::store::Store::apply): carries out each command on its path, in the order of the
//! call. The engine handles commands that no fast path may handle (`optimistic_commit.rs`).

use crate::domain::engine::{Command, WritePrecondition};
use crate::domain::limit;
use crate::store::{Error, JobRequest, RequestResult, Result};

use super::connections::RedisConnection;
use super::durability_wait::DurabilityWait;
use super::{RedisStore, error_mapping};

/// Path on which a command is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandPath {
    /// Script that writes jobs whose ids are free, then the engine (`enqueue.rs`).
    Enqueue,
    /// Engine alone: the job may have been written before, or has parts that a new job does not have.
    RepeatedEnqueue,
    /// Script that ends leases that leave nothing or a tombstone, then the engine (`settle.rs`).
    Settle,
    /// Script that moves deadlines, then the engine (`leases.rs`).
    Extend,
    /// Script that detaches leases and ties them to other streams (`leases.rs`).
    LeaseStream,
    /// Engine.
    Engine,
}

/// Results of the commands of a call so far.
pub(super) struct ApplyResults {
    results: Vec<Result<RequestResult>>,
    /// Error after which the rest is not tried.
    stopped: Option<String>,
}

// === impl CommandPath ===

impl CommandPath {
    fn for_request(request: &JobRequest) -> CommandPath {
        match &request.command {
            Command::Enqueue(new)
                if new.precondition == WritePrecondition::SameJob || new.history.is_some() =>
            {
                CommandPath::RepeatedEnqueue
            }
            Command::Enqueue(_) => CommandPath::Enqueue,
            Command::Settle(_) => CommandPath::Settle,
            Command::Extend(_) => CommandPath::Extend,
            Command::Detach { .. } | Command::Adopt(_) => CommandPath::LeaseStream,
            _ => CommandPath::Engine,
        }
    }
}

// === impl ApplyResults ===

impl ApplyResults {
    pub(super) fn with_capacity(requests: usize) -> ApplyResults {
        ApplyResults { results: Vec::with_capacity(requests), stopped: None }
    }

    /// Returns whether to skip these commands because the shard did not answer earlier ones; adds their errors.
    pub(super) fn skips(&mut self, requests: usize) -> bool {
        let Some(error) = &self.stopped else { return false };
        let error = Error::Unavailable(format!("not tried after an earlier failure: {error}"));
        self.results.extend((0..requests).map(|_| Err(error.clone())));
        true
    }

    pub(super) fn add(&mut self, answers: Vec<Result<RequestResult>>) {
        let is_of_shard =
            |answer: &Result<RequestResult>| answer.as_ref().is_err_and(Error::is_shard_failure);
        if answers.iter().all(is_of_shard)
            && let Some(Err(error)) = answers.first()
        {
            self.stopped = Some(error.to_string());
        }
        self.results.extend(answers);
    }

    pub(super) fn into_vec(self) -> Vec<Result<RequestResult>> {
        self.results
    }
}

impl RedisStore {
    /// Implements [`Store::apply`](crate::store::Store::apply).
    pub(super) async fn apply(&self, requests: Vec<JobRequest>) -> Vec<Result<RequestResult>> {
        let requests: Vec<&JobRequest> = requests.iter().collect();
        let asked = requests.iter().filter_map(|request| request.durability).max();
        match asked.and_then(|asked| self.shard.status.wait_for(asked)) {
            None => self.apply_on(None, &requests).await,
            Some(wait) => match self.apply_and_wait(&requests, wait).await {
                Ok(answers) => answers,
                Err(error) => all_failed(requests.len(), &error),
            },
        }
    }

    /// Applies the commands and waits until their writes have the requested durability, or for the time limit.
    async fn apply_and_wait(
        &self,
        requests: &[&JobRequest],
        wait: DurabilityWait,
    ) -> Result<Vec<Result<RequestResult>>> {
        let _permit = self.permit().await?;
        let mut connection = self.shard.dedicated_connection().await?;
        // The connection may lead to another process than the one for which `wait` was computed.
        let still = requests.iter().filter_map(|request| request.durability).max();
        if still.and_then(|asked| self.shard.status.wait_for(asked)) != Some(wait) {
            let text = "redis was replaced or reconfigured; its durability is checked, retry";
            return Err(Error::Unavailable(text.to_owned()));
        }
        let mut answers = self.apply_on(Some(&mut connection), requests).await;
        if answers.iter().any(|answer| answer.as_ref().is_err_and(Error::outcome_unknown)) {
            drop(deadpool_redis::Connection::take(connection));
            return Ok(answers);
        }
        if answers.iter().all(Result::is_err) {
            return Ok(answers);
        }
        // A retry may find what another connection wrote a moment ago, and write nothing.
        let reached = match self.shard.write_and_check_name(&mut connection).await {
            Ok(()) => {
                wait.confirm(&mut connection).await.map_err(|error| error_mapping::text(&error))
            }
            Err(error) => Err(error.to_string()),
        };
        match reached {
            Ok(Some(reached)) => {
                answers.iter_mut().flatten().for_each(|answer| answer.durability = reached);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    shard = %self.identity.name, error,
                    "cannot confirm the durability of a write; the reply states the default durability"
                );
                drop(deadpool_redis::Connection::take(connection));
            }
        }
        Ok(answers)
    }

    /// Applies by a dedicated connection, or else by the shared ones.
    async fn apply_on(
        &self,
        mut connection: Option<&mut RedisConnection>,
        requests: &[&JobRequest],
    ) -> Vec<Result<RequestResult>> {
        let mut answers = ApplyResults::with_capacity(requests.len());
        for part in split_by_path(requests) {
            if answers.skips(part.len()) {
                continue;
            }
            let way = CommandPath::for_request(part[0]);
            let admitted = match way {
                CommandPath::Enqueue | CommandPath::RepeatedEnqueue => {
                    self.shard.status.admit_jobs()
                }
                CommandPath::Settle
                | CommandPath::Extend
                | CommandPath::LeaseStream
                | CommandPath::Engine => Ok(()),
            };
            answers.add(match (admitted, way) {
                (Err(error), _) => all_failed(part.len(), &error),
                (Ok(()), CommandPath::Enqueue) => {
                    self.enqueue(connection.as_deref_mut(), part).await
                }
                (Ok(()), CommandPath::Settle) => self.settle(part).await,
                (Ok(()), CommandPath::Extend) => self.extend(part).await,
                (Ok(()), CommandPath::LeaseStream) => match self.change_lease_streams(part).await {
                    Ok(tied) => tied.into_iter().map(Ok).collect(),
                    Err(error) => all_failed(part.len(), &error),
                },
                (Ok(()), CommandPath::RepeatedEnqueue | CommandPath::Engine) => {
                    self.decide(part).await
                }
            });
        }
        answers.into_vec()
    }
}

/// Returns the error once for each request.
fn all_failed(requests: usize, error: &Error) -> Vec<Result<RequestResult>> {
    (0..requests).map(|_| Err(error.clone())).collect()
}

/// Splits commands into groups of one path each, limited to the size of a call.
fn split_by_path<'a, 'r>(
    requests: &'a [&'r JobRequest],
) -> impl Iterator<Item = &'a [&'r JobRequest]> {
    let mut rest = requests;
    std::iter::from_fn(move || {
        let (way, mut jobs, mut bytes) = (CommandPath::for_request(rest.first()?), 0, 0);
        let fits = |request: &&&JobRequest| {
            let is_first = jobs == 0;
            (jobs, bytes) = (jobs + request.command.jobs(), bytes + request.bytes());
            let has_room = jobs <= limit::CALL_JOBS_MAX && bytes <= limit::CALL_BYTES_MAX;
            is_first || has_room && CommandPath::for_request(request) == way
        };
        let (part, behind) = rest.split_at(rest.iter().take_while(fits).count());
        rest = behind;
        Some(part)
    })
}
