//! Runs the engine on the records of a shard: loads them, decides (`loaded_jobs.rs`), and commits the decisions if
//! the records are unchanged. After a conflict with another server it decides again.

use std::time::Duration;

use foldhash::HashSet;
use rand::Rng as _;
use tokio::time::Instant;

use crate::domain::engine::{Command, CommandReply, EnqueueCommandReply, WritePrecondition};
use crate::domain::{JobKey, Time, limit};
use crate::store::{Error, JobRequest, RequestResult, Result};

use super::entry::JobEntry;
use super::loaded_jobs::{
    DecideOutcome, DecidedCommand, LoadedJobs, REPEATS_MAX, WaitingCommand, further_keys,
};
use super::reply::unexpected;
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

/// Maximum number of decisions about a command. Commands of one server on one job wait for each other, so each
/// further decision means that another server was faster.
const ATTEMPTS_MAX: usize = 8;
/// Additional maximum delay of each further round.
const BACKOFF_STEP: Duration = Duration::from_millis(1);

/// Reply of a commit.
struct CommitReply {
    /// Time of the store at the commit.
    at: Time,
    /// Earliest time at which upkeep is due because of the commit.
    next_upkeep: Option<Time>,
    /// Outcome of each item.
    items: Vec<ItemOutcome>,
}

/// Outcome of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemOutcome {
    /// The item was written.
    Written,
    /// A job has changed since its decision.
    Outdated,
    /// The topic has no room for its job.
    TopicFull,
}

// === impl RedisStore ===

impl RedisStore {
    /// Applies commands in their order, each with all its consequences or not at all, as the engine decides.
    pub(super) async fn decide(&self, requests: &[&JobRequest]) -> Vec<Result<RequestResult>> {
        let _turns = self.job_locks.lock(requests.iter().map(|request| &request.key)).await;
        let mut answers: Vec<Option<Result<RequestResult>>> =
            requests.iter().map(|_| None).collect();
        let (mut redriven, mut round, mut answered) = (0, 0, 0);
        while round < ATTEMPTS_MAX {
            let left: Vec<usize> = (0..requests.len()).filter(|&i| answers[i].is_none()).collect();
            if left.is_empty() {
                break;
            }
            backoff(round).await;
            redriven = self.decide_once(requests, &left, redriven, &mut answers).await;
            // A round that answers some commands is no conflict with other servers: the rest was deferred, or the callers of
            // those had stopped waiting.
            let are_answered = answers.iter().flatten().count();
            round += usize::from(are_answered == answered);
            answered = are_answered;
        }
        let contended = || {
            let text = "other servers changed the job in every attempt, nothing was written";
            Err(Error::Contention(text.to_owned()))
        };
        answers.into_iter().map(|answer| answer.unwrap_or_else(contended)).collect()
    }

    /// Decides and commits the remaining commands; returns the number of jobs that were redriven.
    async fn decide_once(
        &self,
        requests: &[&JobRequest],
        left: &[usize],
        redriven: u32,
        answers: &mut [Option<Result<RequestResult>>],
    ) -> u32 {
        let mut book = match self.load(requests, left).await {
            Ok(book) => book,
            Err(error) => {
                left.iter().for_each(|&index| answers[index] = Some(Err(error.clone())));
                return redriven;
            }
        };
        book.redriven = redriven;
        for &index in left {
            answers[index] = match book.decide(index, requests[index]) {
                DecideOutcome::Done(answer) => Some(Ok(self.applied(answer, book.now, book.now))),
                DecideOutcome::Damaged(error) => Some(Err(error)),
                DecideOutcome::Queued | DecideOutcome::Deferred => None,
            };
        }
        for call in book.split_into_calls() {
            self.commit(requests, &mut book, call, answers).await;
        }
        book.redriven
    }

    /// Returns the result of a command that was decided at `decided` and is written at `now`.
    fn applied(&self, answer: CommandReply, decided: Time, now: Time) -> RequestResult {
        let durability = self.shard.status.write_durability().by_default;
        let answer = answer.committed(decided, now);
        if let CommandReply::Extended(Ok(deadline)) = answer {
            self.events.set_reap_at(Some(deadline.at));
        }
        RequestResult { reply: answer, record: None, now, durability }
    }

