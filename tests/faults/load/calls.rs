//! Calls to replicas: whether their outcome is known, and counts of failures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use ringq::pb::queue_service_client::QueueServiceClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt as _;

use super::Shared;

/// Time after which a call has an unknown outcome. Longer than a replica waits for a shard.
const CALL_LIMIT: Duration = Duration::from_secs(8);
/// Prefix of the failure of a call that was not answered by then.
const NO_ANSWER: &str = "no answer within";
/// Time after which a client cancels a call.
const LET_GO_MS: std::ops::Range<u64> = 0..20;

/// Codes of a broken connection or of a server in trouble.
const UNKNOWN: [Code; 5] =
    [Code::Unavailable, Code::Unknown, Code::Internal, Code::Cancelled, Code::DeadlineExceeded];

/// Reasons that a replica returns only where it is broken.
const BROKEN: [&str; 2] = ["INTERNAL", "STORE_CORRUPT"];

/// A service client.
pub(super) type Queue = QueueServiceClient<Channel>;

/// A connection to each replica that reconnects by itself.
#[derive(Clone)]
pub(super) struct Replicas {
    queues: Vec<Queue>,
    turn: usize,
}

/// A call without a good answer.
pub(super) struct Failure {
    /// Id with which the same job can be enqueued again.
    pub(super) id: Option<String>,
}

/// Failures and their counts.
#[derive(Default)]
pub(crate) struct Troubles {
    counts: Mutex<BTreeMap<String, usize>>,
    refusals: Mutex<Vec<String>>,
    stale: AtomicUsize,
}

// === impl Replicas ===

impl Replicas {
    pub(super) fn new(shared: &Shared, first: usize) -> Replicas {
        let connect = |address| {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
            Queue::new(endpoint.connect_timeout(Duration::from_secs(2)).connect_lazy())
        };
        Replicas { queues: shared.replicas.iter().map(connect).collect(), turn: first }
    }

    /// Returns the client of the replica of this number.
    pub(super) fn get(&self, number: usize) -> Queue {
        self.queues[number % self.queues.len()].clone()
    }

    /// Returns the next replica in turn.
    pub(super) fn next(&mut self) -> Queue {
        self.turn += 1;
        self.get(self.turn)
    }

    /// Returns the next replica in turn for a client-chosen id, if these may go through all.
    pub(super) fn next_for_ids(&mut self, shared: &Shared) -> Queue {
        let only = *shared.ids_through.lock().unwrap_or_else(PoisonError::into_inner);
        match only {
            Some(number) => self.get(number),
            None => self.next(),
        }
    }

    /// Returns the next replica in turn that is not this one, if there is another.
    pub(super) fn next_but(&mut self, number: usize) -> Queue {
        self.turn += 1;
        if self.turn % self.queues.len() == number % self.queues.len() {
            self.turn += 1;
        }
        self.get(self.turn)
    }
}

// === impl Shared ===

impl Shared {
    /// Returns an answer, or a failure when the outcome is unknown or the replica is in trouble. Any other refusal is
    /// a fault of the rig or of the server, and fails the trial.
    pub(super) async fn answer<T>(
        &self,
        random: &mut StdRng,
        verb: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        let let_go = random.random_bool(self.habits.cancelled);
        let limit = match let_go {
            true => Duration::from_millis(random.random_range(LET_GO_MS)),
            false => CALL_LIMIT,
        };
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.troubles.failed(verb, &status)),
            Err(_) if let_go => Err(Failure { id: None }),
            Err(_) => {
                self.troubles.count(format!("{verb}: {NO_ANSWER} {CALL_LIMIT:?}"));
                Err(Failure { id: None })
            }
        }
    }
}

// === impl Troubles ===

impl Troubles {
    fn failed(&self, verb: &str, status: &Status) -> Failure {
        let details = status.get_error_details();
        let info = details.error_info();
        let reason = info.map_or_else(|| status.code().to_string(), |info| info.reason.clone());
        self.count(format!("{verb}: {reason}"));
        // A full shard, and one that is so slow that calls wait too long for it.
        let refused = status.code() == Code::ResourceExhausted
            && ["STORE_FULL", "RATE_LIMITED"].contains(&&*reason);
        let known = refused || UNKNOWN.contains(&status.code());
        // A replica's own answer has a retry delay; a broken connection cannot.
        let again = matches!(status.code(), Code::Unavailable | Code::ResourceExhausted);
        let has_delay = info.is_none() || !again || details.retry_info().is_some();
        if !known || !has_delay || BROKEN.contains(&reason.as_str()) {
            self.refuse(format!("{verb}: {status:?}"));
        }
        Failure { id: info.and_then(|info| info.metadata.get("id").cloned()) }
    }

    /// Counts an allowed failure.
    pub(super) fn count(&self, what: String) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    /// Counts a settle that came after its lease.
    pub(super) fn stale(&self) {
        self.stale.fetch_add(1, Relaxed);
    }

    /// Returns the number of settles that came after their lease.
    pub(crate) fn stales(&self) -> usize {
        self.stale.load(Relaxed)
    }

    /// Returns the number of calls that were not answered in time.
    pub(crate) fn unanswered(&self) -> usize {
        self.counts().iter().filter(|(what, _)| what.contains(NO_ANSWER)).map(|(_, n)| n).sum()
    }

    /// Records a failure that must not happen.
    pub(super) fn refuse(&self, what: String) {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Returns the counts of allowed failures.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of failures with this prefix.
    pub(crate) fn times(&self, begin: &str) -> usize {
        self.counts().iter().filter(|(what, _)| what.starts_with(begin)).map(|(_, n)| n).sum()
    }

    /// Returns the failures that must not happen.
    pub(crate) fn refusals(&self) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Pauses between repeats, each about twice as long as the one before.
pub(super) struct Pauses(u32);

const FIRST_PAUSE: Duration = Duration::from_millis(40);
const DOUBLED_MAX: u32 = 4;

impl Pauses {
    pub(super) fn new() -> Pauses {
        Pauses(0)
    }

    pub(super) async fn pause(&mut self, random: &mut StdRng) {
        let longest = FIRST_PAUSE * 2_u32.pow(self.0);
        self.0 = DOUBLED_MAX.min(self.0 + 1);
        tokio::time::sleep(longest.mul_f64(random.random_range(0.1..1.0))).await;
    }
}
