//! A stream or pull: its ledger behind a lock, and its transport, which is woken when there is something to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};

use crate::clock::Clock;
use crate::dispatch::{JobDelivery, StreamBatch, StreamOptions, WorkerInfo};
use crate::domain::credit::{CreditShare, CreditedLease};
use crate::domain::explain::HolderFacts;
use crate::domain::{Receipt, ShardName, StreamId, Time, Token, TopicName};
use crate::metrics::Metrics;
use crate::scheduler::RevokeReason;
use crate::store::LeasedJob;

use super::ledger::{
    ClaimOrigin, GrantOutcome, LeaseRevocation, MessageContent, StreamEnd, StreamLease,
    StreamLedger, StreamMode, StreamPhase,
};
use super::weighted_turns::WeightedTurns;

/// A stream or pull. Shared by its transport, the feeds that serve it, and the registry.
pub(in crate::dispatch) struct Stream {
    id: u32,
    context: Arc<StreamContext>,
    options: StreamOptions,
    mode: StreamMode,
    opened_at: Time,
    /// Time of the last Ack, Nack or Extend of a job of the stream, in microseconds; at first that of its opening.
    last_sign: AtomicI64,
    turns: Option<WeightedTurns>,
    ledger: Mutex<StreamLedger>,
    transport: AtomicWaker,
}

/// Context of all streams of a replica.
#[derive(Debug)]
pub(in crate::dispatch) struct StreamContext {
    pub(in crate::dispatch) clock: Clock,
    pub(in crate::dispatch) metrics: Metrics,
    pub(in crate::dispatch) owner: u32,
    /// Names of the shards, in the order of the feeds.
    pub(in crate::dispatch) shards: Vec<ShardName>,
    /// True if other replicas use one of the shards too.
    pub(in crate::dispatch) shared: bool,
}

/// Effects of freed credit.
#[derive(Clone, Copy, Debug)]
pub(in crate::dispatch) struct FreedCredit {
    /// Feeds that wait for credit are to be woken.
    pub(in crate::dispatch) wake_feeds: bool,
    /// The stream takes no more jobs, and no worker holds any of its leases.
    pub(in crate::dispatch) done: bool,
}

// === impl Stream ===

impl Stream {
    pub(in crate::dispatch) fn new(
        id: u32,
        context: Arc<StreamContext>,
        options: StreamOptions,
        mode: StreamMode,
        opened: Time,
    ) -> Stream {
        let ledger =
            Mutex::new(StreamLedger::new(&options, mode, context.shards.len(), context.shared));
        Stream {
            id,
            context,
            turns: WeightedTurns::new(&options),
            options,
            mode,
            opened_at: opened,
            last_sign: AtomicI64::new(opened.0),
            ledger,
            transport: AtomicWaker::new(),
        }
    }

    pub(in crate::dispatch) fn id(&self) -> u32 {
        self.id
    }

    pub(in crate::dispatch) fn options(&self) -> &StreamOptions {
        &self.options
    }

    pub(in crate::dispatch) fn mode(&self) -> StreamMode {
        self.mode
    }

    /// Turns of its topics, if they have weights.
    pub(in crate::dispatch) fn turns(&self) -> Option<&WeightedTurns> {
        self.turns.as_ref()
    }

    /// Id of the stream, unique over replicas and their runs.
    pub(in crate::dispatch) fn stream_id(&self) -> StreamId {
        StreamId { owner: self.context.owner, stream: self.id }
    }

    /// Id of the stream, as shown to users.
    pub(in crate::dispatch) fn name(&self) -> String {
        self.stream_id().to_string()
    }

    /// Time at which the stream was opened.
    pub(in crate::dispatch) fn opened_at(&self) -> Time {
        self.opened_at
    }

    // --- for its transport

    /// Registers the task that polls the transport: [`Stream::wake`] wakes it.
    pub(in crate::dispatch) fn register(&self, waker: &std::task::Waker) {
        self.transport.register(waker);
    }

    /// Wakes the task that polls the transport.
    pub(in crate::dispatch) fn wake(&self) {
        self.transport.wake();
    }

    /// Takes one message: [`StreamLedger::take_message`].
    pub(in crate::dispatch) fn take_message(&self, now: Time) -> MessageContent {
        self.ledger().take_message(now, self.options.max_batch as usize)
    }