    /// Writes the effects of time on these jobs, which were read at `now`; returns when upkeep is due again for one
    /// of them. Jobs that another server has changed meanwhile need nothing.
    pub(super) async fn prune_entries(
        &self,
        now: Time,
        found: Vec<(JobKey, JobEntry)>,
    ) -> Result<Option<Time>> {
        let request = |key: &JobKey| JobRequest::new(key.clone(), Command::Prune);
        let requests: Vec<JobRequest> = found.iter().map(|(key, _)| request(key)).collect();
        let requests: Vec<&JobRequest> = requests.iter().collect();
        let mut book = LoadedJobs::from_entries(now, found);
        for (index, request) in requests.iter().enumerate() {
            book.decide(index, request);
        }
        let mut answers: Vec<_> = requests.iter().map(|_| None).collect();
        for call in book.split_into_calls() {
            self.commit(&requests, &mut book, call, &mut answers).await;
        }
        let failed = answers.into_iter().flatten().find_map(Result::err);
        failed.map_or(Ok(book.upkeep), Err)
    }

    /// Reads the jobs of these commands.
    async fn load(&self, requests: &[&JobRequest], left: &[usize]) -> Result<LoadedJobs> {
        let keys = keys_of(left.iter().map(|&index| requests[index]));
        let most =
            if keys.iter().any(|(_, again)| *again) { REPEATS_MAX } else { limit::CALL_JOBS_MAX };
        let mut book = LoadedJobs::from_entries(Time(0), Vec::new());
        let mut rest = &keys[..];
        while !rest.is_empty() {
            let mut call = self.call(Verb::Load);
            for (key, again) in rest.iter().take(most) {
                call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(u8::from(*again));
            }
            // Uses the lane of the write that follows.
            let mut reply = self.run(ConnectionLane::Write, &call).await?;
            book.now = reply.time()?;
            // The script returns at least one job, and fewer than requested once the reply has become large.
            while !reply.is_empty() {
                let Some(((key, again), behind)) = rest.split_first() else {
                    return Err(unexpected("fewer jobs"));
                };
                rest = behind;
                book.insert(key, *again, reply.maybe_bytes()?);
            }
        }
        Ok(book)
    }

    /// Writes some items, and answers the commands of those that were written.
    async fn commit(
        &self,
        requests: &[&JobRequest],
        book: &mut LoadedJobs,
        items: Vec<usize>,
        answers: &mut [Option<Result<RequestResult>>],
    ) {
        match self.try_commit(requests, book, &items).await {
            // The reply does not name the damaged item. Items that were written before it are decided again.
            Err(Error::Corrupt(_)) if items.len() > 1 => {
                for item in items {
                    let committed = self.try_commit(requests, book, &[item]).await;
                    self.answer_committed(requests, book, &[item], committed, answers);
                }
            }
            committed => self.answer_committed(requests, book, &items, committed, answers),
        }
    }

    /// Answers the commands of committed items; items that were not written are decided again.
    fn answer_committed(
        &self,
        requests: &[&JobRequest],
        book: &mut LoadedJobs,
        items: &[usize],
        committed: Result<CommitReply>,
        answers: &mut [Option<Result<RequestResult>>],
    ) {
        match committed {
            Ok(CommitReply { at, next_upkeep: upkeep, items: outcomes }) => {
                book.upkeep = book.upkeep.into_iter().chain(upkeep).min();
                let decided = book.now;
                for (&item, outcome) in items.iter().zip(outcomes) {
                    match outcome {
                        ItemOutcome::Outdated => {}
                        ItemOutcome::TopicFull => {
                            for WaitingCommand { index, .. } in book.take_commands(item) {
                                let full = EnqueueCommandReply::topic_full(at);
                                let full = self.applied(CommandReply::Enqueued(full), at, at);
                                answers[index] = Some(Ok(full));
                            }
                        }
                        ItemOutcome::Written => {
                            for WaitingCommand { index, outcome, .. } in book.take_commands(item) {
                                let DecidedCommand { answer, record } = outcome;
                                let record =
                                    record.map(|record| Box::new(record.committed(decided, at)));
                                let applied = self.applied(answer, decided, at);
                                answers[index] = Some(Ok(RequestResult { record, ..applied }));
                            }
                        }
                    }
                }
            }
            Err(error) => {
                // Commands that need no memory themselves were in the item only together with one that does.
                let is_full = matches!(error, Error::Full(_));
                let waiting =
                    book.waiting_commands(items).filter(|waiting| waiting.needs_memory || !is_full);
                let waiting: Vec<usize> = waiting.map(|waiting| waiting.index).collect();
                let errors =
                    errors_per_request(error, waiting.iter().map(|&index| requests[index]));
                for (&index, error) in waiting.iter().zip(errors) {
                    answers[index] = error.map(Err);
                }
            }
        }
    }

