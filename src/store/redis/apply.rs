//! Implements [`Store::apply`](crate::store::Store::apply): carries out each command on its path, in the order of the
//! call. The engine handles commands that no fast path may handle (`optimistic_commit.rs`).

use tokio::sync::SemaphorePermit;

use crate::domain::engine::{Command, WritePrecondition};
use crate::domain::limit;
use crate::store::{Error, JobRequest, RequestResult, Result};

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
    /// Implements [`Store::apply`](crate::store::Store::apply). Where a command requests a durability that takes a wait, all
    /// are written by a connection of their own, and waited for.
    pub(super) async fn apply(&self, requests: Vec<JobRequest>) -> Vec<Result<RequestResult>> {
        let requests: Vec<&JobRequest> = requests.iter().collect();
        let wait = self.wait_for(&requests);
        let mut dedicated = None;
        if let Some(wait) = wait {
            match self.dedicated_connection(&requests, wait).await {
                Ok(opened) => dedicated = Some(opened),
                Err(error) => return all_failed(requests.len(), &error),
            }
        }
        let mut answers = ApplyResults::with_capacity(requests.len());
        for part in split_by_path(&requests) {
            if answers.skips(part.len()) {
                continue;
            }
            let path = CommandPath::for_request(part[0]);
            answers.add(match (self.admit(path), path) {
                (Err(error), _) => all_failed(part.len(), &error),
                (Ok(()), CommandPath::Enqueue) => {
                    let own = dedicated.as_mut().map(|(_, connection)| &mut **connection);
                    self.enqueue(own, part).await
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
        let answers = answers.into_vec();
        match dedicated.zip(wait) {
            None => answers,
            Some(((_permit, connection), wait)) => self.confirm(connection, wait, answers).await,
        }
    }

    /// Returns the wait for the highest durability that these commands request, if one is needed.
    fn wait_for(&self, requests: &[&JobRequest]) -> Option<DurabilityWait> {
        let asked = requests.iter().filter_map(|request| request.durability).max()?;
        self.shard.status.wait_for(asked)
    }

    /// Returns a connection of their own for commands that wait for `wait`.
    async fn dedicated_connection(
        &self,
        requests: &[&JobRequest],
        wait: DurabilityWait,
    ) -> Result<(SemaphorePermit<'_>, deadpool_redis::Connection)> {
        let permit = self.shard.permit().await?;
        let connection = self.shard.dedicated_connection().await?;
        // The connection may lead to another process than the one for which `wait` was computed.
        if self.wait_for(requests) != Some(wait) {
            let text = "redis was replaced or reconfigured; its durability is checked, retry";
            return Err(Error::Unavailable(text.to_owned()));
        }
        Ok((permit, connection))
    }

    /// Returns an error if the shard takes no new jobs, for commands that write some.
    fn admit(&self, path: CommandPath) -> Result<()> {
        match path {
            CommandPath::Enqueue | CommandPath::RepeatedEnqueue => self.shard.status.admit_jobs(),
            CommandPath::Settle
            | CommandPath::Extend
            | CommandPath::LeaseStream
            | CommandPath::Engine => Ok(()),
        }
    }

    /// Waits until the writes of `connection` have the requested durability, or for the time limit, and stores in the
    /// answers what was reached.
    async fn confirm(
        &self,
        mut connection: deadpool_redis::Connection,
        wait: DurabilityWait,
        mut answers: Vec<Result<RequestResult>>,
    ) -> Vec<Result<RequestResult>> {
        if answers.iter().any(|answer| answer.as_ref().is_err_and(Error::outcome_unknown)) {
            drop(deadpool_redis::Connection::take(connection));
            return answers;
        }
        if answers.iter().all(Result::is_err) {
            return answers;
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
        answers
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
