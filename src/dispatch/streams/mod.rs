//! The registry of this replica's streams and pulls: who is open, who still holds leases, and where
//! hints go.

mod heirs;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::{LastSkew, Skew};
use crate::domain::{Time, Token, limit};
use crate::store::{Hint, Revoked};

use super::adoptions::Adoptions;
use super::alarm::Alarm;
use super::board::{Awake, Served};
use super::ledger::{Mode, Over, StreamLease};
use super::mailbox::Mailbox;
use super::returns::Returns;
use super::stream::{Freed, Home, Stream};
use super::{OpenError, StreamOptions, Worker};

/// See the module. It knows nothing of the scheduler, which holds it through its listener.
pub(super) struct Streams {
    home: Arc<Home>,
    registry: Mutex<Registry>,
    /// By shard.
    pub(super) mailboxes: Vec<Mailbox>,
    /// By shard.
    pub(super) returns: Vec<Arc<Returns>>,
    /// By shard.
    pub(super) adoptions: Vec<Arc<Adoptions>>,
    /// Of the feeds.
    pub(super) awake: Arc<Awake>,
    /// What their topics got.
    pub(super) served: Arc<Served>,
    /// By shard: how its clock stands to this replica's.
    skews: Vec<LastSkew>,
    /// By shard: hints may have been lost, so all its leases are to be looked up.
    doubts: Vec<AtomicBool>,
    /// When some stream needs a look at its deadlines.
    pub(super) alarm: Alarm,
    /// Counts [`Streams::wake_feeds`].
    turn: AtomicUsize,
    /// Something was settled or has closed while the replica drains.
    settled: Notify,
}

#[derive(Default)]
struct Registry {
    streams: HashMap<u32, Arc<Stream>>,
    /// The streams of leases that these have adopted: their receipts name others.
    adopted: HashMap<Token, u32>,
    next: u32,
    draining: bool,
}

// === impl Streams ===

impl Streams {
    pub(super) fn new(home: Home) -> Streams {
        let shards = home.shards.len();
        Streams {
            home: Arc::new(home),
            registry: Mutex::default(),
            mailboxes: (0..shards).map(|_| Mailbox::default()).collect(),
            returns: (0..shards).map(|_| Arc::default()).collect(),
            adoptions: (0..shards).map(|_| Arc::default()).collect(),
            awake: Arc::new(Awake::new(shards)),
            served: Arc::default(),
            skews: (0..shards).map(|_| LastSkew::default()).collect(),
            doubts: (0..shards).map(|_| AtomicBool::new(false)).collect(),
            alarm: Alarm::default(),
            turn: AtomicUsize::new(0),
            settled: Notify::new(),
        }
    }

    /// Opens a stream. The feeds do not know it yet: see [`Streams::announce`].
    pub(super) fn open(
        &self,
        options: StreamOptions,
        mode: Mode,
        now: Time,
    ) -> Result<Arc<Stream>, OpenError> {
        let mut registry = self.registry();
        if registry.draining {
            return Err(OpenError::Draining);
        }
        let id = registry.free_id();
        let stream = Arc::new(Stream::new(id, Arc::clone(&self.home), options, mode, now));
        registry.streams.insert(id, Arc::clone(&stream));
        Ok(stream)
    }

    /// Every feed gets to know the stream.
    pub(super) fn announce(&self, stream: &Arc<Stream>) {
        self.awake.set_all();
        self.wake_feeds(stream);
    }

    /// The server has ended the stream: what was sent stays held until it is settled. Answers what
    /// of it is to be detached.
    pub(super) fn finish(&self, stream: &Arc<Stream>) -> Vec<StreamLease> {
        let remains = stream.ledger().close(None);
        self.closed(stream, remains.unsent);
        remains.sent
    }

    /// The stream is told to end, and what it was not sent goes back.
    pub(super) fn retire(&self, stream: &Stream) {
        self.give_back(stream.drain());
    }

