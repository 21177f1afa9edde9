//! Releases the leases of broken streams that are neither settled nor extended within the grace, through any replica.
//! They do not count as failures; where the worker broke the stream they count as crashes. A lease that was extended
//! outlives its stream: a later end of this replica or another does not release it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, BackoffRange};
use crate::clock::Clock;
use crate::dispatch::streams::ledger::StreamLease;
use crate::dispatch::streams::stream::Stream;
use crate::domain::engine::Command;
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::{StreamId, Time, limit};
use crate::scheduler::Settler;
use crate::shards::{self, Shard};
use crate::store::{JobRequest, LeaseRef, LeaseRefusal, RunningLease};

use super::silence_detector::SilentGroup;

/// First and longest pause after a failed call.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Release of the leases of one shard whose streams broke at the same time.
pub(in crate::dispatch) struct OrphanRelease<'a> {
    settler: &'a Settler,
    shard: &'a Shard,
    /// Begin of the grace, in microseconds on the clock of this replica. Restarts when the shard answers after a
    /// failed call, because no worker could extend a lease meanwhile.
    grace_begin: AtomicI64,
    /// Time since which, or shortly before which, an Extend keeps its lease.
    last_heartbeat: Time,
    /// Cause with which the leases end.
    cause: LeaseEndCause,
    stop: &'a CancellationToken,
}

/// A stream of this replica that broke.
#[derive(Clone, Copy)]
pub(in crate::dispatch) struct BrokenStream {
    pub(in crate::dispatch) stream: StreamId,
    /// True if its worker broke it: the stream was open, and the server had no part in its end.
    pub(in crate::dispatch) by_worker: bool,
    /// Time at which this replica noticed the break.
    pub(in crate::dispatch) broke_at: Time,
    /// Time at which the stream is last known to have been alive.
    pub(in crate::dispatch) last_heartbeat: Time,
}

/// Releases the leases `sent` that a broken stream left on this shard.
pub(in crate::dispatch) async fn release_of_stream(
    settler: Settler,
    shard: Shard,
    sent: Vec<StreamLease>,
    BrokenStream { stream, by_worker, broke_at: broke, last_heartbeat: alive }: BrokenStream,
    stop: CancellationToken,
) {
    let mut orphans = OrphanRelease::new(&settler, &shard, broke, alive, &stop);
    if by_worker {
        orphans.cause = LeaseEndCause::WorkerCrashed;
    }
    let mut leases = orphans.read_running(sent).await;
    // The worker's next stream may have adopted some.
    leases.retain(|lease| lease.stream_id() == stream);
    orphans.release(leases, None).await;
}

/// Releases the leases that streams of previous runs left on a shard that no other replica uses. Their grace begins
/// at `broke`, the start of this run.
pub(in crate::dispatch) async fn release_of_previous_runs(
    settler: &Settler,
    shard: &Shard,
    broke: Time,
    stop: &CancellationToken,
) {
    let orphans = OrphanRelease::new(settler, shard, broke, broke, stop);
    let Some(leases) = orphans.leases_of_unknown_replicas(vec![settler.replica().nonce]).await
    else {
        return;
    };
    if !leases.is_empty() {
        let leases = leases.len();
        tracing::info!(shard = %shard.name(), leases, "found leases of an earlier run of this replica; releasing them after their grace");
    }
    orphans.release(leases, None).await;
}

// === impl BrokenStream ===

impl BrokenStream {
    /// Describes a stream of which this replica notices at `now` that it is broken.
    pub(in crate::dispatch) fn of(stream: &Stream, now: Time) -> BrokenStream {
        let ledger = stream.ledger();
        BrokenStream {
            stream: stream.stream_id(),
            by_worker: ledger.broken_by_worker,
            broke_at: now,
            last_heartbeat: ledger.broke_at.unwrap_or(now),
        }
    }
}

// === impl OrphanRelease ===

