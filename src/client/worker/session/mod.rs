//! Run of a worker: the task that owns its stream, its leases, its handlers and its settles.

mod failure_causes;
mod logging;
mod settlement;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{debug, info};

use super::super::job_spec::to_proto_duration;
use super::super::limits::WORKER_LEASE;
use super::super::{Client, Error};
use super::delivery::{Delivery, Outcome, SessionHandle};
use super::job_stream::{JobStream, JobStreamEvent};
use super::leases::{JobSlot, Leases};
use super::pending_jobs::PendingJobs;
use super::settler::Settler;
use super::{Handler, Summary, UnbatchedFn, WeightFn, Worker, sleep_until_some};
use crate::pb::{self, StreamRequest, StreamResponse};
use failure_causes::FailureCauses;
use logging::LoggedConnectionState;

/// Maximum number of lost jobs that wait for the session.
const LOST_MAX: usize = 64;

pub(super) struct WorkerSession {
    client: Client,
    topics: Vec<String>,
    handler: Handler,
    concurrency: usize,
    batch: usize,
    unbatched: Option<UnbatchedFn>,
    weight: Option<(usize, WeightFn)>,
    max_jobs: Option<u64>,
    idle_exit: Option<Duration>,
    call_timeout: Duration,
    grace: Option<Duration>,

    stream: JobStream,
    /// Maximum number of jobs that the stream sends before some are settled.
    credit: usize,
    connected: bool,
    /// Connection state logged last.
    logged_state: LoggedConnectionState,
    /// Causes for which jobs cannot be settled or extended at the moment.
    failure_causes: FailureCauses,
    leases: Leases,
    /// Jobs that wait for a handler.
    pending: PendingJobs,
    handlers: JoinSet<Outcome>,
    running: HashMap<Id, HandlerRun>,
    /// The handler of each job.
    handler_of: HashMap<JobSlot, Id>,
    settler: Settler,
    /// Jobs whose handlers were answered that the lease has ended.
    lost: (mpsc::Sender<JobSlot>, mpsc::Receiver<JobSlot>),
    /// Time at which a stopped worker closes its stream.
    read_until: Option<Instant>,
    /// Outcomes until then: each settle would make room for another job.
    held_back: Vec<(JobSlot, Outcome)>,
    /// Time at which running handlers are dropped.
    grace_until: Option<Instant>,
    /// Time at which a stopped worker gives up the settles that have no answer.
    settle_until: Option<Instant>,
    /// Time since when there is no stream, and no lease has been extended.
    broken_since: Option<Instant>,

    jobs_started: u64,
    /// Time since when there is no job.
    idle_since: Option<Instant>,
    /// Set when no more jobs are taken.
    closing: bool,
    /// Set when the worker was stopped.
    stopped: bool,
    rejected: Option<Error>,
    summary: Summary,
}

/// A handler and its jobs.
struct HandlerRun {
    slots: Vec<JobSlot>,
    /// Number of jobs that are not lost.
    remaining: usize,
    abort: AbortHandle,
}

// === impl WorkerSession ===

impl WorkerSession {
    pub(super) fn new(worker: Worker, handler: Handler) -> WorkerSession {
        let credit = worker.credit();
        let request = StreamRequest {
            max_in_flight: i32::try_from(credit).unwrap_or(i32::MAX),
            topics: worker.topics.clone(),
            topic_weights: worker.topic_weights,
            worker_id: worker.id,
            lease_duration: Some(to_proto_duration(worker.lease.unwrap_or(WORKER_LEASE))),
            max_jobs: worker.max_jobs.map(to_i64).unwrap_or_default(),
            ..Default::default()
        };
        WorkerSession {
            credit,
            connected: false,
            logged_state: LoggedConnectionState::NotLogged,
            failure_causes: FailureCauses::default(),
            stream: JobStream::new(worker.client.clone(), request, worker.waits_for_rights),
            settler: Settler::new(worker.client.clone(), worker.call_timeout),
            client: worker.client,
            topics: worker.topics,
            handler,
            concurrency: worker.concurrency,
            batch: worker.batch,
            unbatched: worker.unbatched,
            weight: worker.weight,
            max_jobs: worker.max_jobs,
            idle_exit: worker.idle_exit,
            call_timeout: worker.call_timeout,
            grace: worker.grace,
            lost: mpsc::channel(LOST_MAX),
            read_until: None,
            held_back: Vec::new(),
            grace_until: None,
            settle_until: None,
            broken_since: None,
            leases: Leases::default(),
            pending: PendingJobs::default(),
            handlers: JoinSet::new(),
            running: HashMap::new(),
            handler_of: HashMap::new(),
            jobs_started: 0,
            idle_since: None,
            closing: false,
            stopped: false,
            rejected: None,
            summary: Summary::default(),
        }
    }