    /// The stream broke; answers what it was sent and has not settled.
    pub(super) fn broke(&self, stream: &Arc<Stream>) -> Vec<StreamLease> {
        self.name_heir(stream);
        // A worker that names this one in its next stream had lost it before, and has extended its leases since. And what
        // it extended before it opened this one was meant for the one before.
        let heir = stream.ledger().heir;
        let named = |heir: &Arc<Stream>| heir.options().continues == Some(stream.stream_id());
        let reopened = heir.and_then(|heir| self.get(heir)).filter(named);
        let reopened = reopened.map(|heir| heir.opened().minus(stream.options().orphan_grace));
        let now = self.home.clock.now();
        let first = stream.opened().plus(limit::EXTEND_BEFORE_BREAK);
        let at = reopened.unwrap_or(now).min(now).max(first);
        let remains = stream.ledger().close(Some(at));
        self.closed(stream, remains.unsent);
        remains.sent
    }

    fn closed(&self, stream: &Arc<Stream>, unsent: Vec<StreamLease>) {
        // Those that were to go out by a connection that is gone.
        self.bequeath_revocations(stream);
        if stream.ledger().is_over() {
            self.pass_over(stream);
            self.registry().streams.remove(&stream.id());
        } else if stream.ledger().heir.is_some() {
            (0..self.adoptions.len()).for_each(|shard| self.follow(shard, stream));
        }
        self.give_back(unsent);
        for mailbox in &self.mailboxes {
            mailbox.post_closed(stream);
        }
        self.settled.notify_waiters();
    }

    /// Wakes every feed: the stream has credit.
    pub(super) fn wake_feeds(&self, stream: &Arc<Stream>) {
        // Where there is credit for one job only, the feed that is woken first gets it; so each is the first one in turn.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.mailboxes.len();
        let (before, from) = self.mailboxes.split_at(turn);
        for mailbox in from.iter().chain(before) {
            mailbox.post(stream);
        }
    }

    /// These leases reached nobody.
    pub(super) fn give_back(&self, leases: Vec<StreamLease>) {
        for StreamLease { shard, lease, deadline, .. } in leases {
            self.returns[shard].add(lease, deadline);
        }
    }

    /// What was taken for the transport of this stream has not reached its client.
    pub(super) fn undelivered(&self, stream: &Arc<Stream>, tokens: &[Token]) {
        let mut leases = Vec::with_capacity(tokens.len());
        let freed = stream.release(tokens, |lease| leases.push(lease));
        self.freed(stream, freed);
        self.give_back(leases);
    }

    /// Applies what became of leases of this replica on that shard, by whoever's doing.
    pub(super) fn apply(&self, shard: usize, hint: Hint) {
        match hint {
            Hint::Settled { stream, tokens } => self.settled(stream, &tokens),
            Hint::Unsettled { stream, tokens } => self.unsettle(stream, &tokens),
            Hint::Revoked { stream, tokens, reason } => {
                self.revoke(shard, stream, &tokens, reason);
            }
            Hint::Adopted { stream, tokens } => self.adopted_elsewhere(stream, &tokens),
            Hint::Extended { stream, tokens, deadline } => {
                self.extended(stream, &tokens, self.skew(shard).here(deadline));
                self.each(stream, &tokens, false, |stream, _| self.follow_closed(shard, stream));
            }
        }
    }

    /// Workers have just settled these leases: how long they took is known.
    fn settled(&self, stream: u32, tokens: &[Token]) {
        let Home { clock, metrics, shared, .. } = &*self.home;
        let (now, held) = (clock.now(), Cell::new(0));
        let release = |stream: &Arc<Stream>, tokens: &[Token]| {
            let freed = stream.release(tokens, |lease| {
                held.set(held.get() + 1);
                lease.since.into_iter().for_each(|since| metrics.run(now.since(since)));
            });
            self.freed(stream, freed);
        };
        self.each(stream, tokens, true, &release);
        // A receipt names its stream without a proof. Where no other replica could have the lease, and so the store
        // is not asked before it ends, the stream is looked for.
        if held.get() < tokens.len() && !shared {
            self.all().iter().for_each(|stream| release(stream, tokens));
        }
    }

    /// Workers are done with these leases, and their shard, which is down, does not know it.
    fn unsettle(&self, stream: u32, tokens: &[Token]) {
        self.each(stream, tokens, false, |stream, tokens| self.freed(stream, stream.owe(tokens)));
    }

    /// These leases have ended, some time ago.
    pub(super) fn ended(&self, stream: u32, tokens: &[Token]) {
        self.each(stream, tokens, true, |stream, tokens| {
            self.freed(stream, stream.release(tokens, drop));
        });
    }

