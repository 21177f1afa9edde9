//! Group commit: while the maximum number of calls is in flight, the next batch collects. There is no timer, so an
//! idle shard answers at once; a busy one answers many callers with one call, of bounded size.
//!
//! A queue may have a [`QueueDelay`]: then callers that have waited too long are refused, without a call.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::domain::limit;
use crate::store::{self, Error};

use super::queue_delay::{CHECK_INTERVAL, QueueDelay};

/// Number of callers that may wait; more are held back in [`Batcher::call`], which cancels cleanly.
const CALLERS_MAX: usize = 4_096;
/// Number of calls in flight, where they await no confirmation. Two, so that the store works on one while the answers
/// of the other are sent; the order of calls is kept, because each begins before the next is collected.
pub(super) const CALLS_MAX: usize = 2;

/// Cheap-clone handle to a batch loop, which ends when the last handle is dropped.
pub(super) struct Batcher<I, O> {
    queue: mpsc::Sender<CallerItems<I, O>>,
}

/// Items of one caller, which stay together and in order.
struct CallerItems<I, O> {
    items: Vec<I>,
    reply: oneshot::Sender<CallResults<O>>,
    queued: Instant,
    patience: Patience,
}

/// Patience of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// The caller waits for its turn, however long that takes.
    Unlimited,
    /// The caller is refused once it has waited too long.
    Limited,
}

/// Result of each item.
type CallResults<O> = Vec<store::Result<O>>;

/// Items that wait for their call.
struct BatchQueue<I, O> {
    groups: mpsc::Receiver<CallerItems<I, O>>,
    /// Groups that were taken from the queue but not called yet: the first ones of the next call.
    held: VecDeque<CallerItems<I, O>>,
    bytes: Box<dyn Fn(&I) -> usize + Send + Sync>,
    delay: Option<QueueDelay>,
}

/// Items of one call, with their callers.
struct CallBatch<I, O> {
    /// Items of each caller.
    groups: Vec<Vec<I>>,
    items: usize,
    bytes: usize,
    waiters: Vec<ReplyWaiter<O>>,
}

/// Number of items of a caller in a call, and the channel for their results.
type ReplyWaiter<O> = (usize, oneshot::Sender<CallResults<O>>);
type BatchCall<I, O> = Arc<dyn Fn(Vec<I>) -> BoxFuture<'static, CallResults<O>> + Send + Sync>;

// === impl Batcher ===

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Starts the loop that batches items for `call`, of which `calls` may be in flight; `bytes` returns the size of
    /// an item. Callers are refused by `delay`, if there is one.
    pub(super) fn spawn(
        calls: usize,
        delay: Option<QueueDelay>,
        bytes: impl Fn(&I) -> usize + Send + Sync + 'static,
        call: impl Fn(Vec<I>) -> BoxFuture<'static, CallResults<O>> + Send + Sync + 'static,
    ) -> Batcher<I, O> {
        let (queue, groups) = mpsc::channel(CALLERS_MAX);
        let pending = BatchQueue { groups, held: VecDeque::new(), bytes: Box::new(bytes), delay };
        tokio::spawn(batch_loop(calls, pending, Arc::new(call)));
        Batcher { queue }
    }

    /// Submits `items` and waits for their results. If it is dropped before its turn, nothing is called; if it is
    /// dropped later, the outcome is unknown.
    pub(super) async fn call(&self, items: Vec<I>, patience: Patience) -> Vec<store::Result<O>> {
        let (count, (reply, answers)) = (items.len(), oneshot::channel());
        let failed = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
        let queued = Instant::now();
        let group = CallerItems { items, reply, queued, patience };
        if self.queue.send(group).await.is_err() {
            return failed(Error::Unavailable("the server is shutting down".into()));
        }
        answers
            .await
            .unwrap_or_else(|_| failed(Error::OutcomeUnknown("the call was dropped".into())))
    }
}

impl<I, O> Clone for Batcher<I, O> {
    fn clone(&self) -> Batcher<I, O> {
        Batcher { queue: self.queue.clone() }
    }
}

// === impl BatchQueue ===

