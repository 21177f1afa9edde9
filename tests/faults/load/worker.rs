//! Workers: each holds a stream of its replica, passes deliveries to settlers at once, and opens another stream, on
//! another replica, when its stream ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use ringq::pb;
use tokio::task::JoinSet;
use tonic::Streaming;

use super::calls::{Pauses, Replicas};
use super::settle::{Held, Settler};
use super::{Shared, TOPICS, job};
use crate::checker::history::{Delivered, Event, Nanos, nanos};

const MESSAGE_JOBS: i32 = 32;
/// Numbers of streams over all workers.
static STREAMS: AtomicU64 = AtomicU64::new(0);

/// Starts all workers.
pub(super) fn start(shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
    for number in 0..shared.habits.streams * shared.replicas.len() {
        let lane = 1000 + u64::try_from(number).unwrap();
        let worker = Worker {
            shared: Arc::clone(shared),
            replicas: Replicas::new(shared, number),
            random: shared.random(lane),
            number,
            server: number,
            settlers: JoinSet::new(),
            lane: lane << 32,
        };
        tasks.spawn(worker.run());
    }
}

struct Worker {
    shared: Arc<Shared>,
    replicas: Replicas,
    random: StdRng,
    number: usize,
    /// Replica of its stream.
    server: usize,
    settlers: JoinSet<()>,
    lane: u64,
}

/// The open stream.
struct Open {
    stream: Streaming<pb::StreamResponse>,
    number: u64,
    since: Nanos,
}

impl Worker {
    async fn run(mut self) {
        while !self.shared.stop.is_cancelled() {
            let since = self.shared.history.now();
            let mut queue = self.replicas.get(self.server);
            let call = queue.stream(self.request());
            if let Ok(stream) = self.shared.answer(&mut self.random, "stream", call).await {
                let number = STREAMS.fetch_add(1, Relaxed);
                let (worker, server, at) = (self.number, self.server(), self.shared.history.now());
                self.shared.history.record([Event::Opened { stream: number, worker, server, at }]);
                self.follow(Open { stream, number, since }).await;
                let at = self.shared.history.now();
                self.shared.history.record([Event::Ended { stream: number, at }]);
            } else {
                self.server += 1;
            }
            Pauses::new().pause(&mut self.random).await;
        }
        super::join(&mut self.settlers).await;
    }

    /// Receives until the stream ends, its life is over, or the load stops.
    async fn follow(&mut self, mut open: Open) {
        let life = self.shared.habits.stream_life;
        let life = life.map(|life| life.mul_f64(self.random.random_range(0.1..1.0)));
        let end = tokio::time::sleep(life.unwrap_or(Duration::from_secs(86_400)));
        let stop = self.shared.stop.clone();
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = &mut end => return,
                Some(settled) = self.settlers.join_next() => settled.expect("a settler"),
                message = open.stream.message() => match message {
                    Ok(Some(message)) => self.take(message.deliveries, &open),
                    Ok(None) => return,
                    Err(status) => {
                        self.shared.troubles.count(format!("stream broken: {}", status.code()));
                        self.server += 1;
                        return;
                    }
                },
            }
        }
    }

    /// Passes deliveries to a settler, which does not block the stream.
    fn take(&mut self, deliveries: Vec<pb::Delivery>, open: &Open) {
        if deliveries.is_empty() {
            return;
        }
        let at = self.shared.history.now();
        let mut held = Vec::new();
        for delivery in deliveries {
            let delivered = self.arrival(&delivery, at, open);
            if let Some(job) = delivered.job {
                self.shared.called(job, &delivered.id);
                let Delivered { delivery, attempt, ref receipt, .. } = delivered;
                held.push(Held { job, delivery, attempt, receipt: receipt.clone() });
            }
            self.shared.history.record([Event::Delivered(delivered)]);
        }
        self.lane += 1;
        let replicas = Replicas::clone(&self.replicas);
        let settler = Settler {
            shared: Arc::clone(&self.shared),
            replicas,
            random: self.shared.random(self.lane),
            server: self.server,
        };
        self.settlers.spawn(settler.settle(held));
    }

    fn arrival(&self, delivery: &pb::Delivery, at: Nanos, open: &Open) -> Delivered {
        let read = job::read(delivery.payload.as_ref(), self.shared.jobs());
        let lease = delivery.lease_duration.expect("a lease").try_into();
        Delivered {
            job: read.map(|(job, _)| job),
            id: delivery.id.clone(),
            at,
            server: self.server(),
            stream: open.number,
            stream_since: open.since,
            delivery: delivery.delivery,
            attempt: delivery.attempt,
            receipt: delivery.receipt.clone(),
            lease: nanos(lease.expect("no negative lease")),
            grace: nanos(self.shared.habits.grace),
            intact: read.is_some_and(|(job, whole)| whole && delivery.topic == job::topic(job)),
        }
    }

    /// Returns the replica of its stream.
    fn server(&self) -> u32 {
        u32::try_from(self.server % self.shared.replicas.len()).unwrap()
    }

    /// Builds the request: every other worker names the topics, the rest use a prefix.
    fn request(&self) -> pb::StreamRequest {
        let proto = |duration| prost_types::Duration::try_from(duration).ok();
        let named = self.number.is_multiple_of(2);
        let topics =
            if named { TOPICS.map(str::to_owned).to_vec() } else { vec!["faults.*".into()] };
        pb::StreamRequest {
            topics,
            max_in_flight: self.shared.habits.credit,
            max_batch: MESSAGE_JOBS,
            lease_duration: proto(self.shared.habits.lease),
            orphan_grace: proto(self.shared.habits.grace),
            worker_id: format!("worker-{}", self.number),
            ..Default::default()
        }
    }
}
