//! Jobs of one enqueue call, and the result of each.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use prost::Message as _;
use rand::Rng as _;
use tokio::time::Instant;
use tonic::Code;

use super::super::limits::TOMBSTONE;
use super::super::{Client, Error, call};
use super::{EnqueueReply, ProducerOptions, ProducerResult};
use crate::backoff::{Backoff, BackoffRange};
use crate::pb::{BatchEnqueueRequest, ConflictPolicy, EnqueueOutcome, EnqueueResult, JobSpec};

/// Maximum number of jobs per call, half of what the contract accepts.
pub(super) const CALL_JOBS: usize = 500;
/// Maximum bytes per call, about; the contract accepts 4 MiB. A larger job goes alone.
const CALL_BYTES: usize = 1 << 20;
/// Longest timeout of one call. A call also ends with the retries of its jobs, but not before [`CALL_TIMEOUT_MIN`]: a
/// server that has an unknown outcome of a shard retries until the call ends.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(5);
/// Shortest and longest pause between retries.
const RETRY_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(100), max: Duration::from_secs(2) };
/// Time from which on retries are reported.
const REPORT_RETRIES_AFTER: Duration = Duration::from_millis(500);

/// Jobs of one call, each with a key that routes its answer.
pub(super) struct ProducerBatch<K> {
    items: Vec<ProducerItem<K>>,
    bytes: usize,
    /// Request id, which makes a retry recognizable under policies that change existing jobs. Empty: none.
    request_id: String,
    /// Jobs of the batch, if the request id was made here: it stands for one change of each.
    job_keys: HashSet<(String, String)>,
    /// Deadline of retries, counted from the first call.
    retry_deadline: Option<Instant>,
    /// Number of calls made.
    calls: usize,
    pauses: Backoff,
}

struct ProducerItem<K> {
    key: K,
    job: JobSpec,
    /// Start of the first call that may have written the job. Kept to the end: a later call that surely did nothing
    /// proves nothing about that one.
    unknown_since: Option<Instant>,
    /// Set when the server made the id, and returned it in an answer with unknown outcome.
    has_server_id: bool,
    /// Error of the last call.
    error: Option<Error>,
}

/// Called with the last error before jobs are sent again, once retries have taken longer than 0.5 s.
pub(crate) type OnRetry<'a> = &'a (dyn Fn(&Error) + Send + Sync);

/// Result of one call.
pub(super) struct BatchOutcome<K> {
    pub(super) answers: Vec<(K, ProducerResult)>,
    /// Jobs to retry, after this pause.
    pub(super) retry: Option<(ProducerBatch<K>, Duration)>,
}

/// Splits jobs into batches that are small enough for one call each.
pub(super) fn split<K>(
    terms: &ProducerOptions,
    jobs: impl Iterator<Item = (K, JobSpec)>,
) -> Vec<ProducerBatch<K>> {
    let mut groups: Vec<ProducerBatch<K>> = Vec::new();
    for (key, job) in jobs {
        let group = match groups.last_mut().filter(|group| group.has_room_for(terms, &job)) {
            Some(group) => group,
            None => {
                groups.push(ProducerBatch::new(terms, &job));
                let Some(group) = groups.last_mut() else { continue };
                group
            }
        };
        group.push(terms, key, job);
    }
    groups
}

// === impl ProducerBatch ===

impl<K> ProducerBatch<K> {
    /// Creates an empty batch for jobs such as `job`.
    fn new(terms: &ProducerOptions, job: &JobSpec) -> ProducerBatch<K> {
        let request_id = match &terms.request_id {
            // A job without an id must not get one from its request: the server makes and returns it.
            _ if job.id.is_empty() => String::new(),
            Some(given) => given.to_string(),
            None if terms.retry_may_change_jobs() => {
                format!("{:032x}", rand::rng().random::<u128>())
            }
            None => String::new(),
        };
        ProducerBatch {
            items: Vec::new(),
            bytes: 0,
            request_id,
            job_keys: HashSet::new(),
            retry_deadline: None,
            calls: 0,
            pauses: Backoff::new(RETRY_BACKOFF),
        }
    }

    fn has_room_for(&self, terms: &ProducerOptions, job: &JobSpec) -> bool {
        let room = self.items.len() < CALL_JOBS && self.bytes + job.encoded_len() <= CALL_BYTES;
        let fits = self.request_id.is_empty() == job.id.is_empty()
            && !self.job_keys.contains(&job_key(job));
        room && (fits || !terms.sends_request_ids())
    }

