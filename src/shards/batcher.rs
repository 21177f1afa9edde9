//! Group commit: while one call is under way the next batch collects. No timer, so an idle shard
//! answers at once; a busy one answers many callers with one call.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use crate::domain::limit;
use crate::store::{self, Error};

/// Callers that may wait; more are held back in [`Batcher::call`], which cancels cleanly.
const CALLERS_MAX: usize = 4_096;
/// Calls under way. Two, so that the store works on one while the answers of the other are given
/// out; the order of calls is kept, because each is begun before the next is collected.
const CALLS_MAX: usize = 2;

/// A cheap-clone handle; the loop behind it ends when the last one is gone.
pub(super) struct Batcher<I, O> {
    queue: mpsc::Sender<Group<I, O>>,
}

/// The items of one caller, which stay together and in order.
struct Group<I, O> {
    items: Vec<I>,
    reply: oneshot::Sender<store::Result<Vec<O>>>,
}

/// Who waits for how many items of a call.
type Waiter<O> = (usize, oneshot::Sender<store::Result<Vec<O>>>);
type Call<I, O> = Arc<dyn Fn(Vec<I>) -> BoxFuture<'static, store::Result<Vec<O>>> + Send + Sync>;

// === impl Batcher ===

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Starts the loop in front of `call`.
    pub(super) fn spawn(
        call: impl Fn(Vec<I>) -> BoxFuture<'static, store::Result<Vec<O>>> + Send + Sync + 'static,
    ) -> Batcher<I, O> {
        let (queue, groups) = mpsc::channel(CALLERS_MAX);
        tokio::spawn(run(groups, Arc::new(call)));
        Batcher { queue }
    }

    /// Hands in `items` and waits for their results. Dropped before its turn it is not called;
    /// dropped later the outcome is unknown.
    pub(super) async fn call(&self, items: Vec<I>) -> store::Result<Vec<O>> {
        let (reply, result) = oneshot::channel();
        let gone = || Error::Unavailable("the server is shutting down".into());
        self.queue.send(Group { items, reply }).await.map_err(|_| gone())?;
        result.await.map_err(|_| Error::Unknown("the call was dropped".into()))?
    }
}

impl<I, O> Clone for Batcher<I, O> {
    fn clone(&self) -> Batcher<I, O> {
        Batcher { queue: self.queue.clone() }
    }
}

async fn run<I, O>(mut groups: mpsc::Receiver<Group<I, O>>, call: Call<I, O>)
where
    I: Send + 'static,
    O: Send + 'static,
{
    let mut under_way = FuturesUnordered::new();
    let mut collected = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            n = groups.recv_many(&mut collected, limit::CALL_JOBS_MAX),
                if under_way.len() < CALLS_MAX =>
            {
                if n == 0 {
                    break;
                }
                if let Some(answered) = begin(&mut collected, &call) {
                    under_way.push(answered);
                }
            }
        }
    }
    while under_way.next().await.is_some() {}
}

/// Begins one call for all collected groups whose caller still waits.
fn begin<I, O>(
    collected: &mut Vec<Group<I, O>>,
    call: &Call<I, O>,
) -> Option<impl Future<Output = ()> + use<I, O>> {
    let mut items = Vec::new();
    let mut waiters: Vec<Waiter<O>> = Vec::with_capacity(collected.len());
    for group in collected.drain(..).filter(|group| !group.reply.is_closed()) {
        waiters.push((group.items.len(), group.reply));
        if items.is_empty() { items = group.items } else { items.extend(group.items) }
    }
    if waiters.is_empty() {
        return None;
    }
    let result = call(items);
    Some(async move { answer(waiters, result.await) })
}

/// Gives each caller its share. One that has gone is skipped: its items were applied all the same.
fn answer<O>(waiters: Vec<Waiter<O>>, result: store::Result<Vec<O>>) {
    match result {
        Ok(results) => {
            let mut results = results.into_iter();
            for (count, reply) in waiters {
                let _ = reply.send(Ok(results.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, reply) in waiters {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn what_waits_while_calls_are_under_way_goes_as_one_call() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let gate = Arc::new(Semaphore::new(0));
        let batcher = {
            let (sizes, gate) = (Arc::clone(&sizes), Arc::clone(&gate));
            Batcher::spawn(move |items: Vec<u32>| {
                sizes.lock().unwrap().push(items.len());
                let gate = Arc::clone(&gate);
                Box::pin(async move {
                    gate.acquire().await.unwrap().forget();
                    Ok(items.into_iter().map(|n| n * 2).collect::<Vec<u32>>())
                })
            })
        };
        let mut calls: Vec<_> = (0..10)
            .map(|n| {
                let batcher = batcher.clone();
                Box::pin(async move { batcher.call(vec![n, n + 100]).await })
            })
            .collect();
        for call in &mut calls {
            assert!(futures::poll!(call.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
        gate.add_permits(10);
        for (n, call) in (0..).zip(calls) {
            assert_eq!(call.await, Ok(vec![n * 2, (n + 100) * 2]));
        }
        assert_eq!(*sizes.lock().unwrap(), [2, 2, 16]);
    }

    #[tokio::test]
    async fn a_failed_call_fails_every_caller_of_it() {
        let error = Error::Full("no space".into());
        let batcher: Batcher<u32, u32> = {
            let error = error.clone();
            Batcher::spawn(move |_| {
                let error = error.clone();
                Box::pin(async move { Err(error) })
            })
        };
        assert_eq!(batcher.call(vec![1]).await, Err(error));
    }
}
