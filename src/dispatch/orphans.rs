//! The leases of broken streams: those that nobody speaks for within the grace are let go, uncounted
//! as failures. To speak for a lease is to settle or extend it, through any replica.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::lifecycle::Cause;
use crate::domain::{Time, limit};
use crate::scheduler::Scheduler;
use crate::shards::Shard;
use crate::store::{self, Lease, LeaseRef};

use super::ledger::Loose;

/// First and longest pause after a failed call.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Leases of one shard whose streams broke at one time.
struct Orphans<'a> {
    scheduler: &'a Scheduler,
    shard: &'a Shard,
    /// On the clock of this replica.
    broke: Time,
    stop: &'a CancellationToken,
}

/// A stream broke at `broke` and left `sent` behind on this shard.
pub(super) async fn of_stream(
    scheduler: Scheduler,
    shard: Shard,
    sent: Vec<Loose>,
    broke: Time,
    stop: CancellationToken,
) {
    let orphans = Orphans { scheduler: &scheduler, shard: &shard, broke, stop: &stop };
    let leases = orphans.read(sent).await;
    orphans.release(leases).await;
}

/// The leases that streams of former lives left on the shard; their grace begins at `broke`, when
/// this life began.
pub(super) async fn of_former_lives(
    scheduler: Scheduler,
    shard: Shard,
    broke: Time,
    stop: CancellationToken,
) {
    let orphans = Orphans { scheduler: &scheduler, shard: &shard, broke, stop: &stop };
    let found = repeat(scheduler.clock(), &shard, Time::MAX, &stop, || {
        scheduler.orphans(&shard, vec![scheduler.replica().nonce])
    })
    .await;
    let Some(leases) = found else { return };
    if !leases.is_empty() {
        let leases = leases.len();
        tracing::info!(shard = %shard.name(), leases, "leases of a former life found");
    }
    orphans.release(leases).await;
}

// === impl Orphans ===

impl Orphans<'_> {
    /// The leases among `sent` that still run.
    async fn read(&self, sent: Vec<Loose>) -> Vec<Lease> {
        let clock = self.scheduler.clock();
        let mut found = Vec::with_capacity(sent.len());
        for part in sent.chunks(limit::CALL_JOBS_MAX) {
            let refs: Vec<LeaseRef> = part.iter().map(|loose| loose.lease.clone()).collect();
            let last = part.iter().map(|loose| loose.deadline).max().unwrap_or(Time::MAX);
            let read = repeat(clock, self.shard, last, self.stop, || {
                self.scheduler.leases(self.shard, refs.clone())
            });
            found.extend(read.await.unwrap_or_default().into_iter().flatten());
        }
        found
    }

    /// Lets go, each after its own grace, of those that nobody has spoken for by then.
    async fn release(&self, leases: Vec<Lease>) {
        let clock = self.scheduler.clock();
        let read = clock.now();
        let mut by_grace: BTreeMap<Duration, Vec<Lease>> = BTreeMap::new();
        for lease in leases {
            // The break on the store's clock, as far as the time since can be told.
            let broke = lease.now.minus(read.since(self.broke));
            if let Some(grace) = lease.grace.filter(|&grace| is_orphan(&lease, broke, grace)) {
                by_grace.entry(grace).or_default().push(lease);
            }
        }
        for (grace, leases) in by_grace {
            tokio::select! {
                () = clock.sleep_until(self.broke.plus(grace)) => {}
                () = self.stop.cancelled() => return,
            }
            self.end(&leases, read).await;
        }
    }

    async fn end(&self, leases: &[Lease], read: Time) {
        let clock = self.scheduler.clock();
        let mut ended = 0;
        for part in leases.chunks(limit::CALL_JOBS_MAX) {
            let left = part.iter().map(|lease| lease.deadline.since(lease.now)).max();
            let last = read.plus(left.unwrap_or_default());
            let end = repeat(clock, self.shard, last, self.stop, || {
                self.scheduler.end_leases(self.shard, part, &Cause::Broken)
            });
            ended += end.await.unwrap_or_default();
        }
        if ended > 0 {
            tracing::info!(shard = %self.shard.name(), ended, "leases of broken streams released");
        }
    }
}

/// Whether nobody has spoken for the lease around the break, and the grace ends before the lease
/// does: a longer one means that the lease outlives its stream.
fn is_orphan(lease: &Lease, broke: Time, grace: Duration) -> bool {
    let spoken_for = broke.minus(limit::EXTEND_BEFORE_BREAK);
    let extended = lease.extend_time.is_some_and(|at| at >= spoken_for);
    !extended && broke.plus(grace) < lease.deadline
}

/// Repeats a failing call until `last` is past, or `stop`.
async fn repeat<T, F: Future<Output = store::Result<T>>>(
    clock: &Clock,
    shard: &Shard,
    last: Time,
    stop: &CancellationToken,
    call: impl Fn() -> F,
) -> Option<T> {
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
    loop {
        match call().await {
            Ok(answer) => return Some(answer),
            Err(_) if clock.now() >= last => return None,
            Err(_) => {}
        }
        tokio::select! {
            () = shard.wait_out(backoff.pause()) => {}
            () = stop.cancelled() => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lifecycle::Record;
    use crate::domain::{JobId, JobKey, RetryOverrides, Token, TopicName};

    const SECOND: Duration = Duration::from_secs(1);

    /// Extended so many milliseconds after zero.
    fn lease(extended: Option<i64>) -> Lease {
        let key = JobKey { topic: TopicName::stored("t"), id: JobId::stored("1") };
        let record = Record {
            failures: 0,
            deliveries: 0,
            first_start: Time(0),
            retry: RetryOverrides::default(),
        };
        Lease {
            key,
            token: Token(1),
            deadline: at(30),
            extend_time: extended.map(|ms| Time(ms * 1_000)),
            owner: 1,
            stream: 1,
            grace: Some(5 * SECOND),
            record,
            now: at(10),
        }
    }

    fn at(seconds: i64) -> Time {
        Time(seconds * 1_000_000)
    }

    #[test]
    fn an_extend_around_the_break_speaks_for_a_lease() {
        assert!(is_orphan(&lease(None), at(10), 5 * SECOND));
        assert!(is_orphan(&lease(Some(9_499)), at(10), 5 * SECOND));
        assert!(!is_orphan(&lease(Some(9_500)), at(10), 5 * SECOND));
        assert!(!is_orphan(&lease(Some(11_000)), at(10), 5 * SECOND));
    }

    #[test]
    fn a_grace_longer_than_the_lease_means_never() {
        assert!(is_orphan(&lease(None), at(10), 19 * SECOND));
        assert!(!is_orphan(&lease(None), at(10), 20 * SECOND));
    }
}
