//! One feed per shard: hands the shard's jobs to all hungry streams of this replica. One claim is
//! under way at a time; while it is, streams and events collect. With nothing to ask for the feed
//! sleeps until a stream, an event or a due time calls it: it never polls.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::domain::Time;
use crate::scheduler::Scheduler;
use crate::shards::Shard;
use crate::store::{self, Ask, Claim, Event, Taker, Unclaim};

use super::TopicPattern;
use super::board::{Asked, Board, Outcome, Plan};
use super::ledger::{Mode, Origin, Share};
use super::mailbox::Mailbox;
use super::stream::Stream;
use super::streams::Streams;

/// First and longest pause after a failed call.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Topics of one page when all of them are read.
const TOPICS_PAGE: usize = 1_000;

/// See the module.
pub(super) struct Feed {
    scheduler: Scheduler,
    shard: Shard,
    streams: Arc<Streams>,
    index: usize,
    board: Board,
    events: Receiver<Event>,
    /// Whether the shard still sends events.
    live: bool,
    /// Microseconds that the shard's clock is ahead of this replica's.
    skew: i64,
    backoff: Backoff,
    stop: CancellationToken,
}

// === impl Feed ===

impl Feed {
    /// The feed of the shard with that index.
    pub(super) fn new(
        scheduler: Scheduler,
        shard: Shard,
        streams: Arc<Streams>,
        index: usize,
        stop: CancellationToken,
    ) -> Feed {
        let board = Board::new(index, streams.mailboxes.len());
        let events = shard.store().events();
        let backoff = Backoff::new(PAUSES.0, PAUSES.1);
        Feed { scheduler, shard, streams, index, board, events, live: true, skew: 0, backoff, stop }
    }

    /// Runs until it is stopped. A claim under way is waited for, so that its leases are known.
    pub(super) async fn run(mut self) {
        while !self.stop.is_cancelled() {
            self.hear_streams().await;
            // After the streams: what was enqueued before one of them opened must be heard of.
            self.hear_events().await;
            self.board.wake_due(self.shard_now());
            match self.board.plan() {
                Some(plan) => self.claim(plan).await,
                None => self.rest().await,
            }
        }
    }

    fn mailbox(&self) -> &Mailbox {
        &self.streams.mailboxes[self.index]
    }

    async fn hear_streams(&mut self) {
        for stream in self.mailbox().take() {
            if !self.board.knows_globs() && wants_globs(&stream) {
                self.board.learn_globs();
                self.read_topics().await;
            }
            self.board.hear(&stream);
        }
    }

