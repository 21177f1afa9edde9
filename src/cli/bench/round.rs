//! State that producers, workers and the stall detector of one round share.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::audit::JobAudit;
use super::body::BodyCodec;
use super::clocks;
use super::histogram::Histogram;
use super::plan::{JobAmount, Plan};
use super::schedule::CallSchedule;
use super::server::ServerClock;
use crate::pb;

/// Shared state of one round.
pub(super) struct BenchRound {
    pub(super) plan: Plan,
    pub(super) topic: String,
    pub(super) clock: ServerClock,
    pub(super) schedule: CallSchedule,
    pub(super) bodies: BodyCodec,
    pub(super) audit: JobAudit,
    pub(super) latency: Latencies,
    /// Cancelled when the round is complete, or no more job can arrive.
    pub(super) finished: CancellationToken,
    /// Start of the round; times in bodies count from here.
    base: Instant,
    /// Time of the server just before the first enqueue.
    begin_us: AtomicI64,
    /// Number of acks that complete the round; not known before all jobs are enqueued.
    acks_expected: AtomicU64,
    last_due_us: AtomicI64,
    overdue: AtomicU64,
    durability: AtomicI32,
    timings: Mutex<RoundTimings>,
}

/// Latencies of a round, in microseconds.
pub(super) struct Latencies {
    /// Time from the start of an enqueue call, or from its slot if there is a rate, to its answer, per call.
    pub(super) enqueue: Histogram,
    /// Time from the same start to the delivery, per job that is ready at once.
    pub(super) dispatch: Histogram,
    /// Time from the due time to the delivery, per delayed job.
    pub(super) lateness: Histogram,
    /// Time from the start of an ack call to its answer, per call.
    pub(super) ack: Histogram,
}

/// Times and values that are recorded during a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTimings {
    /// Start of the first enqueue.
    pub(super) enqueue_start: Option<Instant>,
    /// Answer to the last enqueue.
    pub(super) enqueue_end: Option<Instant>,
    /// Start of the workers.
    pub(super) consume_start: Option<Instant>,
    /// Answer to the last ack.
    pub(super) ack_end: Option<Instant>,
    /// CPU time of this process at the start.
    pub(super) cpu: Duration,
    /// Values that the server granted the streams.
    pub(super) grant: Option<StreamGrant>,
}

/// Values in effect on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamGrant {
    /// Credit of the stream.
    pub(super) credit: i32,
    /// Most deliveries per message.
    pub(super) message_jobs: i32,
}

// === impl BenchRound ===

impl BenchRound {
    /// Creates a round with a random number of its own.
    pub(super) fn new(plan: Plan, topic: &str, clock: ServerClock) -> BenchRound {
        BenchRound {
            plan,
            topic: topic.to_owned(),
            clock,
            schedule: CallSchedule::new(&plan),
            bodies: BodyCodec::new(rand::random(), plan.body_bytes()),
            audit: JobAudit::new(),
            latency: Latencies {
                enqueue: Histogram::new(),
                dispatch: Histogram::new(),
                lateness: Histogram::new(),
                ack: Histogram::new(),
            },
            finished: CancellationToken::new(),
            base: clocks::now(),
            begin_us: AtomicI64::new(0),
            acks_expected: AtomicU64::new(u64::MAX),
            last_due_us: AtomicI64::new(0),
            overdue: AtomicU64::new(0),
            durability: AtomicI32::new(i32::MAX),
            timings: Mutex::new(RoundTimings::default()),
        }
    }

