//! Upkeep: per shard one loop that ends expired leases and one that deletes records after their retention. Each
//! processes a piece, receives the time of the next one, and sleeps until then or until the shard reports an earlier
//! time. Nothing is polled. One more loop per shard deletes empty topics, once an hour, and one closes former rings.

mod close;
mod prune;
mod reap;
mod tidy;

use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::{Backoff, BackoffRange};
use crate::clock::Clock;
use crate::domain::Time;
use crate::scheduler::{NextUpkeep, Upkeep};
use crate::shards;
use crate::store::ShardEvent;

/// First and longest pause after a failed call.
const PAUSES: BackoffRange =
    BackoffRange { min: Duration::from_secs(1), max: Duration::from_secs(30) };
/// Pause between two pieces of work when one is not enough, so that a backlog of upkeep leaves the shard to its
/// callers.
const BREATH: Duration = Duration::from_millis(5);

/// The loops of all shards.
#[derive(Debug)]
pub struct Timer {
    tasks: TaskTracker,
}

// === impl Timer ===

impl Timer {
    /// Starts the loops; they end with `stop`. Must be called within a runtime.
    #[must_use]
    pub fn spawn(upkeep: &Upkeep, stop: &CancellationToken) -> Timer {
        let tasks = TaskTracker::new();
        for shard in upkeep.shards().all() {
            tasks.spawn(reap::run(upkeep.clone(), shard.clone(), stop.clone()));
            tasks.spawn(prune::run(upkeep.clone(), shard.clone(), stop.clone()));
            tasks.spawn(tidy::run(upkeep.clone(), shard.clone(), stop.clone()));
        }
        tasks.spawn(close::run(upkeep.clone(), stop.clone()));
        tasks.close();
        Timer { tasks }
    }

    /// Waits until every loop has ended; their token must be cancelled.
    pub async fn stopped(&self) {
        self.tasks.wait().await;
    }
}

