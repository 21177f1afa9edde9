//! The jobs of one call, and what becomes of each.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use prost::Message as _;
use rand::Rng as _;
use tokio::time::Instant;
use tonic::Code;

use super::super::{Client, Error, call};
use super::{Answer, Enqueued, Terms};
use crate::backoff::Backoff;
use crate::pb::{BatchEnqueueRequest, ConflictPolicy, EnqueueResult, JobSpec};

/// Jobs per call; the contract takes 1000.
pub(super) const CALL_JOBS: usize = 500;
/// Bytes per call, about; the contract takes 4 MiB. A larger job goes alone.
const CALL_BYTES: usize = 1 << 20;
/// One call takes no longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The pauses between repeats.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Jobs that go out together, each with a key by which its answer finds its way.
pub(super) struct Group<K> {
    jobs: Vec<(K, JobSpec)>,
    bytes: usize,
    /// Makes a repeat recognizable under policies that change what they find. None: empty.
    request_id: String,
    /// Who is in it, under such a policy: a request id stands for one change of each.
    names: HashSet<(String, String)>,
    /// The policy is one of those.
    changes: bool,
    /// The end of repeats, counted from the first call.
    until: Option<Instant>,
    backoff: Backoff,
}

/// What one call brought.
pub(super) struct Sent<K> {
    pub(super) answers: Vec<(K, Answer)>,
    /// What is worth a repeat, after this pause.
    pub(super) again: Option<(Group<K>, Duration)>,
}

/// Groups that are small enough for one call each.
pub(super) fn split<K>(terms: Terms, jobs: impl Iterator<Item = (K, JobSpec)>) -> Vec<Group<K>> {
    let mut groups: Vec<Group<K>> = Vec::new();
    for (key, job) in jobs {
        match groups.last_mut().filter(|group| group.takes(&job)) {
            Some(group) => group.push(key, job),
            None => groups.push(Group::new(terms, key, job)),
        }
    }
    groups
}

// === impl Group ===

impl<K> Group<K> {
    fn new(terms: Terms, key: K, job: JobSpec) -> Group<K> {
        // What has no id is never repeated after it may have been written, and must not get one.
        let named = terms.changes() && !job.id.is_empty();
        let request_id =
            if named { format!("{:032x}", rand::rng().random::<u128>()) } else { String::new() };
        let backoff = Backoff::new(PAUSE.0, PAUSE.1);
        let mut group = Group {
            jobs: Vec::new(),
            bytes: 0,
            request_id,
            names: HashSet::new(),
            changes: terms.changes(),
            until: None,
            backoff,
        };
        group.push(key, job);
        group
    }

    fn takes(&self, job: &JobSpec) -> bool {
        let room = self.jobs.len() < CALL_JOBS && self.bytes + job.encoded_len() <= CALL_BYTES;
        let fits =
            self.request_id.is_empty() == job.id.is_empty() && !self.names.contains(&name(job));
        room && (!self.changes || fits)
    }

