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
use crate::store::{LeaseRef, Revoked};

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
            let mut unsure = look(&streams, scheduler.clock().now()).await;
            for shard in 0..scheduler.shards().all().len() {
                let asked = asking.contains_key(&shard);
                if streams.clear_doubt(shard) {
                    if asked {
                        streams.doubt(shard);
                    } else {
                        unsure.insert(shard, all_on(&streams, shard).await);
                    }
                }
                // One call at a time, and beside the other shards: one may hang. What is not asked for
                // now is found again by a later look.
                if let Some(leases) =
                    unsure.remove(&shard).filter(|leases| !leases.is_empty() && !asked)
                {
                    let ask = ask(scheduler.clone(), Arc::clone(&streams), shard, leases);
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

type Unsure = BTreeMap<usize, Vec<(u32, LeaseRef)>>;

/// Gives back what is stale; answers what is to be asked for, by shard. Streams may hold ten thousand jobs each, so others
/// come between two of them.
async fn look(streams: &Streams, now: Time) -> Unsure {
    let mut unsure = Unsure::new();
    for stream in streams.all() {
        let look = stream.look(now);
        streams.alarm.by(look.next);
        if !look.stale.is_empty() {
            let (stream, jobs) = (stream.name(), look.stale.len());
            tracing::info!(stream, jobs, "jobs go back from a stream that does not read");
        }
        streams.give_back(look.stale);
        for loose in look.unsure {
            unsure.entry(loose.shard).or_default().push((stream.id(), loose.lease));
        }
        tokio::task::yield_now().await;
    }
    unsure
}

/// Every lease of the shard that a worker has.
async fn all_on(streams: &Streams, shard: usize) -> Vec<(u32, LeaseRef)> {
    let mut all = Vec::new();
    for stream in streams.all() {
        let sent = stream.ledger().sent_on(shard);
        all.extend(sent.into_iter().map(|(loose, _)| (stream.id(), loose.lease)));
        tokio::task::yield_now().await;
    }
    all
}

/// Asks the shard about leases. When it does not answer all of them are in doubt, once it does again.
pub(super) async fn ask(
    scheduler: Scheduler,
    streams: Arc<Streams>,
    shard: usize,
    leases: Vec<(u32, LeaseRef)>,
) {
    let at = &scheduler.shards().all()[shard];
    for part in leases.chunks(limit::PART_MAX) {
        let begin = Instant::now();
        let refs: Vec<_> = part.iter().map(|(_, lease)| lease.clone()).collect();
        let Ok(fates) = scheduler.fates(at, &refs).await else {
            at.wait_out(PAUSE).await;
            streams.doubt(shard);
            return;
        };
        let now = scheduler.clock().now();
        for ((stream, lease), fate) in part.iter().zip(fates) {
            match fate {
                Fate::Runs(left) => streams.extended(*stream, &[lease.token], now.plus(left)),
                Fate::Done => streams.ended(*stream, &[lease.token]),
                Fate::Lost => streams.revoke(shard, *stream, &[lease.token], Revoked::LeaseExpired),
            }
        }
        // Streams may hold a million leases, and no caller waits for this: three quarters of the time are left to deliveries.
        tokio::time::sleep(3 * begin.elapsed()).await;
    }
}
