//! Sends the events of a shard to its subscribers: those of the shard's channels, and those of this replica's own
//! calls.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::domain::{Time, TopicName};
use crate::store::{EventKind, LeaseEvent, ShardEvent, ShardEvents};

/// Time without new jobs after which a shard counts as idle. No shorter, because each job after an idle time costs
/// one more claim.
const IDLE_MIN: Duration = Duration::from_millis(2);

/// Sends events to all subscribers.
pub(super) struct RedisEventSender {
    events: ShardEvents,
    /// Timer of the next lease deadline.
    pub(super) reap: UpkeepTimer,
    /// Timer of the next job that expires or is deleted after its retention.
    pub(super) prune: UpkeepTimer,
    /// Time at which jobs were last sent to the shard.
    last_sent: Mutex<Option<Instant>>,
}

/// Time of the next upkeep, as far as subscribers were notified.
pub(super) struct UpkeepTimer(Mutex<UpkeepTimerTimes>);

#[derive(Clone, Copy)]
struct UpkeepTimerTimes {
    announced: Time,
    /// Earliest time that was set since the last check began: the check may not include it.
    earliest_set: Time,
}

/// A running check of the shard.
pub(super) struct UpkeepCheck(());

// === impl UpkeepTimer ===

impl UpkeepTimer {
    fn never() -> UpkeepTimer {
        UpkeepTimer(Mutex::new(UpkeepTimerTimes { announced: Time::MAX, earliest_set: Time::MAX }))
    }

    /// Begins a check for the next upkeep time.
    pub(super) fn begin_check(&self) -> UpkeepCheck {
        self.update(|times| times.earliest_set = Time::MAX);
        UpkeepCheck(())
    }

    /// Sets an upkeep at `at`; returns whether subscribers have to be notified.
    fn set_at(&self, at: Time) -> bool {
        self.update(|times| {
            times.earliest_set = times.earliest_set.min(at);
            let news = at < times.announced;
            times.announced = times.announced.min(at);
            news
        })
    }

    /// Ends a check that found `next`; returns the time that was set meanwhile, if it is earlier.
    fn finish_check(&self, next: Time) -> Option<Time> {
        self.update(|times| {
            let missed = Some(times.earliest_set).filter(|&named| named < next);
            times.announced = missed.unwrap_or(next);
            missed
        })
    }

    fn update<T>(&self, change: impl FnOnce(&mut UpkeepTimerTimes) -> T) -> T {
        change(&mut self.0.lock())
    }
}

// === impl RedisEventSender ===

impl RedisEventSender {
    pub(super) fn new() -> RedisEventSender {
        let (reap, prune) = (UpkeepTimer::never(), UpkeepTimer::never());
        RedisEventSender { events: ShardEvents::new(), reap, prune, last_sent: Mutex::new(None) }
    }

    pub(super) fn subscribe(&self, about: EventKind) -> broadcast::Receiver<ShardEvent> {
        self.events.subscribe(about)
    }

    /// Reports that the topic has a claimable job from `at` on.
    pub(super) fn send_claimable(&self, topic: TopicName, at: Time) {
        self.events.send(ShardEvent::Claimable { topic, at });
    }

    /// Reports that the topic was deleted.
    pub(super) fn send_topic_forgotten(&self, topic: TopicName) {
        self.events.send(ShardEvent::TopicForgotten(topic));
    }

    /// Reports a job that is due at once before the shard has answered its enqueue, if the shard was idle. The claim
    /// that follows finds the job in the shard, and one round trip is saved, which is most of the latency of an idle
    /// system. A claim that comes too early finds nothing, and the shard's own event follows. That event causes a
    /// second, empty claim: at most one for each [`IDLE_MIN`], and none on a busy shard.
    pub(super) fn send_claimable_if_idle(&self, topic: &TopicName) {
        let now = Instant::now();
        let last = self.last_sent.lock().replace(now);
        if last.is_none_or(|last| now.duration_since(last) >= IDLE_MIN) {
            self.send_claimable(topic.clone(), Time(i64::MIN));
        }
    }

    /// Reports that the state of the shard was set.
    pub(super) fn send_state_set(&self) {
        self.events.send(ShardEvent::StateSet);
    }

    /// Reports that documents were stored.
    pub(super) fn send_documents_changed(&self) {
        self.events.send(ShardEvent::DocumentsChanged);
    }

    /// Reports that another replica changed leases of this one.
    pub(super) fn send_lease_event(&self, hint: LeaseEvent) {
        self.events.send(ShardEvent::Lease(hint));
    }

    /// Reports that no more events are received.
    pub(super) fn send_disconnected(&self) {
        self.events.send(ShardEvent::Disconnected);
    }

    /// Reports that events may have been lost.
    pub(super) fn send_missed(&self) {
        self.events.send(ShardEvent::EventsMissed);
    }

    /// Sets the time of a lease deadline.
    pub(super) fn set_reap_at(&self, at: Option<Time>) {
        self.send_upkeep(at.filter(|&at| self.reap.set_at(at)));
    }

    /// Sets the time at which a job expires or is deleted.
    pub(super) fn set_prune_at(&self, at: Option<Time>) {
        self.send_upkeep(at.filter(|&at| self.prune.set_at(at)));
    }

    /// Ends a check of one timer, with the next time that it found.
    pub(super) fn finish_check(&self, alarm: &UpkeepTimer, _look: UpkeepCheck, next: Option<Time>) {
        self.send_upkeep(alarm.finish_check(next.unwrap_or(Time::MAX)));
    }

    /// Reports an upkeep that is due at `at`.
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
        let mut received = || events.try_recv().ok();
        hints.set_reap_at(Some(Time(50)));
        assert_eq!(received(), Some(ShardEvent::UpkeepDue { at: Time(50) }));
        hints.set_reap_at(Some(Time(60)));
        assert_eq!(received(), None, "a later time is not reported again");
        let check = hints.reap.begin_check();
        hints.finish_check(&hints.reap, check, None);
        hints.set_reap_at(Some(Time(60)));
        assert_eq!(received(), Some(ShardEvent::UpkeepDue { at: Time(60) }));
    }

    #[tokio::test(start_paused = true)]
    async fn claimable_is_sent_early_only_when_idle() {
        let hints = RedisEventSender::new();
        let mut events = hints.subscribe(EventKind::Jobs);
        let topic = TopicName::stored("t");
        let mut received = || {
            hints.send_claimable_if_idle(&topic);
            events.try_recv().is_ok()
        };
        assert!(received());
        for _ in 0..9 {
            tokio::time::advance(IDLE_MIN / 2).await;
            assert!(!received(), "the shard is busy");
        }
        tokio::time::advance(IDLE_MIN).await;
        assert!(received());
    }

    #[test]
    fn time_set_during_check_is_announced_after_it() {
        let hints = RedisEventSender::new();
        hints.set_reap_at(Some(Time(10)));
        let check = hints.reap.begin_check();
        hints.set_reap_at(Some(Time(40)));
        let mut events = hints.subscribe(EventKind::Upkeep);
        hints.finish_check(&hints.reap, check, Some(Time(90)));
        assert_eq!(events.try_recv(), Ok(ShardEvent::UpkeepDue { at: Time(40) }));
    }
}
