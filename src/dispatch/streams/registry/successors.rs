//! Adoption in the registry: the leases that a stream takes over from those that it continues, and later events for
//! them.

use std::sync::Arc;

use crate::domain::credit::CreditedLease;
use crate::domain::{Token, limit};

use super::super::adoption_queue::AdoptionRequest;
use super::super::ledger::{StreamEnd, StreamLease};
use super::super::stream::Stream;
use super::{StreamRegistry, StreamTable};

impl StreamRegistry {
    /// Makes this stream the successor of the streams that it continues, and returns those that are over: the stream
    /// that it names, if it is one of this replica, and those that named the same one earlier and whose ids the
    /// worker never received. If it names none, those that came by the same connection.
    pub(in crate::dispatch) fn predecessors(&self, stream: &Stream) -> Vec<Arc<Stream>> {
        let registry = self.table.lock();
        let is_continued = |other: &Stream| match stream.options().continues {
            Some(named) => other.stream_id() == named || other.continues_same(stream),
            None => other.has_same_connection(stream) && other.is_closed(),
        };
        let continued = registry.streams.values().filter(|other| is_continued(other));
        let mut over = Vec::new();
        for other in continued {
            let is_open =
                |id| registry.streams.get(&id).is_some_and(|successor| !successor.is_closed());
            other.set_successor(stream, is_open);
            if other.is_closed() && other.ledger().successor == Some(stream.id()) {
                over.push(Arc::clone(other));
            }
        }
        over
    }

    /// Chooses the successor of a stream that breaks. The worker may have opened its next stream, by the same
    /// connection, a moment before this replica noticed the break. A stream that was open for longer is another
    /// stream of the worker.
    pub(super) fn choose_successor(&self, stream: &Stream) {
        if stream.ledger().successor.is_some() {
            return;
        }
        let registry = self.table.lock();
        let first =
            self.context.clock.now().minus(limit::EXTEND_BEFORE_BREAK).max(stream.opened_at());
        let is_next = |other: &&Arc<Stream>| {
            other.has_same_connection(stream)
                && other.options().continues.is_none()
                && !other.is_closed()
                && other.opened_at() >= first
        };
        let next = registry.streams.values().filter(is_next).max_by_key(|other| other.opened_at());
        if let Some(next) = next {
            stream.set_successor(next, |_| false);
        }
    }

    /// Passes on the succession of a stream that is over and holds nothing: the leases of the stream that it
    /// continues go to its own successor instead.
    pub(super) fn forward_successor(&self, stream: &Stream) {
        let Some(named) =
            stream.options().continues.filter(|named| named.owner == self.context.owner)
        else {
            return;
        };
        let successor = stream.ledger().successor;
        if let Some(former) = self.get(named.stream) {
            let mut former = former.ledger();
            if former.successor == Some(stream.id()) {
                former.successor = successor;
            }
        }
    }

    /// Queues the adoption of the remaining leases of this stream on the shard, if it has a successor.
    pub(in crate::dispatch) fn queue_adoption(&self, shard: usize, stream: &Arc<Stream>) {
        let successor = stream.ledger().successor;
        if let Some(successor) = successor.and_then(|successor| self.get(successor))
            && stream.is_closed()
        {
            self.adoptions[shard].add(AdoptionRequest::from_stream(
                successor,
                Arc::clone(stream),
                None,
            ));
        }
    }

    /// Enters adopted leases in the ledger of the successor, after the store has moved them.
    pub(in crate::dispatch) fn adopt(
        &self,
        successor: &Arc<Stream>,
        adopted: Vec<CreditedLease<StreamLease>>,
    ) -> StreamEnd {
        let token = |counted: &CreditedLease<StreamLease>| counted.value.lease.token;
        let tokens: Vec<Token> = adopted.iter().map(token).collect();
        let (over, look_at) = successor.adopt(adopted);
        self.check_timer.set_no_later_than(look_at);
        let mut registry = self.table.lock();
        // The successor may have ended meanwhile.
        registry.streams.entry(successor.id()).or_insert_with(|| Arc::clone(successor));
        registry.adopted.extend(tokens.into_iter().map(|token| (token, successor.id())));
        over
    }

    /// Removes leases that another stream has adopted from the ledger of this one.
    pub(in crate::dispatch) fn remove_adopted(
        &self,
        stream: &Arc<Stream>,
        tokens: &[Token],
    ) -> Vec<CreditedLease<StreamLease>> {
        let adopted = stream.ledger().remove_adopted(tokens);
        self.on_credit_freed(stream, stream.release(&[], drop));
        adopted
    }

    /// Removes leases of this stream that a stream of another replica has adopted.
    pub(super) fn adopted_elsewhere(&self, stream: u32, tokens: &[Token]) {
        if let Some(stream) = self.get(stream) {
            self.table.lock().remove_adopted(tokens);
            self.on_credit_freed(&stream, stream.release(tokens, drop));
        }
    }

    /// Moves unsent revocations to the worker's next stream.
    pub(super) fn move_revocations(&self, stream: &Stream) {
        let bequests = stream.ledger().take_unsent_revocations();
        if let Some((successor, mut revocations)) = bequests
            && !revocations.is_empty()
            && let Some(successor) = self.get(successor)
        {
            let origin = stream.stream_id();
            for revocation in &mut revocations {
                revocation.lease.origin.get_or_insert(origin);
            }
            successor.add_revocations(revocations);
        }
    }

    /// Queues the adoption by the successor after a lease of a closed stream was extended.
    pub(super) fn queue_adoption_if_closed(&self, shard: usize, stream: &Arc<Stream>) {
        if stream.is_closed() {
            self.queue_adoption(shard, stream);
        }
    }
}

// === impl StreamTable ===

impl StreamTable {
    /// Removes leases that are over or that another replica has adopted.
    pub(super) fn remove_adopted(&mut self, tokens: &[Token]) {
        for token in tokens {
            self.adopted.remove(token);
        }
    }
}
