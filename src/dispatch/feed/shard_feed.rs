//! Feed of one shard: delivers the shard's jobs to all streams of this replica with free credit. One claim is in
//! flight at a time; meanwhile, streams and events collect. With nothing to claim, the feed sleeps until a stream, an
//! event or a due time wakes it: it does not poll. Only where events can be lost, it checks sleeping topics each
//! second: [`super::topic_polls`]. Feeds share nothing but the registry and the streams, so a shard that fails or
//! hangs stops its own feed only.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, BackoffRange};
use crate::clock::Skew;
use crate::dispatch::streams::ledger::ClaimOrigin;
use crate::dispatch::streams::mailbox::StreamMailbox;
use crate::dispatch::streams::registry::StreamRegistry;
use crate::dispatch::streams::stream::Stream;
use crate::documents::DocumentView;
use crate::domain::{Time, TopicName, limit};
use crate::scheduler::Settler;
use crate::shards::{self, Op, Shard};
use crate::store::{Claim, EventKind, ShardEvent, TopicDemand, TopicRemainder};

use super::claim_planner::{ClaimOutcome, ClaimPlan, ClaimPlanner, ServedCounts};
use super::claim_request::{has_globs, topic_demands};
use super::lost_claims::{LostClaim, LostClaims};
use super::topic_polls::{TopicListing, TopicPoll, TopicPolls};

/// First and longest pause after a failed call.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(2) };
/// Timeout of a poll; it is left for the next round.
const TOPIC_POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of glob task pieces between two claims.
const PIECES_PER_CLAIM: usize = 4;
/// Number of topic names processed before the task yields: a page takes a millisecond.
const NAMES_MAX: usize = 32;

/// Feed of one shard.
pub(in crate::dispatch) struct ShardFeed {
    settler: Settler,
    shard: Shard,
    streams: Arc<StreamRegistry>,
    planner: ClaimPlanner,
    events: Receiver<ShardEvent>,
    /// False once the shard's event channel has closed.
    events_open: bool,
    /// Claims that may have leased jobs that no stream has.
    lost_claims: Arc<LostClaims>,
    /// Polls beside claims: names of topics, and sleeping topics.
    polls: TopicPolls,
    /// Streams with globs that wait until all topics are listed.
    streams_awaiting_listing: Vec<Arc<Stream>>,
    backoff: Backoff,
    stop: CancellationToken,
}

// === impl ShardFeed ===

impl ShardFeed {
    /// Creates the feed of the shard.
    pub(in crate::dispatch) fn new(
        settler: Settler,
        shard: Shard,
        streams: Arc<StreamRegistry>,
        served: Arc<ServedCounts>,
        lost: Arc<LostClaims>,
        stop: CancellationToken,
    ) -> ShardFeed {
        ShardFeed {
            planner: ClaimPlanner::new(shard.index(), Arc::clone(&streams.awake_feeds), served)
                .with_lossy_events(shard.is_shared()),
            polls: TopicPolls::new(settler.clock()),
            events: shard.events(EventKind::Jobs),
            settler,
            shard,
            streams,
            events_open: true,
            lost_claims: lost,
            streams_awaiting_listing: Vec::new(),
            backoff: Backoff::new(RETRY_DELAYS),
            stop,
        }
    }

    /// Runs until `stop`. Waits for a claim in flight, so that its leases are recorded.
    pub(in crate::dispatch) async fn run(mut self) {
        while !self.stop.is_cancelled() {
            self.process_mailbox();
            // After the streams: an event for a job that was enqueued before one of them opened must be processed.
            self.process_events();
            self.planner.wake_due(self.shard_now());
            if !self.lost_claims.is_full() && self.step().await.is_ok() {
                self.backoff.reset();
            } else {
                self.back_off().await;
            }
        }
        self.planner.mark_feed_asleep();
    }

    /// Makes the next call: polls and claims take turns.
    async fn step(&mut self) -> shards::Result<()> {
        if self.planner.has_sleeping() && self.polls.is_due() {
            self.polls.begin_round(self.planner.sleeping_count(), self.planner.tracks_globs());
        }
        if let Some(look) = self.polls.next() {
            self.poll_topics(look).await
        } else if let Some(plan) = self.planner.plan() {
            self.claim(plan).await?;
            self.run_glob_tasks().await;
            Ok(())
        } else if self.polls.has_more() || self.planner.has_glob_tasks() {
            tokio::task::yield_now().await;
            Ok(())
        } else {
            self.wait_for_work().await;
            Ok(())
        }
    }