    async fn hear_events(&mut self) {
        while self.live {
            match self.events.try_recv() {
                Ok(event) => self.hear(event).await,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Lagged(_)) => self.missed_events().await,
                Err(TryRecvError::Closed) => self.live = false,
            }
        }
    }

    async fn hear(&mut self, event: Event) {
        match event {
            Event::Claimable { topic, at } => self.board.wake(&topic, at, self.shard_now()),
            Event::Missed => self.missed_events().await,
            Event::Upkeep { .. } => {}
        }
    }

    async fn missed_events(&mut self) {
        tracing::debug!(shard = %self.shard.name(), "events were missed, every topic is asked");
        self.board.wake_all();
        if self.board.knows_globs() {
            self.read_topics().await;
        }
    }

    /// Sleeps until something happens.
    async fn rest(&mut self) {
        let due = self.board.next_due().map(|at| Time(at.0.saturating_sub(self.skew)));
        let clock = self.scheduler.clock().clone();
        let mailbox = &self.streams.mailboxes[self.index];
        let event = tokio::select! {
            () = self.stop.cancelled() => return,
            () = mailbox.arrived() => return,
            () = clock.sleep_until(due.unwrap_or(Time::MAX)), if due.is_some() => return,
            event = self.events.recv(), if self.live => event,
        };
        match event {
            Ok(event) => self.hear(event).await,
            Err(RecvError::Lagged(_)) => self.missed_events().await,
            Err(RecvError::Closed) => self.live = false,
        }
    }

    async fn claim(&mut self, plan: Plan) {
        let nonce = rand::rng().random();
        let before = self.scheduler.clock().now();
        let claim = Claim { nonce, owner: self.scheduler.replica().nonce, asks: asks(&plan) };
        let result = self.scheduler.claim(&self.shard, claim).await;
        let now = self.scheduler.clock().now();
        // What was heard of while the claim was under way may have come after it.
        self.hear_events().await;
        match result {
            Ok(claims) => {
                self.backoff.reset();
                self.skew = skew(before, claims.now, now);
                let at = Origin { shard: self.index, now, skew: self.skew };
                let outcome = self.board.apply(plan, claims.topics, at);
                self.finish(outcome);
            }
            Err(error) => {
                let at = Origin { shard: self.index, now, skew: self.skew };
                let outcome = self.board.fail(plan, at);
                self.finish(outcome);
                self.recover(nonce, &error).await;
            }
        }
    }

    fn finish(&self, outcome: Outcome) {
        self.streams.give_back(outcome.refused);
        for (stream, feeds) in outcome.rouse {
            feeds.into_iter().for_each(|feed| self.streams.mailboxes[feed].post(&stream));
        }
        outcome.look_at.into_iter().for_each(|at| self.streams.alarm.by(at));
    }

    /// After a failed claim: if it may have been applied, nobody knows its leases, so it is undone
    /// before anything else is claimed.
    async fn recover(&mut self, nonce: u32, error: &store::Error) {
        self.pause().await;
        if !error.outcome_unknown() {
            return;
        }
        while !self.stop.is_cancelled() {
            let undone = self.scheduler.unclaim(&self.shard, Unclaim::Nonce(nonce)).await;
            match undone {
                Ok(undone) => {
                    tracing::info!(shard = %self.shard.name(), undone, "a lost claim was undone");
                    return;
                }
                Err(_) => self.pause().await,
            }
        }
    }

    /// Names every topic of the shard to the board.
    async fn read_topics(&mut self) {
        let mut after = None;
        while !self.stop.is_cancelled() {
            let store = self.shard.store();
            let page = store.topics(String::new(), after.clone(), TOPICS_PAGE);
            let Ok(page) = self.shard.observe("topics", page).await else {
                self.pause().await;
                continue;
            };
            for topic in &page {
                self.board.wake(&topic.name, Time(i64::MIN), Time(i64::MIN));
            }
            if page.len() < TOPICS_PAGE {
                return;
            }
            after = page.into_iter().next_back().map(|topic| topic.name);
        }
    }

    async fn pause(&mut self) {
        tokio::select! {
            () = tokio::time::sleep(self.backoff.pause()) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// What the shard's clock says, as far as known.
    fn shard_now(&self) -> Time {
        Time(self.scheduler.clock().now().0.saturating_add(self.skew))
    }
}

fn wants_globs(stream: &Stream) -> bool {
    let mut topics = stream.options().topics.iter();
    topics.any(|topic| matches!(topic, TopicPattern::Prefix(_)))
}

fn asks(plan: &Plan) -> Vec<Ask> {
    let ask = |asked: &Asked| Ask {
        topic: asked.topic.clone(),
        takers: asked.takers.iter().map(|taker| taker_of(&taker.stream, taker.share)).collect(),
    };
    plan.asks.iter().map(ask).collect()
}

fn taker_of(stream: &Stream, share: Share) -> Taker {
    let options = stream.options();
    Taker {
        stream: stream.id(),
        worker_id: Arc::clone(&options.worker_id),
        lease: options.lease,
        grace: (stream.mode() == Mode::Stream).then_some(options.orphan_grace),
        jobs: share.jobs,
        bytes: share.bytes,
        oversize: share.oversize,
    }
}

/// How far the shard's clock is ahead of this replica's, which said `before` and `after` around a
/// call that was answered with `shard`. Clocks that agree as far as one can tell are the same.
fn skew(before: Time, shard: Time, after: Time) -> i64 {
    if (before..=after).contains(&shard) { 0 } else { shard.0.saturating_sub(after.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_agree_are_the_same() {
        assert_eq!(skew(Time(10), Time(12), Time(14)), 0);
        assert_eq!(skew(Time(10), Time(9), Time(14)), -5);
        assert_eq!(skew(Time(10), Time(20), Time(14)), 6);
    }
}
