//! Hints to the world: what the shard's channel says, and what this replica's own calls bring about.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::domain::{Time, TopicName};
use crate::store::{About, Event, Events, Hint};

/// Without jobs for so long a shard counts as idle. No shorter, because each job after one costs a claim more.
const LULL: Duration = Duration::from_millis(2);

/// Sends events to whoever listens.
pub(super) struct Hints {
    events: Events,
    /// Leases that run out.
    pub(super) reap: Alarm,
    /// Jobs that expire or are forgotten.
    pub(super) prune: Alarm,
    /// When jobs were sent last.
    sent: Mutex<Option<Instant>>,
}

/// When something happens by itself next, as far as whoever waits for it was told.
pub(super) struct Alarm(Mutex<Times>);

#[derive(Clone, Copy)]
struct Times {
    announced: Time,
    /// The earliest time named since the last look began: the look may not have seen it.
    named: Time,
}

/// A look at the shard, under way.
pub(super) struct Look(());

// === impl Alarm ===

impl Alarm {
    fn never() -> Alarm {
        Alarm(Mutex::new(Times { announced: Time::MAX, named: Time::MAX }))
    }

    /// Somebody looks what happens next.
    pub(super) fn begin(&self) -> Look {
        self.with(|times| times.named = Time::MAX);
        Look(())
    }

    /// Something happens at `at`; whether that is news.
    fn name(&self, at: Time) -> bool {
        self.with(|times| {
            times.named = times.named.min(at);
            let news = at < times.announced;
            times.announced = times.announced.min(at);
            news
        })
    }

    /// The look has said `next`; what was named meanwhile, if it is earlier.
    fn end(&self, next: Time) -> Option<Time> {
        self.with(|times| {
            let missed = Some(times.named).filter(|&named| named < next);
            times.announced = missed.unwrap_or(next);
            missed
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Times) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Hints ===

impl Hints {
    pub(super) fn new() -> Hints {
        let (reap, prune) = (Alarm::never(), Alarm::never());
        Hints { events: Events::new(), reap, prune, sent: Mutex::new(None) }
    }

    pub(super) fn about(&self, about: About) -> broadcast::Receiver<Event> {
        self.events.about(about)
    }

    /// Something in the topic can be claimed from then on.
    pub(super) fn claimable(&self, topic: TopicName, at: Time) {
        self.events.send(Event::Claimable { topic, at });
    }

    /// There is no such topic any more.
    pub(super) fn forgotten(&self, topic: TopicName) {
        self.events.send(Event::Forgotten(topic));
    }

    /// Jobs are on their way to the shard, and this one among them is due at once. After a lull that is said
    /// before the shard has answered: a claim that follows on its heels meets the job there, and a way to the
    /// shard and back is saved, which is what takes longest in an idle system. One that comes too early finds
    /// nothing, and the shard's own word follows. That word brings a second claim, in vain: at most one for each
    /// [`LULL`], which a shard with much to do does not have.
    pub(super) fn sent(&self, topic: &TopicName) {
        let now = Instant::now();
        let last = self.sent.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if last.is_none_or(|last| now.duration_since(last) >= LULL) {
            self.claimable(topic.clone(), Time(i64::MIN));
        }
    }

    /// The shard's state was set.
    pub(super) fn configured(&self) {
        self.events.send(Event::Configured);
    }

    /// Another replica did something to leases of this one.
    pub(super) fn lease(&self, hint: Hint) {
        self.events.send(Event::Lease(hint));
    }

    /// Nothing is heard any more.
    pub(super) fn lost(&self) {
        self.events.send(Event::Lost);
    }

    /// Hints may have been lost.
    pub(super) fn missed(&self) {
        self.events.send(Event::Missed);
    }

    /// A lease runs out then.
    pub(super) fn reap_at(&self, at: Option<Time>) {
        self.upkeep(at.filter(|&at| self.reap.name(at)));
    }

    /// A job expires or is forgotten then.
    pub(super) fn prune_at(&self, at: Option<Time>) {
        self.upkeep(at.filter(|&at| self.prune.name(at)));
    }

    /// A look at one kind has said what is next.
    pub(super) fn looked(&self, alarm: &Alarm, _look: Look, next: Option<Time>) {
        self.upkeep(alarm.end(next.unwrap_or(Time::MAX)));
    }

    /// Something is to be done then.
    pub(super) fn upkeep(&self, at: Option<Time>) {
        if let Some(at) = at {
            self.events.send(Event::Upkeep { at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_told_once_and_again_after_a_look() {
        let hints = Hints::new();
        let mut events = hints.about(About::Upkeep);
        let mut told = || events.try_recv().ok();
        hints.reap_at(Some(Time(50)));
        assert_eq!(told(), Some(Event::Upkeep { at: Time(50) }));
        hints.reap_at(Some(Time(60)));
        assert_eq!(told(), None, "later than what is known");
        let look = hints.reap.begin();
        hints.looked(&hints.reap, look, None);
        hints.reap_at(Some(Time(60)));
        assert_eq!(told(), Some(Event::Upkeep { at: Time(60) }));
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_on_their_way_are_told_after_a_lull_only() {
        let hints = Hints::new();
        let mut events = hints.about(About::Jobs);
        let topic = TopicName::stored("t");
        let mut told = || {
            hints.sent(&topic);
            events.try_recv().is_ok()
        };
        assert!(told());
        for _ in 0..9 {
            tokio::time::advance(LULL / 2).await;
            assert!(!told(), "it is busy");
        }
        tokio::time::advance(LULL).await;
        assert!(told());
    }

    #[test]
    fn what_is_named_during_a_look_is_told_after_it() {
        let hints = Hints::new();
        hints.reap_at(Some(Time(10)));
        let look = hints.reap.begin();
        hints.reap_at(Some(Time(40)));
        let mut events = hints.about(About::Upkeep);
        hints.looked(&hints.reap, look, Some(Time(90)));
        assert_eq!(events.try_recv(), Ok(Event::Upkeep { at: Time(40) }));
    }
}
