//! Registry of this replica's streams and pulls: those that are open, those that still hold leases, and the routing
//! of lease events to them.

mod successors;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::awake_feeds::AwakeFeeds;
use crate::clock::{LastSkew, Skew};
use crate::dispatch::{StreamOpenError, StreamOptions, WorkerInfo};
use crate::documents::DocumentView;
use crate::domain::explain::HolderFacts;
use crate::domain::{Time, Token, limit};
use crate::store::{LeaseEvent, LeasedJob, RevokeReason};

use super::adoption_queue::AdoptionQueue;
use super::check_timer::CheckTimer;
use super::ledger::{StreamEnd, StreamLease, StreamMode};
use super::mailbox::StreamMailbox;
use super::return_queue::ReturnQueue;
use super::stream::{FreedCredit, Stream, StreamContext};

/// Streams and pulls of this replica. Does not depend on the settler, which holds it through its listener.
pub(in crate::dispatch) struct StreamRegistry {
    context: Arc<StreamContext>,
    table: Mutex<StreamTable>,
    /// Mailboxes of the feeds, by shard.
    pub(in crate::dispatch) mailboxes: Vec<StreamMailbox>,
    /// Leases that reached no client, by shard.
    pub(in crate::dispatch) returns: Vec<Arc<ReturnQueue>>,
    /// Adoption requests, by shard.
    pub(in crate::dispatch) adoptions: Vec<Arc<AdoptionQueue>>,
    /// Flags of the feeds that may have jobs.
    pub(in crate::dispatch) awake_feeds: Arc<AwakeFeeds>,
    /// Difference between the shard's clock and this replica's, by shard.
    skews: Vec<LastSkew>,
    /// Flags, by shard: lease events may have been lost, so all leases of the shard are to be looked up.
    lookup_requests: Vec<AtomicBool>,
    /// Timer of the next check of deadlines.
    pub(in crate::dispatch) check_timer: CheckTimer,
    /// Counts the calls of [`StreamRegistry::wake_feeds`].
    next_feed: AtomicUsize,
    /// Notified when a lease was settled or a stream has closed; for a replica that drains.
    settled: Notify,
}

#[derive(Default)]
struct StreamTable {
    streams: HashMap<u32, Arc<Stream>>,
    /// Holders of adopted leases, whose receipts name other streams.
    adopted: HashMap<Token, u32>,
    next: u32,
    draining: bool,
}

// === impl StreamRegistry ===

impl StreamRegistry {
    pub(in crate::dispatch) fn new(context: StreamContext) -> StreamRegistry {
        let shards = context.shards.len();
        StreamRegistry {
            context: Arc::new(context),
            table: Mutex::default(),
            mailboxes: (0..shards).map(|_| StreamMailbox::default()).collect(),
            returns: (0..shards).map(|_| Arc::default()).collect(),
            adoptions: (0..shards).map(|_| Arc::default()).collect(),
            awake_feeds: Arc::new(AwakeFeeds::new(shards)),
            skews: (0..shards).map(|_| LastSkew::default()).collect(),
            lookup_requests: (0..shards).map(|_| AtomicBool::new(false)).collect(),
            check_timer: CheckTimer::default(),
            next_feed: AtomicUsize::new(0),
            settled: Notify::new(),
        }
    }

    /// Opens a stream. The feeds do not serve it before [`StreamRegistry::announce`].
    pub(in crate::dispatch) fn open(
        &self,
        options: StreamOptions,
        mode: StreamMode,
        now: Time,
    ) -> Result<Arc<Stream>, StreamOpenError> {
        let mut registry = self.table.lock();
        if registry.draining {
            return Err(StreamOpenError::Draining);
        }
        let id = registry.free_id();
        let stream = Arc::new(Stream::new(id, Arc::clone(&self.context), options, mode, now));
        registry.streams.insert(id, Arc::clone(&stream));
        Ok(stream)
    }

    /// Announces the stream to every feed.
    pub(in crate::dispatch) fn announce(&self, stream: &Arc<Stream>) {
        self.awake_feeds.set_all();
        self.wake_feeds(stream);
    }

    /// Ends the stream: sent leases stay held until they are settled. Returns the leases that are to be detached.
    pub(in crate::dispatch) fn end_stream(&self, stream: &Arc<Stream>) -> Vec<StreamLease> {
        let remains = stream.ledger().close(None);
        self.on_closed(stream, remains.unsent);
        remains.sent
    }

