//! Record of a scenario: calls of the worker, leases as the server sees them, and lines for people.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ringq::pb::{BatchEnqueueRequest, Delivery, SettleError, SettleFailure};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

use super::call::{Call, Item, Method};

/// Result of a step of a scenario.
pub(crate) type Check<T> = Result<T, Failure>;

/// Expectation that was not met.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

/// Record that tasks write and scenarios wait on.
pub(crate) struct Record {
    start: Instant,
    log: Mutex<Log>,
    changed: watch::Sender<()>,
}

/// Contents of a record.
#[derive(Default)]
pub(crate) struct Log {
    /// Calls in the order of their arrival.
    pub(crate) calls: Vec<Call>,
    /// Leases by receipt.
    pub(crate) leases: BTreeMap<String, Lease>,
    /// Last delivery of each job id.
    pub(crate) delivered: HashMap<String, (Duration, Delivery)>,
    /// Streams that the worker has ended, with the time.
    pub(crate) cancelled: Vec<(String, Duration)>,
    /// Connections of the gRPC port, accepted or refused, with the time.
    pub(crate) connects: Vec<Duration>,
    /// Jobs that a producer has enqueued.
    pub(crate) enqueued: Vec<String>,
    /// Exit status of the program, once it has ended.
    pub(crate) exit: Option<String>,
    /// Lines that the program has written to stderr.
    pub(crate) stderr: Vec<String>,
    /// Lines that the program has written to stdout.
    pub(crate) stdout: Vec<String>,
    /// Violations of rules that hold in each scenario.
    pub(crate) violations: Vec<String>,
    lines: Vec<(Duration, String)>,
}

/// Lease of a delivery.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: String,
    /// Length at first, and of each Extend without a duration.
    pub(crate) length: Duration,
    /// Time of the scenario at which it ends.
    pub(crate) until: Duration,
    pub(crate) state: LeaseState,
}

/// State of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    Held,
    Acked,
    Nacked,
    /// Revoked, or ended by the script.
    Lost,
}

/// Condition that a scenario waits for: a truth value, or a value that is there.
pub(crate) trait Met {
    type Value;

    fn met(self) -> Option<Self::Value>;
}

// === impl Met ===

impl Met for bool {
    type Value = ();

    fn met(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Met for Option<T> {
    type Value = T;

    fn met(self) -> Option<T> {
        self
    }
}

// === impl Failure ===

impl Failure {
    /// Builds the failure of what the sentence states, which has not come in the time that was left.
    pub(crate) fn late(sentence: &str, left: Duration) -> Failure {
        Failure(format!("{sentence}: not within {:.2} s", left.as_secs_f64()))
    }

    /// Builds the failure of what a program that has ended has not done.
    pub(crate) fn ended(sentence: &str, exit: &str) -> Failure {
        Failure(format!("{sentence}: the program ended before ({exit})"))
    }
}

// === impl Record ===

impl Record {
    pub(crate) fn new() -> Record {
        let (changed, _) = watch::channel(());
        Record { start: Instant::now(), log: Mutex::default(), changed }
    }

    /// Returns the time of the scenario.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Changes the log and notifies those who wait.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Log, Duration) -> T) -> T {
        let changed = change(&mut self.log.lock().unwrap(), self.now());
        self.changed.send_replace(());
        changed
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.log.lock().unwrap())
    }

    /// Adds a line for people.
    pub(crate) fn note(&self, line: impl Into<String>) {
        let line = line.into();
        self.write(|log, now| log.lines.push((now, line)));
    }

    /// Waits until `look` finds what it looks for.
    pub(crate) async fn until<M: Met>(
        &self,
        within: Duration,
        sentence: &str,
        mut look: impl FnMut(&Log) -> M,
    ) -> Check<M::Value> {
        let mut changed = self.changed.subscribe();
        let found = timeout(within, async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = self.read(|log| look(log).met()) {
                    return Ok(found);
                }
                if let Some(exit) = self.read(|log| log.exit.clone()) {
                    return Err(Failure::ended(sentence, &exit));
                }
                // The sender lives as long as the record.
                let _ = changed.changed().await;
            }
        });
        found.await.map_err(|_| Failure::late(sentence, within))?
    }

    /// Fails once `look` is false, until the time of the scenario.
    pub(crate) async fn holds(
        &self,
        until: Duration,
        sentence: &str,
        mut look: impl FnMut(&Log) -> bool,
    ) -> Check<()> {
        let mut changed = self.changed.subscribe();
        let end = tokio::time::Instant::from_std(self.start + until);
        loop {
            changed.borrow_and_update();
            if !self.read(&mut look) {
                return Err(Failure(format!("{sentence}: it did")));
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep_until(end) => return Ok(()),
            }
        }
    }

    /// Returns the lines for people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (at, line) in &self.log.lock().unwrap().lines {
            let _ = writeln!(text, "    {:>7.3} {line}", at.as_secs_f64());
        }
        text
    }
}

// === impl Log ===