    fn push(&mut self, key: K, job: JobSpec) {
        self.bytes += job.encoded_len();
        if !self.request_id.is_empty() {
            self.names.insert(name(&job));
        }
        self.jobs.push((key, job));
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Forgets jobs whose key is not wanted any more.
    pub(super) fn retain(&mut self, wanted: impl Fn(&K) -> bool) {
        self.jobs.retain(|(key, _)| wanted(key));
    }

    /// Makes one call.
    pub(super) async fn send(mut self, client: &Client, terms: Terms) -> Sent<K> {
        let until = *self.until.get_or_insert_with(|| Instant::now() + terms.repeat_for);
        let (mut answers, mut again) = (Vec::with_capacity(self.jobs.len()), Vec::new());
        let mut pause = self.backoff.pause();
        let got = self.call(client, terms).await;
        for ((key, job), answer) in std::mem::take(&mut self.jobs).into_iter().zip(got) {
            match answer {
                Err(error) if may_repeat(&job, &error) => {
                    pause = pause.max(error.retry_after().unwrap_or_default());
                    again.push((key, job, error));
                }
                answer => answers.push((key, answer)),
            }
        }
        if again.is_empty() || Instant::now() + pause >= until {
            answers.extend(again.into_iter().map(|(key, _, error)| (key, Err(error))));
            return Sent { answers, again: None };
        }
        self.jobs = again.into_iter().map(|(key, job, _)| (key, job)).collect();
        Sent { answers, again: Some((self, pause)) }
    }

    /// Calls until all have their answer.
    pub(super) async fn send_all(mut self, client: &Client, terms: Terms) -> Vec<(K, Answer)> {
        let mut all = Vec::with_capacity(self.jobs.len());
        loop {
            let Sent { answers, again } = self.send(client, terms).await;
            all.extend(answers);
            let Some((rest, pause)) = again else { return all };
            self = rest;
            tokio::time::sleep(pause).await;
        }
    }

    /// One answer for each job.
    async fn call(&self, client: &Client, terms: Terms) -> Vec<Answer> {
        let request = BatchEnqueueRequest {
            jobs: self.jobs.iter().map(|(_, job)| job.clone()).collect(),
            on_conflict: terms.on_conflict.into(),
            request_id: self.request_id.clone(),
            durability: terms.durability.into(),
        };
        let mut queue = client.queue();
        let answer = call::within(CALL_TIMEOUT, request, |request| queue.batch_enqueue(request));
        let error = match answer.await {
            Ok(answer) if answer.results.len() == self.jobs.len() => {
                return answer.results.into_iter().map(self::answer).collect();
            }
            Ok(_) => Error::unanswered(Code::Internal, "the server answered other jobs", true),
            Err(status) => Error::from(status),
        };
        vec![Err(error); self.jobs.len()]
    }
}

// === impl Terms ===

impl Terms {
    /// Whether a repeat under this policy may do what the first one did once more.
    pub(super) fn changes(self) -> bool {
        !matches!(self.on_conflict, ConflictPolicy::Unspecified | ConflictPolicy::Keep)
    }
}

fn name(job: &JobSpec) -> (String, String) {
    (job.topic.clone(), job.id.clone())
}

/// Whether sending it again cannot make two of it, and may help.
fn may_repeat(job: &JobSpec, error: &Error) -> bool {
    error.is_unavailable() && (!job.id.is_empty() || !error.outcome_unknown())
}

/// What one row says.
fn answer(result: EnqueueResult) -> Answer {
    if let Some(error) = result.error {
        return Err(error.into());
    }
    Ok(Enqueued {
        outcome: result.outcome(),
        state: result.state(),
        durability: result.durability(),
        due_time: result.due_time.and_then(|time| SystemTime::try_from(time).ok()),
        id: result.id,
        shard: result.shard,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::Durability;

    fn sizes(on_conflict: ConflictPolicy, jobs: Vec<JobSpec>) -> Vec<(usize, bool)> {
        let (durability, repeat_for) = (Durability::Unspecified, Duration::ZERO);
        let terms = Terms { on_conflict, durability, repeat_for };
        let groups = split(terms, jobs.into_iter().enumerate());
        groups.iter().map(|group| (group.len(), !group.request_id.is_empty())).collect()
    }

    fn job(id: &str) -> JobSpec {
        JobSpec::new("t").with_id(id)
    }

    #[test]
    fn groups_are_bounded_by_jobs_and_bytes() {
        let many = vec![job(""); 2 * CALL_JOBS + 1];
        let expected = [(CALL_JOBS, false), (CALL_JOBS, false), (1, false)];
        assert_eq!(sizes(ConflictPolicy::Keep, many), expected);
        let large = |bytes: usize| job("").with_data(vec![0; bytes]);
        let jobs = vec![large(2 * CALL_BYTES), large(10), large(10), large(CALL_BYTES)];
        assert_eq!(sizes(ConflictPolicy::Keep, jobs), [(1, false), (2, false), (1, false)]);
    }

    #[test]
    fn one_request_id_stands_for_one_change_of_each_id() {
        let jobs = || vec![job("a"), job("b"), job("a"), job(""), job("a")];
        let expected = [(2, true), (1, true), (1, false), (1, true)];
        assert_eq!(sizes(ConflictPolicy::Replace, jobs()), expected);
        assert_eq!(sizes(ConflictPolicy::Keep, jobs()), [(5, false)]);
    }
}
