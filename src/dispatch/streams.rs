//! The registry of this replica's streams and pulls: who is open, who still holds leases, and where
//! hints go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::{LastSkew, Skew};
use crate::domain::{Time, Token};
use crate::store::{Hint, Revoked};

use super::alarm::Alarm;
use super::board::Awake;
use super::ledger::{Loose, Mode};
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
    /// Of the feeds.
    pub(super) awake: Arc<Awake>,
    /// By shard: how its clock stands to this replica's.
    skews: Vec<LastSkew>,
    /// By shard: hints may have been lost, so all its leases are to be looked up.
    doubts: Vec<AtomicBool>,
    /// When some stream needs a look at its deadlines.
    pub(super) alarm: Alarm,
    /// Counts [`Streams::rouse`].
    turn: AtomicUsize,
    /// Something was settled or has closed while the replica drains.
    settled: Notify,
}

#[derive(Default)]
struct Registry {
    streams: HashMap<u32, Arc<Stream>>,
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
            awake: Arc::new(Awake::new(shards)),
            skews: (0..shards).map(|_| LastSkew::default()).collect(),
            doubts: (0..shards).map(|_| AtomicBool::new(false)).collect(),
            alarm: Alarm::default(),
            turn: AtomicUsize::new(0),
            settled: Notify::new(),
        }
    }

    /// Opens a stream; every feed hears of it.
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
        drop(registry);
        self.awake.set_all();
        self.rouse(&stream);
        Ok(stream)
    }

    /// The server has ended the stream: what was sent stays held until it is settled. Answers what
    /// of it is to be detached.
    pub(super) fn finish(&self, stream: &Arc<Stream>) -> Vec<Loose> {
        let remains = stream.close(true);
        if stream.ledger().is_over() {
            self.registry().streams.remove(&stream.id());
        }
        self.closed(stream, remains.unsent);
        remains.sent
    }

    /// The stream is told to end, and what it was not sent goes back. Answers what is to be detached.
    pub(super) fn retire(&self, stream: &Stream) -> Vec<Loose> {
        let remains = stream.drain();
        self.give_back(remains.unsent);
        remains.sent
    }

    /// The stream broke; answers what it was sent and has not settled.
    pub(super) fn broke(&self, stream: &Arc<Stream>) -> Vec<Loose> {
        self.registry().streams.remove(&stream.id());
        let remains = stream.close(false);
        self.closed(stream, remains.unsent);
        remains.sent
    }

    fn closed(&self, stream: &Arc<Stream>, unsent: Vec<Loose>) {
        self.give_back(unsent);
        for mailbox in &self.mailboxes {
            mailbox.post_closed(stream);
        }
        self.settled.notify_waiters();
    }

    /// Tells every feed that the stream has credit.
    pub(super) fn rouse(&self, stream: &Arc<Stream>) {
        // Where there is credit for one job only, who hears of it first gets it; so each is the
        // first one in turn.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.mailboxes.len();
        let (before, from) = self.mailboxes.split_at(turn);
        for mailbox in from.iter().chain(before) {
            mailbox.post(stream);
        }
    }

    /// These leases reached nobody.
    pub(super) fn give_back(&self, leases: Vec<Loose>) {
        for loose in leases {
            self.returns[loose.shard].add(loose.lease, loose.deadline);
        }
    }

    /// Applies what became of leases of this replica on that shard, by whoever's doing.
    pub(super) fn apply(&self, shard: usize, hint: Hint) {
        match hint {
            Hint::Settled { stream, tokens } => self.settled(stream, &tokens),
            Hint::Unsettled { stream, tokens } => self.unsettle(stream, &tokens),
            Hint::Revoked { stream, tokens, reason } => {
                self.revoke(shard, stream, &tokens, reason);
            }
            Hint::Extended { stream, tokens, deadline } => {
                self.extended(stream, &tokens, self.skew(shard).here(deadline));
            }
        }
    }

    /// Workers have just settled these leases: how long they took is known.
    fn settled(&self, stream: u32, tokens: &[Token]) {
        if let Some(stream) = self.get(stream) {
            let Home { clock, metrics, .. } = &*self.home;
            let now = clock.now();
            let freed = stream.release(tokens, |held| metrics.run(now.since(held.since)));
            self.freed(&stream, freed);
        }
    }

    /// Workers are done with these leases, and their shard, which is down, does not know it.
    fn unsettle(&self, stream: u32, tokens: &[Token]) {
        if let Some(stream) = self.get(stream) {
            self.freed(&stream, stream.owe(tokens));
        }
    }

    /// These leases have ended, some time ago.
    pub(super) fn ended(&self, stream: u32, tokens: &[Token]) {
        if let Some(stream) = self.get(stream) {
            self.freed(&stream, stream.release(tokens, drop));
        }
    }

    /// Takes leases on that shard away from their stream.
    pub(super) fn revoke(&self, shard: usize, stream: u32, tokens: &[Token], reason: Revoked) {
        if let Some(stream) = self.get(stream) {
            self.freed(&stream, stream.revoke(shard, tokens, reason));
        }
    }

    /// These leases last until then, on the clock of this replica.
    pub(super) fn extended(&self, stream: u32, tokens: &[Token], deadline: Time) {
        if let Some(stream) = self.get(stream) {
            self.alarm.by(stream.extended(tokens, deadline));
        }
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
        if freed.rouse {
            self.rouse(stream);
        }
        if freed.done {
            if stream.ledger().is_over() {
                self.registry().streams.remove(&stream.id());
            }
            self.settled.notify_waiters();
        }
    }

    /// No new streams, and every open one retires. Answers what is to be detached.
    pub(super) fn drain(&self) -> Vec<Loose> {
        self.registry().draining = true;
        let sent = self.all().iter().flat_map(|stream| self.retire(stream)).collect();
        self.settled.notify_waiters();
        sent
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
        self.all().iter().map(|stream| stream.ledger().sent_in_flight()).sum()
    }

    /// Every stream and pull that is open or holds leases.
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
        let wants = self.open_streams();
        wants.iter().filter_map(|s| s.ledger().want()).map(|want| want.jobs as usize).sum()
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
