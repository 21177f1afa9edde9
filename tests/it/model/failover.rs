//! A run behind Sentinel, with faults inside. Replication is asynchronous, so the new primary may lack the last steps
//! of the old one. Its state must be the state after some step since the fault began, never a mixture. The steps
//! after that one count as lost, and the run continues from there. A step is one command then, with all its
//! consequences: of a call with several commands a fault may take some.

use std::time::Duration;

use crate::store_calls::{StoreCalls as _, Unclaim};
use ringq::domain::{JobKey, Token, TopicName};
use ringq::store::{Claim, Error, LeaseRef, StatsOptions};

use super::reference::Reference;
use super::run::Run;
use super::steps::{DUE_SOON, Dice, Step, keys, lost_claim, topics};
use crate::conformance::{Backend, Fixture};
use crate::harness::{Sentinel, eventually};

/// Steps before, between and after the faults.
const STEPS: u64 = 150;

/// A fault of the primary.
#[derive(Clone, Copy, Debug)]
enum Fault {
    FailOver,
    Kill,
}

/// Loss by one fault.
#[derive(Debug)]
struct Loss {
    /// Steps that were taken during the fault.
    steps: usize,
    /// Steps of these that the new primary does not have.
    lost: usize,
    /// Error that ended the steps early; a step with an unknown outcome may be among the lost ones.
    failed: Option<Error>,
}

impl Fault {
    async fn strike(self, sentinel: &mut Sentinel) {
        match self {
            Fault::FailOver => sentinel.fail_over().await,
            Fault::Kill => sentinel.kill_primary().await,
        }
    }
}

impl Run {
    /// Takes steps until the fault is over or a step fails, and continues with the remaining state.
    async fn live_through(
        &mut self,
        dice: &mut Dice,
        fault: Fault,
        sentinel: &mut Sentinel,
    ) -> Loss {
        sentinel.replicated().await;
        // The engine beside the store cannot be set back to what the fault left.
        self.mirror = None;
        let mut was = vec![self.reference.clone()];
        let (mut failed, mut undo) = (None, None);
        let mut strike = Box::pin(fault.strike(sentinel));
        let mut is_over = false;
        while failed.is_none() {
            is_over = futures::poll!(strike.as_mut()).is_ready();
            if is_over {
                break;
            }
            let step = self.throw(dice).alone();
            // A read may reach either primary; what the new one has is compared at the end.
            if step.only_reads() {
                tokio::task::yield_now().await;
                continue;
            }
            // Only of the step that fails: those before it were answered.
            undo = match &step {
                Step::Claim(claim) => Some(claim.nonce),
                _ => None,
            };
            failed = self.apply(step).await.err();
            self.steps += 1;
            match &failed {
                // It did not happen, so it cannot be lost.
                Some(error) if !error.outcome_unknown() => {
                    self.reference = was.last().expect("that of before").clone();
                }
                _ => was.push(self.reference.clone()),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if !is_over {
            strike.as_mut().await;
        }
        drop(strike);
        self.until_moved(sentinel).await;
        // A claim whose answer was lost is undone, as its caller does it.
        if let Some(nonce) = undo.filter(|_| failed.is_some()) {
            eventually("a claim is undone", async || self.store.undo(lost_claim(nonce)).await.ok())
                .await;
        }
        // A lost or undone claim may have raised the last start of the shard, which no call returns: from here on
        // leases begin later than any of those.
        self.store.clock.advance(Duration::from_millis(1));
        let steps = was.len() - 1;
        let lost = self.find(was).await;
        Loss { steps, lost, failed }
    }

    /// Waits until calls go to the new primary, those that read, those that write and claims: each kind has a
    /// connection of its own.
    async fn until_moved(&self, sentinel: &Sentinel) {
        let unknown = LeaseRef { key: keys().remove(0), token: Token(0) };
        eventually("calls go to the new primary", async || {
            let primary = sentinel.primary().await?;
            let calls =
                async || ran(&primary.command(&["INFO", "commandstats"]).await).unwrap_or(0);
            let store = &self.store.store;
            let before = calls().await;
            store.get(keys(), false).await.ok()?;
            let reads = calls().await;
            store.unclaim(Unclaim::Leases(vec![unknown.clone()])).await.ok()?;
            let writes = calls().await;
            store.claim(Claim { nonce: 0, owner: 1, topics: Vec::new() }).await.ok()?;
            (before < reads && reads < writes && writes < calls().await).then_some(())
        })
        .await;
    }

    /// Takes over the store's state, which must be the state after one of these steps; returns the number of steps
    /// after that one.
    async fn find(&mut self, was: Vec<Reference>) -> usize {
        let jobs = self.store.store.get(keys(), true).await.unwrap();
        let stats =
            self.store.store.stats(topics(), StatsOptions::due_within(DUE_SOON)).await.unwrap();
        let policies = self.policies().await;
        let now = self.store.now();
        let unpruned = was.clone();
        for (lost, mut past) in was.into_iter().rev().enumerate() {
            past.tick(now);
            let known: Vec<_> = keys().iter().map(|key: &JobKey| past.get(key, true)).collect();
            let counted: Vec<_> =
                topics().iter().map(|t: &TopicName| past.stats(t, DUE_SOON)).collect();
            if known == jobs && counted == stats && past.policies() == policies {
                unpruned.iter().for_each(|other| past.unprune(other));
                self.reference = past;
                self.compare_whole().await;
                return lost;
            }
        }
        panic!("the new primary has what never was: {jobs:#?}");
    }
}

/// Reads the number of executed scripts from the statistics.
fn ran(stats: &str) -> Option<u64> {
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="))?;
    line.split(',').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_behind_sentinel_loses_only_the_last_steps_of_a_primary() {
    let Some(mut sentinel) = Sentinel::start().await else { return };
    let fixture = Fixture::at(Backend::Sentinel, &sentinel.url()).await;
    let (mut run, mut dice) = (Run::over(fixture, 0), Dice::new(0));
    for fault in [Fault::FailOver, Fault::Kill] {
        sentinel.settled().await;
        run.go_on(&mut dice, run.steps + STEPS).await;
        let loss = run.live_through(&mut dice, fault, &mut sentinel).await;
        println!(
            "{fault:?}: {} of {} steps lost, failed: {:?}",
            loss.lost, loss.steps, loss.failed
        );
    }
    run.go_on(&mut dice, run.steps + STEPS).await;
}
