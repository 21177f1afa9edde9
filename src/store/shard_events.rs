//! What a shard says of itself: hints, each heard by those whom it concerns and by nobody else, so that a
//! job that arrives wakes the feed and not the timers beside it.

use tokio::sync::broadcast::{Receiver, Sender};

use crate::domain::{Time, TopicName};

use super::LeaseEvent;

/// Events that a slow listener may be behind; a slower one treats everything as woken.
const BEHIND_MAX: usize = 1_024;

/// A hint. It carries no data that anybody relies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardEvent {
    /// Something in this topic can be claimed, now or from that time on.
    Claimable {
        /// The topic.
        topic: TopicName,
        /// From when on.
        at: Time,
    },
    /// There is no such topic any more; its next job makes it anew.
    TopicForgotten(TopicName),
    /// Something is to be reaped or pruned then, earlier than the last [`Store::select`] or
    /// [`Store::prune`] said and than was announced since.
    ///
    /// [`Store::select`]: super::Store::select
    /// [`Store::prune`]: super::Store::prune
    UpkeepDue {
        /// From when on.
        at: Time,
    },
    /// The shard's state was set.
    StateSet,
    /// Nothing is heard of the shard any more: it may be gone.
    Disconnected,
    /// Another replica has ended or changed leases that this one handed out.
    Lease(LeaseEvent),
    /// Hints may have been lost: anything may be claimable, settled, or to be reaped or pruned.
    EventsMissed,
}

/// What a listener hears of; [`Event::EventsMissed`] is for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// [`Event::Claimable`] and [`Event::Forgotten`].
    Jobs,
    /// [`Event::Lease`].
    Leases,
    /// [`Event::Upkeep`].
    Upkeep,
    /// [`Event::StateSet`] and [`Event::Lost`].
    Shard,
}

/// Passes on the events of one shard.
#[derive(Clone, Debug)]
pub struct ShardEvents {
    jobs: Sender<ShardEvent>,
    leases: Sender<ShardEvent>,
    upkeep: Sender<ShardEvent>,
    shard: Sender<ShardEvent>,
}

// === impl Events ===

impl ShardEvents {
    /// Nobody listens yet.
    #[must_use]
    pub fn new() -> ShardEvents {
        let sender = || Sender::new(BEHIND_MAX);
        ShardEvents { jobs: sender(), leases: sender(), upkeep: sender(), shard: sender() }
    }

    /// Hears what is said from now on.
    #[must_use]
    pub fn subscribe(&self, about: EventKind) -> Receiver<ShardEvent> {
        self.sender(about).subscribe()
    }

    /// Says it to those whom it concerns. Nobody listening is fine: whoever comes later asks once.
    pub fn send(&self, event: ShardEvent) {
        let about = match event {
            ShardEvent::Claimable { .. } | ShardEvent::TopicForgotten(_) => EventKind::Jobs,
            ShardEvent::Lease(_) => EventKind::Leases,
            ShardEvent::UpkeepDue { .. } => EventKind::Upkeep,
            ShardEvent::StateSet | ShardEvent::Disconnected => EventKind::Shard,
            ShardEvent::EventsMissed => return self.send_missed(),
        };
        let _ = self.sender(about).send(event);
    }

    fn send_missed(&self) {
        for sender in [&self.jobs, &self.leases, &self.upkeep, &self.shard] {
            let _ = sender.send(ShardEvent::EventsMissed);
        }
    }

    fn sender(&self, about: EventKind) -> &Sender<ShardEvent> {
        match about {
            EventKind::Jobs => &self.jobs,
            EventKind::Leases => &self.leases,
            EventKind::Upkeep => &self.upkeep,
            EventKind::Shard => &self.shard,
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
        let said = [
            job,
            lease,
            ShardEvent::UpkeepDue { at: Time(2) },
            ShardEvent::StateSet,
            ShardEvent::EventsMissed,
        ];
        said.iter().for_each(|event| events.send(event.clone()));
        for (heard, own) in [&mut jobs, &mut leases, &mut upkeep, &mut shard].into_iter().zip(&said)
        {
            assert_eq!(heard.try_recv().as_ref(), Ok(own));
            assert_eq!(heard.try_recv(), Ok(ShardEvent::EventsMissed));
            assert!(heard.try_recv().is_err(), "{own:?} is not alone");
        }
    }
}
