//! Schedule of the calls: which jobs the next call enqueues, and at which time.
//!
//! With a rate each call has a slot in a timetable. Its latency counts from the slot, even if the call begins late
//! because all earlier ones are still in flight: otherwise a stalled server would get, and be measured with, fewer
//! calls during the stall.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc};

use super::audit::JOBS_MAX;
use super::clocks;
use super::plan::{JobAmount, Plan};

/// Gives each job number to one call.
pub(super) struct CallSchedule {
    batch: u32,
    limit: u32,
    next: AtomicU32,
}

/// Jobs of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScheduledCall {
    pub(super) numbers: Range<u32>,
    /// Time from which the latencies of the call count.
    pub(super) start: Instant,
}

/// Time at which calls are made.
pub(super) enum Pace {
    /// No schedule: calls are made at once, until an end.
    Free { end: Option<Instant> },
    /// Calls are made at the slots of a timetable, which goes on whether or not a lane is free.
    Timed { slots: Mutex<mpsc::Receiver<Instant>> },
}

/// Timetable of a rate.
#[derive(Clone, Copy, Debug)]
struct Timetable {
    begin: Instant,
    rate: f64,
    batch: u32,
    jobs: u32,
    /// End: no slot from here on.
    end: Option<Instant>,
}

/// Most slots that have passed and wait for a lane; beyond that the timetable pauses, and continues with its original
/// times.
const QUEUED_SLOTS_MAX: usize = 1024;
/// Largest offset of a slot: about 30 years.
pub(super) const SLOT_OFFSET_MAX_S: f64 = 1e9;

// === impl CallSchedule ===

impl CallSchedule {
    /// Creates the schedule of a round.
    pub(super) fn new(plan: &Plan) -> CallSchedule {
        CallSchedule { batch: plan.batch, limit: limit(plan), next: AtomicU32::new(0) }
    }

    /// Returns the number of jobs given to calls.
    pub(super) fn numbers_taken(&self) -> u32 {
        self.next.load(Ordering::SeqCst).min(self.limit)
    }

    /// Waits for the next call. None: there are no more.
    pub(super) async fn take(&self, pace: &Pace) -> Option<ScheduledCall> {
        let start = pace.next().await?;
        let from = self.next.fetch_add(self.batch, Ordering::SeqCst);
        let until = from.saturating_add(self.batch).min(self.limit);
        (from < until).then_some(ScheduledCall { numbers: from..until, start })
    }
}

// === impl Pace ===

impl Pace {
    /// Starts the pace of a round that begins at this time.
    pub(super) fn start(plan: &Plan, begin: Instant) -> Pace {
        let end = match plan.amount {
            JobAmount::Time(duration) => Some(begin + duration),
            JobAmount::Jobs(_) => None,
        };
        let Some(rate) = plan.rate else { return Pace::Free { end } };
        let timetable = Timetable { begin, rate, batch: plan.batch, jobs: limit(plan), end };
        let (sender, slots) = mpsc::channel(QUEUED_SLOTS_MAX);
        // A separate thread: the runtime's timers are up to two milliseconds late, which would be measured as latency
        // of the server.
        tokio::task::spawn_blocking(move || timetable.run(&sender));
        Pace::Timed { slots: Mutex::new(slots) }
    }

    /// Waits for the next slot and returns its time. None: there are no more.
    async fn next(&self) -> Option<Instant> {
        match self {
            Pace::Free { end } => {
                Some(clocks::now()).filter(|now| end.is_none_or(|end| *now < end))
            }
            Pace::Timed { slots } => slots.lock().await.recv().await,
        }
    }
}

// === impl Timetable ===

impl Timetable {
    /// Sends each slot at its time, until the last one or until the receiver is gone.
    fn run(self, slots: &mpsc::Sender<Instant>) {
        for from in (0..self.jobs).step_by(self.batch as usize) {
            let slot = self.slot(from);
            if self.end.is_some_and(|end| slot >= end) {
                break;
            }
            sleep_until(slot);
            if slots.blocking_send(slot).is_err() {
                return;
            }
        }
        // The last slot also takes its time: 1000 jobs at 500/s take 2 s.
        sleep_until(self.end.unwrap_or_else(|| self.slot(self.jobs)));
    }

