//! Hints to the world: what the shard's channel says, and what this replica's own calls bring about.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::domain::{Time, TopicName};
use crate::store::{EventKind, LeaseEvent, ShardEvent, ShardEvents};

/// Without jobs for so long a shard counts as idle. No shorter, because each job after one costs a claim more.
const IDLE_MIN: Duration = Duration::from_millis(2);

/// Sends events to whoever listens.
pub(super) struct RedisEventSender {
    events: ShardEvents,
    /// Leases that run out.
    pub(super) reap: UpkeepTimer,
    /// Jobs that expire or are forgotten.
    pub(super) prune: UpkeepTimer,
    /// When jobs were sent last.
    last_sent: Mutex<Option<Instant>>,
}

/// When something happens by itself next, as far as whoever waits for it was told.
pub(super) struct UpkeepTimer(Mutex<UpkeepTimerTimes>);

#[derive(Clone, Copy)]
struct UpkeepTimerTimes {
    announced: Time,
    /// The earliest time named since the last look began: the look may not have seen it.
    earliest_set: Time,
}

/// A look at the shard, under way.
pub(super) struct UpkeepCheck(());

// === impl Alarm ===

impl UpkeepTimer {
    fn never() -> UpkeepTimer {
        UpkeepTimer(Mutex::new(UpkeepTimerTimes { announced: Time::MAX, earliest_set: Time::MAX }))
    }

    /// Somebody looks what happens next.
    pub(super) fn begin_check(&self) -> UpkeepCheck {
        self.update(|times| times.earliest_set = Time::MAX);
        UpkeepCheck(())
    }

    /// Something happens at `at`; whether that is news.
    fn set_at(&self, at: Time) -> bool {
        self.update(|times| {
            times.earliest_set = times.earliest_set.min(at);
            let news = at < times.announced;
            times.announced = times.announced.min(at);
            news
        })
    }

    /// The look has said `next`; what was named meanwhile, if it is earlier.
    fn finish_check(&self, next: Time) -> Option<Time> {
        self.update(|times| {
            let missed = Some(times.earliest_set).filter(|&named| named < next);
            times.announced = missed.unwrap_or(next);
            missed
        })
    }

    fn update<T>(&self, change: impl FnOnce(&mut UpkeepTimerTimes) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Hints ===

impl RedisEventSender {
    pub(super) fn new() -> RedisEventSender {
        let (reap, prune) = (UpkeepTimer::never(), UpkeepTimer::never());
        RedisEventSender { events: ShardEvents::new(), reap, prune, last_sent: Mutex::new(None) }
    }

    pub(super) fn subscribe(&self, about: EventKind) -> broadcast::Receiver<ShardEvent> {
        self.events.subscribe(about)
    }

    /// Something in the topic can be claimed from then on.
    pub(super) fn send_claimable(&self, topic: TopicName, at: Time) {
        self.events.send(ShardEvent::Claimable { topic, at });
    }

    /// There is no such topic any more.
    pub(super) fn send_topic_forgotten(&self, topic: TopicName) {
        self.events.send(ShardEvent::TopicForgotten(topic));
    }

    /// Jobs are on their way to the shard, and this one among them is due at once. After a lull that is said
    /// before the shard has answered: a claim that follows on its heels meets the job there, and a way to the
    /// shard and back is saved, which is what takes longest in an idle system. One that comes too early finds
    /// nothing, and the shard's own word follows. That word brings a second claim, in vain: at most one for each
    /// [`IDLE_MIN`], which a shard with much to do does not have.
    pub(super) fn send_claimable_if_idle(&self, topic: &TopicName) {
        let now = Instant::now();
        let last = self.last_sent.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if last.is_none_or(|last| now.duration_since(last) >= IDLE_MIN) {
            self.send_claimable(topic.clone(), Time(i64::MIN));
        }
    }

    /// The shard's state was set.
    pub(super) fn send_state_set(&self) {
        self.events.send(ShardEvent::StateSet);
    }

    /// Another replica did something to leases of this one.
    pub(super) fn send_lease_event(&self, hint: LeaseEvent) {
        self.events.send(ShardEvent::Lease(hint));
    }

    /// Nothing is heard any more.
    pub(super) fn send_disconnected(&self) {
        self.events.send(ShardEvent::Disconnected);
    }

    /// Hints may have been lost.
    pub(super) fn send_missed(&self) {
        self.events.send(ShardEvent::EventsMissed);
    }

    /// A lease runs out then.
    pub(super) fn set_reap_at(&self, at: Option<Time>) {
        self.send_upkeep(at.filter(|&at| self.reap.set_at(at)));
    }

    /// A job expires or is forgotten then.
    pub(super) fn set_prune_at(&self, at: Option<Time>) {
        self.send_upkeep(at.filter(|&at| self.prune.set_at(at)));
    }

    /// A look at one kind has said what is next.
    pub(super) fn finish_check(&self, alarm: &UpkeepTimer, _look: UpkeepCheck, next: Option<Time>) {
        self.send_upkeep(alarm.finish_check(next.unwrap_or(Time::MAX)));
    }

    /// Something is to be done then.
    pub(super) fn send_upkeep(&self, at: Option<Time>) {
        if let Some(at) = at {
            self.events.send(ShardEvent::UpkeepDue { at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_announces_once_per_check() {
        let hints = RedisEventSender::new();
        let mut events = hints.subscribe(EventKind::Upkeep);
        let mut told = || events.try_recv().ok();
        hints.set_reap_at(Some(Time(50)));
        assert_eq!(told(), Some(ShardEvent::UpkeepDue { at: Time(50) }));
        hints.set_reap_at(Some(Time(60)));
        assert_eq!(told(), None, "later than what is known");
        let look = hints.reap.begin_check();
        hints.finish_check(&hints.reap, look, None);
        hints.set_reap_at(Some(Time(60)));
        assert_eq!(told(), Some(ShardEvent::UpkeepDue { at: Time(60) }));
    }

    #[tokio::test(start_paused = true)]
    async fn claimable_is_sent_early_only_when_idle() {
        let hints = RedisEventSender::new();
        let mut events = hints.subscribe(EventKind::Jobs);
        let topic = TopicName::stored("t");
        let mut told = || {
            hints.send_claimable_if_idle(&topic);
            events.try_recv().is_ok()
        };
        assert!(told());
        for _ in 0..9 {
            tokio::time::advance(IDLE_MIN / 2).await;
            assert!(!told(), "it is busy");
        }
        tokio::time::advance(IDLE_MIN).await;
        assert!(told());
    }

    #[test]
    fn time_set_during_check_is_announced_after_it() {
        let hints = RedisEventSender::new();
        hints.set_reap_at(Some(Time(10)));
        let look = hints.reap.begin_check();
        hints.set_reap_at(Some(Time(40)));
        let mut events = hints.subscribe(EventKind::Upkeep);
        hints.finish_check(&hints.reap, look, Some(Time(90)));
        assert_eq!(events.try_recv(), Ok(ShardEvent::UpkeepDue { at: Time(40) }));
    }
}
