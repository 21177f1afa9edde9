//! One feed per shard: hands the shard's jobs to all hungry streams of this replica. One claim is
//! under way at a time; while it is, streams and events collect. With nothing to ask for the feed
//! sleeps until a stream, an event or a due time calls it: it never polls. Only where events can be
//! lost it asks, each second, about topics that sleep, see `looks`. Feeds share nothing but the books
//! of the streams, so a shard that fails or hangs stops its own feed only.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::clock::Skew;
use crate::domain::{Time, TopicName, limit};
use crate::pauses::Pauses;
use crate::scheduler::Scheduler;
use crate::shards::{self, Shard};
use crate::store::{About, Ask, Claim, Event, LostClaim, Rest};

use super::ask::{asks, wants_globs};
use super::board::{Board, Outcome, Plan};
use super::ledger::Origin;
use super::looks::{Look, Looks, Reading};
use super::lost::Lost;
use super::mailbox::Mailbox;
use super::stream::Stream;
use super::streams::Streams;

/// First and longest pause after a failed call.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// A look that takes longer is left for the next round.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// Pieces of chores between two claims.
const PIECES_PER_CLAIM: usize = 4;
/// Names that are taken in before others have their turn: a page takes a millisecond.
const NAMES_MAX: usize = 32;

/// See the module.
pub(super) struct Feed {
    scheduler: Scheduler,
    shard: Shard,
    streams: Arc<Streams>,
    board: Board,
    events: Receiver<Event>,
    /// Whether the shard still sends events.
    live: bool,
    /// Claims that may have leased jobs of which no stream knows.
    lost: Arc<Lost>,
    /// What is looked at beside claims.
    looks: Looks,
    /// Streams that ask for globs and wait until all topics are known.
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
        lost: Arc<Lost>,
        stop: CancellationToken,
    ) -> Feed {
        Feed {
            board: Board::new(
                shard.index(),
                Arc::clone(&streams.awake),
                Arc::clone(&streams.served),
            )
            .lossy(shard.is_shared()),
            looks: Looks::new(scheduler.clock()),
            events: shard.events(About::Jobs),
            scheduler,
            shard,
            streams,
            live: true,
            lost,
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
            if !self.lost.is_full() && self.step().await.is_ok() {
                self.pauses.reset();
            } else {
                self.sit_out().await;
            }
        }
        self.board.sleep();
    }

    /// What comes next: looks and claims take turns.
    async fn step(&mut self) -> shards::Result<()> {
        if self.board.has_sleepers() && self.looks.is_due() {
            self.looks.begin(self.board.asleep(), self.board.knows_globs());
        }
        if let Some(look) = self.looks.next() {
            self.look(look).await
        } else if let Some(plan) = self.board.plan() {
            self.claim(plan).await?;
            self.work().await;
            Ok(())
        } else if self.looks.has_more() || self.board.has_chores() {
            tokio::task::yield_now().await;
            Ok(())
        } else {
            self.rest().await;
            Ok(())
        }
    }

    /// Where claims follow each other chores get on, too.
    async fn work(&mut self) {
        for _ in 0..PIECES_PER_CLAIM {
            if !self.board.has_chores() {
                return;
            }
            tokio::task::yield_now().await;
            self.board.work();
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
                self.looks.read_now(true);
            }
            if globs && self.looks.is_reading_now() && !self.board.serves(stream.id()) {
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
            Event::Forgotten(topic) => self.board.forget(&topic),
            Event::Missed => self.missed_events(),
            // What becomes of leases is heard at once and not between claims, see `hear`.
            Event::Upkeep { .. } | Event::Lease(_) | Event::Configured | Event::Lost => {}
        }
    }

    /// Anything may have come. Few topics are simply asked for jobs; of many it is looked up, a call's worth at a
    /// time, which of them have any.
    fn missed_events(&mut self) {
        tracing::debug!(shard = %self.shard.name(), "events were missed, every topic is asked");
        self.board.miss_events();
        if self.board.asleep() > limit::CALL_JOBS_MAX && self.shard.is_shared() {
            self.looks.ask_now(self.board.asleep());
        } else {
            self.board.wake_all();
        }
        if self.board.knows_globs() {
            self.looks.read_now(false);
        }
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
            () = self.looks.due(), if self.board.has_sleepers() => return,
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
        let nonce = new_nonce();
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
                if error.error.may_be_applied() {
                    let topics = plan.asks.iter().map(|asked| asked.topic.clone()).collect();
                    self.lost.add(LostClaim { nonce, topics, from: None });
                }
                let outcome = self.board.fail(plan, at);
                self.finish(outcome);
                Err(error)
            }
        }
    }

    fn finish(&self, outcome: Outcome) {
        self.streams.give_back(outcome.refused);
        for (stream, feeds) in outcome.wake_feeds {
            feeds.into_iter().for_each(|feed| self.streams.mailboxes[feed].post(&stream));
        }
        outcome.look_at.into_iter().for_each(|at| self.streams.alarm.by(at));
    }

    async fn look(&mut self, look: Look) -> shards::Result<()> {
        match look {
            Look::Topics(reading) => self.read_topics(reading).await,
            Look::Sleepers => self.ask_about_sleepers().await,
        }
    }

    /// Asks about topics that sleep, as many as one call takes: a claim for nobody, which says nothing about how
    /// often claims come back empty.
    async fn ask_about_sleepers(&mut self) -> shards::Result<()> {
        let topics = self.board.sleepers(limit::PART_MAX);
        if !topics.is_empty() {
            let ask = |topic: &TopicName| Ask { topic: topic.clone(), takers: Vec::new() };
            let asks = topics.iter().map(ask).collect();
            let claim = Claim { nonce: new_nonce(), owner: self.scheduler.replica().nonce, asks };
            let claims = self.shard.claim(claim).await?;
            for (topic, found) in topics.iter().zip(claims.topics) {
                match found.rest {
                    Rest::More | Rest::Again => self.board.wake(topic, claims.now, claims.now),
                    Rest::Until(at) => self.board.wake(topic, at, claims.now),
                    Rest::Nothing => {}
                }
            }
        }
        self.looks.asked(topics.len());
        Ok(())
    }

    /// Names a page of the shard's topics to the board, or the new ones among them.
    async fn read_topics(&mut self, reading: Reading) -> shards::Result<()> {
        let names = self.shard.topics(String::new(), reading.after, limit::PART_MAX);
        // Reads may be slow, or refused, while claims are well, and those wait for this.
        let Ok(Ok(page)) = timeout(LOOK_MAX, names).await else {
            self.looks.failed();
            self.hear_waiting();
            return Ok(());
        };
        for some in page.chunks(NAMES_MAX) {
            for topic in some {
                if reading.all || !self.board.knows(&topic.name) {
                    self.board.wake(&topic.name, Time(i64::MIN), Time(i64::MIN));
                }
            }
            tokio::task::yield_now().await;
        }
        let is_full = page.len() == limit::PART_MAX;
        self.looks.read(page.into_iter().next_back().map(|topic| topic.name).filter(|_| is_full));
        if !self.looks.is_reading_now() {
            self.hear_waiting();
        }
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

/// A nonce for a claim; none is 0, by which shards are probed.
fn new_nonce() -> u32 {
    rand::rng().random_range(1..=u32::MAX)
}
