//! Producers: each job is asked for until an answer comes, always with the same id.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use ringq::pb;
use tokio::task::JoinSet;

use crate::history::Event;
use crate::rig::{Queue, Rig, TOPIC, job_body, job_id, pause};

const UNARY_LANES: u64 = 12;
const BATCH_LANES: u64 = 2;
const BATCH_MAX: u32 = 64;
/// Between two batches at most: they must not be done long before the unary half.
const BATCH_PAUSE_MS: u64 = 20;

/// Starts all producers: one half of the jobs goes one by one, the other in batches.
pub(crate) fn start(rig: &Arc<Rig>, tasks: &mut JoinSet<()>) {
    let half = rig.jobs / 2;
    let (unary, batch) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(half)));
    for lane in 0..UNARY_LANES {
        let jobs = Jobs { next: Arc::clone(&unary), end: half };
        tasks.spawn(Producer::new(rig, lane).unary(jobs));
    }
    for lane in 0..BATCH_LANES {
        let jobs = Jobs { next: Arc::clone(&batch), end: rig.jobs };
        tasks.spawn(Producer::new(rig, UNARY_LANES + lane).batches(jobs));
    }
}

/// The jobs that the lanes of one kind share.
struct Jobs {
    next: Arc<AtomicU32>,
    end: u32,
}

impl Jobs {
    fn take(&self, rig: &Rig, count: u32) -> Range<u32> {
        let count = if rig.enough() { 0 } else { count };
        let from = self.next.fetch_add(count, Relaxed).min(self.end);
        from..(from + count).min(self.end)
    }
}

struct Producer {
    rig: Arc<Rig>,
    queue: Queue,
    random: StdRng,
}

impl Producer {
    fn new(rig: &Arc<Rig>, lane: u64) -> Self {
        Self { rig: Arc::clone(rig), queue: rig.connect(), random: rig.random(lane) }
    }

    async fn unary(mut self, jobs: Jobs) {
        while let Some(job) = jobs.take(&self.rig, 1).next() {
            self.asked(job..job + 1);
            while !self.rig.stopped() && !self.enqueue(job).await {
                pause(&mut self.random).await;
            }
            if self.rig.stopped() {
                return;
            }
        }
    }

    async fn enqueue(&mut self, job: u32) -> bool {
        let durability = self.rig.asked.into();
        let request =
            pb::EnqueueRequest { job: Some(self.spec(job)), durability, ..Default::default() };
        let Some(response) = self.rig.answer(self.queue.enqueue(request)).await else {
            return false;
        };
        self.answered([(job, response.durability, response.id)]);
        true
    }

    async fn batches(mut self, jobs: Jobs) {
        loop {
            let batch = jobs.take(&self.rig, self.random.random_range(1..=BATCH_MAX));
            if batch.is_empty() {
                return;
            }
            self.asked(batch.clone());
            let mut open: Vec<u32> = batch.collect();
            while !open.is_empty() {
                if self.rig.stopped() {
                    return;
                }
                open = self.batch_enqueue(open).await;
                let wait = self.random.random_range(0..BATCH_PAUSE_MS);
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
        }
    }

    /// Sends a batch; the jobs that must be asked for again.
    async fn batch_enqueue(&mut self, jobs: Vec<u32>) -> Vec<u32> {
        let specs = jobs.iter().map(|job| self.spec(*job)).collect();
        let durability = self.rig.asked.into();
        let request = pb::BatchEnqueueRequest { jobs: specs, durability, ..Default::default() };
        let Some(response) = self.rig.answer(self.queue.batch_enqueue(request)).await else {
            return jobs;
        };
        assert_eq!(response.results.len(), jobs.len(), "one result per job");
        let mut open = Vec::new();
        let mut done = Vec::new();
        for (job, result) in jobs.into_iter().zip(response.results) {
            match result.error {
                None => done.push((job, result.durability, result.id)),
                Some(error) => {
                    assert_eq!(error.code, tonic::Code::Unavailable as i32, "refused: {error:?}");
                    open.push(job);
                }
            }
        }
        self.answered(done);
        open
    }

    fn asked(&self, jobs: Range<u32>) {
        let at = self.rig.history.now();
        let event = |job| Event::Enqueue { job, at, delay: self.rig.delay(job) };
        self.rig.history.record(jobs.map(event));
    }

    fn answered(&self, jobs: impl IntoIterator<Item = (u32, i32, String)>) {
        let at = self.rig.history.now();
        let event = |(job, durability, id)| {
            self.rig.enqueued(job);
            let fsynced = durability >= pb::Durability::Fsynced as i32;
            Event::Enqueued { job, at, fsynced, id }
        };
        self.rig.history.record(jobs.into_iter().map(event));
    }

    /// The job. It is never given up: a rig must not mistake a dead letter for a loss.
    fn spec(&self, job: u32) -> pb::JobSpec {
        let nanos = i32::try_from(self.rig.delay(job) % 1_000_000_000).expect("below 10^9");
        let seconds = i64::try_from(self.rig.delay(job) / 1_000_000_000).expect("2 s at most");
        let delay = prost_types::Duration { seconds, nanos };
        pb::JobSpec {
            topic: TOPIC.to_owned(),
            id: job_id(job),
            payload: Some(pb::Payload {
                kind: Some(pb::payload::Kind::Data(job_body(job))),
                content_type: String::new(),
            }),
            schedule: (self.rig.delay(job) > 0).then_some(pb::job_spec::Schedule::Delay(delay)),
            retry: Some(pb::RetryPolicy {
                max_attempts: -1,
                max_deliveries: -1,
                initial_delay: Some(prost_types::Duration { seconds: 0, nanos: 20_000_000 }),
                multiplier: 1.0,
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}