    /// Returns the slot of the call that begins with this number.
    fn slot(&self, from: u32) -> Instant {
        self.begin + Duration::from_secs_f64((f64::from(from) / self.rate).min(SLOT_OFFSET_MAX_S))
    }
}

fn limit(plan: &Plan) -> u32 {
    match plan.amount {
        JobAmount::Jobs(jobs) => jobs,
        JobAmount::Time(_) => JOBS_MAX,
    }
}

fn sleep_until(time: Instant) {
    std::thread::sleep(time.saturating_duration_since(clocks::now()));
}

#[cfg(test)]
mod tests {
    use super::super::preset::Preset;
    use super::*;

    fn plan(amount: JobAmount, batch: u32, rate: Option<f64>) -> Plan {
        Plan { amount, batch, rate, ..Preset::Bulk.plan() }
    }

    /// Returns all calls of a round that began `ago`, and the time that they took after that.
    async fn turns(plan: &Plan, ago: Duration) -> (Vec<(Range<u32>, Duration)>, Duration) {
        let begin = clocks::now() - ago;
        let (turns, pace) = (CallSchedule::new(plan), Pace::start(plan, begin));
        let mut taken = Vec::new();
        while let Some(ScheduledCall { numbers, start }) = turns.take(&pace).await {
            assert!(start <= clocks::now(), "not before its time");
            taken.push((numbers, start - begin));
        }
        let end = taken.last().map_or(0, |(numbers, _)| numbers.end);
        assert_eq!(turns.numbers_taken(), end);
        (taken, begin.elapsed())
    }

    const NONE: Duration = Duration::ZERO;

    #[tokio::test]
    async fn numbers_are_given_out_once_and_end() {
        let (taken, _) = turns(&plan(JobAmount::Jobs(300), 128, None), NONE).await;
        let numbers: Vec<_> = taken.into_iter().map(|(numbers, _)| numbers).collect();
        assert_eq!(numbers, [0..128, 128..256, 256..300]);
    }

    #[tokio::test]
    async fn a_timed_round_ends_and_counts_what_it_used() {
        let second = plan(JobAmount::Time(Duration::from_secs(1)), 128, None);
        let (turns, pace) = (CallSchedule::new(&second), Pace::start(&second, clocks::now()));
        assert_eq!(turns.take(&pace).await.map(|turn| turn.numbers), Some(0..128));
        let over = Pace::start(&second, clocks::now() - Duration::from_secs(2));
        assert_eq!(turns.take(&over).await, None);
        assert_eq!(turns.numbers_taken(), 128);
    }

    #[tokio::test]
    async fn calls_start_on_schedule_and_the_last_one_completes() {
        let paced = plan(JobAmount::Jobs(25), 10, Some(100.0));
        let (taken, lasted) = turns(&paced, NONE).await;
        let ms = Duration::from_millis;
        assert_eq!(taken, [(0..10, ms(0)), (10..20, ms(100)), (20..25, ms(200))]);
        assert!(lasted >= ms(250), "{lasted:?}");
    }

    #[tokio::test]
    async fn late_calls_keep_their_scheduled_times() {
        let paced = plan(JobAmount::Time(Duration::from_secs(100)), 1, Some(0.02));
        let (taken, _) = turns(&paced, Duration::from_secs(500)).await;
        let late = Duration::from_secs(50);
        assert_eq!(taken, [(0..1, NONE), (1..2, late)], "the third would come after the end");
    }

    #[tokio::test]
    async fn any_rate_has_a_timetable() {
        let (taken, _) = turns(&plan(JobAmount::Jobs(3), 1, Some(1e300)), NONE).await;
        assert_eq!(taken.len(), 3);
        let begin = clocks::now();
        let slow = Timetable { begin, rate: 1e-300, batch: 1, jobs: 2, end: None };
        assert!(slow.slot(1) > begin + Duration::from_secs(1_000_000));
    }
}
