//! Looks at deadlines when they come: what waited for its transport for a third of its lease goes
//! back uncounted, so that no lease runs out in an outbox; and a lease that has run out without a
//! word is looked up in the store, because memory alone never says that it is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::{Time, limit};
use crate::scheduler::{Revoked, Scheduler};
use crate::store::LeaseRef;

use super::stream::Stream;
use super::streams::Streams;

/// Time between two looks at least, however many deadlines come.
const LOOKS_APART: Duration = Duration::from_millis(100);

/// Runs until `stop`.
pub(super) async fn run(scheduler: Scheduler, streams: Arc<Streams>, stop: CancellationToken) {
    let mut asking: BTreeMap<usize, AbortOnDropHandle<()>> = BTreeMap::new();
    let watching = async {
        loop {
            wait(&scheduler, &streams).await;
            streams.alarm.reset();
            asking.retain(|_, asked| !asked.is_finished());
            for (shard, leases) in look(&streams, scheduler.clock().now()) {
                // One call at a time, and beside the others: a shard may hang. What is not asked now
                // is found again by the next look.
                asking.entry(shard).or_insert_with(|| {
                    let ask = ask(scheduler.clone(), Arc::clone(&streams), shard, leases);
                    AbortOnDropHandle::new(tokio::spawn(ask))
                });
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

type Overdue = BTreeMap<usize, Vec<(Arc<Stream>, LeaseRef)>>;

/// Gives back what is stale; answers what is overdue, by shard.
fn look(streams: &Streams, now: Time) -> Overdue {
    let mut overdue = Overdue::new();
    for stream in streams.all() {
        let look = stream.look(now);
        streams.alarm.by(look.next);
        if !look.stale.is_empty() {
            let (stream, jobs) = (stream.name(), look.stale.len());
            tracing::info!(stream, jobs, "jobs go back from a stream that does not read");
        }
        streams.give_back(look.stale);
        for loose in look.overdue {
            overdue.entry(loose.shard).or_default().push((Arc::clone(&stream), loose.lease));
        }
    }
    overdue
}

/// Asks the shard about leases that seem to be over. When it does not answer, the next look does.
async fn ask(
    scheduler: Scheduler,
    streams: Arc<Streams>,
    shard: usize,
    leases: Vec<(Arc<Stream>, LeaseRef)>,
) {
    let shard = &scheduler.shards().all()[shard];
    for part in leases.chunks(limit::CALL_JOBS_MAX) {
        let refs = part.iter().map(|(_, lease)| lease.clone()).collect();
        let Ok(found) = scheduler.leases(shard, refs).await else { return };
        let now = scheduler.clock().now();
        for ((stream, lease), found) in part.iter().zip(found) {
            match found {
                Ok(found) => {
                    let left = found.deadline.0.saturating_sub(found.now.0);
                    stream.extended(lease.token, Time(now.0.saturating_add(left)));
                }
                Err(_) => streams.revoke(stream.id(), lease.token, Revoked::LeaseExpired),
            }
        }
    }
}
