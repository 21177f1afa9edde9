//! [`Store::apply`](crate::store::Store::apply): each command goes the way that is its own, in the order of the call. What
//! no fast path may do is left to the engine (`rounds.rs`).

use crate::domain::engine::{Command, Prior};
use crate::domain::limit;
use crate::store::{Applied, Error, Request, Result};

use super::link::Connection;
use super::wait::Wait;
use super::{RedisStore, fault};

/// How a command is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the script that writes jobs whose ids are free, and then by the engine (`enqueue.rs`).
    Enqueue,
    /// By the engine: the job may have been written before, or has what a new job has not.
    EnqueueAgain,
    /// By the script that ends leases of which nothing or a tombstone is left, and then by the engine (`settle.rs`).
    Settle,
    /// By the script that moves deadlines, and then by the engine (`leases.rs`).
    Extend,
    /// By the script that detaches leases and ties them to other streams (`leases.rs`).
    Tie,
    /// By the engine.
    Engine,
}

/// What became of the commands of a call so far.
pub(super) struct Answers {
    answers: Vec<Result<Applied>>,
    /// Why the rest is not tried.
    stopped: Option<String>,
}

// === impl Way ===

impl Way {
    fn of(request: &Request) -> Way {
        match &request.command {
            Command::Enqueue(new) if new.prior == Prior::Itself || new.checkpoint.is_some() => {
                Way::EnqueueAgain
            }
            Command::Enqueue(_) => Way::Enqueue,
            Command::Settle(_) => Way::Settle,
            Command::Extend(_) => Way::Extend,
            Command::Detach { .. } | Command::Adopt(_) => Way::Tie,
            _ => Way::Engine,
        }
    }
}

// === impl Answers ===

impl Answers {
    pub(super) fn of(requests: usize) -> Answers {
        Answers { answers: Vec::with_capacity(requests), stopped: None }
    }

    /// Whether these are not tried any more, because the shard did not answer those before.
    pub(super) fn skips(&mut self, requests: usize) -> bool {
        let Some(error) = &self.stopped else { return false };
        let error = Error::Unavailable(format!("not tried: {error}"));
        self.answers.extend((0..requests).map(|_| Err(error.clone())));
        true
    }

    pub(super) fn add(&mut self, answers: Vec<Result<Applied>>) {
        let is_of_shard = |answer: &Result<Applied>| answer.as_ref().is_err_and(Error::is_of_shard);
        if answers.iter().all(is_of_shard)
            && let Some(Err(error)) = answers.first()
        {
            self.stopped = Some(error.to_string());
        }
        self.answers.extend(answers);
    }

    pub(super) fn into_vec(self) -> Vec<Result<Applied>> {
        self.answers
    }
}

impl RedisStore {
    /// [`Store::apply`](crate::store::Store::apply).
    pub(super) async fn apply(&self, requests: Vec<Request>) -> Vec<Result<Applied>> {
        let requests: Vec<&Request> = requests.iter().collect();
        let asked = requests.iter().filter_map(|request| request.durability).max();
        match asked.and_then(|asked| self.shard.condition.wait_for(asked)) {
            None => self.apply_by(None, &requests).await,
            Some(wait) => match self.apply_and_wait(&requests, wait).await {
                Ok(answers) => answers,
                Err(error) => all_failed(requests.len(), &error),
            },
        }
    }

    /// Applies and waits until that is as safe as was asked, or for as long as it may take.
    async fn apply_and_wait(
        &self,
        requests: &[&Request],
        wait: Wait,
    ) -> Result<Vec<Result<Applied>>> {
        let _permit = self.permit().await?;
        let mut connection = self.shard.own_connection().await?;
        // Another process may answer there than the one whose settings `wait` was made for.
        let still = requests.iter().filter_map(|request| request.durability).max();
        if still.and_then(|asked| self.shard.condition.wait_for(asked)) != Some(wait) {
            let text = "redis was replaced or set anew, what a write reaches is looked at";
            return Err(Error::Unavailable(text.to_owned()));
        }
        let mut answers = self.apply_by(Some(&mut connection), requests).await;
        if answers.iter().any(|answer| answer.as_ref().is_err_and(Error::outcome_unknown)) {
            drop(deadpool_redis::Connection::take(connection));
            return Ok(answers);
        }
        if answers.iter().all(Result::is_err) {
            return Ok(answers);
        }
        // A repeat may find what another connection has written a moment ago, and write nothing.
        let reached = match self.shard.mark(&mut connection).await {
            Ok(()) => wait.confirm(&mut connection).await.map_err(|error| fault::text(&error)),
            Err(error) => Err(error.to_string()),
        };
        match reached {
            Ok(Some(reached)) => {
                answers.iter_mut().flatten().for_each(|answer| answer.durability = reached);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(shard = %self.identity.name, error, "what was written cannot be confirmed");
                drop(deadpool_redis::Connection::take(connection));
            }
        }
        Ok(answers)
    }

    /// Applies by a connection of one's own, or else with all others.
    async fn apply_by(
        &self,
        mut connection: Option<&mut Connection>,
        requests: &[&Request],
    ) -> Vec<Result<Applied>> {
        let mut answers = Answers::of(requests.len());
        for part in parts(requests) {
            if answers.skips(part.len()) {
                continue;
            }
            let way = Way::of(part[0]);
            let admitted = match way {
                Way::Enqueue | Way::EnqueueAgain => self.shard.condition.admit_jobs(),
                Way::Settle | Way::Extend | Way::Tie | Way::Engine => Ok(()),
            };
            answers.add(match (admitted, way) {
                (Err(error), _) => all_failed(part.len(), &error),
                (Ok(()), Way::Enqueue) => self.enqueue(connection.as_deref_mut(), part).await,
                (Ok(()), Way::Settle) => self.settle(part).await,
                (Ok(()), Way::Extend) => self.extend(part).await,
                (Ok(()), Way::Tie) => match self.tie(part).await {
                    Ok(tied) => tied.into_iter().map(Ok).collect(),
                    Err(error) => all_failed(part.len(), &error),
                },
                (Ok(()), Way::EnqueueAgain | Way::Engine) => self.decide(part).await,
            });
        }
        answers.into_vec()
    }
}

/// The same failure for so many commands.
fn all_failed(requests: usize, error: &Error) -> Vec<Result<Applied>> {
    (0..requests).map(|_| Err(error.clone())).collect()
}

/// Commands of one way each, as many as one call may carry.
fn parts<'a, 'r>(requests: &'a [&'r Request]) -> impl Iterator<Item = &'a [&'r Request]> {
    let mut rest = requests;
    std::iter::from_fn(move || {
        let (way, mut jobs, mut bytes) = (Way::of(rest.first()?), 0, 0);
        let fits = |request: &&&Request| {
            let is_first = jobs == 0;
            (jobs, bytes) = (jobs + request.command.jobs(), bytes + request.bytes());
            let has_room = jobs <= limit::CALL_JOBS_MAX && bytes <= limit::CALL_BYTES_MAX;
            is_first || has_room && Way::of(request) == way
        };
        let (part, behind) = rest.split_at(rest.iter().take_while(fits).count());
        rest = behind;
        Some(part)
    })
}
