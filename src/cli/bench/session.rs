//! Session: warm-up, rounds, comparison of the audit with the server's numbers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::audit_report::RequiredState;
use super::consume::BenchWorkers;
use super::error::{BenchError, Result};
use super::figures::Figures;
use super::plan::{Phases, Plan};
use super::preset::Preset;
use super::produce;
use super::round::BenchRound;
use super::server::{BenchServer, BenchTopicStats};
use super::stall_detector;
use crate::cli::connect::ServerConnection;
use crate::cli::exit::{self, CommandFailure};
use crate::cli::text::jobs;
use crate::client::Client;

/// Input of a run.
pub(super) struct BenchSession {
    /// Preset from which the plan was made.
    pub(super) preset: Preset,
    pub(super) plan: Plan,
    pub(super) topic: String,
    pub(super) connection: ServerConnection,
    /// Clients, one per connection.
    pub(super) clients: Vec<Client>,
    /// Cancelled by Ctrl-C.
    pub(super) interrupt: CancellationToken,
}

/// Outcome of a run.
pub(super) struct BenchOutcome {
    pub(super) server: BenchServer,
    /// Measured rounds; the last one may be cut short, or have faults.
    pub(super) rounds: Vec<Figures>,
    /// A warm-up that failed: then nothing was measured.
    pub(super) warm_up: Option<Figures>,
    /// Error that ended the run early.
    pub(super) error: Option<BenchError>,
}

// === impl BenchSession ===

impl BenchSession {
    /// Runs warm-up and rounds. Fails only before any job was enqueued.
    pub(super) async fn run(&self) -> std::result::Result<BenchOutcome, CommandFailure> {
        let server = BenchServer::fetch(&self.clients, &self.connection).await?;
        self.check_topic().await?;
        let mut outcome = BenchOutcome { server, rounds: Vec::new(), warm_up: None, error: None };
        if let Some(plan) = self.plan.warm_up() {
            let (figures, trouble) = self.round(plan, &outcome.server).await;
            if !figures.is_sound() {
                outcome.warm_up = Some(figures);
                outcome.error = trouble;
                return Ok(outcome);
            }
        }
        for _ in 0..self.plan.rounds {
            let (figures, trouble) = self.round(self.plan, &outcome.server).await;
            let sound = figures.is_sound();
            outcome.rounds.push(figures);
            outcome.error = trouble;
            if !sound {
                break;
            }
        }
        Ok(outcome)
    }

    /// Fails if the topic has jobs of others: they would be counted as faults, and be taken from their workers.
    async fn check_topic(&self) -> std::result::Result<(), CommandFailure> {
        if self.plan.phases == Phases::Fill {
            return Ok(());
        }
        let topic = &self.topic;
        let what = format!("cannot measure on topic {topic}");
        let stats = BenchTopicStats::fetch(&self.connection, topic).await;
        let stats = stats.map_err(|error| self.connection.failure(&what, &error))?;
        if stats.unfinished == 0 {
            return Ok(());
        }
        let problem = format!("{what}: the topic has {} of others", jobs(stats.unfinished));
        Err(CommandFailure::new(exit::FAILED, problem)
            .with_hint("without --topic a new topic is used"))
    }

    /// Runs one round; returns its figures, also if it failed, with the error that ended it.
    async fn round(&self, plan: Plan, server: &BenchServer) -> (Figures, Option<BenchError>) {
        let round = Arc::new(BenchRound::new(plan, &self.topic, server.clock));
        let result = self.run_round(&round).await;
        let mut figures = Figures::from_round(&round);
        let trouble = match result {
            Ok(before) => self.verify(&round, before, &mut figures).await.err(),
            Err(trouble) => Some(trouble),
        };
        (figures, trouble)
    }

    /// Runs one round; returns the server's numbers before it.
    async fn run_round(&self, round: &Arc<BenchRound>) -> Result<BenchTopicStats> {
        let before = self.stats().await?;
        tokio::select! {
            result = phases(round, &self.clients) => result?,
            result = stall_detector::run(round, &self.connection) => result?,
            () = self.interrupt.cancelled() => return Err(BenchError::Interrupted),
        }
        Ok(before)
    }

    /// Compares the audit, job by job, and its sums with the server's own numbers.
    async fn verify(
        &self,
        round: &BenchRound,
        before: BenchTopicStats,
        figures: &mut Figures,
    ) -> Result<()> {
        let found = self.stats().await?;
        figures.audit =
            round.audit.report(round.numbers_taken(), required_state(round.plan.phases));
        figures.complete = true;
        let found = found.since(before);
        let jobs = i64::from(round.numbers_taken());
        let expected = match round.plan.phases {
            Phases::Fill => BenchTopicStats { enqueued: jobs, succeeded: 0, unfinished: jobs },
            _ => BenchTopicStats { enqueued: jobs, succeeded: jobs, unfinished: 0 },
        };
        if found != expected {
            let BenchTopicStats { enqueued, succeeded, unfinished: left } = found;
            figures.audit.faults.push(format!(
                "of {jobs} jobs the server counts {enqueued} enqueued, {succeeded} succeeded and \
                 {left} left"
            ));
        }
        Ok(())
    }

    async fn stats(&self) -> Result<BenchTopicStats> {
        let stats = BenchTopicStats::fetch(&self.connection, &self.topic).await;
        stats.map_err(|error| {
            BenchError::CallFailed("cannot read the topic's numbers", Box::new(error))
        })
    }
}

/// Returns the state that every job must have at the end.
fn required_state(phases: Phases) -> RequiredState {
    if phases == Phases::Fill { RequiredState::Enqueued } else { RequiredState::Acked }
}

async fn phases(round: &Arc<BenchRound>, clients: &[Client]) -> Result<()> {
    match round.plan.phases {
        Phases::Fill => produce::run(round, clients).await,
        Phases::Enqueue | Phases::Consume | Phases::Sequence => {
            produce::run(round, clients).await?;
            BenchWorkers::open(round, clients).await?.run().await
        }
        Phases::Together => {
            let workers = BenchWorkers::open(round, clients).await?;
            tokio::try_join!(produce::run(round, clients), workers.run())?;
            Ok(())
        }
    }
}
