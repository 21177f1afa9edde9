//! Settling of the deliveries of one message. They are settled through other replicas than the one that sent them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use ringq::pb;
use ringq::pb::{NackAction, SettleError};

use super::calls::{Failure, Pauses, Replicas};
use super::{Shared, job};
use crate::checker::history::{Event, Nanos, nanos};

const NACK_DELAY_MS: u64 = 30;

/// A delivery that is not settled yet.
pub(super) struct Held {
    pub(super) job: u32,
    pub(super) delivery: i32,
    pub(super) attempt: i32,
    pub(super) receipt: String,
}

/// Settles the deliveries of one message.
pub(super) struct Settler {
    pub(super) shared: Arc<Shared>,
    pub(super) replicas: Replicas,
    pub(super) random: StdRng,
    /// Replica that sent them.
    pub(super) server: usize,
}

/// The final settle of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Final {
    Ack,
    DeadLetter,
}

impl Final {
    fn verb(self) -> &'static str {
        match self {
            Final::Ack => "ack",
            Final::DeadLetter => "nack",
        }
    }
}

/// The deliveries of a message by their fate.
#[derive(Default)]
struct Piles {
    good: Vec<Held>,
    failing: Vec<Held>,
    refused: Vec<Held>,
    buried: Vec<Held>,
    slow: Vec<Held>,
    late: Vec<Held>,
}

impl Settler {
    pub(super) async fn settle(mut self, held: Vec<Held>) {
        let Piles { good, failing, refused, buried, slow, late } = self.sort(held);
        self.fail(failing).await;
        self.nack(refused).await;
        self.finish(buried, Final::DeadLetter).await;
        self.finish(good, Final::Ack).await;
        if !slow.is_empty() {
            self.work_long(slow).await;
        }
        if !late.is_empty() {
            tokio::time::sleep(self.shared.habits.lease.mul_f64(1.5)).await;
            self.finish(late, Final::Ack).await;
        }
    }

    fn sort(&mut self, held: Vec<Held>) -> Piles {
        let habits = self.shared.habits.clone();
        let mut piles = Piles::default();
        for held in held {
            let mut dice: f64 = self.random.random();
            let mut falls = |share: f64| {
                dice -= share;
                dice < 0.0
            };
            let job = self.shared.progress(held.job);
            if let Some(fails) = job.failing {
                if held.attempt <= fails { &mut piles.failing } else { &mut piles.good }.push(held);
            } else if falls(habits.nacked) {
                piles.refused.push(held);
            } else if !job.doomed && falls(habits.buried) {
                piles.buried.push(held);
            } else if falls(habits.slow) {
                piles.slow.push(held);
            } else if falls(habits.late) {
                piles.late.push(held);
            } else if !falls(habits.forgotten) {
                piles.good.push(held);
            }
        }
        piles
    }

    /// Works longer than a lease, and extends meanwhile.
    async fn work_long(&mut self, held: Vec<Held>) {
        let lease = self.shared.habits.lease;
        tokio::time::sleep(lease.mul_f64(0.6)).await;
        self.extend(&held, lease).await;
        tokio::time::sleep(lease.mul_f64(0.6)).await;
        self.finish(held, Final::Ack).await;
    }

    /// Settles again and again until each receipt has a final answer.
    async fn finish(&mut self, mut open: Vec<Held>, how: Final) {
        let (mut unknown, mut pauses, sent) = (false, Pauses::new(), self.shared.history.now());
        if how == Final::DeadLetter {
            let bury = |held: &Held| Event::Bury { job: held.job, at: sent };
            self.shared.history.record(open.iter().map(bury));
        }
        while !open.is_empty() {
            let answer = match how {
                Final::Ack => self.ack(&open).await,
                Final::DeadLetter => self.bury(&open).await,
            };
            match answer {
                Ok(failures) => open = self.settled(open, &failures, (how, sent), &mut unknown),
                Err(_) => unknown = true,
            }
            if !open.is_empty() {
                pauses.pause(&mut self.random).await;
            }
        }
    }

