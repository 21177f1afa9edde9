//! One run of a worker: the task that owns its stream, its leases, its handlers and its settles.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tonic::Code;
use tracing::{debug, info, warn};

use super::super::job::proto;
use super::super::{Client, Error};
use super::delivery::{Delivery, Outcome};
use super::leases::{Leases, Slot};
use super::settler::{Answer, Extended, Kind, Settled, Settler};
use super::source::{Event, Source};
use super::{Handler, Summary, Worker};
use crate::pb::{self, Revocation, StreamRequest, StreamResponse};

pub(super) struct Session {
    client: Client,
    handler: Handler,
    concurrency: usize,
    batch: usize,
    max_jobs: Option<u64>,
    idle_exit: Option<Duration>,

    source: Source,
    leases: Leases,
    /// Jobs that wait for a handler.
    pending: VecDeque<(Slot, pb::Delivery)>,
    handlers: JoinSet<Outcome>,
    /// The jobs of each handler.
    running: HashMap<Id, Vec<Slot>>,
    /// How to stop the handler of a job.
    aborts: HashMap<Slot, AbortHandle>,
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

// === impl Session ===

impl Session {
    pub(super) fn new(worker: Worker, handler: Handler) -> Session {
        let request = StreamRequest {
            max_in_flight: i32::try_from(worker.credit()).unwrap_or(i32::MAX),
            topics: worker.topics,
            worker_id: worker.id,
            lease_duration: worker.lease.map(proto),
            max_jobs: worker.max_jobs.map(signed).unwrap_or_default(),
            ..Default::default()
        };
        Session {
            source: Source::new(worker.client.clone(), request),
            settler: Settler::new(worker.client.clone()),
            client: worker.client,
            handler,
            concurrency: worker.concurrency,
            batch: worker.batch,
            max_jobs: worker.max_jobs,
            idle_exit: worker.idle_exit,
            leases: Leases::default(),
            pending: VecDeque::new(),
            handlers: JoinSet::new(),
            running: HashMap::new(),
            aborts: HashMap::new(),
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
                // Ends come before begins, so that credit and tasks are freed first.
                biased;
                () = &mut stop, if !self.stopped => self.stop(),
                Some(ended) = self.handlers.join_next_with_id() => self.ended(ended),
                answer = self.settler.next() => self.answered(answer),
                event = self.source.next() => self.received(event),
                () = at(alarm) => self.on_time(Instant::now()),
            }
            self.begin();
            self.rest();
        }
        match self.refused {
            Some(error) => Err(error),
            None => Ok(self.summary),
        }
    }

    fn is_over(&self) -> bool {
        self.closing && self.leases.is_empty() && self.handlers.is_empty()
    }

    fn alarm(&self) -> Option<Instant> {
        let idle = self.idle_since.zip(self.idle_exit).map(|(since, idle)| since + idle);
        match (self.leases.alarm(), idle) {
            (Some(lease), Some(idle)) => Some(lease.min(idle)),
            (lease, idle) => lease.or(idle),
        }
    }

    // --- jobs come ---

    fn received(&mut self, event: Event) {
        match event {
            Event::Message(message) => self.message(*message),
            Event::Ended if self.has_all() => self.finish(),
            Event::Ended => {
                info!("the server ends this stream; opening another one");
                self.reopen();
            }
            Event::Broke(status, pause) => {
                let error = Error::from(status);
                warn!(%error, again_in = ?pause, "no stream from {}", self.client.url());
                self.extend_all();
                self.reopen();
            }
            Event::Refused(status) => {
                self.refused = Some(status.into());
                self.stop();
            }
        }
    }

    fn message(&mut self, message: StreamResponse) {
        if let Some(info) = message.info {
            info!(
                stream = info.stream_id,
                replica = info.replica,
                credit = info.max_in_flight,
                "connected"
            );
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
            let receipt = delivery.receipt.clone();
            let slot = self.leases.insert(receipt, lease.unwrap_or_default(), now);
            self.pending.push_back((slot, delivery));
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
            let (slots, jobs) = self.next_batch();
            self.begun += slots.len() as u64;
            let abort = self.handlers.spawn((self.handler)(jobs));
            self.aborts.extend(slots.iter().map(|slot| (*slot, abort.clone())));
            self.running.insert(abort.id(), slots);
        }
    }

    /// Jobs of one topic that come next.
    fn next_batch(&mut self) -> (Vec<Slot>, Vec<Delivery>) {
        let (mut slots, mut jobs) = (Vec::new(), Vec::<Delivery>::new());
        while jobs.len() < self.batch
            && self
                .pending
                .front()
                .is_some_and(|(_, next)| jobs.first().is_none_or(|first| first.topic == next.topic))
            && let Some((slot, delivery)) = self.pending.pop_front()
        {
            slots.push(slot);
            jobs.push(Delivery::new(delivery, self.client.clone()));
        }
        (slots, jobs)
    }