    /// Runs until the worker is stopped or finished.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<Summary, Error> {
        let mut stop = pin!(stop);
        if self.reached_max_jobs() {
            self.stop_taking_jobs();
        }
        while !self.is_finished() {
            let alarm = self.next_deadline();
            tokio::select! {
                biased;
                () = &mut stop, if !self.stopped => self.stop(),
                // Leases are extended first, under any load.
                () = sleep_until_some(alarm) => self.on_deadline(Instant::now()),
                // A job that is lost is not settled when its handler ends.
                Some(slot) = self.lost.1.recv() => {
                    self.drop_lost_job(slot, "the server did not extend its lease");
                }
                // Ended handlers come before new jobs, so that credit and tasks are freed first.
                Some(ended) = self.handlers.join_next_with_id() => self.on_handler_end(ended),
                answer = self.settler.next() => self.on_settler_event(answer),
                event = self.stream.next() => self.on_stream_event(event),
            }
            self.start_handlers();
            self.limit_settles();
            self.update_idle();
        }
        match self.rejected {
            Some(error) => {
                // The error takes the place of the summary.
                if self.jobs_started > 0 {
                    info!("{}", self.summary);
                }
                Err(error)
            }
            None => Ok(self.summary),
        }
    }

    fn is_finished(&self) -> bool {
        self.closing && self.leases.len() == 0 && self.handlers.is_empty()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let idle = self.idle_since.zip(self.idle_exit).filter(|_| !self.closing);
        let idle = idle.map(|(since, idle)| since + idle);
        let ends = [self.read_until, self.grace_until, self.settle_until];
        [self.leases.next_deadline(), idle].into_iter().chain(ends).flatten().min()
    }

    // --- jobs come ---

    fn on_stream_event(&mut self, event: JobStreamEvent) {
        self.connected = matches!(event, JobStreamEvent::Message(_));
        match event {
            JobStreamEvent::Message(message) => self.on_message(*message),
            _ if self.stopped => self.give_back(),
            JobStreamEvent::Ended if self.reached_max_jobs() => self.stop_taking_jobs(),
            JobStreamEvent::Ended => {
                debug!("the server ended the job stream; opening another one");
                self.reopen();
            }
            JobStreamEvent::Failed(error, pause) => {
                self.log_disconnected(&error, pause);
                self.broken_since.get_or_insert_with(Instant::now);
                self.reopen();
                self.extend_all();
            }
            JobStreamEvent::Rejected(error) => {
                self.rejected = Some(error);
                self.stop();
            }
        }
    }

    fn on_message(&mut self, message: StreamResponse) {
        if let Some(info) = message.info {
            self.broken_since = None;
            // Revocations that were due between two streams do not come: the answers show them.
            self.extend_all();
            self.stream.set_info(&info);
            self.credit = usize::try_from(info.max_in_flight).unwrap_or(self.credit);
            debug!(
                stream = info.stream_id,
                replica = info.replica,
                credit = info.max_in_flight,
                "job stream opened"
            );
            self.log_connected();
        }
        for revocation in &message.revocations {
            self.on_revoked(revocation);
        }
        self.accept_deliveries(message.deliveries);
    }

    fn accept_deliveries(&mut self, deliveries: Vec<pb::Delivery>) {
        let now = Instant::now();
        for delivery in deliveries {
            if self.leases.find_by_receipt(&delivery.receipt).is_some() {
                continue;
            }
            let lease = delivery.lease_duration.and_then(|lease| lease.try_into().ok());
            let job = format!("{}/{}", delivery.topic, delivery.id);
            let slot = self.leases.insert(job, &delivery.receipt, lease.unwrap_or_default(), now);
            self.pending.push(slot, delivery);
        }
    }

    /// Returns whether all requested jobs have come.
    fn reached_max_jobs(&self) -> bool {
        self.max_jobs.is_some_and(|max| self.jobs_started + self.pending.len() as u64 >= max)
    }

    /// Prepares for another stream. It adopts the jobs that are held, also those that wait.
    fn reopen(&mut self) {
        if let Some(max) = self.max_jobs {
            match max.saturating_sub(self.jobs_started + self.pending.len() as u64) {
                0 => self.stop_taking_jobs(),
                rest => self.stream.set_max_jobs(to_i64(rest)),
            }
        }
    }

    // --- jobs run ---

    /// Passes waiting jobs to free handlers. After a break in which no Extend got through for longer than the grace, the
    /// server has given the jobs to others: none is begun before an Extend decides.
    fn start_handlers(&mut self) {
        let grace = self.stream.orphan_grace();
        if self.stopped || self.broken_since.is_some_and(|since| since.elapsed() >= grace) {
            return;
        }
        while self.handlers.len() < self.concurrency && !self.pending.is_empty() {
            let alone = |job: &_| self.unbatched.as_ref().is_some_and(|alone| alone(job));
            let (most, weigh) = match &self.weight {
                Some((most, weigh)) => (*most, Some(weigh)),
                None => (usize::MAX, None),
            };
            let weigh = |job: &_| match weigh {
                _ if alone(job) => usize::MAX,
                Some(weigh) => weigh(job),
                None => 1,
            };
            let batch = self.pending.take_batch(self.batch, most, weigh).into_iter();
            let (slots, jobs): (Vec<_>, Vec<_>) = batch.unzip();
            self.jobs_started += slots.len() as u64;
            let job = |(slot, delivery): (&JobSlot, _)| {
                let (lost, call_timeout) = (self.lost.0.clone(), self.call_timeout);
                let session = SessionHandle { slot: *slot, lost, call_timeout };
                Delivery::new(delivery, self.client.clone(), session)
            };
            let jobs = slots.iter().zip(jobs).map(job).collect();
            let handler = Arc::clone(&self.handler);
            // A handler may panic before it returns a future: its own task catches that.
            let abort = self.handlers.spawn(async move { handler(jobs).await });
            self.handler_of.extend(slots.iter().map(|slot| (*slot, abort.id())));
            self.running.insert(abort.id(), HandlerRun { remaining: slots.len(), slots, abort });
        }
    }

    fn on_handler_end(&mut self, ended: Result<(Id, Outcome), JoinError>) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => (error.id(), join_error_outcome(error)),
        };
        let Some(run) = self.running.remove(&id) else { return };
        let outcomes = std::iter::repeat_n(outcome, run.slots.len());
        for (slot, outcome) in run.slots.into_iter().zip(outcomes) {
            self.handler_of.remove(&slot);
            self.settle(slot, outcome);
        }
    }

    fn settle(&mut self, slot: JobSlot, outcome: Outcome) {
        if self.read_until.is_some() {
            self.held_back.push((slot, outcome));
            return;
        }
        // Without a lease the job was lost, and counted as unsettled.
        if let Some(lease) = self.leases.settle(slot) {
            self.settler.settle(slot, lease, outcome);
        }
    }

    /// Records whether the worker is idle, and flushes settles that would wait for others in vain.
    fn update_idle(&mut self) {
        let free = self.handlers.len() < self.concurrency && self.pending.is_empty();
        let none = self.handlers.is_empty() && self.pending.is_empty();
        // No more jobs come before these are settled, or at all.
        if free && self.leases.len() >= self.credit || none && self.closing {
            self.settler.flush();
        }
        // While a settle has no answer, its shard or the server is down, and more jobs may wait there.
        if none && self.connected && self.leases.len() == 0 {
            self.idle_since.get_or_insert_with(Instant::now);
        } else {
            self.idle_since = None;
        }
        if !none {
            return;
        }
        if self.reached_max_jobs() && !self.closing {
            self.stop_taking_jobs();
        }
    }
}

/// Returns the outcome of a handler that panicked or was aborted.
fn join_error_outcome(error: JoinError) -> Outcome {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            Outcome::retry(format_args!("the handler panicked: {}", text.unwrap_or_default()))
        }
        // Aborted because its jobs were lost: this outcome is dropped.
        Err(_) => Outcome::release(),
    }
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