    /// Records the settles of a call that was first sent at `sent`, and returns those that must be sent again. A job
    /// that is gone was settled by an earlier call without an answer, if there was one; otherwise it is lost, which
    /// the checker finds. A dead letter would still exist: a job that is gone was acknowledged by another worker.
    fn settled(
        &self,
        open: Vec<Held>,
        failures: &[pb::SettleFailure],
        (how, sent): (Final, Nanos),
        unknown: &mut bool,
    ) -> Vec<Held> {
        let failed: HashMap<_, _> =
            failures.iter().map(|f| (f.receipt.as_str(), f.error())).collect();
        let mut left = Vec::new();
        for held in open {
            match failed.get(held.receipt.as_str()) {
                None => self.ended(held, how, sent),
                Some(SettleError::NotFound) if *unknown && how == Final::Ack => {
                    self.gone(held.job);
                }
                Some(SettleError::NotFound) => {}
                Some(SettleError::Stale) => self.shared.troubles.stale(),
                Some(SettleError::Unavailable) => left.push(held),
                Some(error) => self.shared.troubles.refuse(format!("{}: {error:?}", how.verb())),
            }
        }
        if !left.is_empty() {
            self.shared.troubles.count(unavailable(how.verb()));
            *unknown = true;
        }
        left
    }

    /// Acks all, each with the next link of its chain.
    async fn ack(&mut self, held: &[Held]) -> Result<Vec<pb::SettleFailure>, Failure> {
        let item = |held: &Held| pb::AckItem {
            receipt: held.receipt.clone(),
            enqueue: self.shared.follow_up(held.job).into_iter().collect(),
            ..Default::default()
        };
        let items: Vec<_> = held.iter().map(item).collect();
        let mut queue = match items.iter().all(|item| item.enqueue.is_empty()) {
            true => self.replicas.next_but(self.server),
            false => self.replicas.next_for_ids(&self.shared),
        };
        let call = queue.ack(pb::AckRequest { items });
        Ok(self.shared.answer(&mut self.random, "ack", call).await?.failures)
    }

    async fn bury(&mut self, held: &[Held]) -> Result<Vec<pb::SettleFailure>, Failure> {
        let item = |held: &Held| item(held.receipt.clone(), NackAction::DeadLetter, None);
        let items = held.iter().map(item).collect();
        let mut queue = self.replicas.next_but(self.server);
        let call = queue.nack(pb::NackRequest { items });
        Ok(self.shared.answer(&mut self.random, "nack", call).await?.failures)
    }

    fn ended(&self, held: Held, how: Final, sent: Nanos) {
        let Held { job, delivery, receipt, .. } = held;
        match how {
            Final::Ack => self.shared.acked(job),
            Final::DeadLetter => self.shared.buried(job),
        }
        let at = self.shared.history.now();
        self.shared.history.record([match how {
            Final::Ack => Event::Acked { job, sent, at, delivery, receipt },
            Final::DeadLetter => Event::Buried { job, at, delivery, receipt },
        }]);
    }

    /// Records a job that has ended: possibly by an earlier call without an answer.
    fn gone(&self, job: u32) {
        self.shared.acked(job);
        let (at, delivery, receipt) = (self.shared.history.now(), i32::MAX, String::new());
        self.shared.history.record([Event::Acked { job, sent: 0, at, delivery, receipt }]);
    }