    /// Runs some glob tasks, so that they make progress when claims follow each other.
    async fn run_glob_tasks(&mut self) {
        for _ in 0..PIECES_PER_CLAIM {
            if !self.planner.has_glob_tasks() {
                return;
            }
            tokio::task::yield_now().await;
            self.planner.run_glob_task();
        }
    }

    fn mailbox(&self) -> &StreamMailbox {
        &self.streams.mailboxes[self.shard.index()]
    }

    fn process_mailbox(&mut self) {
        for stream in self.mailbox().take() {
            let globs = has_globs(&stream);
            if globs && !self.planner.tracks_globs() {
                self.planner.track_globs();
                self.polls.list_now(true);
            }
            if globs && self.polls.is_listing_now() && !self.planner.serves(stream.id()) {
                self.streams_awaiting_listing.push(stream);
            } else {
                self.planner.update_stream(&stream);
            }
        }
        self.planner.update_feed_awake();
    }

    fn process_waiting(&mut self) {
        self.streams_awaiting_listing
            .drain(..)
            .for_each(|stream| self.planner.update_stream(&stream));
    }

    fn process_events(&mut self) {
        while self.events_open {
            match self.events.try_recv() {
                Ok(event) => self.process_event(event),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Lagged(_)) => self.handle_missed_events(),
                Err(TryRecvError::Closed) => self.events_open = false,
            }
        }
    }

    fn process_event(&mut self, event: ShardEvent) {
        match event {
            ShardEvent::Claimable { topic, at } => {
                self.planner.wake_topic(&topic, at, self.shard_now())
            }
            ShardEvent::TopicForgotten(topic) => self.planner.drop_topic(&topic),
            ShardEvent::EventsMissed => self.handle_missed_events(),
            // Lease events are applied at once, not between claims: [`crate::dispatch::leases::events`].
            ShardEvent::UpkeepDue { .. }
            | ShardEvent::Lease(_)
            | ShardEvent::StateSet
            | ShardEvent::DocumentsChanged
            | ShardEvent::Disconnected => {}
        }
    }

    /// Handles lost events: any topic may have jobs. If few topics sleep, each gets a claim; if many do, they are
    /// first checked for jobs, one call's worth at a time.
    fn handle_missed_events(&mut self) {
        tracing::debug!(shard = %self.shard.name(), "events were missed; checking every topic for jobs");
        self.planner.mark_events_missed();
        if self.planner.sleeping_count() > limit::CALL_JOBS_MAX && self.shard.is_shared() {
            self.polls.check_sleeping_now(self.planner.sleeping_count());
        } else {
            self.planner.wake_all();
        }
        if self.planner.tracks_globs() {
            self.polls.list_now(false);
        }
    }

    /// Waits for a stream, an event, a due time or a poll.
    async fn wait_for_work(&mut self) {
        let due = self.planner.next_due().map(|at| self.skew().to_local(at));
        let clock = self.settler.clock().clone();
        let mailbox = &self.streams.mailboxes[self.shard.index()];
        let event = tokio::select! {
            () = self.stop.cancelled() => return,
            () = mailbox.wait_posted() => return,
            () = clock.sleep_until(due.unwrap_or(Time::MAX)), if due.is_some() => return,
            () = self.polls.wait_due(), if self.planner.has_sleeping() => return,
            event = self.events.recv(), if self.events_open => event,
        };
        match event {
            Ok(event) => self.process_event(event),
            Err(RecvError::Lagged(_)) => self.handle_missed_events(),
            Err(RecvError::Closed) => self.events_open = false,
        }
    }

    /// Waits after a failed call before the next one. Meanwhile the shard counts as one without jobs, and streams
    /// that wait for a first claim are notified at once instead of waiting for it.
    async fn back_off(&mut self) {
        let (shard, stop) = (self.shard.clone(), self.stop.clone());
        let mut pause = pin!(shard.pause_before_retry(self.backoff.next_delay()));
        loop {
            self.process_waiting();
            self.planner.finish_first_claims();
            self.planner.mark_feed_asleep();
            tokio::select! {
                () = &mut pause => break,
                () = stop.cancelled() => break,
                () = self.streams.mailboxes[shard.index()].wait_posted() => self.process_mailbox(),
            }
        }
        self.planner.update_feed_awake();
    }

    async fn claim(&mut self, plan: ClaimPlan) -> shards::Result<()> {
        let nonce = new_nonce();
        let before = self.settler.clock().now();
        let documents = self.settler.documents().any();
        let topics = topic_demands(&plan, documents.as_deref());
        let claim = Claim { nonce, owner: self.settler.replica().nonce, topics };
        let result = self.shard.claim(claim).await;
        let now = self.settler.clock().now();
        // An event that arrived during the claim may be newer than its result.
        self.process_events();
        match result {
            Ok(claims) => {
                self.streams.set_skew(self.shard.index(), Skew::measured(before, claims.now, now));
                let at =
                    ClaimOrigin { shard: self.shard.index(), claimed_at: now, skew: self.skew() };
                let outcome = self.planner.apply(plan, claims.topics, at);
                self.apply_outcome(outcome);
                self.return_paused_since(documents.as_ref());
                Ok(())
            }
            Err(error) => {
                let at =
                    ClaimOrigin { shard: self.shard.index(), claimed_at: now, skew: self.skew() };
                if error.error.may_be_applied() {
                    let topics = plan.topics.iter().map(|asked| asked.topic.clone()).collect();
                    self.lost_claims.add(LostClaim { nonce, topics });
                }
                let outcome = self.planner.apply_failure(plan, at);
                self.apply_outcome(outcome);
                Err(error)
            }
        }
    }

    /// Returns jobs that a claim has found although they are paused by now: the policies have changed since it began.
    fn return_paused_since(&self, before: Option<&Arc<DocumentView>>) {
        if let Some(documents) = self.settler.documents().any()
            && !before.is_some_and(|before| Arc::ptr_eq(before, &documents))
        {
            self.streams.return_paused(&documents);
        }
    }

    fn apply_outcome(&self, outcome: ClaimOutcome) {
        self.streams.queue_returns(outcome.refused);
        for (stream, feeds) in outcome.wake_feeds {
            feeds.into_iter().for_each(|feed| self.streams.mailboxes[feed].post(&stream));
        }
        outcome.look_at.into_iter().for_each(|at| self.streams.check_timer.set_no_later_than(at));
    }

    async fn poll_topics(&mut self, look: TopicPoll) -> shards::Result<()> {
        match look {
            TopicPoll::ListTopics(reading) => self.list_topics(reading).await,
            TopicPoll::CheckSleeping => self.check_sleeping().await,
        }
    }

    /// Checks sleeping topics for jobs, as many as one call takes, by a claim without streams. It does not count as
    /// an empty claim.
    async fn check_sleeping(&mut self) -> shards::Result<()> {
        let topics = self.planner.next_sleeping(limit::SCAN_PART_MAX);
        if !topics.is_empty() {
            // No job is taken, so the order does not matter.
            let ask = |topic: &TopicName| TopicDemand {
                topic: topic.clone(),
                ageing: None,
                streams: Vec::new(),
            };
            let asks = topics.iter().map(ask).collect();
            let claim =
                Claim { nonce: new_nonce(), owner: self.settler.replica().nonce, topics: asks };
            let claims = self.shard.claim(claim).await?;
            for (topic, found) in topics.iter().zip(claims.topics) {
                match found.remainder {
                    TopicRemainder::Ready | TopicRemainder::Unknown => {
                        self.planner.wake_topic(topic, claims.now, claims.now)
                    }
                    TopicRemainder::ReadyAt(at) => self.planner.wake_topic(topic, at, claims.now),
                    TopicRemainder::Empty => {}
                }
            }
        }
        self.polls.sleeping_checked(topics.len());
        Ok(())
    }

    /// Adds a page of the shard's topics to the planner, or the new ones among them.
    async fn list_topics(&mut self, reading: TopicListing) -> shards::Result<()> {
        let names = self.shard.call(Op::Topics, |store| {
            store.topics(String::new(), reading.after, limit::SCAN_PART_MAX)
        });
        // Reads may be slow or rejected while claims work, and claims wait for this.
        let Ok(Ok(page)) = timeout(TOPIC_POLL_TIMEOUT, names).await else {
            self.polls.poll_failed();
            self.process_waiting();
            return Ok(());
        };
        for some in page.chunks(NAMES_MAX) {
            for topic in some {
                if reading.claim_known || !self.planner.is_tracked(&topic.name) {
                    self.planner.wake_topic(&topic.name, Time(i64::MIN), Time(i64::MIN));
                }
            }
            tokio::task::yield_now().await;
        }
        let is_full = page.len() == limit::SCAN_PART_MAX;
        self.polls
            .page_listed(page.into_iter().next_back().map(|topic| topic.name).filter(|_| is_full));
        if !self.polls.is_listing_now() {
            self.process_waiting();
        }
        Ok(())
    }

    /// Returns the time on the shard's clock, as far as known.
    fn shard_now(&self) -> Time {
        self.skew().to_shard(self.settler.clock().now())
    }

    fn skew(&self) -> Skew {
        self.streams.skew(self.shard.index())
    }
}

/// Returns a nonce for a claim; never 0, which probes use.
fn new_nonce() -> u32 {
    rand::rng().random_range(1..=u32::MAX)
}