impl<'a> OrphanRelease<'a> {
    /// Release for streams that broke at the time `broke`.
    pub(in crate::dispatch) fn new(
        settler: &'a Settler,
        shard: &'a Shard,
        broke: Time,
        alive: Time,
        stop: &'a CancellationToken,
    ) -> OrphanRelease<'a> {
        OrphanRelease {
            settler,
            shard,
            grace_begin: AtomicI64::new(broke.0),
            last_heartbeat: alive,
            cause: LeaseEndCause::StreamBroken,
            stop,
        }
    }

    /// Returns the leases among `sent` that still run.
    async fn read_running(&self, sent: Vec<StreamLease>) -> Vec<RunningLease> {
        let mut found = Vec::with_capacity(sent.len());
        for part in sent.chunks(limit::SCAN_PART_MAX) {
            let refs: Vec<LeaseRef> = part.iter().map(|held| held.lease.clone()).collect();
            let last = part.iter().map(|held| held.deadline).max().unwrap_or(Time::MAX);
            let read = self.retry(last, || self.shard.running_leases(refs.clone()));
            found.extend(read.await.unwrap_or_default().into_iter().flatten());
        }
        found
    }

    /// Returns the leases of streams of replicas that are not in `living`; `None` when the task is to stop.
    pub(in crate::dispatch) async fn leases_of_unknown_replicas(
        &self,
        living: Vec<u32>,
    ) -> Option<Vec<RunningLease>> {
        self.retry(Time::MAX, || self.shard.orphans(living.clone())).await
    }

    /// Releases each lease after its own grace if it was neither settled nor extended by then. The other leases
    /// outlive their streams from then on. If the streams broke because their replicas are silent, replicas that have
    /// sent a heartbeat since keep their leases.
    pub(in crate::dispatch) async fn release(
        &self,
        leases: Vec<RunningLease>,
        mut silence: Option<&mut SilentGroup>,
    ) {
        let clock = self.settler.clock();
        let read = clock.now();
        // Converts a time of this replica to the store's clock, as far as known.
        let there =
            |lease: &RunningLease, at: Time| lease.now.minus(read.since(at)).plus(at.since(read));
        let (mut by_grace, mut kept) = (BTreeMap::<Duration, Vec<RunningLease>>::new(), Vec::new());
        for lease in leases {
            let begin = there(&lease, self.grace_begin());
            let alive = silence.as_ref().and_then(|silence| silence.last_heartbeat(lease.owner));
            let alive = alive.unwrap_or(there(&lease, self.last_heartbeat));
            match lease.grace {
                Some(grace) if is_orphan(&lease, alive, begin, grace) => {
                    by_grace.entry(grace).or_default().push(lease);
                }
                // The lease may have expired while no server ran; its grace sets how long it waits in that case.
                Some(grace) if ends_in(&lease, begin, grace.min(limit::OUTAGE_GRACE_MAX)) => {
                    by_grace.entry(grace.min(limit::OUTAGE_GRACE_MAX)).or_default().push(lease);
                }
                Some(_) => kept.push(lease),
                None => {}
            }
        }
        for (grace, mut leases) in by_grace {
            while !leases.is_empty() {
                let begin = self.grace_begin();
                tokio::select! {
                    () = clock.sleep_until(begin.plus(grace)) => {}
                    () = self.stop.cancelled() => return,
                }
                let Some(broken) = self.keep_broken(leases, silence.as_deref_mut()).await else {
                    return;
                };
                leases = self.without_adopted(broken).await;
                if self.grace_begin() != begin {
                    continue;
                }
                let ends_before = |lease: &RunningLease| ends_in(lease, there(lease, begin), grace);
                kept.extend(leases.extract_if(.., |lease| ends_before(lease)));
                kept.extend(self.end_leases(&mut leases).await);
            }
        }
        let Some(kept) = self.keep_broken(kept, silence).await else { return };
        self.detach(&kept, read).await;
    }

    /// Returns the leases that no other stream has adopted since they were read: an adoption changes no deadline.
    async fn without_adopted(&self, leases: Vec<RunningLease>) -> Vec<RunningLease> {
        let mut left = Vec::with_capacity(leases.len());
        for part in leases.chunks(limit::SCAN_PART_MAX) {
            let refs: Vec<LeaseRef> = part.iter().map(RunningLease::lease_ref).collect();
            let read = self.retry(Time::MAX, || self.shard.running_leases(refs.clone()));
            let now = read.await.unwrap_or_default();
            let same = |(lease, now): &(&RunningLease, Result<RunningLease, LeaseRefusal>)| {
                now.as_ref().is_ok_and(|now| now.stream_id() == lease.stream_id())
            };
            left.extend(part.iter().zip(now).filter(same).map(|(lease, _)| lease.clone()));
        }
        left
    }

    /// Returns the leases whose streams are still broken; `None` when the task is to stop.
    async fn keep_broken(
        &self,
        mut leases: Vec<RunningLease>,
        silence: Option<&mut SilentGroup>,
    ) -> Option<Vec<RunningLease>> {
        if let Some(silence) = silence
            && !leases.is_empty()
        {
            tokio::select! {
                seen = silence.recheck(self.shard) => seen?,
                () = self.stop.cancelled() => return None,
            }
            leases.retain(|lease| silence.last_heartbeat(lease.owner).is_some());
        }
        Some(leases)
    }

    /// Ends these leases. Returns a set that includes all leases that did not end because they were settled or
    /// extended. The leases left in `leases` are to be ended after another grace: the shard did not answer, or could
    /// not end them.
    async fn end_leases(&self, leases: &mut Vec<RunningLease>) -> Vec<RunningLease> {
        let (mut ended, mut rest, mut left) = (0, Vec::new(), Vec::new());
        while !leases.is_empty() {
            let part = &leases[..leases.len().min(limit::CALL_JOBS_MAX)];
            let Ok(done) = self.settler.end_leases(self.shard, part, &self.cause).await else {
                self.restart_grace();
                break;
            };
            ended += done.ended_here;
            let is_left = |lease: &RunningLease| {
                done.not_ended.iter().any(|left| left.lease_ref() == lease.lease_ref())
            };
            let part = leases.drain(..part.len()).filter(|lease| !is_left(lease));
            let part: Vec<RunningLease> = part.collect();
            if done.ended < part.len() {
                rest.extend(part);
            }
            left.extend(done.not_ended);
        }
        if !left.is_empty() {
            self.restart_grace();
            leases.extend(left);
        }
        if ended > 0 {
            tracing::info!(shard = %self.shard.name(), ended, "leases of broken streams released after their grace");
        }
        rest
    }

    /// Detaches the leases that still run, so that they outlive their streams.
    async fn detach(&self, leases: &[RunningLease], read: Time) {
        for part in leases.chunks(limit::CALL_JOBS_MAX) {
            let detach = |lease: &RunningLease| {
                let detach = Command::Detach { token: lease.token, stream: lease.stream_id() };
                JobRequest::new(lease.key.clone(), detach)
            };
            let detach = || self.shard.apply_all(part.iter().map(detach).collect());
            self.retry(last_deadline(part, read), detach).await;
        }
    }

    /// Retries a failed call until `last` has passed or the task is to stop.
    async fn retry<T, F: Future<Output = shards::Result<T>>>(
        &self,
        last: Time,
        call: impl Fn() -> F,
    ) -> Option<T> {
        let clock: &Clock = self.settler.clock();
        let mut pauses = Backoff::new(RETRY_DELAYS);
        let mut has_failed = false;
        loop {
            match call().await {
                Ok(answer) => {
                    if has_failed {
                        self.restart_grace();
                    }
                    return Some(answer);
                }
                Err(_) if clock.now() >= last => return None,
                Err(_) => has_failed = true,
            }
            tokio::select! {
                () = self.shard.pause_before_retry(pauses.next_delay()) => {}
                () = self.stop.cancelled() => return None,
            }
        }
    }

    fn grace_begin(&self) -> Time {
        Time(self.grace_begin.load(Relaxed))
    }

    /// Restarts the grace.
    fn restart_grace(&self) {
        self.grace_begin.store(self.settler.clock().now().0, Relaxed);
    }
}