    fn ended(&mut self, ended: Result<(Id, Outcome), JoinError>) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => (error.id(), failure(error)),
        };
        for slot in self.running.remove(&id).unwrap_or_default() {
            self.aborts.remove(&slot);
            self.settle(slot, outcome.clone());
        }
    }

    fn settle(&mut self, slot: Slot, outcome: Outcome) {
        // Without a lease it was lost, and counted as that.
        if let Some(lease) = self.leases.get(slot) {
            self.settler.settle(slot, lease, outcome);
        }
    }

    /// Notes whether there is anything to do, and sends what would wait for company in vain.
    fn rest(&mut self) {
        if !self.handlers.is_empty() || !self.pending.is_empty() {
            self.idle_since = None;
            return;
        }
        self.settler.flush();
        self.idle_since.get_or_insert_with(Instant::now);
        if self.has_all() && !self.closing {
            self.finish();
        }
    }

    // --- jobs end ---

    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Settled(settled) => settled.into_iter().for_each(|one| self.settled(one)),
            Answer::Extended(sent, answers) => {
                for (slot, extended) in answers {
                    match extended {
                        Extended::Yes => self.leases.extended(slot, sent),
                        Extended::NotNow => self.leases.not_extended(slot, Instant::now()),
                        Extended::Gone => self.lose(slot, "its lease could not be extended"),
                    }
                }
            }
        }
    }

    fn settled(&mut self, settled: Settled) {
        let Settled { slot, kind, result } = settled;
        match result {
            // Lost a moment ago, and counted as that, but the settle came in time.
            Ok(()) if !self.leases.remove(slot) => self.summary.lost -= 1,
            Ok(()) => {}
            // Its follow-up jobs or its result are bad: that is a failure of the handler.
            Err(error) if error.code() == Code::InvalidArgument && kind == Kind::Ack => {
                let what = error.field().map(|field| format!(" ({field})")).unwrap_or_default();
                let error = format!("the Ack was refused: {error}{what}");
                return self.settle(slot, Outcome::retry(error));
            }
            Err(error) => return self.lose(slot, &error.to_string()),
        }
        match kind {
            Kind::Ack => self.summary.acked += 1,
            Kind::Retry => self.summary.failed += 1,
            Kind::Release => self.summary.released += 1,
            Kind::DeadLetter => self.summary.dead_lettered += 1,
        }
    }

    fn revoked(&mut self, revocation: &Revocation) {
        if let Some(slot) = self.leases.find(&revocation.receipt) {
            self.lose(slot, revocation.reason().as_str_name());
        }
    }

    /// A job is not this worker's any more: its handler stops.
    fn lose(&mut self, slot: Slot, why: &str) {
        if self.leases.remove(slot) {
            self.lost(slot, why);
        }
    }

    fn lost(&mut self, slot: Slot, why: &str) {
        warn!(why, "a job was taken away");
        self.summary.lost += 1;
        self.pending.retain(|(pending, _)| *pending != slot);
        let Some(abort) = self.aborts.remove(&slot) else { return };
        // The others of its batch are still good.
        let batch = self.running.get(&abort.id()).into_iter().flatten();
        if !batch.into_iter().any(|slot| self.leases.holds(*slot)) {
            abort.abort();
        }
    }

    // --- time and end ---

    fn on_time(&mut self, now: Instant) {
        let due = self.leases.due(now);
        for slot in due.lost {
            self.lost(slot, "its lease ran out");
        }
        self.extend(due.extend);
        let idle = self.idle_since.zip(self.idle_exit);
        if idle.is_some_and(|(since, idle)| since + idle <= now) && !self.closing {
            debug!("nothing to do");
            self.finish();
        }
    }

    fn extend(&mut self, slots: Vec<Slot>) {
        let receipt = |slot| Some((slot, self.leases.get(slot)?.0.to_owned()));
        let leases: Vec<_> = slots.into_iter().filter_map(receipt).collect();
        if !leases.is_empty() {
            self.settler.extend(&leases);
        }
    }

    /// The one Extend that keeps leases over the end of their stream.
    fn extend_all(&mut self) {
        let slots: Vec<Slot> = self.running.values().flatten().copied().collect();
        slots.iter().for_each(|slot| self.leases.begin(*slot));
        self.extend(slots);
    }

    fn release_pending(&mut self) {
        for (slot, _) in std::mem::take(&mut self.pending) {
            self.settle(slot, Outcome::release());
        }
    }

    /// Takes no more jobs; those in hand go on.
    fn finish(&mut self) {
        self.closing = true;
        self.extend_all();
        for message in self.source.close() {
            self.message(message);
        }
    }

    /// The same, but jobs that have not begun go back.
    fn stop(&mut self) {
        self.stopped = true;
        self.finish();
        self.release_pending();
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
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