impl<I, O> BatchQueue<I, O> {
    /// Returns the next batch: at least one group, and more of those that wait, in order, as long as the call stays
    /// within its bounds. `None` when there will be no more groups. Cancels cleanly.
    async fn next_batch(&mut self) -> Option<CallBatch<I, O>> {
        let mut next = match self.next_waiting() {
            None => {
                if let Some(delay) = &mut self.delay {
                    delay.reset();
                }
                self.groups.recv().await
            }
            waiting => waiting,
        };
        next.as_ref()?;
        let mut batch = CallBatch { groups: Vec::new(), items: 0, bytes: 0, waiters: Vec::new() };
        let now = Instant::now();
        while let Some(group) = next {
            if let Some(group) = self.refuse_late(group, now) {
                let bytes = group.items.iter().map(&self.bytes).sum();
                if let Err(group) = batch.add(group, bytes) {
                    self.held.push_front(group);
                    break;
                }
            }
            next = self.next_waiting();
        }
        Some(batch)
    }

    fn next_waiting(&mut self) -> Option<CallerItems<I, O>> {
        self.held.pop_front().or_else(|| self.groups.try_recv().ok())
    }

    /// Refuses a group that has waited too long, or returns it.
    fn refuse_late(&mut self, group: CallerItems<I, O>, now: Instant) -> Option<CallerItems<I, O>> {
        let Some(delay) = self.delay.as_mut().filter(|_| group.patience == Patience::Limited)
        else {
            return Some(group);
        };
        if group.reply.is_closed() || !delay.is_too_long(group.queued, now) {
            return Some(group);
        }
        let waited = now.saturating_duration_since(group.queued);
        let error = Error::Overloaded(format!("the call waited {waited:.1?} for its turn"));
        let answers = group.items.iter().map(|_| Err(error.clone())).collect();
        let _ = group.reply.send(answers);
        None
    }

    /// Refuses the groups that have waited too long while no call can be made.
    fn refuse_all_late(&mut self) {
        if self.delay.is_none() {
            return;
        }
        while self.held.len() < CALLERS_MAX
            && let Ok(group) = self.groups.try_recv()
        {
            self.held.push_back(group);
        }
        let now = Instant::now();
        for group in std::mem::take(&mut self.held) {
            let may_wait =
                self.delay.as_ref().is_some_and(|delay| delay.may_wait(group.queued, now));
            let kept = if may_wait { Some(group) } else { self.refuse_late(group, now) };
            self.held.extend(kept);
        }
    }
}

// === impl CallBatch ===

impl<I, O> CallBatch<I, O> {
    /// Adds a group, or returns it when there is no room for it. A group whose caller has gone is dropped.
    fn add(&mut self, group: CallerItems<I, O>, bytes: usize) -> Result<(), CallerItems<I, O>> {
        if group.reply.is_closed() {
            return Ok(());
        }
        if !self.has_room(group.items.len(), bytes) {
            return Err(group);
        }
        self.waiters.push((group.items.len(), group.reply));
        self.items += group.items.len();
        self.bytes += bytes;
        self.groups.push(group.items);
        Ok(())
    }

    /// Returns whether a group fits. The items of one caller stay together, so a large group has a call to itself.
    fn has_room(&self, items: usize, bytes: usize) -> bool {
        let items_fit = self.items + items <= limit::CALL_JOBS_MAX;
        let bytes_fit = self.bytes + bytes <= limit::CALL_BYTES_MAX;
        self.waiters.is_empty() || items_fit && bytes_fit
    }

    /// Returns the items of all callers, moved once: the batch of a busy shard has many.
    fn all(groups: Vec<Vec<I>>, items: usize) -> Vec<I> {
        let mut groups = groups.into_iter();
        let first = groups.next().unwrap_or_default();
        if groups.len() == 0 {
            return first;
        }
        let mut all = Vec::with_capacity(items);
        all.extend(first);
        groups.for_each(|group| all.extend(group));
        all
    }
}

