//! One feed per shard: hands the shard's jobs to all hungry streams of this replica. One claim is
//! under way at a time; while it is, streams and events collect. With nothing to ask for the feed
//! sleeps until a stream, an event or a due time calls it: it never polls. Only where events can be
//! lost it asks, each second, about all topics that sleep at once. Feeds share nothing but the books
//! of the streams, so a shard that fails or hangs stops its own feed only.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;

use crate::clock::Skew;
use crate::domain::{Time, TopicName, limit};
use crate::pauses::Pauses;
use crate::scheduler::Scheduler;
use crate::shards::{self, Shard};
use crate::store::{About, Ask, Claim, Event, Rest, Unclaim};

use super::ask::{asks, wants_globs};
use super::board::{Board, Outcome, Plan};
use super::ledger::Origin;
use super::mailbox::Mailbox;
use super::reminder::Reminder;
use super::stream::Stream;
use super::streams::Streams;

/// First and longest pause after a failed call.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Time between two questions about topics that sleep, where a wake-up can be lost.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// So many of them, and topics that nobody names are read again, because of new ones.
const ASKS_PER_READ: u32 = 10;
/// Topics of one page when all of them are read.
const TOPICS_PAGE: usize = 1_000;

/// See the module.
pub(super) struct Feed {
    scheduler: Scheduler,
    shard: Shard,
    streams: Arc<Streams>,
    board: Board,
    events: Receiver<Event>,
    /// Whether the shard still sends events.
    live: bool,
    /// A claim that may have been applied and whose leases nobody knows.
    lost: Option<u32>,
    /// Topics that nobody names are not all known.
    unread: bool,
    /// When topics that sleep are asked about next, and how often they were.
    reminder: Reminder,
    asked: u32,
    /// Streams that ask for globs and wait for that.
    waiting: Vec<Arc<Stream>>,
    pauses: Pauses,
    stop: CancellationToken,
}

// === impl Feed ===

impl Feed {
    /// The feed of the shard.
    pub(super) fn new(
        scheduler: Scheduler,
        shard: Shard,
        streams: Arc<Streams>,
        stop: CancellationToken,
    ) -> Feed {
        Feed {
            board: Board::new(shard.index(), Arc::clone(&streams.awake)).lossy(shard.is_shared()),
            reminder: Reminder::new(scheduler.clock(), ASK_EVERY),
            asked: 0,
            events: shard.events(About::Jobs),
            scheduler,
            shard,
            streams,
            live: true,
            lost: None,
            unread: false,
            waiting: Vec::new(),
            pauses: Pauses::new(PAUSES.0, PAUSES.1),
            stop,
        }
    }

    /// Runs until it is stopped. A claim under way is waited for, so that its leases are known.
    pub(super) async fn run(mut self) {
        while !self.stop.is_cancelled() {
            self.hear_streams();
            // After the streams: what was enqueued before one of them opened must be heard of.
            self.hear_events();
            self.board.wake_due(self.shard_now());
            match self.step().await {
                Ok(()) => self.pauses.reset(),
                Err(_) => self.sit_out().await,
            }
        }
        self.board.sleep();
    }

    /// What comes next: an old claim is undone and topics are read before anything is claimed.
    async fn step(&mut self) -> shards::Result<()> {
        if let Some(nonce) = self.lost {
            self.undo(nonce).await
        } else if self.unread {
            self.read_topics(true).await
        } else if self.board.has_sleepers() && self.reminder.is_due() {
            self.ask_about_sleepers().await
        } else if let Some(plan) = self.board.plan() {
            self.claim(plan).await
        } else {
            self.rest().await;
            Ok(())
        }
    }

    fn mailbox(&self) -> &Mailbox {
        &self.streams.mailboxes[self.shard.index()]
    }

    fn hear_streams(&mut self) {
        for stream in self.mailbox().take() {
            let globs = wants_globs(&stream);
            if globs && !self.board.knows_globs() {
                self.board.learn_globs();
                self.unread = true;
            }
            if globs && self.unread {
                self.waiting.push(stream);
            } else {
                self.board.hear(&stream);
            }
        }
        self.board.rise();
    }

    fn hear_waiting(&mut self) {
        self.waiting.drain(..).for_each(|stream| self.board.hear(&stream));
    }

    fn hear_events(&mut self) {
        while self.live {
            match self.events.try_recv() {
                Ok(event) => self.hear(event),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Lagged(_)) => self.missed_events(),
                Err(TryRecvError::Closed) => self.live = false,
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Claimable { topic, at } => self.board.wake(&topic, at, self.shard_now()),
            Event::Missed => self.missed_events(),
            // What becomes of leases is heard at once and not between claims, see `hear`.
            Event::Upkeep { .. } | Event::Lease(_) | Event::Configured | Event::Lost => {}
        }
    }

    fn missed_events(&mut self) {
        tracing::debug!(shard = %self.shard.name(), "events were missed, every topic is asked");
        self.board.wake_all();
        self.unread |= self.board.knows_globs();
    }