    fn push(&mut self, terms: &ProducerOptions, key: K, job: JobSpec) {
        self.bytes += job.encoded_len();
        if terms.request_id.is_none() && !self.request_id.is_empty() {
            self.job_keys.insert(job_key(&job));
        }
        self.items.push(ProducerItem {
            key,
            job,
            unknown_since: None,
            has_server_id: false,
            error: None,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Removes the jobs whose callers have gone.
    pub(super) fn retain(&mut self, wanted: impl Fn(&K) -> bool) {
        self.items.retain(|item| wanted(&item.key));
    }

    /// Makes one call.
    pub(super) async fn send(
        mut self,
        client: &Client,
        terms: &ProducerOptions,
    ) -> BatchOutcome<K> {
        let start = Instant::now();
        let until = *self.retry_deadline.get_or_insert(start + terms.repeat_for);
        // The batch may have waited longer than its pause.
        let mut answers = self.fail_expired(|item| item.record_may_be_expired(start));
        if self.items.is_empty() {
            return BatchOutcome { answers, retry: None };
        }
        let mut pause = self.pauses.next_delay();
        let got = self.call(client, terms, start).await;
        self.calls += 1;
        for (mut item, answer) in std::mem::take(&mut self.items).into_iter().zip(got) {
            match item.record_result(answer, start, terms) {
                Err(error) if may_repeat(&item.job, &error) => {
                    pause = pause.max(error.retry_after().unwrap_or_default());
                    item.error = Some(error);
                    self.items.push(item);
                }
                answer => answers.push((item.key, answer)),
            }
        }
        let next = Instant::now() + pause;
        answers.extend(self.fail_expired(|item| next >= until || item.record_may_be_expired(next)));
        let again = if self.items.is_empty() { None } else { Some((self, pause)) };
        BatchOutcome { answers, retry: again }
    }

    /// Makes calls until each job has its answer, for at most [`ProducerOptions::repeat_for`].
    pub(super) async fn send_all(
        mut self,
        client: &Client,
        terms: &ProducerOptions,
        on_retry: OnRetry<'_>,
    ) -> Vec<(K, ProducerResult)> {
        let begin = Instant::now();
        let mut all = Vec::with_capacity(self.items.len());
        loop {
            let BatchOutcome { answers, retry: again } = self.send(client, terms).await;
            all.extend(answers);
            let Some((rest, pause)) = again else { return all };
            self = rest;
            let why = self.items.iter().find_map(|item| item.error.as_ref());
            if let Some(error) = why.filter(|_| begin.elapsed() + pause >= REPORT_RETRIES_AFTER) {
                on_retry(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends jobs that are not to be sent any more with their last error.
    fn fail_expired(
        &mut self,
        ends: impl Fn(&ProducerItem<K>) -> bool,
    ) -> Vec<(K, ProducerResult)> {
        let ended = self.items.extract_if(.., |item| ends(item));
        ended.map(|item| (item.key, Err(item.error.unwrap_or_else(not_sent_error)))).collect()
    }

    /// Makes the call; returns one answer for each job.
    async fn call(
        &self,
        client: &Client,
        terms: &ProducerOptions,
        start: Instant,
    ) -> Vec<ProducerResult> {
        let request = BatchEnqueueRequest {
            jobs: self.items.iter().map(|item| item.job.clone()).collect(),
            on_conflict: terms.on_conflict.into(),
            request_id: self.request_id.clone(),
            durability: terms.durability.into(),
        };
        // A call may wait long for its connection, and must not go out when it could create a job twice.
        let expiry = self.items.iter().filter_map(ProducerItem::record_expiry).min();
        let safe = expiry.map_or(Duration::MAX, |time| time.saturating_duration_since(start));
        let mut queue = client.queue();
        let limit = terms.call_timeout(self.retry_deadline, start).min(safe);
        let answer = call::call_with_timeout(limit, self.calls, request, |request| {
            queue.batch_enqueue(request)
        });
        let error = match tokio::time::timeout(safe, answer).await {
            Ok(Ok(answer)) if answer.results.len() == self.items.len() => {
                return answer.results.into_iter().map(self::row_result).collect();
            }
            Ok(Ok(_)) => {
                let text = "the server returned a wrong number of results";
                Error::no_response(Code::Internal, text, true)
            }
            Ok(Err(status)) => Error::from(status),
            Err(_) => {
                let text = "the server did not answer in time";
                Error::no_response(Code::DeadlineExceeded, text, true)
            }
        };
        vec![Err(error); self.items.len()]
    }
}

// === impl ProducerItem ===

impl<K> ProducerItem<K> {
    /// Returns the answer of a call that began at `start`, combined with the outcome of earlier calls.
    fn record_result(
        &mut self,
        answer: ProducerResult,
        start: Instant,
        terms: &ProducerOptions,
    ) -> ProducerResult {
        match answer {
            // A retry found the job that an earlier call created: no other client has this id.
            Ok(job) if self.has_server_id && job.outcome == EnqueueOutcome::Unchanged => {
                Ok(EnqueueReply { outcome: EnqueueOutcome::Created, ..job })
            }
            Ok(job) => Ok(job),
            Err(error) => Err(self.record_error(error, start, terms)),
        }
    }

    fn record_error(&mut self, error: Error, start: Instant, terms: &ProducerOptions) -> Error {
        if !error.outcome_unknown() && self.unknown_since.is_none() {
            return error;
        }
        self.unknown_since.get_or_insert(start);
        // Under a policy that changes jobs the server does not recognize an id of its own.
        if let Some(id) = error.metadata("id")
            && self.job.id.is_empty()
            && !terms.retry_may_change_jobs()
        {
            self.has_server_id = true;
            id.clone_into(&mut self.job.id);
        }
        error.with_earlier_unknown(true).with_job_id(&self.job.id)
    }

    /// Returns the time from which on the job may have been written, executed and deleted, so that a retry would
    /// create it again. `None`: it surely was not written, or its record is never deleted.
    fn record_expiry(&self) -> Option<Instant> {
        let kept = match self.job.retention {
            Some(given) => Duration::try_from(given).unwrap_or_default(),
            None => TOMBSTONE,
        };
        self.unknown_since?.checked_add(kept)
    }

    fn record_may_be_expired(&self, now: Instant) -> bool {
        self.record_expiry().is_some_and(|time| now >= time)
    }
}

// === impl ProducerOptions ===

impl ProducerOptions {
    /// Returns the timeout of a call that begins at `start`, for jobs that are retried until `until`.
    fn call_timeout(&self, until: Option<Instant>, start: Instant) -> Duration {
        match until.map(|until| until.saturating_duration_since(start)) {
            Some(left) if !self.repeat_for.is_zero() => left.clamp(CALL_TIMEOUT_MIN, CALL_TIMEOUT),
            _ => CALL_TIMEOUT,
        }
    }

    /// Returns whether a retry under this policy may change a job twice.
    pub(super) fn retry_may_change_jobs(&self) -> bool {
        !matches!(self.on_conflict, ConflictPolicy::Unspecified | ConflictPolicy::Keep)
    }

    /// Returns whether jobs with an id go out under a request id, which those without must not share.
    fn sends_request_ids(&self) -> bool {
        self.retry_may_change_jobs() || self.request_id.is_some()
    }
}

fn job_key(job: &JobSpec) -> (String, String) {
    (job.topic.clone(), job.id.clone())
}

fn not_sent_error() -> Error {
    Error::no_response(Code::Cancelled, "the job was not sent", false)
}

/// Returns whether a retry cannot create the job twice, and may help.
fn may_repeat(job: &JobSpec, error: &Error) -> bool {
    error.is_unavailable() && (!job.id.is_empty() || !error.outcome_unknown())
}

/// Converts the result of one job.
fn row_result(result: EnqueueResult) -> ProducerResult {
    if let Some(error) = result.error {
        return Err(Error::from(error).with_job_id(&result.id));
    }
    Ok(EnqueueReply {
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
        sizes_with(None, on_conflict, jobs)
    }

    fn sizes_with(
        request_id: Option<&str>,
        on_conflict: ConflictPolicy,
        jobs: Vec<JobSpec>,
    ) -> Vec<(usize, bool)> {
        let (durability, repeat_for) = (Durability::Unspecified, Duration::ZERO);
        let request_id = request_id.map(Into::into);
        let terms = ProducerOptions { on_conflict, durability, repeat_for, request_id };
        let groups = split(&terms, jobs.into_iter().enumerate());
        groups.iter().map(|group| (group.len(), !group.request_id.is_empty())).collect()
    }

    fn job(id: &str) -> JobSpec {
        JobSpec::new("t").with_id(id)
    }

    #[test]
    fn a_call_ends_with_the_time_of_its_repeats() {
        let timeout = |repeat_for: u64, left: u64| {
            let (on_conflict, durability) = (ConflictPolicy::Keep, Durability::Unspecified);
            let repeat_for = Duration::from_secs(repeat_for);
            let terms = ProducerOptions { on_conflict, durability, repeat_for, request_id: None };
            let start = Instant::now();
            terms.call_timeout(Some(start + Duration::from_secs(left)), start).as_secs()
        };
        assert_eq!([timeout(10, 10), timeout(10, 7), timeout(10, 2)], [10, 7, 5]);
        assert_eq!([timeout(600, 600), timeout(0, 0)], [30, 30]);
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
        // A given request id stands for the same change in each batch.
        let expected = [(3, true), (1, false), (1, true)];
        assert_eq!(sizes_with(Some("r"), ConflictPolicy::Keep, jobs()), expected);
    }
}