/// Returns the last deadline of these leases, on the clock of this replica, which read them at `read`.
fn last_deadline(leases: &[RunningLease], read: Time) -> Time {
    let left = leases.iter().map(|lease| lease.deadline.since(lease.now)).max();
    read.plus(left.unwrap_or_default())
}

/// Returns whether the lease ends within the grace of its stream, which broke at `broke`.
fn ends_in(lease: &RunningLease, broke: Time, grace: Duration) -> bool {
    lease.deadline <= broke.plus(grace)
}

/// Returns whether the lease was not extended since its stream was last `alive`, and the grace, which begins at the
/// break, ends before the lease does. A longer grace means that the lease outlives its stream.
fn is_orphan(lease: &RunningLease, alive: Time, broke: Time, grace: Duration) -> bool {
    let extended_since = alive.minus(limit::EXTEND_BEFORE_BREAK);
    let extended = lease.extend_time.is_some_and(|at| at >= extended_since);
    !extended && !ends_in(lease, broke, grace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lifecycle::AttemptContext;
    use crate::domain::{JobId, JobKey, Token, TopicName};

    const SECOND: Duration = Duration::from_secs(1);

    /// Builds a lease that was last extended this many milliseconds after zero.
    fn lease(extended: Option<i64>) -> RunningLease {
        let key = JobKey { topic: TopicName::stored("t"), id: JobId::stored("1") };
        let attempt = AttemptContext {
            failures: 0,
            deliveries: 0,
            crashes: 0,
            is_replaced: false,
            first_start: Time(0),
            retry: None,
        };
        RunningLease {
            key,
            token: Token(1),
            deadline: at(30),
            start_time: at(0),
            worker: String::new(),
            extend_time: extended.map(|ms| Time(ms * 1_000)),
            owner: 1,
            stream: 1,
            grace: Some(5 * SECOND),
            bytes: 0,
            attempt,
            now: at(10),
        }
    }

    fn at(seconds: i64) -> Time {
        Time(seconds * 1_000_000)
    }

    #[test]
    fn extend_near_the_break_keeps_a_lease() {
        let is_orphan = |extended| is_orphan(&lease(extended), at(10), at(10), 5 * SECOND);
        assert!(is_orphan(None) && is_orphan(Some(9_499)));
        assert!(!is_orphan(Some(9_500)) && !is_orphan(Some(11_000)));
    }

    #[test]
    fn extend_since_the_last_heartbeat_keeps_a_lease() {
        let is_orphan = |extended| is_orphan(&lease(extended), at(2), at(12), 5 * SECOND);
        assert!(is_orphan(None) && is_orphan(Some(1_499)));
        assert!(!is_orphan(Some(1_500)) && !is_orphan(Some(8_000)));
    }

    #[test]
    fn a_grace_longer_than_the_lease_means_never() {
        assert!(is_orphan(&lease(None), at(10), at(10), 19 * SECOND));
        assert!(!is_orphan(&lease(None), at(10), at(10), 20 * SECOND));
        assert!(!is_orphan(&lease(None), at(0), at(11), 19 * SECOND));
    }
}