    /// Drains the stream: it is to end, and its unsent jobs go back.
    pub(in crate::dispatch) fn drain_stream(&self, stream: &Stream) {
        self.queue_returns(stream.drain());
    }

    /// Breaks the stream. Returns its sent leases that are not settled.
    pub(in crate::dispatch) fn break_stream(&self, stream: &Arc<Stream>) -> Vec<StreamLease> {
        self.choose_successor(stream);
        // A worker that names this stream in its next one had lost it before, and has extended its leases since.
        // Extends from before it opened this stream were for the stream before.
        let successor = stream.ledger().successor;
        let named =
            |successor: &Arc<Stream>| successor.options().continues == Some(stream.stream_id());
        let reopened = successor.and_then(|successor| self.get(successor)).filter(named);
        let reopened =
            reopened.map(|successor| successor.opened_at().minus(stream.options().orphan_grace));
        let now = self.context.clock.now();
        let first = stream.opened_at().plus(limit::EXTEND_BEFORE_BREAK);
        let at = reopened.unwrap_or(now).min(now).max(first);
        let remains = stream.ledger().close(Some(at));
        self.on_closed(stream, remains.unsent);
        remains.sent
    }

    fn on_closed(&self, stream: &Arc<Stream>, unsent: Vec<StreamLease>) {
        // Revocations that were to be sent on a connection that is gone.
        self.move_revocations(stream);
        if stream.ledger().is_finished() {
            self.forward_successor(stream);
            self.table.lock().streams.remove(&stream.id());
        } else if stream.ledger().successor.is_some() {
            (0..self.adoptions.len()).for_each(|shard| self.queue_adoption(shard, stream));
        }
        self.queue_returns(unsent);
        for mailbox in &self.mailboxes {
            mailbox.post_closed(stream);
        }
        self.settled.notify_waiters();
    }

    /// Wakes every feed: the stream has credit.
    pub(in crate::dispatch) fn wake_feeds(&self, stream: &Arc<Stream>) {
        // With credit for one job only, the feed that is woken first gets it; so each is the first one in turn.
        let turn = self.next_feed.fetch_add(1, Ordering::Relaxed) % self.mailboxes.len();
        let (before, from) = self.mailboxes.split_at(turn);
        for mailbox in from.iter().chain(before) {
            mailbox.post(stream);
        }
    }

    /// Queues the return of leases that reached no client.
    pub(in crate::dispatch) fn queue_returns(&self, leases: Vec<StreamLease>) {
        for StreamLease { shard, lease, deadline, .. } in leases {
            self.returns[shard].add(lease, deadline);
        }
    }

    /// Returns jobs of paused topics and groups that no transport has taken.
    pub(in crate::dispatch) fn return_paused(&self, documents: &DocumentView) {
        let now = self.context.clock.now();
        let is_paused = |job: &LeasedJob| {
            let policy = documents.of_topic(&job.key.topic);
            policy.is_some_and(|policy| policy.is_group_paused(&job.spec.group, now))
        };
        for stream in self.all() {
            let (unsent, freed) = stream.take_back(is_paused);
            if !unsent.is_empty() {
                self.on_credit_freed(&stream, freed);
                self.queue_returns(unsent);
            }
        }
    }

    /// Returns what is known of the stream that holds a lease; `None`: no stream of this replica does.
    pub(in crate::dispatch) fn holder(&self, stream: u32, token: Token) -> Option<HolderFacts> {
        let (now, mut found) = (self.context.clock.now(), None);
        self.for_each_holder(stream, &[token], false, |stream, _| {
            found = stream.holder(token, now)
        });
        found
    }

    /// Returns leases that were taken for the transport of this stream but did not reach its client.
    pub(in crate::dispatch) fn return_undelivered(&self, stream: &Arc<Stream>, tokens: &[Token]) {
        let mut leases = Vec::with_capacity(tokens.len());
        let freed = stream.release(tokens, |lease| leases.push(lease));
        self.on_credit_freed(stream, freed);
        self.queue_returns(leases);
    }

