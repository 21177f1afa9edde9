//! One run of a worker: the task that owns its stream, its leases, its handlers and its settles.

mod ends;
mod told;
mod trouble;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{debug, info};

use super::super::job::proto;
use super::super::limit::WORKER_LEASE;
use super::super::{Client, Error};
use super::delivery::{Delivery, Outcome};
use super::leases::{Leases, Slot};
use super::pending::Pending;
use super::settler::Settler;
use super::source::{Event, Source};
use super::{Alone, Handler, Summary, Weigh, Worker, at};
use crate::pb::{self, StreamRequest, StreamResponse};
use told::Told;
use trouble::Trouble;

pub(super) struct Session {
    client: Client,
    topics: Vec<String>,
    handler: Handler,
    concurrency: usize,
    batch: usize,
    alone: Option<Alone>,
    weight: Option<(usize, Weigh)>,
    max_jobs: Option<u64>,
    idle_exit: Option<Duration>,

    source: Source,
    /// Jobs that the stream brings at most before some are settled.
    credit: usize,
    connected: bool,
    /// What was said of the connection.
    told: Told,
    /// What cannot be settled or extended at the moment.
    trouble: Trouble,
    leases: Leases,
    /// Jobs that wait for a handler.
    pending: Pending,
    handlers: JoinSet<Outcome>,
    running: HashMap<Id, Run>,
    /// The handler of each job.
    handler_of: HashMap<Slot, Id>,
    settler: Settler,

    begun: u64,
    /// Since when there is nothing to do.
    idle_since: Option<Instant>,
    /// No more jobs are taken.
    closing: bool,
    /// Told to stop.
    stopped: bool,
    refused: Option<Error>,
    summary: Summary,
}

/// A handler and its jobs.
struct Run {
    slots: Vec<Slot>,
    /// How many of them are not lost.
    held: usize,
    abort: AbortHandle,
}

// === impl Session ===

impl Session {
    pub(super) fn new(worker: Worker, handler: Handler) -> Session {
        let credit = worker.credit();
        let request = StreamRequest {
            max_in_flight: i32::try_from(credit).unwrap_or(i32::MAX),
            topics: worker.topics.clone(),
            worker_id: worker.id,
            lease_duration: Some(proto(worker.lease.unwrap_or(WORKER_LEASE))),
            max_jobs: worker.max_jobs.map(signed).unwrap_or_default(),
            ..Default::default()
        };
        Session {
            credit,
            connected: false,
            told: Told::Nothing,
            trouble: Trouble::default(),
            source: Source::new(worker.client.clone(), request),
            settler: Settler::new(worker.client.clone()),
            client: worker.client,
            topics: worker.topics,
            handler,
            concurrency: worker.concurrency,
            batch: worker.batch,
            alone: worker.alone,
            weight: worker.weight,
            max_jobs: worker.max_jobs,
            idle_exit: worker.idle_exit,
            leases: Leases::default(),
            pending: Pending::default(),
            handlers: JoinSet::new(),
            running: HashMap::new(),
            handler_of: HashMap::new(),
            begun: 0,
            idle_since: None,
            closing: false,
            stopped: false,
            refused: None,
            summary: Summary::default(),
        }
    }