impl Log {
    /// Returns the calls of a method.
    pub(crate) fn calls(&self, method: Method) -> Vec<&Call> {
        self.calls.iter().filter(|call| call.method == method).collect()
    }

    /// Returns the calls of a method that have an item of this job.
    pub(crate) fn with(&self, method: Method, id: &str) -> Vec<&Call> {
        let has = |call: &&Call| call.method == method && call.item(id).is_some();
        self.calls.iter().filter(has).collect()
    }

    /// Returns the items of this job in calls of a method.
    pub(crate) fn items(&self, method: Method, id: &str) -> Vec<&Item> {
        let calls = self.calls.iter().filter(|call| call.method == method);
        calls.flat_map(|call| call.items.iter().filter(|item| item.id == id)).collect()
    }

    /// Returns the number of items of a job in calls of Ack and Nack.
    pub(crate) fn settles(&self, id: &str) -> usize {
        self.items(Method::Ack, id).len() + self.items(Method::Nack, id).len()
    }

    /// Returns whether a lease of the job was acked.
    pub(crate) fn acked(&self, id: &str) -> bool {
        self.is(id, &LeaseState::Acked)
    }

    /// Returns whether each of the jobs was acked.
    pub(crate) fn all_acked<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> bool {
        ids.into_iter().all(|id| self.acked(id))
    }

    /// Returns the time of the last delivery of a job.
    pub(crate) fn delivered_at(&self, id: &str) -> Option<Duration> {
        self.delivered.get(id).map(|(at, _)| *at)
    }

    fn is(&self, id: &str, state: &LeaseState) -> bool {
        self.leases.values().any(|lease| lease.id == id && lease.state == *state)
    }

    /// Returns the ids of jobs that are neither settled nor lost.
    pub(crate) fn held(&self) -> Vec<String> {
        let held = self.leases.values().filter(|lease| lease.state == LeaseState::Held);
        held.map(|lease| lease.id.clone()).collect()
    }

    /// Records a delivery, as it is sent.
    pub(crate) fn deliver(&mut self, now: Duration, delivery: &Delivery, length: Duration) {
        let lease =
            Lease { id: delivery.id.clone(), length, until: now + length, state: LeaseState::Held };
        self.leases.entry(delivery.receipt.clone()).or_insert(lease);
        self.delivered.insert(delivery.id.clone(), (now, delivery.clone()));
    }

    /// Ends the leases of a job without a settle.
    pub(crate) fn lose(&mut self, id: &str) {
        for lease in self.leases.values_mut().filter(|lease| lease.id == id) {
            lease.state = LeaseState::Lost;
        }
    }

    /// Applies the items of an Ack, Nack or Extend as a server does, except those that fail by the script.
    pub(crate) fn apply(
        &mut self,
        now: Duration,
        call: &Call,
        fail: impl Fn(&str) -> Option<SettleError>,
    ) -> Vec<SettleFailure> {
        let mut failures = Vec::new();
        for (index, item) in call.items.iter().enumerate() {
            let error = fail(&item.id).or_else(|| self.apply_item(now, call.method, item));
            if let Some(error) = error {
                failures.push(SettleFailure {
                    index: i32::try_from(index).unwrap(),
                    receipt: item.receipt.clone(),
                    error: error.into(),
                    message: format!("{}: scripted", item.id),
                });
            }
        }
        failures
    }

    fn apply_item(&mut self, now: Duration, method: Method, item: &Item) -> Option<SettleError> {
        let Some(lease) = self.leases.get_mut(&item.receipt) else {
            return Some(SettleError::Malformed);
        };
        let wanted = if method == Method::Nack { LeaseState::Nacked } else { LeaseState::Acked };
        match &lease.state {
            LeaseState::Held if now > lease.until => {
                lease.state = LeaseState::Lost;
                let late = (now - lease.until).as_secs_f64();
                let line =
                    format!("{}: its lease had ended {late:.2} s before {method:?}", item.id);
                self.violations.push(line);
                Some(SettleError::Stale)
            }
            LeaseState::Held if method == Method::Extend => {
                lease.until = now + item.lease.unwrap_or(lease.length);
                None
            }
            LeaseState::Held => {
                lease.state = wanted;
                None
            }
            state if method != Method::Extend && *state == wanted => None,
            _ => Some(SettleError::Stale),
        }
    }

    /// Enqueues the jobs of a call, and returns their ids, each with whether it is new.
    pub(crate) fn enqueue(&mut self, batch: &BatchEnqueueRequest) -> Vec<(String, bool)> {
        let mut ids = Vec::new();
        for (index, job) in batch.jobs.iter().enumerate() {
            let id = match (job.id.as_str(), batch.request_id.as_str()) {
                ("", "") => format!("s1~{}", self.enqueued.len()),
                ("", request) => format!("r={request}={index}"),
                (id, _) => id.to_owned(),
            };
            let is_new = !self.enqueued.contains(&id);
            if is_new {
                self.enqueued.push(id.clone());
            }
            ids.push((id, is_new));
        }
        ids
    }
}
