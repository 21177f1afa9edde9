//! Looks at deadlines when they come: what waited for its transport for a third of its lease, or ten seconds, goes
//! back uncounted, so that no lease runs out in an outbox and no job waits for a worker that does not read; and a lease that has run out without a
//! word is looked up in the store, because memory alone never says that it is over. So is what a stream
//! holds that gets nothing more for it, and everything after hints may have been lost: another replica
//! may have settled it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::{Time, limit};
use crate::scheduler::{Fate, Scheduler};
use crate::shards;
use crate::store::{LeaseRef, Revoked};

use super::stream::Stream;
use super::streams::Streams;

/// Time between two looks at least, however many deadlines come.
const LOOKS_APART: Duration = Duration::from_millis(100);
/// Pause after a failed call, at least.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs until `stop`.
pub(super) async fn run(scheduler: Scheduler, streams: Arc<Streams>, stop: CancellationToken) {
    let mut asking: BTreeMap<usize, AbortOnDropHandle<()>> = BTreeMap::new();
    let watching = async {
        loop {
            wait(&scheduler, &streams).await;
            streams.alarm.reset();
            asking.retain(|_, asked| !asked.is_finished());
            let shards = scheduler.shards().all().len();
            let questions = look(&streams, scheduler.clock().now(), shards).await;
            for (shard, mut question) in questions.into_iter().enumerate() {
                let asked = asking.contains_key(&shard);
                if streams.clear_doubt(shard) {
                    if asked {
                        streams.doubt(shard);
                    } else {
                        question = Question { streams: streams.all(), ..Question::default() };
                    }
                }
                // One call at a time, and beside the other shards: one may hang. What is not asked for
                // now is found again by a later look.
                if !question.is_empty() && !asked {
                    let ask = ask(scheduler.clone(), Arc::clone(&streams), shard, question);
                    asking.insert(shard, AbortOnDropHandle::new(tokio::spawn(ask)));
                }
            }
            tokio::time::sleep(LOOKS_APART).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = watching => {}
    }
}

/// Waits until some stream needs a look.
async fn wait(scheduler: &Scheduler, streams: &Streams) {
    loop {
        let at = streams.alarm.at();
        tokio::select! {
            () = scheduler.clock().sleep_until(at) => return,
            () = streams.alarm.moved() => {}
        }
    }
}

/// What a shard is to be asked about.
#[derive(Default)]
pub(super) struct Question {
    /// Leases, and the streams that hold them.
    leases: Vec<(u32, LeaseRef)>,
    /// Streams of which every lease that the worker has is meant. They may hold a million, so these are not collected
    /// before it is their turn.
    streams: Vec<Arc<Stream>>,
}

/// Gives back what is stale; answers what is to be asked for, by shard. Streams may hold ten thousand jobs each, so others
/// come between two of them.
async fn look(streams: &Streams, now: Time, shards: usize) -> Vec<Question> {
    let mut questions: Vec<_> = (0..shards).map(|_| Question::default()).collect();
    for stream in streams.all() {
        let look = stream.ledger().look(now);
        streams.alarm.by(look.next);
        if !look.stale.is_empty() {
            let (stream, jobs) = (stream.name(), look.stale.len());
            tracing::info!(stream, jobs, "jobs go back from a stream that does not read");
        }
        streams.give_back(look.stale);
        if look.check_credit {
            questions.iter_mut().for_each(|question| question.streams.push(Arc::clone(&stream)));
        } else {
            for unsure in look.unsure {
                questions[unsure.shard].leases.push((stream.id(), unsure.lease));
            }
        }
        tokio::task::yield_now().await;
    }
    questions
}

/// Asks the shard about leases. When it does not answer all of them are in doubt, once it does again.
pub(super) async fn ask(
    scheduler: Scheduler,
    streams: Arc<Streams>,
    shard: usize,
    question: Question,
) {
    let asking = Asking { scheduler, streams, shard };
    if asking.ask(question).await.is_err() {
        asking.scheduler.shards().all()[shard].wait_out(PAUSE).await;
        asking.streams.doubt(shard);
    }
}

struct Asking {
    scheduler: Scheduler,
    streams: Arc<Streams>,
    shard: usize,
}

// === impl Question ===

impl Question {
    /// About these leases.
    pub(super) fn about(leases: Vec<(u32, LeaseRef)>) -> Question {
        Question { leases, streams: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.streams.is_empty()
    }
}

// === impl Asking ===

impl Asking {
    async fn ask(&self, question: Question) -> shards::Result<()> {
        let mut part = Vec::new();
        for (stream, lease) in question.leases {
            part.push((stream, lease));
            self.ask_if_full(&mut part).await?;
        }
        for stream in question.streams {
            let tokens = stream.ledger().tokens_on(self.shard);
            let mut left = &tokens[..];
            while !left.is_empty() {
                let (some, others) = left.split_at(left.len().min(limit::PART_MAX - part.len()));
                left = others;
                let leases = stream.ledger().leases(some);
                part.extend(leases.into_iter().map(|lease| (stream.id(), lease)));
                self.ask_if_full(&mut part).await?;
            }
            tokio::task::yield_now().await;
        }
        self.ask_part(part).await
    }

    async fn ask_if_full(&self, part: &mut Vec<(u32, LeaseRef)>) -> shards::Result<()> {
        if part.len() < limit::PART_MAX {
            return Ok(());
        }
        self.ask_part(std::mem::take(part)).await
    }

    /// Asks about as many as one call takes.
    async fn ask_part(&self, part: Vec<(u32, LeaseRef)>) -> shards::Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let refs: Vec<_> = part.iter().map(|(_, lease)| lease.clone()).collect();
        let shard = &self.scheduler.shards().all()[self.shard];
        let fates = self.scheduler.fates(shard, &refs).await?;
        let now = self.scheduler.clock().now();
        for ((stream, lease), fate) in part.into_iter().zip(fates) {
            match fate {
                Fate::Runs(left) => self.streams.extended(stream, &[lease.token], now.plus(left)),
                Fate::Done => self.streams.ended(stream, &[lease.token]),
                Fate::Lost => {
                    self.streams.revoke(self.shard, stream, &[lease.token], Revoked::LeaseExpired);
                }
            }
        }
        // Streams may hold a million leases, and no caller waits for this: three quarters of the time are left to deliveries.
        tokio::time::sleep(3 * begin.elapsed()).await;
        Ok(())
    }
}