/// Calls `piece`, which returns the time of the next work, in a loop until `stop`. After a failed call it waits with
/// `pause`.
async fn tend<F: Future<Output = shards::Result<NextUpkeep>>, P: Future<Output = ()>>(
    clock: &Clock,
    mut events: Receiver<ShardEvent>,
    stop: CancellationToken,
    piece: impl Fn() -> F,
    pause: impl Fn(Duration) -> P,
) {
    let mut pauses = Backoff::new(PAUSES);
    let rest = async {
        loop {
            match piece().await {
                Ok(due) => {
                    pauses.reset();
                    tokio::time::sleep(BREATH).await;
                    if sleep(clock, &mut events, due).await.is_none() {
                        return;
                    }
                }
                Err(_) => pause(pauses.next_delay()).await,
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = rest => {}
    }
}

/// Sleeps until something is due, or until an earlier time that the shard reports meanwhile; returns at once when
/// such a report may have been missed. `None`: the shard is closed.
async fn sleep(clock: &Clock, events: &mut Receiver<ShardEvent>, due: NextUpkeep) -> Option<()> {
    let mut next = due.next.unwrap_or(Time::MAX);
    loop {
        let alarm = clock.sleep_until(due.skew.to_local(next));
        tokio::pin!(alarm);
        let earlier = loop {
            tokio::select! {
                () = &mut alarm => return Some(()),
                event = events.recv() => match event {
                    Ok(ShardEvent::UpkeepDue { at }) if at < next => break at,
                    Ok(ShardEvent::EventsMissed) => return Some(()),
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => return Some(()),
                    Err(RecvError::Closed) => return None,
                }
            }
        };
        next = earlier;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::sync::broadcast;

    use super::*;
    use crate::clock::{ManualClock, Skew};
    use crate::domain::ShardName;
    use crate::scheduler::tests::lease;
    use crate::scheduler::tests::test_ring::{TestRing, eventually};
    use crate::shards::ShardError;

    use crate::store::LeaseQuery;
    use crate::store::faulty_store::InjectedFault;

    const OVERDUE: LeaseQuery = LeaseQuery::Overdue { limit: 1 };

    fn at(micros: i64) -> NextUpkeep {
        NextUpkeep { next: Some(Time(micros)), skew: Skew::NONE }
    }

    /// Runs `tend` over scripted answers, and records the times of its calls.
    struct Script {
        clock: ManualClock,
        events: broadcast::Sender<ShardEvent>,
        calls: Arc<Mutex<Vec<i64>>>,
        stop: CancellationToken,
    }

    impl Script {
        async fn start(answers: Vec<shards::Result<NextUpkeep>>) -> Script {
            let clock = ManualClock::new(Time(0));
            let (events, receiver) = broadcast::channel(4);
            let (calls, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
            let answers = Mutex::new(answers.into_iter());
            let (recorded, token, manual) = (Arc::clone(&calls), stop.clone(), clock.clone());
            tokio::spawn(async move {
                let piece = async || {
                    recorded.lock().push(manual.now().0);
                    answers.lock().next().unwrap_or(Ok(NextUpkeep::default()))
                };
                let pause = tokio::time::sleep;
                tend(&Clock::Manual(manual.clone()), receiver, token, piece, pause).await;
            });
            let script = Script { clock, events, calls, stop };
            script.at(0).await;
            script
        }

        async fn at(&self, micros: i64) -> Vec<i64> {
            self.clock.set(Time(micros));
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.calls.lock().clone()
        }
    }

    #[tokio::test]
    async fn leases_expire_on_each_shard_also_while_one_hangs() {
        let ring = TestRing::new(3);
        for n in 0..3 {
            // From here on the shard is served.
            ring.stores[n].sqlite_store().query_leases(OVERDUE).await.unwrap();
            ring.enqueue_accepted(ring.owned_by(n, "t", 5)).await;
            assert_eq!(lease(&ring, n, "t", Duration::from_millis(100)).await.len(), 5);
        }
        ring.stores[1].set_fault(InjectedFault::Hangs);
        let stop = CancellationToken::new();
        let timer = Timer::spawn(&ring.scheduler.upkeep, &stop);
        let running = async || {
            let stats = ring.stats("t").await.into_iter();
            stats.map(|stats| stats.running).collect::<Vec<_>>()
        };
        eventually("two of three", async || (running().await == [0, 5, 0]).then_some(())).await;
        ring.until_down(1, true).await;
        ring.stores[1].set_fault(InjectedFault::None);
        eventually("the third", async || (running().await == [0, 0, 0]).then_some(())).await;
        stop.cancel();
        timer.stopped().await;
    }

    /// Nothing else is enqueued or claimed meanwhile, which would wake the loop.
    #[tokio::test]
    async fn leases_that_found_no_room_to_end_end_once_there_is_room() {
        let ring = TestRing::new(1);
        ring.stores[0].sqlite_store().query_leases(OVERDUE).await.unwrap();
        ring.enqueue_accepted(ring.owned_by(0, "t", 5)).await;
        assert_eq!(lease(&ring, 0, "t", Duration::from_millis(100)).await.len(), 5);
        ring.stores[0].set_fault(InjectedFault::RejectsWrites);
        let stop = CancellationToken::new();
        let timer = Timer::spawn(&ring.scheduler.upkeep, &stop);
        let refused = async || (ring.stores[0].refusals() > 0).then_some(());
        eventually("a refusal", refused).await;
        assert_eq!(ring.stats("t").await[0].running, 5);
        ring.stores[0].set_fault(InjectedFault::None);
        let ended = async || (ring.stats("t").await[0].running == 0).then_some(());
        eventually("the end of all", ended).await;
        stop.cancel();
        timer.stopped().await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_sleeps_until_the_next_time() {
        let script = Script::start(vec![Ok(at(100)), Ok(NextUpkeep::default())]).await;
        assert_eq!(script.at(99).await, [0]);
        assert_eq!(script.at(100).await, [0, 100]);
        assert_eq!(script.at(1_000_000).await, [0, 100]);
        script.stop.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_makes_it_earlier_and_never_later() {
        let script = Script::start(vec![Ok(at(100))]).await;
        script.at(1).await;
        script.events.send(ShardEvent::UpkeepDue { at: Time(500) }).unwrap();
        script.events.send(ShardEvent::UpkeepDue { at: Time(50) }).unwrap();
        assert_eq!(script.at(49).await.len(), 1);
        assert_eq!(script.at(50).await.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn times_of_a_shard_are_by_its_clock() {
        let skew_of = |micros| Skew::measured(Time(0), Time(micros), Time(0));
        let ahead = NextUpkeep { skew: skew_of(1_000), ..at(1_100) };
        let nothing = NextUpkeep { next: None, ..ahead };
        let script = Script::start(vec![Ok(ahead), Ok(nothing)]).await;
        assert_eq!(script.at(99).await, [0]);
        assert_eq!(script.at(100).await, [0, 100]);
        script.events.send(ShardEvent::UpkeepDue { at: Time(1_050) }).unwrap();
        assert_eq!(script.at(101).await, [0, 100, 101], "that has passed already");
        let behind = NextUpkeep { skew: skew_of(-1_000), ..at(100) };
        let script = Script::start(vec![Ok(behind)]).await;
        assert_eq!(script.at(1_099).await, [0]);
        assert_eq!(script.at(1_100).await, [0, 1_100]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_call_is_repeated_after_a_pause() {
        let script = Script::start(vec![
            Err(ShardError::unavailable(&ShardName::try_new("s0").unwrap(), "no")),
            Ok(NextUpkeep::default()),
        ])
        .await;
        assert_eq!(script.at(1).await.len(), 1);
        tokio::time::sleep(PAUSES.min).await;
        assert_eq!(script.at(2).await.len(), 2);
    }
}