async fn batch_loop<I, O>(calls: usize, mut pending: BatchQueue<I, O>, call: BatchCall<I, O>)
where
    I: Send + 'static,
    O: Send + 'static,
{
    let mut under_way = FuturesUnordered::new();
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let sheds = pending.delay.is_some();
    loop {
        let has_room = under_way.len() < calls;
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            batch = pending.next_batch(), if has_room => match batch {
                Some(batch) if batch.waiters.is_empty() => {}
                Some(CallBatch { groups, items, waiters, .. }) => {
                    let result = call(CallBatch::<I, O>::all(groups, items));
                    // A panic in it fails this batch, and the loop goes on with the next one.
                    let result = AssertUnwindSafe(result).catch_unwind();
                    under_way.push(result.map(move |answers| {
                        send_results(waiters, answers.unwrap_or_else(|_| panicked(items)));
                    }));
                }
                None => break,
            },
            _ = checks.tick(), if !has_room && sheds => pending.refuse_all_late(),
        }
    }
    while under_way.next().await.is_some() {}
}

/// Returns the results of a call that panicked.
fn panicked<O>(items: usize) -> CallResults<O> {
    tracing::error!("a store call panicked; its jobs are answered OUTCOME_UNKNOWN");
    (0..items).map(|_| Err(Error::OutcomeUnknown("the call panicked".into()))).collect()
}