    /// Applies a lease event of that shard, from this or another replica.
    pub(in crate::dispatch) fn apply_lease_event(&self, shard: usize, hint: LeaseEvent) {
        match hint {
            LeaseEvent::Settled { stream, tokens } => self.on_settled(stream, &tokens),
            LeaseEvent::SettlePending { stream, tokens } => self.on_settle_unknown(stream, &tokens),
            LeaseEvent::Revoked { stream, tokens, reason } => {
                self.revoke(shard, stream, &tokens, reason);
            }
            LeaseEvent::Adopted { stream, tokens } => self.adopted_elsewhere(stream, &tokens),
            LeaseEvent::Extended { stream, tokens, deadline } => {
                self.on_extended(stream, &tokens, self.skew(shard).to_local(deadline));
                self.for_each_holder(stream, &tokens, false, |stream, _| {
                    self.queue_adoption_if_closed(shard, stream)
                });
            }
        }
    }

    /// Releases leases that workers have just settled, and records their run times.
    fn on_settled(&self, stream: u32, tokens: &[Token]) {
        let StreamContext { clock, metrics, shared, .. } = &*self.context;
        let (now, held) = (clock.now(), Cell::new(0));
        let run_times = RefCell::new(metrics.run_times());
        let release = |stream: &Arc<Stream>, tokens: &[Token]| {
            let freed = stream.release(tokens, |lease| {
                held.set(held.get() + 1);
                if let Some(since) = lease.claimed_at {
                    let topic = lease.lease.key.topic.as_str();
                    run_times.borrow_mut().record(topic, now.since(since));
                }
            });
            stream.record_sign(now);
            self.on_credit_freed(stream, freed);
        };
        self.for_each_holder(stream, tokens, true, &release);
        // A receipt names its stream without a proof. If no other replica could have the lease, so that the store is
        // not asked before it ends, all streams are searched for it.
        if held.get() < tokens.len() && !shared {
            self.all().iter().for_each(|stream| release(stream, tokens));
        }
    }

    /// Marks leases that workers have settled while their shard was unreachable.
    fn on_settle_unknown(&self, stream: u32, tokens: &[Token]) {
        self.for_each_holder(stream, tokens, false, |stream, tokens| {
            self.on_credit_freed(stream, stream.mark_settle_unknown(tokens))
        });
    }

    /// Releases leases that ended some time ago.
    pub(in crate::dispatch) fn on_ended(&self, stream: u32, tokens: &[Token]) {
        self.for_each_holder(stream, tokens, true, |stream, tokens| {
            self.on_credit_freed(stream, stream.release(tokens, drop));
        });
    }

    /// Revokes leases on that shard.
    pub(in crate::dispatch) fn revoke(
        &self,
        shard: usize,
        stream: u32,
        tokens: &[Token],
        reason: RevokeReason,
    ) {
        self.for_each_holder(stream, tokens, true, |stream, tokens| {
            self.on_credit_freed(stream, stream.revoke(shard, tokens, reason));
            self.move_revocations(stream);
        });
    }

    /// Sets the deadline of these leases, on the clock of this replica.
    pub(in crate::dispatch) fn on_extended(&self, stream: u32, tokens: &[Token], deadline: Time) {
        let now = self.context.clock.now();
        self.for_each_holder(stream, tokens, false, |stream, tokens| {
            stream.record_sign(now);
            self.check_timer.set_no_later_than(stream.set_deadline(tokens, deadline));
        });
    }

    /// Calls `act` for each stream that holds some of these leases: the named one, except for leases that another
    /// stream has adopted. `over`: the leases are over.
    fn for_each_holder(
        &self,
        named: u32,
        tokens: &[Token],
        over: bool,
        mut act: impl FnMut(&Arc<Stream>, &[Token]),
    ) {
        let mut registry = self.table.lock();
        if registry.adopted.is_empty() {
            let stream = registry.streams.get(&named).cloned();
            drop(registry);
            stream.iter().for_each(|stream| act(stream, tokens));
            return;
        }
        let mut found: Vec<(Arc<Stream>, Vec<Token>)> = Vec::new();
        for &token in tokens {
            let id = registry.adopted.get(&token).copied().unwrap_or(named);
            let Some(stream) = registry.streams.get(&id) else { continue };
            match found.iter_mut().find(|(known, _)| known.id() == id) {
                Some((_, tokens)) => tokens.push(token),
                None => found.push((Arc::clone(stream), vec![token])),
            }
        }
        if over {
            registry.remove_adopted(tokens);
        }
        drop(registry);
        found.iter().for_each(|(stream, tokens)| act(stream, tokens));
    }

