//! A whole run: warm-up, rounds, comparison of the books.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::balance::Demand;
use super::consume::Workers;
use super::figures::Figures;
use super::plan::{Phases, Plan};
use super::preset::Preset;
use super::produce;
use super::round::Round;
use super::server::{Server, Stats};
use super::trouble::{Result, Trouble};
use super::watch;
use crate::cli::connect::Connection;
use crate::cli::exit::{self, Failure};
use crate::cli::text::jobs;
use crate::client::Client;

/// What a run needs.
pub(super) struct Session {
    /// What the plan was made from.
    pub(super) preset: Preset,
    pub(super) plan: Plan,
    pub(super) topic: String,
    pub(super) connection: Connection,
    /// One for each connection.
    pub(super) clients: Vec<Client>,
    /// Cancelled by Ctrl-C.
    pub(super) interrupt: CancellationToken,
}

/// What came of it.
pub(super) struct Outcome {
    pub(super) server: Server,
    /// Measured rounds; the last one may be cut short, or have faults.
    pub(super) rounds: Vec<Figures>,
    /// A warm-up that did not end well: then nothing was measured.
    pub(super) warm_up: Option<Figures>,
    /// What ended it too early.
    pub(super) trouble: Option<Trouble>,
}

// === impl Session ===

impl Session {
    /// Runs it all. Fails only before any job was enqueued.
    pub(super) async fn run(&self) -> std::result::Result<Outcome, Failure> {
        let server = Server::ask(&self.clients, &self.connection).await?;
        self.check_topic().await?;
        let mut outcome = Outcome { server, rounds: Vec::new(), warm_up: None, trouble: None };
        if let Some(plan) = self.plan.warm_up() {
            let (figures, trouble) = self.round(plan, &outcome.server).await;
            if !figures.is_sound() {
                outcome.warm_up = Some(figures);
                outcome.trouble = trouble;
                return Ok(outcome);
            }
        }
        for _ in 0..self.plan.rounds {
            let (figures, trouble) = self.round(self.plan, &outcome.server).await;
            let sound = figures.is_sound();
            outcome.rounds.push(figures);
            outcome.trouble = trouble;
            if !sound {
                break;
            }
        }
        Ok(outcome)
    }

    /// Jobs of others would be taken for faults, and would be taken from whoever waits for them.
    async fn check_topic(&self) -> std::result::Result<(), Failure> {
        if self.plan.phases == Phases::Fill {
            return Ok(());
        }
        let topic = &self.topic;
        let what = format!("cannot measure on topic {topic}");
        let stats = Stats::ask(&self.connection, topic).await;
        let stats = stats.map_err(|error| self.connection.failure(&what, &error))?;
        if stats.left == 0 {
            return Ok(());
        }
        let problem = format!("{what}: it has {} of others", jobs(stats.left));
        Err(Failure::new(exit::FAILED, problem).hint("without --topic it gets one of its own"))
    }

    /// One round, and what it ended with: also what was found out until then.
    async fn round(&self, plan: Plan, server: &Server) -> (Figures, Option<Trouble>) {
        let round = Arc::new(Round::new(plan, &self.topic, server.clock));
        let result = self.drive(&round).await;
        let mut figures = Figures::of(&round);
        let trouble = match result {
            Ok(before) => self.compare(&round, before, &mut figures).await.err(),
            Err(trouble) => Some(trouble),
        };
        (figures, trouble)
    }

    /// The server's numbers before it.
    async fn drive(&self, round: &Arc<Round>) -> Result<Stats> {
        let before = self.stats().await?;
        tokio::select! {
            result = phases(round, &self.clients) => result?,
            result = watch::run(round, &self.connection) => result?,
            () = self.interrupt.cancelled() => return Err(Trouble::Interrupted),
        }
        Ok(before)
    }

    /// Compares the books, one job at a time, and their sums with the server's own numbers.
    async fn compare(&self, round: &Round, before: Stats, figures: &mut Figures) -> Result<()> {
        let found = self.stats().await?;
        figures.balance = round.books.balance(round.jobs(), demand(round.plan.phases));
        figures.complete = true;
        let found = found.since(before);
        let jobs = i64::from(round.jobs());
        let expected = match round.plan.phases {
            Phases::Fill => Stats { enqueued: jobs, succeeded: 0, left: jobs },
            _ => Stats { enqueued: jobs, succeeded: jobs, left: 0 },
        };
        if found != expected {
            let Stats { enqueued, succeeded, left } = found;
            figures.balance.faults.push(format!(
                "of {jobs} jobs the server counts {enqueued} enqueued, {succeeded} succeeded and \
                 {left} left"
            ));
        }
        Ok(())
    }

    async fn stats(&self) -> Result<Stats> {
        let stats = Stats::ask(&self.connection, &self.topic).await;
        stats.map_err(|error| Trouble::Call("cannot read the topic's numbers", Box::new(error)))
    }
}

/// What the books must show in the end.
fn demand(phases: Phases) -> Demand {
    if phases == Phases::Fill { Demand::Enqueued } else { Demand::Acked }
}

async fn phases(round: &Arc<Round>, clients: &[Client]) -> Result<()> {
    match round.plan.phases {
        Phases::Fill => produce::run(round, clients).await,
        Phases::Enqueue | Phases::Consume | Phases::Sequence => {
            produce::run(round, clients).await?;
            Workers::open(round, clients).await?.run().await
        }
        Phases::Together => {
            let workers = Workers::open(round, clients).await?;
            tokio::try_join!(produce::run(round, clients), workers.run())?;
            Ok(())
        }
    }
}
