//! Workers: each holds a stream, settles what comes, and opens another one when the server goes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use ringq::pb;
use ringq::pb::SettleError;
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::history::{Delivered, Event, Nanos, nanos};
use crate::rig::{Queue, Rig, TOPIC, job_body, job_number, pause};

const WORKERS: u64 = 4;
const CREDIT: i32 = 200;
const MESSAGE_JOBS: i32 = 32;
/// Leases end soon, so that a rig does not wait long for those of a killed server.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// How long a lease outlives its stream.
const GRACE: Duration = Duration::from_secs(1);
/// The share of deliveries that is refused.
const NACKED: f64 = 0.05;
const NACK_DELAY_MS: u64 = 30;
/// Wakes a worker on a quiet stream, to see whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Starts all workers.
pub(crate) fn start(rig: &Arc<Rig>, tasks: &mut JoinSet<()>) {
    for lane in 0..WORKERS {
        let random = rig.random(1000 + lane);
        let worker = Worker { rig: Arc::clone(rig), queue: rig.connect(), random };
        tasks.spawn(worker.run());
    }
}

struct Worker {
    rig: Arc<Rig>,
    queue: Queue,
    random: StdRng,
}

/// A delivery in hand.
struct Held {
    job: u32,
    delivery: i32,
    receipt: String,
}

impl Worker {
    async fn run(mut self) {
        while !self.rig.stopped() {
            let since = self.rig.history.now();
            let opened = self.rig.answer(self.queue.stream(request())).await;
            if let Some(stream) = opened {
                self.follow(stream, since).await;
                let at = self.rig.history.now();
                self.rig.history.record([Event::Ended { stream: since, at }]);
            }
            pause(&mut self.random).await;
        }
    }

    /// Works until the stream breaks or the rig stops.
    async fn follow(&mut self, mut stream: Streaming<pb::StreamResponse>, since: Nanos) {
        while !self.rig.stopped() {
            match tokio::time::timeout(LOOK_UP, stream.message()).await {
                Ok(Ok(Some(message))) => self.work(message.deliveries, since).await,
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    async fn work(&mut self, deliveries: Vec<pb::Delivery>, since: Nanos) {
        let at = self.rig.history.now();
        let (mut good, mut refused) = (Vec::new(), Vec::new());
        for delivery in deliveries {
            let job = job_number(&delivery.id, self.rig.jobs);
            self.rig.history.record([arrival(&delivery, job, at, since)]);
            let Some(job) = job else { continue };
            let held = Held { job, delivery: delivery.delivery, receipt: delivery.receipt };
            let pile = if self.random.random_bool(NACKED) { &mut refused } else { &mut good };
            pile.push(held);
        }
        self.nack(refused).await;
        self.ack(good).await;
    }

    /// Acknowledges, again and again until each receipt has a final answer.
    async fn ack(&mut self, mut open: Vec<Held>) {
        let sent = self.rig.history.now();
        while !open.is_empty() && !self.rig.stopped() {
            let items = open.iter().map(|held| held.receipt.clone());
            let items = items.map(|receipt| pb::AckItem { receipt, ..Default::default() });
            let request = pb::AckRequest { items: items.collect() };
            match self.rig.answer(self.queue.ack(request)).await {
                Some(response) => open = self.settled(open, &response.failures, sent),
                None => pause(&mut self.random).await,
            }
        }
    }

    /// Records what is done; what is left must be sent again. NOT_FOUND is no proof here: a job whose
    /// id was chosen by the client leaves a tombstone, which must answer a repeat.
    fn settled(&self, open: Vec<Held>, failures: &[pb::SettleFailure], sent: Nanos) -> Vec<Held> {
        let of = |error| -> HashSet<&str> {
            let failed = failures.iter().filter(|failure| failure.error() == error);
            failed.map(|failure| failure.receipt.as_str()).collect()
        };
        assert!(of(SettleError::Malformed).is_empty(), "malformed: {failures:?}");
        let (stale, gone) = (of(SettleError::Stale), of(SettleError::NotFound));
        let again = of(SettleError::Unavailable);
        let at = self.rig.history.now();
        let mut left = Vec::new();
        for held in open {
            let receipt = held.receipt.as_str();
            if again.contains(receipt) {
                left.push(held);
            } else if !stale.contains(receipt) && !gone.contains(receipt) {
                self.rig.acked(held.job);
                let Held { job, delivery, receipt } = held;
                self.rig.history.record([Event::Acked { job, sent, at, delivery, receipt }]);
            }
        }
        left
    }

    /// Refuses, once: what is not answered comes back when its lease ends.
    async fn nack(&mut self, held: Vec<Held>) {
        if held.is_empty() {
            return;
        }
        let delay_ms = self.random.random_range(0..NACK_DELAY_MS);
        let actions = [pb::NackAction::Retry, pb::NackAction::Release];
        let action = actions[usize::from(self.random.random_bool(0.5))];
        let sent = self.rig.history.now();
        let failed = action == pb::NackAction::Retry;
        self.rig.history.record(held.iter().map(|held| Event::Nack {
            job: held.job,
            at: sent,
            receipt: held.receipt.clone(),
            failed,
        }));
        let items = held.iter().map(|held| nack_item(held, action, delay_ms)).collect();
        let Some(response) = self.rig.answer(self.queue.nack(pb::NackRequest { items })).await
        else {
            return;
        };
        let failed: HashSet<_> = response.failures.iter().map(|failure| &failure.receipt).collect();
        let done = held.iter().filter(|held| !failed.contains(&held.receipt));
        let delay = delay_ms * 1_000_000;
        self.rig.history.record(done.map(|held| {
            let Held { job, delivery, .. } = *held;
            Event::Nacked { job, sent, delivery, delay }
        }));
    }
}

fn request() -> pb::StreamRequest {
    let proto = |duration| prost_types::Duration::try_from(duration).ok();
    pb::StreamRequest {
        topics: vec![TOPIC.to_owned()],
        max_in_flight: CREDIT,
        max_batch: MESSAGE_JOBS,
        lease_duration: proto(LEASE),
        orphan_grace: proto(GRACE),
        ..Default::default()
    }
}

fn arrival(delivery: &pb::Delivery, job: Option<u32>, at: Nanos, stream_since: Nanos) -> Event {
    let body = delivery.payload.as_ref().and_then(|payload| payload.kind.as_ref());
    let intact = match (body, job) {
        (Some(pb::payload::Kind::Data(data)), Some(job)) => *data == job_body(job),
        _ => false,
    };
    let lease = delivery.lease_duration.expect("a lease").try_into().map(nanos);
    Event::Delivered(Delivered {
        job,
        id: delivery.id.clone(),
        at,
        server: 0,
        // Two streams never begin in one nanosecond.
        stream: stream_since,
        stream_since,
        delivery: delivery.delivery,
        attempt: delivery.attempt,
        receipt: delivery.receipt.clone(),
        lease: lease.expect("no negative lease"),
        grace: nanos(GRACE),
        intact,
    })
}

fn nack_item(held: &Held, action: pb::NackAction, delay_ms: u64) -> pb::NackItem {
    let nanos = i32::try_from(delay_ms * 1_000_000).expect("some milliseconds");
    pb::NackItem {
        receipt: held.receipt.clone(),
        action: action as i32,
        delay: Some(prost_types::Duration { seconds: 0, nanos }),
        error: String::new(),
    }
}
