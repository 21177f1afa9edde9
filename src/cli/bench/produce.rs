//! Producers: calls for one job or for a batch, a fixed number of them in flight. One task per call in flight, none
//! per job.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::body::BodyHeader;
use super::clocks;
use super::error::{BenchError, Result};
use super::round::BenchRound;
use super::schedule::{Pace, ScheduledCall};
use super::server::timestamp;
use crate::client::{Client, Error, Transport};
use crate::pb::queue_service_client::QueueServiceClient;
use crate::pb::{
    BatchEnqueueRequest, EnqueueOutcome, EnqueueRequest, JobSpec, Payload, job_spec::Schedule,
};

const WHAT: &str = "cannot enqueue";

/// Enqueues all jobs of the round.
pub(super) async fn run(round: &Arc<BenchRound>, clients: &[Client]) -> Result<()> {
    let pace = Arc::new(Pace::start(&round.plan, round.begin()));
    let mut lanes = JoinSet::new();
    for lane in 0..round.plan.lanes() {
        let producer = (lane / round.plan.in_flight) as usize;
        let queue = clients[producer % clients.len()].queue();
        let (round, pace) = (Arc::clone(round), Arc::clone(&pace));
        lanes.spawn(ProducerLane { round, pace, queue }.run());
    }
    join(lanes).await?;
    round.mark_produced();
    Ok(())
}

/// Waits for all tasks, or for the first that fails.
pub(super) async fn join(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        match task {
            Ok(result) => result?,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return Err(BenchError::Interrupted),
            },
        }
    }
    Ok(())
}

/// Lane that makes one call at a time.
struct ProducerLane {
    round: Arc<BenchRound>,
    pace: Arc<Pace>,
    queue: QueueServiceClient<Transport>,
}

/// Enqueue call before it is sent.
struct EnqueueCall {
    slot: ScheduledCall,
    jobs: Vec<JobSpec>,
    first_due_us: i64,
}

// === impl ProducerLane ===

impl ProducerLane {
    async fn run(mut self) -> Result<()> {
        while let Some(turn) = self.round.schedule.take(&self.pace).await {
            let call = self.prepare(turn);
            if self.round.plan.batch == 1 {
                self.single(call).await?;
            } else {
                self.batch(call).await?;
            }
        }
        Ok(())
    }

    fn prepare(&self, turn: ScheduledCall) -> EnqueueCall {
        let round = &*self.round;
        let sent_us = round.elapsed_us(turn.start);
        let mut buffer = round.bodies.buffer(turn.numbers.len());
        let (mut first_due_us, mut last_due_us) = (i64::MAX, 0);
        let job = |number| {
            let due_us = round.due_us(number);
            (first_due_us, last_due_us) = (first_due_us.min(due_us), last_due_us.max(due_us));
            let body = round.bodies.write(&mut buffer, BodyHeader { number, sent_us, due_us });
            JobSpec {
                topic: round.topic.clone(),
                payload: Some(Payload::data(body)),
                schedule: (due_us != 0).then(|| Schedule::DueTime(timestamp(due_us))),
                ..Default::default()
            }
        };
        let jobs = turn.numbers.clone().map(job).collect();
        round.record_due(last_due_us);
        EnqueueCall { slot: turn, jobs, first_due_us }
    }

    async fn single(&mut self, mut call: EnqueueCall) -> Result<()> {
        let request = EnqueueRequest {
            job: call.jobs.pop(),
            durability: self.round.plan.durability().into(),
            ..Default::default()
        };
        let answer =
            self.queue.enqueue(request).await.map_err(BenchError::call_failed(WHAT))?.into_inner();
        self.answered(&call);
        self.round.record_durability(answer.durability());
        self.created(call.slot.numbers.start, answer.outcome())
    }

    async fn batch(&mut self, mut call: EnqueueCall) -> Result<()> {
        let request = BatchEnqueueRequest {
            jobs: std::mem::take(&mut call.jobs),
            durability: self.round.plan.durability().into(),
            ..Default::default()
        };
        let answer = self.queue.batch_enqueue(request).await;
        let answer = answer.map_err(BenchError::call_failed(WHAT))?.into_inner();
        self.answered(&call);
        if answer.results.len() != call.slot.numbers.len() {
            let (asked, got) = (call.slot.numbers.len(), answer.results.len());
            return Err(BenchError::ServerViolation(format!(
                "{got} results for a batch of {asked} jobs"
            )));
        }
        for (number, mut result) in call.slot.numbers.zip(answer.results) {
            if let Some(error) = result.error.take() {
                return Err(BenchError::CallFailed(WHAT, Box::new(Error::from(error))));
            }
            self.round.record_durability(result.durability());
            self.created(number, result.outcome())?;
        }
        Ok(())
    }

    fn answered(&self, call: &EnqueueCall) {
        self.round.latency.enqueue.record(clocks::micros(call.slot.start.elapsed()));
        if call.first_due_us > 0 && self.round.clock.now_us() > call.first_due_us {
            self.round.count_overdue(call.slot.numbers.len() as u64);
        }
    }

    fn created(&self, number: u32, outcome: EnqueueOutcome) -> Result<()> {
        if outcome != EnqueueOutcome::Created {
            let outcome = outcome.as_str_name();
            return Err(BenchError::ServerViolation(format!(
                "job {number} is new, and the answer {outcome}"
            )));
        }
        self.round.audit.record_enqueued(number);
        Ok(())
    }
}