    /// Takes leases on that shard away from their stream.
    pub(super) fn revoke(&self, shard: usize, stream: u32, tokens: &[Token], reason: Revoked) {
        self.each(stream, tokens, true, |stream, tokens| {
            self.freed(stream, stream.revoke(shard, tokens, reason));
            self.bequeath_revocations(stream);
        });
    }

    /// These leases last until then, on the clock of this replica.
    pub(super) fn extended(&self, stream: u32, tokens: &[Token], deadline: Time) {
        self.each(stream, tokens, false, |stream, tokens| {
            self.alarm.by(stream.extended(tokens, deadline));
        });
    }

    /// The streams that hold these leases, and which each: the one that is named, but for leases that another one has
    /// adopted. `over`: they are over.
    fn each(
        &self,
        named: u32,
        tokens: &[Token],
        over: bool,
        mut act: impl FnMut(&Arc<Stream>, &[Token]),
    ) {
        let mut registry = self.registry();
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
            registry.forget_adopted(tokens);
        }
        drop(registry);
        found.iter().for_each(|(stream, tokens)| act(stream, tokens));
    }

    /// Hints of the shard may have been lost: all its leases are looked up, once.
    pub(super) fn doubt(&self, shard: usize) {
        self.doubts[shard].store(true, Ordering::Release);
        self.alarm.by(Time(i64::MIN));
    }

    /// Whether they are to be looked up, as of now by the caller.
    pub(super) fn clear_doubt(&self, shard: usize) -> bool {
        self.doubts[shard].swap(false, Ordering::AcqRel)
    }

    /// How the shard's clock stands to this replica's.
    pub(super) fn skew(&self, shard: usize) -> Skew {
        self.skews[shard].get()
    }

    /// What the answer to a claim tells of the shard's clock.
    pub(super) fn set_skew(&self, shard: usize, skew: Skew) {
        self.skews[shard].set(skew);
    }

    fn freed(&self, stream: &Arc<Stream>, freed: Freed) {
        if freed.wake_feeds {
            self.wake_feeds(stream);
        }
        if freed.done {
            if stream.ledger().is_over() {
                self.pass_over(stream);
                self.registry().streams.remove(&stream.id());
            }
            self.settled.notify_waiters();
        }
    }

    /// No new streams, and every open one retires.
    pub(super) fn drain(&self) {
        self.registry().draining = true;
        self.all().iter().for_each(|stream| self.retire(stream));
        self.settled.notify_waiters();
    }

    /// Waits until no worker holds a lease of a stream of this replica. Broken streams do not count:
    /// nobody is known to speak for theirs. Meant for a replica that drains.
    pub(super) async fn idle(&self) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if self.unsettled() == 0 {
                return;
            }
            settled.await;
        }
    }

    /// Deliveries that workers of this replica hold.
    pub(super) fn unsettled(&self) -> usize {
        let sent = |stream: &Arc<Stream>| {
            let ledger = stream.ledger();
            if ledger.over() == Over::Broken { 0 } else { ledger.sent_in_flight() }
        };
        self.all().iter().map(sent).sum()
    }

    /// Every stream and pull that is open or holds leases, also a broken one.
    pub(super) fn all(&self) -> Vec<Arc<Stream>> {
        self.registry().streams.values().cloned().collect()
    }

    /// Open streams, without pulls.
    pub(super) fn workers(&self) -> Vec<Worker> {
        self.open_streams().iter().map(|stream| stream.worker()).collect()
    }

    /// How many streams are open, without pulls.
    pub(super) fn count(&self) -> usize {
        self.open_streams().len()
    }

    /// Jobs that open streams could take now.
    pub(super) fn credit_waiting(&self) -> usize {
        let free = |stream: &Arc<Stream>| stream.ledger().free();
        self.open_streams().iter().filter_map(free).map(|free| free.jobs as usize).sum()
    }

    /// The credit of a stream or pull that is open or holds leases.
    pub(super) fn credit(&self, id: u32) -> Option<u32> {
        self.get(id).map(|stream| stream.options().max_in_flight)
    }

    fn open_streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = self.all();
        streams.retain(|stream| stream.mode() == Mode::Stream && !stream.is_closed());
        streams
    }

    fn get(&self, id: u32) -> Option<Arc<Stream>> {
        self.registry().streams.get(&id).cloned()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Registry ===

impl Registry {
    /// An id that no stream has: a life that is long enough comes round.
    fn free_id(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.streams.contains_key(&self.next) {
                return self.next;
            }
        }
    }
}
