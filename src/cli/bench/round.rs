//! What producers, workers and the watch of one round share.

use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::body::Bodies;
use super::books::{Books, JOBS_MAX};
use super::histogram::Histogram;
use super::plan::{Amount, Plan};
use super::server::Clock;
use super::time;
use crate::pb;

/// See the module.
pub(super) struct Round {
    pub(super) plan: Plan,
    pub(super) topic: String,
    pub(super) clock: Clock,
    pub(super) bodies: Bodies,
    pub(super) books: Books,
    pub(super) latency: Latencies,
    /// Cancelled when all is done, or nothing more can come.
    pub(super) finished: CancellationToken,
    /// When it began; times in bodies count from here.
    base: Instant,
    /// The server's time when the first job was about to be enqueued.
    begin_us: AtomicI64,
    next: AtomicU32,
    /// Numbers end here.
    limit: AtomicU32,
    /// Acks that complete the round; not known before all is enqueued.
    goal: AtomicU64,
    last_due_us: AtomicI64,
    overdue: AtomicU64,
    durability: AtomicI32,
    marks: Mutex<Marks>,
}

/// The latencies of a round, in microseconds.
pub(super) struct Latencies {
    /// Start of an enqueue call to its answer, per call.
    pub(super) enqueue: Histogram,
    /// Start of the enqueue call to the delivery, per job that is ready at once.
    pub(super) dispatch: Histogram,
    /// Due time to delivery, per delayed job.
    pub(super) lateness: Histogram,
    /// Start of an ack call to its answer, per call.
    pub(super) ack: Histogram,
}

/// What is found out on the way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// The first enqueue began.
    pub(super) begin: Option<Instant>,
    /// The last enqueue was answered.
    pub(super) produced: Option<Instant>,
    /// Workers began.
    pub(super) consuming: Option<Instant>,
    /// The last ack was answered.
    pub(super) done: Option<Instant>,
    /// CPU time of this process at the start.
    pub(super) cpu: Duration,
    /// What the server granted the streams.
    pub(super) grant: Option<Grant>,
}

/// What is in effect on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Its credit.
    pub(super) credit: i32,
    /// Deliveries per message at most.
    pub(super) message_jobs: i32,
}

// === impl Round ===

impl Round {
    /// A round with an identity of its own.
    pub(super) fn new(plan: Plan, topic: &str, clock: Clock) -> Round {
        let limit = match plan.amount {
            Amount::Jobs(jobs) => jobs,
            Amount::Time(_) => JOBS_MAX,
        };
        Round {
            plan,
            topic: topic.to_owned(),
            clock,
            bodies: Bodies::new(rand::random(), plan.body_bytes()),
            books: Books::new(),
            latency: Latencies {
                enqueue: Histogram::new(),
                dispatch: Histogram::new(),
                lateness: Histogram::new(),
                ack: Histogram::new(),
            },
            finished: CancellationToken::new(),
            base: time::now(),
            begin_us: AtomicI64::new(0),
            next: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            goal: AtomicU64::new(u64::MAX),
            last_due_us: AtomicI64::new(0),
            overdue: AtomicU64::new(0),
            durability: AtomicI32::new(i32::MAX),
            marks: Mutex::new(Marks::default()),
        }
    }

    /// What is known so far.
    pub(super) fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first job is about to be enqueued.
    pub(super) fn begin(&self) {
        self.begin_us.store(self.clock.now_us(), Ordering::Relaxed);
        let mut marks = self.marks();
        marks.begin = Some(time::now());
        marks.cpu = time::cpu();
    }

    /// All jobs are enqueued.
    pub(super) fn produced(&self) {
        self.marks().produced = Some(time::now());
        self.goal.store(u64::from(self.jobs()), Ordering::SeqCst);
        self.look();
    }

    /// Ends the round if the last ack is there.
    pub(super) fn look(&self) {
        if self.books.acks() >= self.goal.load(Ordering::SeqCst) {
            self.finished.cancel();
        }
    }

    /// Whether all jobs are enqueued.
    pub(super) fn is_produced(&self) -> bool {
        self.goal.load(Ordering::SeqCst) != u64::MAX
    }

    /// How many numbers have been given out.
    pub(super) fn jobs(&self) -> u32 {
        self.next.load(Ordering::SeqCst).min(self.limit.load(Ordering::SeqCst))
    }

    /// The numbers of the next call, when its time has come. None: there are no more.
    pub(super) async fn take(&self, begin: Instant) -> Option<Range<u32>> {
        let end = match self.plan.amount {
            Amount::Time(duration) => Some(begin + duration),
            Amount::Jobs(_) => None,
        };
        if end.is_some_and(|end| time::now() >= end) {
            return None;
        }
        let from = self.next.fetch_add(self.plan.batch, Ordering::SeqCst);
        if let Some(rate) = self.plan.rate {
            let slot = begin + Duration::from_secs_f64(f64::from(from) / rate);
            if end.is_some_and(|end| slot >= end) {
                // Slots rise with numbers, so no number from here on was or will be used.
                self.limit.fetch_min(from, Ordering::SeqCst);
                return None;
            }
            tokio::time::sleep_until(slot.into()).await;
        }
        let until = (from + self.plan.batch).min(self.limit.load(Ordering::SeqCst));
        (from < until).then_some(from..until)
    }