    /// Sleeps until something happens.
    async fn rest(&mut self) {
        let due = self.board.next_due().map(|at| self.skew().here(at));
        let clock = self.scheduler.clock().clone();
        let mailbox = &self.streams.mailboxes[self.shard.index()];
        let event = tokio::select! {
            () = self.stop.cancelled() => return,
            () = mailbox.arrived() => return,
            () = clock.sleep_until(due.unwrap_or(Time::MAX)), if due.is_some() => return,
            () = self.reminder.due(), if self.board.has_sleepers() => return,
            event = self.events.recv(), if self.live => event,
        };
        match event {
            Ok(event) => self.hear(event),
            Err(RecvError::Lagged(_)) => self.missed_events(),
            Err(RecvError::Closed) => self.live = false,
        }
    }

    /// After a failed call: waits before anything is asked again. Meanwhile the shard has nothing for
    /// anybody, and whoever wants to know is told so instead of waiting for it.
    async fn sit_out(&mut self) {
        let (shard, stop) = (self.shard.clone(), self.stop.clone());
        let mut pause = pin!(shard.wait_out(self.pauses.pause()));
        loop {
            self.hear_waiting();
            self.board.answer_all();
            self.board.sleep();
            tokio::select! {
                () = &mut pause => break,
                () = stop.cancelled() => break,
                () = self.streams.mailboxes[shard.index()].arrived() => self.hear_streams(),
            }
        }
        self.board.rise();
    }

    async fn claim(&mut self, plan: Plan) -> shards::Result<()> {
        let nonce = rand::rng().random();
        let before = self.scheduler.clock().now();
        let claim = Claim { nonce, owner: self.scheduler.replica().nonce, asks: asks(&plan) };
        let result = self.shard.claim(claim).await;
        let now = self.scheduler.clock().now();
        // What was heard of while the claim was under way may have come after it.
        self.hear_events();
        match result {
            Ok(claims) => {
                self.streams.set_skew(self.shard.index(), Skew::measured(before, claims.now, now));
                let at = Origin { shard: self.shard.index(), now, skew: self.skew() };
                let outcome = self.board.apply(plan, claims.topics, at);
                self.finish(outcome);
                Ok(())
            }
            Err(error) => {
                let at = Origin { shard: self.shard.index(), now, skew: self.skew() };
                let outcome = self.board.fail(plan, at);
                self.finish(outcome);
                self.lost = error.outcome_unknown().then_some(nonce);
                Err(error)
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

    async fn undo(&mut self, nonce: u32) -> shards::Result<()> {
        let undone = self.shard.unclaim(Unclaim::Nonce(nonce)).await?;
        if undone > 0 {
            tracing::info!(shard = %self.shard.name(), undone, "a lost claim was undone");
        }
        self.lost = None;
        Ok(())
    }

    /// Asks about topics that sleep, as many as one call takes: a claim for nobody, which says nothing about how
    /// often claims come back empty.
    async fn ask_about_sleepers(&mut self) -> shards::Result<()> {
        self.reminder.put_off();
        self.asked = (self.asked + 1) % ASKS_PER_READ;
        if self.asked == 0 && self.board.knows_globs() {
            self.read_topics(false).await?;
        }
        let topics = self.board.sleepers(limit::CALL_JOBS_MAX);
        if topics.is_empty() {
            return Ok(());
        }
        let ask = |topic: &TopicName| Ask { topic: topic.clone(), takers: Vec::new() };
        let asks = topics.iter().map(ask).collect();
        let claim =
            Claim { nonce: rand::rng().random(), owner: self.scheduler.replica().nonce, asks };
        let claims = self.shard.claim(claim).await?;
        for (topic, found) in topics.iter().zip(claims.topics) {
            match found.rest {
                Rest::More | Rest::Again => self.board.wake(topic, claims.now, claims.now),
                Rest::Until(at) => self.board.wake(topic, at, claims.now),
                Rest::Nothing => {}
            }
        }
        Ok(())
    }

    /// Names every topic of the shard to the board, or the new ones.
    async fn read_topics(&mut self, all: bool) -> shards::Result<()> {
        let mut after = None;
        while !self.stop.is_cancelled() {
            let from: Option<TopicName> = after.clone();
            let page = self.shard.topics(String::new(), from, TOPICS_PAGE).await?;
            for topic in &page {
                if all || !self.board.knows(&topic.name) {
                    self.board.wake(&topic.name, Time(i64::MIN), Time(i64::MIN));
                }
            }
            if page.len() < TOPICS_PAGE {
                break;
            }
            after = page.into_iter().next_back().map(|topic| topic.name);
        }
        self.unread = false;
        self.hear_waiting();
        Ok(())
    }

    /// What the shard's clock says, as far as known.
    fn shard_now(&self) -> Time {
        self.skew().there(self.scheduler.clock().now())
    }

    fn skew(&self) -> Skew {
        self.streams.skew(self.shard.index())
    }
}
