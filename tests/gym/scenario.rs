//! Scenarios: their table, and how they are run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use tokio::time::timeout;

use super::handle::{Commands, Gym};
use super::record::{Check, Failure};

/// Time that a scenario takes at most.
const SCENARIO_MAX: Duration = Duration::from_secs(120);

/// Steps of a scenario.
type Play = fn(Gym) -> Pin<Box<dyn Future<Output = Check<()>> + Send>>;

/// One scenario.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// True if a worker that fails it loses or doubles jobs.
    pub(crate) is_essential: bool,
    /// Two lines: events, and the expected reaction.
    pub(crate) text: [&'static str; 2],
    pub(crate) kind: Kind,
    pub(crate) play: Play,
}

/// Program of a scenario.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Worker with settings.
    Worker(&'static [(&'static str, &'static str)]),
    /// Producer, which the steps run.
    Producer,
}

/// Result of a scenario.
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    /// Expectation that was not met.
    pub(crate) failure: Option<String>,
    /// Lines for people.
    pub(crate) record: String,
}

// === impl Outcome ===

impl Outcome {
    /// Returns lines for people, with the record if the scenario failed or it is wanted.
    pub(crate) fn text(&self, with_record: bool) -> String {
        let Outcome { name, took, failure, record } = self;
        let line = match failure {
            None => format!("ok {name} ({:.1} s)", took.as_secs_f64()),
            Some(sentence) => format!("FAILED {name}: {sentence}"),
        };
        if failure.is_none() && !with_record {
            return line;
        }
        format!("{line}\n{}", record.trim_end_matches('\n'))
    }
}

// === impl Scenario ===

impl Scenario {
    /// Plays the scenario with the programs of these commands.
    pub(crate) async fn run(self, commands: Commands) -> Outcome {
        let start = Instant::now();
        let mut record = String::new();
        let played = async {
            let gym = Gym::start(commands).await?;
            let played = timeout(SCENARIO_MAX, self.steps(&gym)).await;
            record = gym.record().text();
            gym.kill().await;
            played.unwrap_or_else(|_| Err(Failure(format!("it ends within {SCENARIO_MAX:?}"))))
        };
        let failure = played.await.err().map(|Failure(sentence)| sentence);
        Outcome { name: self.name, took: start.elapsed(), failure, record }
    }

    async fn steps(&self, gym: &Gym) -> Check<()> {
        if let Kind::Worker(settings) = self.kind {
            gym.start_worker(settings).await?;
        }
        (self.play)(gym.clone()).await?;
        gym.finish().await
    }
}

/// Plays scenarios, several at once, and passes on each outcome as it comes.
pub(crate) async fn run_all(
    scenarios: Vec<Scenario>,
    commands: Commands,
    at_once: usize,
    mut report: impl FnMut(&Outcome),
) -> Vec<Outcome> {
    let commands = Arc::new(commands);
    let runs = scenarios.into_iter().map(|scenario| {
        let commands = Arc::clone(&commands);
        async move { tokio::spawn(scenario.run((*commands).clone())).await }
    });
    let mut outcomes = Vec::new();
    let mut running = futures::stream::iter(runs).buffer_unordered(at_once.max(1));
    while let Some(outcome) = running.next().await {
        let outcome = outcome.unwrap();
        report(&outcome);
        outcomes.push(outcome);
    }
    outcomes
}