    /// When job `number` is due, in microseconds of the server's clock. 0: at once.
    pub(super) fn due_us(&self, number: u32) -> i64 {
        if !self.plan.is_delayed() {
            return 0;
        }
        let spread = micros(self.plan.spread.unwrap_or_default());
        let begin = match self.plan.amount {
            Amount::Jobs(jobs) => {
                let begin = self.begin_us.load(Ordering::Relaxed);
                return begin + micros(self.plan.lead()) + spread_over(number, jobs, spread);
            }
            Amount::Time(_) => self.clock.now_us(),
        };
        // Without a known number of jobs: anywhere in the spread, by a sequence that fills it evenly.
        let part = i64::from(number.wrapping_mul(0x9E37_79B9) >> 12);
        begin + micros(self.plan.lead()) + ((spread * part) >> 20)
    }

    /// Microseconds since it began: what a body tells about its enqueue.
    pub(super) fn since_base(&self, at: Instant) -> u64 {
        time::micros(at.saturating_duration_since(self.base))
    }

    /// Notes when the last of some jobs is due.
    pub(super) fn due_until(&self, due_us: i64) {
        self.last_due_us.fetch_max(due_us, Ordering::Relaxed);
    }

    /// When the last job is due, as far as is known.
    pub(super) fn last_due_us(&self) -> i64 {
        self.last_due_us.load(Ordering::Relaxed)
    }

    /// Counts jobs that were due before their enqueue was answered: their lateness is not the
    /// server's.
    pub(super) fn count_overdue(&self, jobs: u64) {
        self.overdue.fetch_add(jobs, Ordering::Relaxed);
    }

    /// How many those were.
    pub(super) fn overdue(&self) -> u64 {
        self.overdue.load(Ordering::Relaxed)
    }

    /// Notes the durability of an answer; the least one counts.
    pub(super) fn reached(&self, durability: pb::Durability) {
        self.durability.fetch_min(durability.into(), Ordering::Relaxed);
    }

    /// The least durability that was reached.
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
    use super::super::preset::Preset;
    use super::*;

    fn round(change: impl FnOnce(&mut Plan)) -> Round {
        let mut plan = Preset::Bulk.plan();
        change(&mut plan);
        Round::new(plan, "t", Clock::default())
    }

    #[tokio::test]
    async fn numbers_are_given_out_once_and_end() {
        let round = round(|plan| plan.amount = Amount::Jobs(300));
        let mut taken = Vec::new();
        while let Some(range) = round.take(time::now()).await {
            taken.push(range);
        }
        assert_eq!(taken, [0..128, 128..256, 256..300]);
        assert_eq!(round.jobs(), 300);
    }

    #[tokio::test]
    async fn a_timed_round_counts_what_it_used() {
        let timed = |plan: &mut Plan| plan.amount = Amount::Time(Duration::from_secs(1));
        let begin = time::now();
        let fast = round(timed);
        assert_eq!(fast.take(begin).await, Some(0..128));
        assert_eq!(fast.take(begin - Duration::from_secs(2)).await, None);
        assert_eq!(fast.jobs(), 128);

        let paced = round(|plan| {
            timed(plan);
            (plan.batch, plan.rate) = (1, Some(2.0));
        });
        let begin = begin - Duration::from_millis(900);
        assert_eq!(paced.take(begin).await, Some(0..1));
        assert_eq!(paced.take(begin).await, Some(1..2));
        assert_eq!(paced.take(begin).await, None, "the third would come after the end");
        assert_eq!(paced.jobs(), 2);
    }

    #[test]
    fn due_times_fill_the_spread() {
        let plan = Preset::Delayed.plan();
        let Amount::Jobs(jobs) = plan.amount else { panic!("it counts") };
        let round = Round::new(plan, "t", Clock::default());
        round.begin();
        let first = round.due_us(0);
        assert_eq!(round.due_us(jobs / 2) - first, 2_500_000);
        assert!(round.due_us(jobs - 1) - first < 5_000_000);
        assert!(first - round.clock.now_us() <= 2_000_000);

        let timed = Plan { amount: Amount::Time(Duration::from_secs(1)), ..plan };
        let timed = Round::new(timed, "t", Clock::default());
        let now = timed.clock.now_us();
        for number in 0..1000 {
            let ahead = timed.due_us(number) - now;
            assert!((2_000_000..7_500_000).contains(&ahead), "{number}: {ahead}");
        }
    }

    #[test]
    fn the_last_ack_ends_it_and_nothing_else() {
        let round = round(|plan| plan.amount = Amount::Jobs(1));
        round.next.store(1, Ordering::SeqCst);
        round.books.acked(0);
        round.look();
        assert!(!round.finished.is_cancelled(), "more may be enqueued");
        round.produced();
        assert!(round.finished.is_cancelled());
    }
}