    /// Builds the message from `taken`; the remaining time of each lease is counted from `now`.
    pub(in crate::dispatch) fn batch(&self, taken: MessageContent, now: Time) -> StreamBatch {
        let deliveries = taken.jobs.into_iter().map(|unsent| JobDelivery {
            lease_left: unsent.lease_left(now),
            lag: unsent.lag(now),
            receipt: Receipt {
                shard: self.context.shards[unsent.shard].clone(),
                owner: self.context.owner,
                stream: self.id,
                token: unsent.job.token,
                key: unsent.job.key.clone(),
            },
            job: unsent.job,
        });
        let revocations = taken
            .revocations
            .into_iter()
            .map(|revoked| (self.receipt(revoked.lease), revoked.reason));
        StreamBatch {
            deliveries: deliveries.collect(),
            revocations: revocations.collect(),
            in_flight: taken.in_flight,
            draining: taken.draining,
        }
    }

    // --- for the feeds

    /// Adds the jobs that a claim found: [`StreamLedger::grant`].
    pub(in crate::dispatch) fn grant(
        &self,
        share: CreditShare,
        jobs: Vec<LeasedJob>,
        at: ClaimOrigin,
    ) -> GrantOutcome {
        let some = !jobs.is_empty();
        let granted = self.ledger().grant(share, jobs, at);
        // A pull also waits for empty results.
        if some || self.mode == StreamMode::Pull {
            self.transport.wake();
        }
        granted
    }

    /// Records that one more feed has claimed everything that the stream subscribes to.
    pub(in crate::dispatch) fn count_claimed_feed(&self) {
        self.ledger().count_claimed_feed();
        self.transport.wake();
    }

    // --- for the registry

    /// Releases leases that are over; `ended` receives each that was held.
    pub(in crate::dispatch) fn release(
        &self,
        tokens: &[Token],
        ended: impl FnMut(StreamLease),
    ) -> FreedCredit {
        let mut ledger = self.ledger();
        tokens.iter().filter_map(|&token| ledger.release(token)).for_each(ended);
        FreedCredit::of(&mut ledger)
    }