    async fn try_commit(
        &self,
        requests: &[&JobRequest],
        book: &LoadedJobs,
        items: &[usize],
    ) -> Result<CommitReply> {
        let waiting: Vec<usize> =
            book.waiting_commands(items).map(|waiting| waiting.index).collect();
        let grows = items.iter().any(|&item| book.items[item].0.needs_memory);
        let verb = if grows { Verb::CommitGrowing } else { Verb::Commit };
        let is_guarded = |index: &usize| {
            let command = &requests[*index].command;
            matches!(command, Command::Settle(_) | Command::Unclaim(_) | Command::Prune)
        };
        let until = waiting.iter().filter_map(|&index| requests[index].deadline).min();
        let (args, bytes) = book.call_size(items);
        let mut call = if waiting.iter().all(is_guarded) {
            self.shard.large_call(verb, args, bytes)
        } else {
            self.shard.large_write_call(verb, until, args, bytes).await?
        };
        for &item in items {
            let item = &book.items[item].0;
            let slots = item.keys.iter().filter_map(|key| Some((key, &book.slots.get(key)?.0)));
            item.add(&mut call, book.now, slots);
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let (at, upkeep) = (reply.time()?, reply.maybe_time()?);
        self.events.set_prune_at(upkeep);
        let mut outcome = |_| match reply.number()? {
            0 => Ok(ItemOutcome::Outdated),
            1 => Ok(ItemOutcome::Written),
            2 => Ok(ItemOutcome::TopicFull),
            _ => Err(unexpected("what became of an item")),
        };
        let items = items.iter().map(&mut outcome).collect::<Result<_>>()?;
        Ok(CommitReply { at, next_upkeep: upkeep, items })
    }
}

/// Returns the error for each request of a failed call; `None`: the request is tried again. The earliest deadline of
/// the requests limited the execution of the call, so if that was too short, only the request with that deadline
/// fails.
pub(super) fn errors_per_request<'a>(
    error: Error,
    requests: impl Iterator<Item = &'a JobRequest> + Clone,
) -> impl Iterator<Item = Option<Error>> {
    let now = Instant::now();
    let is_late = move |request: &JobRequest| request.deadline.is_some_and(|until| until <= now);
    let is_theirs = matches!(error, Error::Unavailable(_)) && requests.clone().any(is_late);
    let late = Error::DeadlineExceeded(
        "the call waited until its deadline, nothing was written".to_owned(),
    );
    requests.map(move |request| match (is_theirs, is_late(request)) {
        (false, _) => Some(error.clone()),
        (true, true) => Some(late.clone()),
        (true, false) => None,
    })
}

/// Waits so that the faster server finishes first: in step with it this one would lose again.
async fn backoff(round: usize) {
    if round > 0 {
        let share: f64 = rand::rng().random();
        tokio::time::sleep((BACKOFF_STEP * u32::try_from(round).unwrap_or(1)).mul_f64(share)).await;
    }
}

/// Returns the jobs of these commands, each once, and whether each may have been written before.
fn keys_of<'a>(requests: impl Iterator<Item = &'a JobRequest>) -> Vec<(JobKey, bool)> {
    let (mut keys, mut known) = (Vec::new(), HashSet::default());
    for request in requests {
        let again = matches!(&request.command, Command::Enqueue(new) if new.precondition == WritePrecondition::SameJob);
        let further = further_keys(request).map(|key| (key, false));
        for (key, again) in std::iter::once((request.key.clone(), again)).chain(further) {
            if known.insert(key.clone()) {
                keys.push((key, again));
            }
        }
    }
    keys
}

/// Returns the keys that come more than once. The engine handles all commands on their jobs, so that they are
/// executed in its order.
pub(super) fn repeated_keys<'a>(
    keys: impl ExactSizeIterator<Item = &'a JobKey>,
) -> HashSet<&'a JobKey> {
    if keys.len() < 2 {
        return HashSet::default();
    }
    let mut known = HashSet::default();
    keys.filter(|key| !known.insert(*key)).collect()
}