    /// Returns the timings so far.
    pub(super) fn timings(&self) -> MutexGuard<'_, RoundTimings> {
        self.timings.lock()
    }

    /// Records the start of the first enqueue, and returns it.
    pub(super) fn begin(&self) -> Instant {
        self.begin_us.store(self.clock.now_us(), Ordering::Relaxed);
        let mut marks = self.timings();
        marks.cpu = clocks::cpu();
        *marks.enqueue_start.insert(clocks::now())
    }

    /// Records that all jobs are enqueued.
    pub(super) fn mark_produced(&self) {
        self.timings().enqueue_end = Some(clocks::now());
        self.acks_expected.store(u64::from(self.numbers_taken()), Ordering::SeqCst);
        self.finish_if_complete();
    }

    /// Ends the round if all acks have arrived.
    pub(super) fn finish_if_complete(&self) {
        if self.audit.acked_count() >= self.acks_expected.load(Ordering::SeqCst) {
            self.finish();
        }
    }

    /// Ends the round: later answers are not timed.
    pub(super) fn finish(&self) {
        self.timings().ack_end.get_or_insert_with(clocks::now);
        self.finished.cancel();
    }

    /// Returns whether all jobs are enqueued.
    pub(super) fn is_produced(&self) -> bool {
        self.acks_expected.load(Ordering::SeqCst) != u64::MAX
    }

    /// Returns the number of jobs given to calls.
    pub(super) fn numbers_taken(&self) -> u32 {
        self.schedule.numbers_taken()
    }

    /// Returns the due time of job `number`, in microseconds of the server's clock. 0: at once.
    pub(super) fn due_us(&self, number: u32) -> i64 {
        if !self.plan.is_delayed() {
            return 0;
        }
        let spread = micros(self.plan.spread.unwrap_or_default());
        let begin = match self.plan.amount {
            JobAmount::Jobs(jobs) => {
                let begin = self.begin_us.load(Ordering::Relaxed);
                return begin + micros(self.plan.lead()) + spread_over(number, jobs, spread);
            }
            JobAmount::Time(_) => self.clock.now_us(),
        };
        // Without a known number of jobs the due times follow a sequence that fills the spread evenly.
        let part = i64::from(number.wrapping_mul(0x9E37_79B9) >> 12);
        begin + micros(self.plan.lead()) + ((spread * part) >> 20)
    }

    /// Returns the microseconds from the start of the round to `at`, as written into bodies.
    pub(super) fn elapsed_us(&self, at: Instant) -> u64 {
        clocks::micros(at.saturating_duration_since(self.base))
    }

    /// Records the due time of the last of some jobs.
    pub(super) fn record_due(&self, due_us: i64) {
        self.last_due_us.fetch_max(due_us, Ordering::Relaxed);
    }

    /// Returns the latest due time so far.
    pub(super) fn last_due_us(&self) -> i64 {
        self.last_due_us.load(Ordering::Relaxed)
    }

    /// Counts jobs that were due before their enqueue was answered: their lateness is not caused by the server.
    pub(super) fn count_overdue(&self, jobs: u64) {
        self.overdue.fetch_add(jobs, Ordering::Relaxed);
    }

    /// Returns the number of these jobs.
    pub(super) fn overdue(&self) -> u64 {
        self.overdue.load(Ordering::Relaxed)
    }

    /// Records the durability of an answer; the least one is kept.
    pub(super) fn record_durability(&self, durability: pb::Durability) {
        self.durability.fetch_min(durability.into(), Ordering::Relaxed);
    }

    /// Returns the least durability of all answers.
    pub(super) fn durability(&self) -> pb::Durability {
        pb::Durability::try_from(self.durability.load(Ordering::Relaxed)).unwrap_or_default()
    }
}

fn spread_over(number: u32, jobs: u32, spread_us: i64) -> i64 {
    let part = i128::from(spread_us) * i128::from(number) / i128::from(jobs.max(1));
    i64::try_from(part).unwrap_or(spread_us)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX >> 22)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::super::preset::Preset;
    use super::super::schedule::Pace;
    use super::*;

    #[test]
    fn due_times_fill_the_spread() {
        let plan = Preset::Delayed.plan();
        let JobAmount::Jobs(jobs) = plan.amount else { panic!("it counts") };
        let round = BenchRound::new(plan, "t", ServerClock::default());
        round.begin();
        let first = round.due_us(0);
        assert_eq!(round.due_us(jobs / 2) - first, 2_500_000);
        assert!(round.due_us(jobs - 1) - first < 5_000_000);
        assert!(first - round.clock.now_us() <= 2_000_000);

        let timed = Plan { amount: JobAmount::Time(Duration::from_secs(1)), ..plan };
        let timed = BenchRound::new(timed, "t", ServerClock::default());
        let now = timed.clock.now_us();
        for number in 0..1000 {
            let ahead = timed.due_us(number) - now;
            assert!((2_000_000..7_500_000).contains(&ahead), "{number}: {ahead}");
        }
    }

    #[test]
    fn only_the_last_ack_ends_the_round() {
        let plan = Plan { amount: JobAmount::Jobs(1), batch: 1, ..Preset::Bulk.plan() };
        let round = BenchRound::new(plan, "t", ServerClock::default());
        let pace = Pace::start(&plan, round.begin());
        assert!(round.schedule.take(&pace).now_or_never().flatten().is_some());
        round.audit.record_acked(0);
        round.finish_if_complete();
        assert!(!round.finished.is_cancelled(), "more may be enqueued");
        round.mark_produced();
        assert!(round.finished.is_cancelled());
        let done = round.timings().ack_end;
        round.finish();
        assert!(done.is_some() && round.timings().ack_end == done, "what comes later is not timed");
    }
}
