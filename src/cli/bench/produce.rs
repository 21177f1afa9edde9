//! Producers: calls for one job or for a batch, a fixed number of them under way. A task per call
//! under way, none per job.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::body::Stamp;
use super::round::Round;
use super::server::timestamp;
use super::time;
use super::trouble::{Result, Trouble};
use super::turns::{Pace, Turn};
use crate::client::{Client, Error, Transport};
use crate::pb::queue_service_client::QueueServiceClient;
use crate::pb::{
    BatchEnqueueRequest, EnqueueOutcome, EnqueueRequest, JobSpec, Payload, job_spec::Schedule,
};

const WHAT: &str = "cannot enqueue";

/// Enqueues all jobs of the round.
pub(super) async fn run(round: &Arc<Round>, clients: &[Client]) -> Result<()> {
    let pace = Arc::new(Pace::begin(&round.plan, round.begin()));
    let mut lanes = JoinSet::new();
    for lane in 0..round.plan.lanes() {
        let producer = (lane / round.plan.in_flight) as usize;
        let queue = clients[producer % clients.len()].queue();
        let (round, pace) = (Arc::clone(round), Arc::clone(&pace));
        lanes.spawn(Lane { round, pace, queue }.run());
    }
    join(lanes).await?;
    round.produced();
    Ok(())
}

/// Waits for all tasks, or for the first that fails.
pub(super) async fn join(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        match task {
            Ok(result) => result?,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return Err(Trouble::Interrupted),
            },
        }
    }
    Ok(())
}

/// One call at a time.
struct Lane {
    round: Arc<Round>,
    pace: Arc<Pace>,
    queue: QueueServiceClient<Transport>,
}

/// A call that is about to be made.
struct Call {
    turn: Turn,
    jobs: Vec<JobSpec>,
    first_due_us: i64,
}

// === impl Lane ===

impl Lane {
    async fn run(mut self) -> Result<()> {
        while let Some(turn) = self.round.turns.take(&self.pace).await {
            let call = self.prepare(turn);
            if self.round.plan.batch == 1 {
                self.single(call).await?;
            } else {
                self.batch(call).await?;
            }
        }
        Ok(())
    }

    fn prepare(&self, turn: Turn) -> Call {
        let round = &*self.round;
        let sent_us = round.since_base(turn.start);
        let mut buffer = round.bodies.buffer(turn.numbers.len());
        let (mut first_due_us, mut last_due_us) = (i64::MAX, 0);
        let job = |number| {
            let due_us = round.due_us(number);
            (first_due_us, last_due_us) = (first_due_us.min(due_us), last_due_us.max(due_us));
            let body = round.bodies.write(&mut buffer, Stamp { number, sent_us, due_us });
            JobSpec {
                topic: round.topic.clone(),
                payload: Some(Payload::data(body)),
                schedule: (due_us != 0).then(|| Schedule::DueTime(timestamp(due_us))),
                ..Default::default()
            }
        };
        let jobs = turn.numbers.clone().map(job).collect();
        round.due_until(last_due_us);
        Call { turn, jobs, first_due_us }
    }

    async fn single(&mut self, mut call: Call) -> Result<()> {
        let request = EnqueueRequest {
            job: call.jobs.pop(),
            durability: self.round.plan.durability().into(),
            ..Default::default()
        };
        let answer = self.queue.enqueue(request).await.map_err(Trouble::at(WHAT))?.into_inner();
        self.answered(&call);
        self.round.reached(answer.durability());
        self.created(call.turn.numbers.start, answer.outcome())
    }

    async fn batch(&mut self, mut call: Call) -> Result<()> {
        let request = BatchEnqueueRequest {
            jobs: std::mem::take(&mut call.jobs),
            durability: self.round.plan.durability().into(),
            ..Default::default()
        };
        let answer = self.queue.batch_enqueue(request).await;
        let answer = answer.map_err(Trouble::at(WHAT))?.into_inner();
        self.answered(&call);
        if answer.results.len() != call.turn.numbers.len() {
            let (asked, got) = (call.turn.numbers.len(), answer.results.len());
            return Err(Trouble::Wrong(format!("{got} results for a batch of {asked} jobs")));
        }
        for (number, mut result) in call.turn.numbers.zip(answer.results) {
            if let Some(error) = result.error.take() {
                return Err(Trouble::Call(WHAT, Box::new(Error::from(error))));
            }
            self.round.reached(result.durability());
            self.created(number, result.outcome())?;
        }
        Ok(())
    }

    fn answered(&self, call: &Call) {
        self.round.latency.enqueue.record(time::micros(call.turn.start.elapsed()));
        if call.first_due_us > 0 && self.round.clock.now_us() > call.first_due_us {
            self.round.count_overdue(call.turn.numbers.len() as u64);
        }
    }

    fn created(&self, number: u32, outcome: EnqueueOutcome) -> Result<()> {
        if outcome != EnqueueOutcome::Created {
            let outcome = outcome.as_str_name();
            return Err(Trouble::Wrong(format!("job {number} is new, and the answer {outcome}")));
        }
        self.round.books.enqueued(number);
        Ok(())
    }
}
