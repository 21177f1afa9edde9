//! Timer for periodic work. One sleep is kept until it fires: a new one for each wait that ends earlier would wake
//! the runtime's driver each time, between a job and its worker.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::clock::Clock;
use crate::domain::Time;

/// Next due time and the sleep until then.
pub(in crate::dispatch) struct PeriodicTimer {
    clock: Clock,
    every: Duration,
    at: Time,
    sleep: BoxFuture<'static, ()>,
}

// === impl PeriodicTimer ===

impl PeriodicTimer {
    /// Creates a timer that is first due after `every`.
    pub(in crate::dispatch) fn new(clock: &Clock, every: Duration) -> PeriodicTimer {
        let at = clock.now().plus(every);
        PeriodicTimer { clock: clock.clone(), every, at, sleep: sleep_until(clock, at) }
    }

    pub(in crate::dispatch) fn is_due(&self) -> bool {
        self.at <= self.clock.now()
    }

    /// Sets the next due time to `every` from now.
    pub(in crate::dispatch) fn restart(&mut self) {
        *self = PeriodicTimer::new(&self.clock, self.every);
    }

    /// Waits until the timer is due.
    pub(in crate::dispatch) async fn wait_due(&mut self) {
        if !self.is_due() {
            (&mut self.sleep).await;
        }
    }
}

fn sleep_until(clock: &Clock, at: Time) -> BoxFuture<'static, ()> {
    let clock = clock.clone();
    Box::pin(async move { clock.sleep_until(at).await })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::clock::ManualClock;

    #[tokio::test]
    async fn it_is_due_again_and_again_also_without_a_waiting_task() {
        let manual = ManualClock::new(Time(0));
        let mut reminder =
            PeriodicTimer::new(&Clock::Manual(manual.clone()), Duration::from_micros(10));
        let moments = [(0, false), (9, false), (10, true), (19, false), (20, true), (55, true)];
        for (now, wanted) in moments {
            manual.set(Time(now));
            let due = reminder.wait_due().now_or_never().is_some();
            assert_eq!((due, reminder.is_due()), (wanted, wanted), "at {now}");
            if due {
                reminder.restart();
            }
        }
    }
}
