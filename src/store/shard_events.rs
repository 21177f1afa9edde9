//! Events of a shard: hints, one channel for each kind of subscriber, so that an arriving job wakes the feed and not
//! the timers.

use tokio::sync::broadcast::{Receiver, Sender};

use crate::domain::{Time, TopicName};

use super::LeaseEvent;

/// Events that a slow subscriber may lag behind; a slower one acts as after [`ShardEvent::EventsMissed`].
const BEHIND_MAX: usize = 1_024;

/// A hint about a change on the shard. Delivery is not guaranteed: no caller may rely on its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardEvent {
    /// Jobs of this topic can be claimed, now or from that time on.
    Claimable {
        /// The topic.
        topic: TopicName,
        /// Start of that time.
        at: Time,
    },
    /// The topic was deleted; its next job creates it again.
    TopicForgotten(TopicName),
    /// A reap or prune is due at that time, earlier than returned by the last [`Store::query_leases`] or
    /// [`Store::prune`] and than announced since.
    ///
    /// [`Store::query_leases`]: super::Store::query_leases
    /// [`Store::prune`]: super::Store::prune
    UpkeepDue {
        /// Time at which it is due.
        at: Time,
    },
    /// The state of the shard was set.
    StateSet,
    /// Documents were stored.
    DocumentsChanged,
    /// The subscription to the shard is lost: the shard may be gone.
    Disconnected,
    /// Another replica has ended or changed leases of this replica.
    Lease(LeaseEvent),
    /// Hints may have been lost: any job may be claimable or settled, and a reap or prune may be due.
    EventsMissed,
}

/// Kind of events that a subscriber receives; [`ShardEvent::EventsMissed`] is for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// [`ShardEvent::Claimable`] and [`ShardEvent::TopicForgotten`].
    Jobs,
    /// [`ShardEvent::Lease`].
    Leases,
    /// [`ShardEvent::UpkeepDue`].
    Upkeep,
    /// [`ShardEvent::StateSet`] and [`ShardEvent::Disconnected`].
    Shard,
    /// [`ShardEvent::DocumentsChanged`].
    Documents,
}

/// Sends the events of one shard to its subscribers.
#[derive(Clone, Debug)]
pub struct ShardEvents {
    jobs: Sender<ShardEvent>,
    leases: Sender<ShardEvent>,
    upkeep: Sender<ShardEvent>,
    shard: Sender<ShardEvent>,
    documents: Sender<ShardEvent>,
}

// === impl ShardEvents ===

impl ShardEvents {
    /// Creates the channels, without subscribers.
    #[must_use]
    pub fn new() -> ShardEvents {
        let sender = || Sender::new(BEHIND_MAX);
        let (jobs, leases, upkeep, shard) = (sender(), sender(), sender(), sender());
        ShardEvents { jobs, leases, upkeep, shard, documents: sender() }
    }

    /// Subscribes to later events of one kind.
    #[must_use]
    pub fn subscribe(&self, about: EventKind) -> Receiver<ShardEvent> {
        self.sender(about).subscribe()
    }

    /// Sends an event to the subscribers of its kind. Without subscribers it is dropped: a later one begins with a
    /// full read.
    pub fn send(&self, event: ShardEvent) {
        let about = match event {
            ShardEvent::Claimable { .. } | ShardEvent::TopicForgotten(_) => EventKind::Jobs,
            ShardEvent::Lease(_) => EventKind::Leases,
            ShardEvent::UpkeepDue { .. } => EventKind::Upkeep,
            ShardEvent::StateSet | ShardEvent::Disconnected => EventKind::Shard,
            ShardEvent::DocumentsChanged => EventKind::Documents,
            ShardEvent::EventsMissed => return self.send_missed(),
        };
        let _ = self.sender(about).send(event);
    }

    fn send_missed(&self) {
        for sender in [&self.jobs, &self.leases, &self.upkeep, &self.shard, &self.documents] {
            let _ = sender.send(ShardEvent::EventsMissed);
        }
    }

    fn sender(&self, about: EventKind) -> &Sender<ShardEvent> {
        match about {
            EventKind::Jobs => &self.jobs,
            EventKind::Leases => &self.leases,
            EventKind::Upkeep => &self.upkeep,
            EventKind::Shard => &self.shard,
            EventKind::Documents => &self.documents,
        }
    }
}

impl Default for ShardEvents {
    fn default() -> ShardEvents {
        ShardEvents::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_get_their_kind_and_missed() {
        let events = ShardEvents::new();
        let (mut jobs, mut upkeep) =
            (events.subscribe(EventKind::Jobs), events.subscribe(EventKind::Upkeep));
        let (mut leases, mut shard) =
            (events.subscribe(EventKind::Leases), events.subscribe(EventKind::Shard));
        let job = ShardEvent::Claimable { topic: TopicName::stored("t"), at: Time(1) };
        let lease = ShardEvent::Lease(LeaseEvent::Settled { stream: 1, tokens: Vec::new() });
        let sent = [
            job,
            lease,
            ShardEvent::UpkeepDue { at: Time(2) },
            ShardEvent::StateSet,
            ShardEvent::EventsMissed,
        ];
        sent.iter().for_each(|event| events.send(event.clone()));
        for (receiver, own) in
            [&mut jobs, &mut leases, &mut upkeep, &mut shard].into_iter().zip(&sent)
        {
            assert_eq!(receiver.try_recv().as_ref(), Ok(own));
            assert_eq!(receiver.try_recv(), Ok(ShardEvent::EventsMissed));
            assert!(receiver.try_recv().is_err(), "{own:?} is not alone");
        }
    }
}
