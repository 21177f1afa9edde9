//! Pull: a stream of one message, for callers without streaming. Its leases outlive the call once its response was
//! sent.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use crate::domain::{Token, limit};

use crate::dispatch::dispatch_core::DispatchCore;
use crate::dispatch::streams::ledger::{PullProgress, StreamMode};
use crate::dispatch::streams::stream::Stream;
use crate::dispatch::{JobDelivery, StreamOpenError, StreamOptions, TopicPattern};

/// Longest wait of a pull with `wait` zero for a shard that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait of a pull that has jobs for shards whose claims are in flight.
const GATHER_TIMEOUT: Duration = Duration::from_millis(50);

/// Options of a pull, checked and within the limits.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Exact names and trailing-wildcard globs, served in turn.
    pub topics: Vec<TopicPattern>,
    /// Number of jobs, at most.
    pub max_jobs: u32,
    /// Lease of jobs that name none.
    pub lease: Duration,
    /// True: the worker has chosen the lease, so it goes before that of the topic.
    pub names_lease: bool,
    /// Worker id; may be empty.
    pub worker_id: Arc<str>,
    /// Time to wait for a job; zero: return the jobs that are ready now.
    pub wait: Duration,
    /// Address of the peer, for display.
    pub peer: String,
    /// User agent of the peer, for display.
    pub user_agent: String,
}

/// Jobs of a pull on their way to the caller. If dropped before [`PullHandover::confirm`], they have reached no
/// client and go back at once, uncounted.
pub struct PullHandover {
    core: Arc<DispatchCore>,
    stream: Arc<Stream>,
    leases: Vec<Token>,
    done: AtomicBool,
    /// Slot of the pull among streams and pulls; freed when the response was read or dropped.
    _slot: Option<OwnedSemaphorePermit>,
}

/// Pull in flight. If dropped before its end, its claimed jobs have reached no client.
struct Pull {
    core: Arc<DispatchCore>,
    stream: Arc<Stream>,
    ended: bool,
    slot: Option<OwnedSemaphorePermit>,
}

/// Runs a pull: returns the jobs that are there as soon as there are any.
pub(in crate::dispatch) async fn pull(
    core: Arc<DispatchCore>,
    options: PullOptions,
) -> Result<(Vec<JobDelivery>, PullHandover), StreamOpenError> {
    let wait = options.wait;
    let (stream, slot) = core.open(stream_options(options), StreamMode::Pull)?;
    let mut pull = Pull { core, stream, ended: false, slot: Some(slot) };
    let mut patience = pin!(tokio::time::sleep(if wait.is_zero() { ANSWER_TIMEOUT } else { wait }));
    let mut gathering = pin!(None);
    let deliveries = poll_fn(|cx| {
        pull.stream.register(cx.waker());
        // Read before the timer: jobs granted before the last response must not be missed.
        let progress = pull.stream.ledger().pull_progress();
        let mut over = patience.as_mut().poll(cx).is_ready();
        over |= match progress {
            PullProgress::Nothing => false,
            PullProgress::Exhausted => wait.is_zero(),
            PullProgress::Some => {
                if gathering.is_none() {
                    gathering.set(Some(tokio::time::sleep(GATHER_TIMEOUT)));
                }
                gathering.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready())
            }
            PullProgress::All => true,
        };
        if over { Poll::Ready(pull.take()) } else { Poll::Pending }
    });
    let (deliveries, leases) = deliveries.await;
    pull.end();
    let (core, stream) = (Arc::clone(&pull.core), Arc::clone(&pull.stream));
    let (done, slot) = (AtomicBool::new(false), pull.slot.take());
    Ok((deliveries, PullHandover { core, stream, leases, done, _slot: slot }))
}

/// Builds the stream options by which the feeds serve a pull.
fn stream_options(options: PullOptions) -> StreamOptions {
    StreamOptions {
        topics: options.topics,
        topic_weights: Vec::new(),
        max_in_flight: options.max_jobs,
        max_in_flight_bytes: limit::MESSAGE_BYTES_MAX as u64,
        max_batch: options.max_jobs,
        lease: options.lease,
        names_lease: options.names_lease,
        heartbeat: Duration::MAX,
        max_jobs: None,
        idle_timeout: None,
        orphan_grace: Duration::ZERO,
        worker_id: options.worker_id,
        identity: None,
        continues: None,
        peer: options.peer,
        user_agent: options.user_agent,
    }
}

// === impl Pull ===

impl Pull {
    /// Takes the jobs that are there, and their leases.
    fn take(&self) -> (Vec<JobDelivery>, Vec<Token>) {
        let now = self.core.now();
        let mut taken = self.stream.take_message(now);
        self.core.streams.queue_returns(std::mem::take(&mut taken.late));
        let leases = taken.jobs.iter().map(|unsent| unsent.job.token).collect();
        let deliveries = self.stream.batch(taken, now).deliveries;
        self.core.count_deliveries(&deliveries, "pull");
        (deliveries, leases)
    }

    fn end(&mut self) {
        self.ended = true;
        self.core.end_stream(&self.stream);
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        if !self.ended {
            self.core.streams.break_stream(&self.stream);
        }
    }
}

// === impl PullHandover ===

impl PullHandover {
    /// Confirms that the response was sent: its leases now last until they are settled or expire.
    pub fn confirm(&self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

impl Drop for PullHandover {
    fn drop(&mut self) {
        if !*self.done.get_mut() {
            self.core.streams.return_undelivered(&self.stream, &self.leases);
        }
    }
}

impl fmt::Debug for PullHandover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PullHandover { leases, done, .. } = self;
        f.debug_struct("Handover").field("leases", leases).field("done", done).finish()
    }
}