/// Sends each caller its results. A caller that has gone is skipped: its items were applied all the same.
fn send_results<O>(waiters: Vec<ReplyWaiter<O>>, answers: CallResults<O>) {
    let mut answers = answers.into_iter();
    for (count, reply) in waiters {
        let _ = reply.send(answers.by_ref().take(count).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::sync::Semaphore;

    use super::super::queue_delay::{Overload, WAIT_MAX};
    use super::*;

    /// Batches numbers, each as large as its value; records the calls, each of which waits for a permit.
    struct TestBatcher {
        batcher: Batcher<usize, usize>,
        calls: Arc<Mutex<Vec<Vec<usize>>>>,
        gate: Arc<Semaphore>,
    }

    impl TestBatcher {
        fn new() -> TestBatcher {
            TestBatcher::with_delay(None)
        }

        fn with_delay(delay: Option<QueueDelay>) -> TestBatcher {
            let calls = Arc::new(Mutex::new(Vec::new()));
            let gate = Arc::new(Semaphore::new(0));
            let (seen, opened) = (Arc::clone(&calls), Arc::clone(&gate));
            let batcher = Batcher::spawn(
                CALLS_MAX,
                delay,
                |n: &usize| *n,
                move |items: Vec<usize>| {
                    seen.lock().push(items.clone());
                    let gate = Arc::clone(&opened);
                    Box::pin(async move {
                        gate.acquire().await.unwrap().forget();
                        items.into_iter().map(|n| Ok(n * 2)).collect()
                    })
                },
            );
            TestBatcher { batcher, calls, gate }
        }

        /// Submits the groups one after the other, then ends every call; each group gets its answers.
        async fn answer(&self, groups: &[Vec<usize>]) {
            let mut calls: Vec<_> = groups
                .iter()
                .map(|items| Box::pin(self.batcher.call(items.clone(), Patience::Limited)))
                .collect();
            for call in &mut calls {
                assert!(futures::poll!(call.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
            self.gate.add_permits(groups.len());
            for (items, call) in groups.iter().zip(calls) {
                assert_eq!(call.await, items.iter().map(|n| Ok(n * 2)).collect::<Vec<_>>());
            }
        }

        /// Number of items of each call.
        fn sizes(&self) -> Vec<usize> {
            self.calls.lock().iter().map(Vec::len).collect()
        }
    }

    #[tokio::test]
    async fn what_waits_while_calls_are_under_way_goes_as_one_call() {
        let numbers = TestBatcher::new();
        let groups: Vec<_> = (0..10).map(|n| vec![n, n + 100]).collect();
        numbers.answer(&groups).await;
        assert_eq!(numbers.sizes(), [2, 2, 16]);
        assert_eq!(numbers.calls.lock().concat(), groups.concat(), "in order");
    }

    #[tokio::test]
    async fn a_call_that_panics_fails_its_batch_and_not_the_next_one() {
        let batcher = Batcher::spawn(
            CALLS_MAX,
            None,
            |_: &usize| 1,
            |items: Vec<usize>| {
                Box::pin(async move {
                    assert!(items[0] != 0, "zero");
                    items.into_iter().map(Ok).collect()
                })
            },
        );
        let failed = batcher.call(vec![0, 1], Patience::Unlimited).await;
        assert_eq!(failed.len(), 2);
        assert!(failed.iter().all(|answer| matches!(answer, Err(Error::OutcomeUnknown(_)))));
        assert_eq!(batcher.call(vec![2], Patience::Unlimited).await, [Ok(2)]);
    }

    #[tokio::test]
    async fn a_call_takes_so_many_items_and_bytes_and_the_rest_goes_next() {
        const HALF: usize = limit::CALL_JOBS_MAX / 2;
        const BYTES: usize = limit::CALL_BYTES_MAX;
        let numbers = TestBatcher::new();
        let busy = [vec![0], vec![0]];
        let many = [vec![1; HALF], vec![2; HALF], vec![3; 2 * HALF + 1], vec![4]];
        let large =
            [vec![BYTES / 2], vec![BYTES / 2 - 4], vec![1], vec![BYTES; 2], vec![5], vec![6]];
        let groups = [&busy[..], &many, &large].concat();
        numbers.answer(&groups).await;
        assert_eq!(numbers.sizes(), [1, 1, 2 * HALF, 2 * HALF + 1, 3, 1, 2, 2]);
        assert_eq!(numbers.calls.lock().concat(), groups.concat(), "in order");
    }

    #[tokio::test]
    async fn what_fails_of_one_caller_fails_no_other() {
        let full = || Error::Full("no space".into());
        let odd = |items: Vec<usize>| -> BoxFuture<'static, Vec<store::Result<usize>>> {
            let answer = |n| if n % 2 == 1 { Err(Error::Full("no space".into())) } else { Ok(n) };
            Box::pin(async move { items.into_iter().map(answer).collect() })
        };
        let batcher = Batcher::spawn(1, None, |_| 0, odd);
        let (one, other) = futures::join!(
            batcher.call(vec![1, 2, 3], Patience::Unlimited),
            batcher.call(vec![4, 6], Patience::Unlimited)
        );
        assert_eq!(one, [Err(full()), Ok(2), Err(full())]);
        assert_eq!(other, [Ok(4), Ok(6)]);
    }

    /// Calls that wait behind calls without an answer are refused, except those of unlimited patience; the others that
    /// come later are executed once there is room.
    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_long_behind_a_store_that_stands_still_are_refused() {
        let overload = Overload::default();
        let numbers = TestBatcher::with_delay(Some(QueueDelay::new(WAIT_MAX, overload.clone())));
        let submit = |items: Vec<usize>, patience| {
            let batcher = numbers.batcher.clone();
            tokio::spawn(async move {
                let begun = Instant::now();
                (batcher.call(items, patience).await, begun.elapsed())
            })
        };
        let mut in_flight = Vec::new();
        for n in 0..CALLS_MAX {
            in_flight.push(submit(vec![n], Patience::Limited));
            tokio::task::yield_now().await;
        }
        let settle = submit(vec![7], Patience::Unlimited);
        let (late, waited) = submit(vec![8, 9], Patience::Limited).await.unwrap();
        let refused = |answer: &store::Result<usize>| matches!(answer, Err(Error::Overloaded(_)));
        assert!(late.len() == 2 && late.iter().all(refused), "{late:?}");
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(3), "{waited:?}");
        assert!(overload.is_on() && !settle.is_finished());
        let (again, waited) = submit(vec![10], Patience::Limited).await.unwrap();
        assert!(again.iter().all(refused) && waited <= Duration::from_millis(1_250), "{waited:?}");
        let fresh = submit(vec![11], Patience::Limited);
        tokio::task::yield_now().await;
        numbers.gate.add_permits(9);
        assert_eq!(fresh.await.unwrap().0, [Ok(22)]);
        assert_eq!(settle.await.unwrap().0, [Ok(14)]);
        assert!(!overload.is_on());
        assert!(in_flight.iter().all(tokio::task::JoinHandle::is_finished));
    }
}