    /// Requests one lookup of all leases of the shard: lease events may have been lost.
    pub(in crate::dispatch) fn request_lookup(&self, shard: usize) {
        self.lookup_requests[shard].store(true, Ordering::Release);
        self.check_timer.set_no_later_than(Time(i64::MIN));
    }

    /// Returns whether a lookup was requested, and clears the request.
    pub(in crate::dispatch) fn take_lookup_request(&self, shard: usize) -> bool {
        self.lookup_requests[shard].swap(false, Ordering::AcqRel)
    }

    /// Returns the difference between the shard's clock and this replica's.
    pub(in crate::dispatch) fn skew(&self, shard: usize) -> Skew {
        self.skews[shard].get()
    }

    /// Sets the difference between the shard's clock and this replica's, measured with a claim.
    pub(in crate::dispatch) fn set_skew(&self, shard: usize, skew: Skew) {
        self.skews[shard].set(skew);
    }

    fn on_credit_freed(&self, stream: &Arc<Stream>, freed: FreedCredit) {
        if freed.wake_feeds {
            self.wake_feeds(stream);
        }
        if freed.done {
            if stream.ledger().is_finished() {
                self.forward_successor(stream);
                self.table.lock().streams.remove(&stream.id());
            }
            self.settled.notify_waiters();
        }
    }

    /// Rejects new streams and drains every open one.
    pub(in crate::dispatch) fn drain(&self) {
        self.table.lock().draining = true;
        self.all().iter().for_each(|stream| self.drain_stream(stream));
        self.settled.notify_waiters();
    }

    /// Returns whether [`StreamRegistry::drain`] was called.
    pub(in crate::dispatch) fn is_draining(&self) -> bool {
        self.table.lock().draining
    }

    /// Waits until no worker holds a lease of a stream of this replica. Broken streams are not counted: their workers
    /// may be dead. For a replica that is draining.
    pub(in crate::dispatch) async fn wait_idle(&self) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if self.unsettled_count() == 0 {
                return;
            }
            settled.await;
        }
    }

    /// Number of deliveries that workers of this replica hold; broken streams are not counted.
    pub(in crate::dispatch) fn unsettled_count(&self) -> usize {
        let sent = |stream: &Arc<Stream>| {
            let ledger = stream.ledger();
            if ledger.end() == StreamEnd::Broken { 0 } else { ledger.sent_count() }
        };
        self.all().iter().map(sent).sum()
    }

    /// Returns every stream and pull that is open or holds leases, also broken ones.
    pub(in crate::dispatch) fn all(&self) -> Vec<Arc<Stream>> {
        self.table.lock().streams.values().cloned().collect()
    }

    /// Returns the open streams, without pulls, for display.
    pub(in crate::dispatch) fn workers(&self) -> Vec<WorkerInfo> {
        self.open_streams().iter().map(|stream| stream.worker()).collect()
    }

    /// Number of open streams, without pulls.
    pub(in crate::dispatch) fn count(&self) -> usize {
        self.open_streams().len()
    }

    /// Number of jobs that open streams could take now.
    pub(in crate::dispatch) fn credit_waiting(&self) -> usize {
        let free = |stream: &Arc<Stream>| stream.ledger().free_share();
        self.open_streams().iter().filter_map(free).map(|free| free.jobs as usize).sum()
    }

    /// Returns the credit of a stream or pull that is open or holds leases.
    pub(in crate::dispatch) fn credit(&self, id: u32) -> Option<u32> {
        self.get(id).map(|stream| stream.options().max_in_flight)
    }

    fn open_streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = self.all();
        streams.retain(|stream| stream.mode() == StreamMode::Stream && !stream.is_closed());
        streams
    }

    fn get(&self, id: u32) -> Option<Arc<Stream>> {
        self.table.lock().streams.get(&id).cloned()
    }
}

// === impl StreamTable ===

impl StreamTable {
    /// Returns an id that no stream has: after a long run the counter wraps around.
    fn free_id(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.streams.contains_key(&self.next) {
                return self.next;
            }
        }
    }
}