    /// Records an Ack, Nack or Extend of a job of the stream.
    pub(in crate::dispatch) fn record_sign(&self, now: Time) {
        self.last_sign.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Returns what is known of a lease, if the stream holds it.
    pub(in crate::dispatch) fn holder(&self, token: Token, now: Time) -> Option<HolderFacts> {
        let is_sent = self.ledger().is_sent(token)?;
        let silent_for = now.since(Time(self.last_sign.load(Ordering::Relaxed)));
        Some(HolderFacts { is_sent, silent_for })
    }

    /// Takes back unsent jobs.
    pub(in crate::dispatch) fn take_back(
        &self,
        which: impl Fn(&LeasedJob) -> bool,
    ) -> (Vec<StreamLease>, FreedCredit) {
        let mut ledger = self.ledger();
        let unsent = ledger.release_unsent_if(|unsent| which(&unsent.job));
        (unsent, FreedCredit::of(&mut ledger))
    }

    /// Adds leases that the worker holds. Returns how the stream has ended, and the time of its next check.
    pub(in crate::dispatch) fn adopt(
        &self,
        adopted: Vec<CreditedLease<StreamLease>>,
    ) -> (StreamEnd, Time) {
        let mut ledger = self.ledger();
        adopted.into_iter().for_each(|adopted| ledger.adopt(adopted));
        (ledger.end(), ledger.next_check())
    }

    /// Adds unsent revocations of an earlier stream.
    pub(in crate::dispatch) fn add_revocations(&self, revocations: Vec<LeaseRevocation>) {
        self.ledger().add_revocations(revocations);
        self.transport.wake();
    }

    /// Makes `successor` the stream that adopts the remaining leases of this one, unless it has a successor that
    /// `is_open`. A stream of another worker cannot be the successor, and a pull has none.
    pub(in crate::dispatch) fn set_successor(
        &self,
        successor: &Stream,
        is_open: impl FnOnce(u32) -> bool,
    ) {
        let mut ledger = self.ledger();
        if self.has_same_worker(successor) && !ledger.successor.is_some_and(is_open) {
            ledger.successor = Some(successor.id);
        }
    }

    /// Returns whether both streams have the same worker id, and are of the same identity.
    fn has_same_worker(&self, other: &Stream) -> bool {
        let worker = |of: &Stream| {
            let identity = of.options.identity.as_ref().map(|identity| identity.name.clone());
            (Arc::clone(&of.options.worker_id), identity)
        };
        self.id != other.id && self.mode == StreamMode::Stream && worker(self) == worker(other)
    }

    /// Returns whether the worker may settle jobs of a topic: only then the stream may have leases of them.
    pub(in crate::dispatch) fn may_hold(&self, topic: &TopicName) -> bool {
        self.options.identity.as_ref().is_none_or(|identity| identity.may_settle(topic))
    }

    /// Returns whether the other stream came by the same connection from a worker with the same id.
    pub(in crate::dispatch) fn has_same_connection(&self, other: &Stream) -> bool {
        let peers = (&self.options.peer, &other.options.peer);
        !peers.0.is_empty()
            && peers.0 == peers.1
            && !self.options.worker_id.is_empty()
            && self.has_same_worker(other)
    }

    /// Returns whether both continue the same earlier stream: the worker of the later one has not received the id of
    /// the other.
    pub(in crate::dispatch) fn continues_same(&self, other: &Stream) -> bool {
        self.options.continues.is_some() && self.options.continues == other.options.continues
    }

    /// Marks leases that workers have settled while their shard was unreachable, so that the store does not have the
    /// settle.
    pub(in crate::dispatch) fn mark_settle_unknown(&self, tokens: &[Token]) -> FreedCredit {
        let mut ledger = self.ledger();
        tokens.iter().for_each(|&token| ledger.mark_settle_unknown(token));
        FreedCredit::of(&mut ledger)
    }

    /// Revokes leases on that shard.
    pub(in crate::dispatch) fn revoke(
        &self,
        shard: usize,
        tokens: &[Token],
        reason: RevokeReason,
    ) -> FreedCredit {
        let mut ledger = self.ledger();
        tokens.iter().for_each(|&token| ledger.revoke(shard, token, reason));
        let freed = FreedCredit::of(&mut ledger);
        drop(ledger);
        self.transport.wake();
        freed
    }

    /// Ends claims for the stream. Returns the unsent jobs, which go back.
    pub(in crate::dispatch) fn drain(&self) -> Vec<StreamLease> {
        let unsent = self.ledger().drain();
        self.transport.wake();
        unsent
    }

    /// Sets the deadline of these leases, on the clock of this replica. Returns the time of the next check.
    pub(in crate::dispatch) fn set_deadline(&self, tokens: &[Token], deadline: Time) -> Time {
        let mut ledger = self.ledger();
        tokens.iter().for_each(|&token| ledger.set_deadline(token, deadline));
        ledger.next_check()
    }

    /// Locks the ledger.
    pub(in crate::dispatch) fn ledger(&self) -> MutexGuard<'_, StreamLedger> {
        self.ledger.lock()
    }

    pub(in crate::dispatch) fn is_closed(&self) -> bool {
        self.ledger().phase == StreamPhase::Closed
    }

    /// Returns the stream's description, for display.
    pub(in crate::dispatch) fn worker(&self) -> WorkerInfo {
        WorkerInfo {
            worker_id: self.options.worker_id.to_string(),
            stream_id: self.name(),
            peer: self.options.peer.clone(),
            user_agent: self.options.user_agent.clone(),
            topics: self.options.topics.clone(),
            max_in_flight: self.options.max_in_flight,
            in_flight: self.ledger().in_flight_count(),
            connect_time: self.opened_at,
        }
    }

    /// Builds the receipt as the worker has it.
    fn receipt(&self, held: StreamLease) -> Receipt {
        let origin = held.origin.unwrap_or(self.stream_id());
        Receipt {
            shard: self.context.shards[held.shard].clone(),
            owner: origin.owner,
            stream: origin.stream,
            token: held.lease.token,
            key: held.lease.key,
        }
    }
}

// === impl FreedCredit ===

impl FreedCredit {
    fn of(ledger: &mut StreamLedger) -> FreedCredit {
        let done = ledger.phase != StreamPhase::Open && ledger.sent_count() == 0;
        FreedCredit { wake_feeds: ledger.wake_feeds(), done }
    }
}