    /// Works until told to stop or there is nothing more to do.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<Summary, Error> {
        let mut stop = pin!(stop);
        if self.has_all() {
            self.finish();
        }
        while !self.is_over() {
            let alarm = self.alarm();
            tokio::select! {
                biased;
                () = &mut stop, if !self.stopped => self.stop(),
                // Leases wait for nothing, however much comes and goes.
                () = at(alarm) => self.on_time(Instant::now()),
                // Ends come before begins, so that credit and tasks are freed first.
                Some(ended) = self.handlers.join_next_with_id() => self.ended(ended),
                answer = self.settler.next() => self.answered(answer),
                event = self.source.next() => self.received(event),
            }
            self.begin();
            self.rest();
        }
        match self.refused {
            Some(error) => {
                // The error takes the place of the summary.
                if self.begun > 0 {
                    info!("{}", self.summary);
                }
                Err(error)
            }
            None => Ok(self.summary),
        }
    }

    fn is_over(&self) -> bool {
        self.closing && self.leases.len() == 0 && self.handlers.is_empty()
    }

    fn alarm(&self) -> Option<Instant> {
        let idle = self.idle_since.zip(self.idle_exit).filter(|_| !self.closing);
        let idle = idle.map(|(since, idle)| since + idle);
        match (self.leases.alarm(), idle) {
            (Some(lease), Some(idle)) => Some(lease.min(idle)),
            (lease, idle) => lease.or(idle),
        }
    }

    // --- jobs come ---

    fn received(&mut self, event: Event) {
        self.connected = matches!(event, Event::Message(_));
        match event {
            Event::Message(message) => self.message(*message),
            Event::Ended if self.has_all() => self.finish(),
            Event::Ended => {
                debug!("the server ends this stream; opening another one");
                self.reopen();
            }
            Event::Broke(error, pause) => {
                self.tell_lost(&error, pause);
                self.reopen();
                self.extend_all();
            }
            Event::Refused(error) => {
                self.refused = Some(error);
                self.stop();
            }
        }
    }

    fn message(&mut self, message: StreamResponse) {
        if let Some(info) = message.info {
            self.source.opened(&info.stream_id);
            self.credit = usize::try_from(info.max_in_flight).unwrap_or(self.credit);
            debug!(
                stream = info.stream_id,
                replica = info.replica,
                credit = info.max_in_flight,
                "a stream is open"
            );
            self.tell_connected();
        }
        for revocation in &message.revocations {
            self.revoked(revocation);
        }
        self.take(message.deliveries);
    }

    fn take(&mut self, deliveries: Vec<pb::Delivery>) {
        let now = Instant::now();
        for delivery in deliveries {
            let lease = delivery.lease_duration.and_then(|lease| lease.try_into().ok());
            let job = format!("{}/{}", delivery.topic, delivery.id);
            let slot = self.leases.insert(job, &delivery.receipt, lease.unwrap_or_default(), now);
            self.pending.push(slot, delivery);
        }
    }

    /// Whether all jobs that were asked for have come.
    fn has_all(&self) -> bool {
        self.max_jobs.is_some_and(|max| self.begun + self.pending.len() as u64 >= max)
    }

    /// Before another stream: it brings credit of its own, so what has not begun goes back.
    fn reopen(&mut self) {
        self.release_pending();
        if let Some(max) = self.max_jobs {
            match max.saturating_sub(self.begun) {
                0 => self.finish(),
                rest => self.source.limit(signed(rest)),
            }
        }
    }

    // --- jobs run ---

    /// Gives waiting jobs to handlers as far as they are free.
    fn begin(&mut self) {
        while self.handlers.len() < self.concurrency && !self.pending.is_empty() {
            let alone = |job: &_| self.alone.as_ref().is_some_and(|alone| alone(job));
            let (most, weigh) = match &self.weight {
                Some((most, weigh)) => (*most, Some(weigh)),
                None => (usize::MAX, None),
            };
            let weigh = |job: &_| match weigh {
                _ if alone(job) => usize::MAX,
                Some(weigh) => weigh(job),
                None => 1,
            };
            let batch = self.pending.batch(self.batch, most, weigh).into_iter();
            let (slots, jobs): (Vec<_>, Vec<_>) = batch.unzip();
            self.begun += slots.len() as u64;
            let job = |delivery| Delivery::new(delivery, self.client.clone());
            let jobs = jobs.into_iter().map(job).collect();
            let handler = Arc::clone(&self.handler);
            // A handler may panic before there is a future: that is for its own task to bear.
            let abort = self.handlers.spawn(async move { handler(jobs).await });
            self.handler_of.extend(slots.iter().map(|slot| (*slot, abort.id())));
            self.running.insert(abort.id(), Run { held: slots.len(), slots, abort });
        }
    }

    fn ended(&mut self, ended: Result<(Id, Outcome), JoinError>) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => (error.id(), failure(error)),
        };
        let Some(run) = self.running.remove(&id) else { return };
        let outcomes = std::iter::repeat_n(outcome, run.slots.len());
        for (slot, outcome) in run.slots.into_iter().zip(outcomes) {
            self.handler_of.remove(&slot);
            self.settle(slot, outcome);
        }
    }

    fn settle(&mut self, slot: Slot, outcome: Outcome) {
        // Without a lease it was lost, and counted as that.
        if let Some(lease) = self.leases.settle(slot) {
            self.settler.settle(slot, lease, outcome);
        }
    }

    /// Notes whether there is anything to do, and sends what would wait for company in vain.
    fn rest(&mut self) {
        let free = self.handlers.len() < self.concurrency && self.pending.is_empty();
        let none = self.handlers.is_empty() && self.pending.is_empty();
        // Nothing more comes: before these are settled, or at all.
        if free && self.leases.len() >= self.credit || none && self.closing {
            self.settler.flush();
        }
        // While a settle has no answer, its shard or the server is away, and more may lie there.
        if none && self.connected && self.leases.len() == 0 {
            self.idle_since.get_or_insert_with(Instant::now);
        } else {
            self.idle_since = None;
        }
        if !none {
            return;
        }
        if self.has_all() && !self.closing {
            self.finish();
        }
    }
}

/// What a handler that did not answer has answered.
fn failure(error: JoinError) -> Outcome {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            Outcome::retry(format_args!("the handler panicked: {}", text.unwrap_or_default()))
        }
        // Aborted since its jobs were lost: nobody hears this.
        Err(_) => Outcome::release(),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
