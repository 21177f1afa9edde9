//! Coalesces reads: one at a time; callers that come while it is in flight share the next one. With any number of
//! callers the shard works on one such read, and each answer was read after its caller had asked.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Reads of one kind. Each caller adds to the question `Q` of the next read; all its callers get the same answer.
pub(super) struct CoalescedRead<Q, T> {
    inner: Arc<CoalescedReadInner<Q, T>>,
}

struct CoalescedReadInner<Q, T> {
    /// Lock held by the read in flight.
    gate: tokio::sync::Mutex<()>,
    next: Mutex<Option<NextRead<Q, T>>>,
}

/// A read that has not begun.
struct NextRead<Q, T> {
    question: Q,
    answer: SharedAnswer<T>,
}

/// Answer of a read; `None`: the read was dropped, because the runtime ends.
type SharedAnswer<T> = Shared<BoxFuture<'static, Option<T>>>;

// === impl CoalescedRead ===

impl<Q, T> Default for CoalescedRead<Q, T> {
    fn default() -> Self {
        let inner =
            CoalescedReadInner { gate: tokio::sync::Mutex::new(()), next: Mutex::new(None) };
        CoalescedRead { inner: Arc::new(inner) }
    }
}

impl<Q: Default + Send + 'static, T: Clone + Send + Sync + 'static> CoalescedRead<Q, T> {
    /// Adds to the question of the next read and waits for its answer. A read goes on when no caller waits any more:
    /// there are two reads at most, one that runs and one that waits.
    pub(super) async fn read<F: Future<Output = T> + Send>(
        &self,
        add: impl FnOnce(&mut Q),
        read: impl FnOnce(Q) -> F + Send + 'static,
    ) -> Option<T> {
        let answer = {
            let mut next = self.inner.next.lock();
            let next = next.get_or_insert_with(|| CoalescedReadInner::begin(&self.inner, read));
            add(&mut next.question);
            next.answer.clone()
        };
        answer.await
    }
}

// === impl CoalescedReadInner ===

impl<Q: Default + Send + 'static, T: Clone + Send + Sync + 'static> CoalescedReadInner<Q, T> {
    fn begin<F: Future<Output = T> + Send>(
        inner: &Arc<Self>,
        read: impl FnOnce(Q) -> F + Send + 'static,
    ) -> NextRead<Q, T> {
        let (reply, answer) = oneshot::channel();
        let reader = Arc::clone(inner);
        tokio::spawn(async move {
            let _one = reader.gate.lock().await;
            let next = reader.next.lock().take();
            if let Some(next) = next {
                // Callers may have gone.
                let _ = reply.send(read(next.question).await);
            }
        });
        let answer = answer.map(Result::ok).boxed().shared();
        NextRead { question: Q::default(), answer }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn callers_share_the_next_read_and_none_gets_one_that_began_before() {
        let (flight, permits) = (CoalescedRead::<Vec<usize>, usize>::default(), Semaphore::new(0));
        let (permits, reads) = (Arc::new(permits), Arc::new(AtomicUsize::new(0)));
        let ask = |caller| {
            let (permits, reads) = (Arc::clone(&permits), Arc::clone(&reads));
            flight.read(
                move |question| question.push(caller),
                async move |question: Vec<usize>| {
                    permits.acquire().await.unwrap().forget();
                    reads.fetch_add(1, Ordering::Relaxed);
                    question.len()
                },
            )
        };
        let mut first = Box::pin(ask(0));
        assert!(futures::poll!(first.as_mut()).is_pending());
        tokio::task::yield_now().await;
        let mut others = Box::pin(join_all((1..100).map(ask)));
        assert!(futures::poll!(others.as_mut()).is_pending());
        permits.add_permits(1);
        assert_eq!(first.await, Some(1));
        permits.add_permits(1);
        assert_eq!(others.await, vec![Some(99); 99], "each asked before that read began");
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_read_that_was_given_up_makes_room_for_the_next() {
        let flight = CoalescedRead::<(), ()>::default();
        let (begun, hold) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let ask = || {
            let (begun, hold) = (Arc::clone(&begun), Arc::clone(&hold));
            flight.read(
                |()| {},
                async move |()| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    hold.acquire().await.unwrap().forget();
                },
            )
        };
        for _ in 0..50 {
            let mut given_up = Box::pin(ask());
            assert!(futures::poll!(given_up.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::Relaxed), 1, "one at a time");
        hold.add_permits(9);
        assert_eq!(ask().await, Some(()));
        assert!(begun.load(Ordering::Relaxed) <= 3, "one for all that were given up");
    }
}