    /// Returns the settled ones and counts the failures.
    fn done<'h>(
        &self,
        verb: &str,
        held: &'h [Held],
        failures: &[pb::SettleFailure],
    ) -> Vec<&'h Held> {
        let failed = |held: &&Held| failures.iter().find(|failure| failure.receipt == held.receipt);
        for failure in held.iter().filter_map(|held| failed(&held)) {
            match failure.error() {
                SettleError::Unavailable => self.shared.troubles.count(unavailable(verb)),
                SettleError::Stale => self.shared.troubles.stale(),
                SettleError::NotFound => {}
                error => self.shared.troubles.refuse(format!("{verb}: {error:?}")),
            }
        }
        held.iter().filter(|held| failed(held).is_none()).collect()
    }

    /// Nacks once: without an answer the job comes back when its lease ends.
    async fn nack(&mut self, held: Vec<Held>) {
        if held.is_empty() {
            return;
        }
        let delay = Duration::from_millis(self.random.random_range(0..NACK_DELAY_MS));
        let failed = self.random.random_bool(0.5);
        let action = if failed { NackAction::Retry } else { NackAction::Release };
        let sent = self.shared.history.now();
        self.shared.history.record(held.iter().map(|held| Event::Nack {
            job: held.job,
            at: sent,
            receipt: held.receipt.clone(),
            failed,
        }));
        let items =
            held.iter().map(|held| item(held.receipt.clone(), action, Some(delay))).collect();
        let mut queue = self.replicas.next_but(self.server);
        let call = queue.nack(pb::NackRequest { items });
        let answer = self.shared.answer(&mut self.random, "nack", call).await;
        let Ok(response) = answer else { return };
        let done = self.done("nack", &held, &response.failures);
        self.shared.history.record(done.into_iter().map(|held| {
            let Held { job, delivery, .. } = *held;
            Event::Nacked { job, sent, delivery, delay: nanos(delay) }
        }));
    }

    /// Fails once: the policy of the jobs decides whether and when they come again.
    async fn fail(&mut self, held: Vec<Held>) {
        if held.is_empty() {
            return;
        }
        let sent = self.shared.history.now();
        self.shared.history.record(held.iter().map(|held| Event::Nack {
            job: held.job,
            at: sent,
            receipt: held.receipt.clone(),
            failed: true,
        }));
        let items = held.iter().map(|held| item(held.receipt.clone(), NackAction::Retry, None));
        let mut queue = self.replicas.next_but(self.server);
        let call = queue.nack(pb::NackRequest { items: items.collect() });
        let answer = self.shared.answer(&mut self.random, "nack", call).await;
        let Ok(response) = answer else { return };
        for held in self.done("nack", &held, &response.failures) {
            let Held { job, delivery, attempt, ref receipt } = *held;
            if attempt >= job::POLICY.attempts_max {
                self.shared.buried(job);
            }
            let (at, receipt) = (self.shared.history.now(), receipt.clone());
            let failed = Event::Failed { job, sent, at, delivery, attempt, receipt };
            self.shared.history.record([failed]);
        }
    }

    async fn extend(&mut self, held: &[Held], lease: Duration) {
        let duration = prost_types::Duration::try_from(lease).ok();
        let item = |held: &Held| pb::ExtendItem {
            receipt: held.receipt.clone(),
            lease_duration: duration,
            ..Default::default()
        };
        let sent = self.shared.history.now();
        let mut queue = self.replicas.next_but(self.server);
        let call = queue.extend(pb::ExtendRequest { items: held.iter().map(item).collect() });
        let answer = self.shared.answer(&mut self.random, "extend", call).await;
        let Ok(response) = answer else { return };
        let done = self.done("extend", held, &response.failures);
        self.shared.history.record(done.into_iter().map(|held| {
            let (job, receipt) = (held.job, held.receipt.clone());
            Event::Extended { job, sent, receipt, lease: nanos(lease) }
        }));
    }
}

/// Name of a settle that its shard could not execute, in failure counts.
fn unavailable(verb: &str) -> String {
    format!("{verb}: item: UNAVAILABLE")
}

fn item(receipt: String, action: NackAction, delay: Option<Duration>) -> pb::NackItem {
    let delay = delay.and_then(|delay| delay.try_into().ok());
    pb::NackItem { receipt, action: action as i32, delay, error: String::new() }
}
