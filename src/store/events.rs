//! What a shard says of itself: hints, each heard by those whom it concerns and by nobody else, so that a
//! job that arrives wakes the feed and not the timers beside it.

use tokio::sync::broadcast::{Receiver, Sender};

use crate::domain::{Time, TopicName};

use super::Hint;

/// Events that a slow listener may be behind; a slower one treats everything as woken.
const BEHIND_MAX: usize = 1_024;

/// A hint. It carries no data that anybody relies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something in this topic can be claimed, now or from that time on.
    Claimable {
        /// The topic.
        topic: TopicName,
        /// From when on.
        at: Time,
    },
    /// There is no such topic any more; its next job makes it anew.
    Forgotten(TopicName),
    /// Something is to be reaped or pruned then, earlier than the last [`Store::select`] or
    /// [`Store::prune`] said and than was announced since.
    ///
    /// [`Store::select`]: super::Store::select
    /// [`Store::prune`]: super::Store::prune
    Upkeep {
        /// From when on.
        at: Time,
    },
    /// The shard's state was set.
    Configured,
    /// Nothing is heard of the shard any more: it may be gone.
    Lost,
    /// Another replica has ended or changed leases that this one handed out.
    Lease(Hint),
    /// Hints may have been lost: anything may be claimable, settled, or to be reaped or pruned.
    Missed,
}

/// What a listener hears of; [`Event::Missed`] is for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// [`Event::Claimable`] and [`Event::Forgotten`].
    Jobs,
    /// [`Event::Lease`].
    Leases,
    /// [`Event::Upkeep`].
    Upkeep,
    /// [`Event::Configured`] and [`Event::Lost`].
    Shard,
}

/// Passes on the events of one shard.
#[derive(Clone, Debug)]
pub struct Events {
    jobs: Sender<Event>,
    leases: Sender<Event>,
    upkeep: Sender<Event>,
    shard: Sender<Event>,
}

// === impl Events ===

impl Events {
    /// Nobody listens yet.
    #[must_use]
    pub fn new() -> Events {
        let sender = || Sender::new(BEHIND_MAX);
        Events { jobs: sender(), leases: sender(), upkeep: sender(), shard: sender() }
    }

    /// Hears what is said from now on.
    #[must_use]
    pub fn about(&self, about: About) -> Receiver<Event> {
        self.to(about).subscribe()
    }

    /// Says it to those whom it concerns. Nobody listening is fine: whoever comes later asks once.
    pub fn send(&self, event: Event) {
        let about = match event {
            Event::Claimable { .. } | Event::Forgotten(_) => About::Jobs,
            Event::Lease(_) => About::Leases,
            Event::Upkeep { .. } => About::Upkeep,
            Event::Configured | Event::Lost => About::Shard,
            Event::Missed => return self.missed(),
        };
        let _ = self.to(about).send(event);
    }

    fn missed(&self) {
        for sender in [&self.jobs, &self.leases, &self.upkeep, &self.shard] {
            let _ = sender.send(Event::Missed);
        }
    }

    fn to(&self, about: About) -> &Sender<Event> {
        match about {
            About::Jobs => &self.jobs,
            About::Leases => &self.leases,
            About::Upkeep => &self.upkeep,
            About::Shard => &self.shard,
        }
    }
}

impl Default for Events {
    fn default() -> Events {
        Events::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hears_its_own_and_what_was_missed() {
        let events = Events::new();
        let (mut jobs, mut upkeep) = (events.about(About::Jobs), events.about(About::Upkeep));
        let (mut leases, mut shard) = (events.about(About::Leases), events.about(About::Shard));
        let job = Event::Claimable { topic: TopicName::stored("t"), at: Time(1) };
        let lease = Event::Lease(Hint::Settled { stream: 1, tokens: Vec::new() });
        let said = [job, lease, Event::Upkeep { at: Time(2) }, Event::Configured, Event::Missed];
        said.iter().for_each(|event| events.send(event.clone()));
        for (heard, own) in [&mut jobs, &mut leases, &mut upkeep, &mut shard].into_iter().zip(&said)
        {
            assert_eq!(heard.try_recv().as_ref(), Ok(own));
            assert_eq!(heard.try_recv(), Ok(Event::Missed));
            assert!(heard.try_recv().is_err(), "{own:?} is not alone");
        }
    }
}
