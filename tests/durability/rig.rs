//! What the clients of a rig share: where the server is, the jobs, the history, when to stop.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use ringq::pb::Durability;
use ringq::pb::queue_service_client::QueueServiceClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use xxhash_rust::xxh3::xxh3_128;

use crate::history::{History, Nanos};

/// The topic of all jobs.
pub(crate) const TOPIC: &str = "durability";

/// A call that has no answer by then has an unknown outcome.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// What a broken connection or a server in trouble looks like.
const UNKNOWN: [Code; 5] =
    [Code::Unavailable, Code::Unknown, Code::Internal, Code::Cancelled, Code::DeadlineExceeded];

const ENQUEUED: u8 = 1;
const ACKED: u8 = 2;

/// One service client.
pub(crate) type Queue = QueueServiceClient<Channel>;

/// The shared part of a rig.
#[derive(Debug)]
pub(crate) struct Rig {
    /// How many jobs there are.
    pub(crate) jobs: u32,
    /// Everything random comes from it.
    pub(crate) seed: u64,
    /// What producers ask for.
    pub(crate) asked: Durability,
    /// What was seen.
    pub(crate) history: History,
    /// Jobs whose enqueue was answered.
    pub(crate) enqueued: AtomicU32,
    /// Jobs that have an ack that was answered.
    pub(crate) done: AtomicU32,
    marks: Vec<AtomicU8>,
    enough: AtomicBool,
    stop: AtomicBool,
    address: String,
    trouble: Mutex<String>,
}

impl Rig {
    /// A rig for a server at `address`.
    pub(crate) fn new(jobs: u32, seed: u64, address: &str) -> Self {
        Self {
            jobs,
            seed,
            asked: Durability::Unspecified,
            history: History::new(),
            enqueued: AtomicU32::new(0),
            done: AtomicU32::new(0),
            marks: (0..jobs).map(|_| AtomicU8::new(0)).collect(),
            enough: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            address: address.to_owned(),
            trouble: Mutex::default(),
        }
    }

    /// The same, with producers that ask for so much.
    pub(crate) fn asking(self, asked: Durability) -> Self {
        Self { asked, ..self }
    }

    /// Asks producers for no new jobs; they still finish those that they have begun.
    pub(crate) fn no_more(&self) {
        self.enough.store(true, Relaxed);
    }

    /// Whether producers should begin no new jobs.
    pub(crate) fn enough(&self) -> bool {
        self.enough.load(Relaxed)
    }

    /// Asks all clients to stop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Whether clients should stop.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Counts the first answer to the enqueue of a job.
    pub(crate) fn enqueued(&self, job: u32) {
        if self.marks[job as usize].fetch_or(ENQUEUED, Relaxed) & ENQUEUED == 0 {
            self.enqueued.fetch_add(1, Relaxed);
        }
    }

    /// Counts the first answer to an ack of a job.
    pub(crate) fn acked(&self, job: u32) {
        if self.marks[job as usize].fetch_or(ACKED, Relaxed) & ACKED == 0 {
            self.done.fetch_add(1, Relaxed);
        }
    }

    /// How many jobs of which the enqueue was answered wait for an answered ack.
    pub(crate) fn open(&self) -> usize {
        self.marks.iter().filter(|mark| mark.load(Relaxed) == ENQUEUED).count()
    }

    /// A connection of its own that finds the server again whenever it is back.
    pub(crate) fn connect(&self) -> Queue {
        let address = &self.address;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        QueueServiceClient::new(endpoint.connect_timeout(Duration::from_secs(2)).connect_lazy())
    }

    /// An answer, or None when the outcome is unknown. A refusal is a fault of the rig or the
    /// server, never of the network, and ends the test.
    pub(crate) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Option<T> {
        let trouble = match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(Ok(response)) => return Some(response.into_inner()),
            Ok(Err(status)) => {
                assert!(UNKNOWN.contains(&status.code()), "refused: {status:?}");
                format!("{status:?}")
            }
            Err(_) => "no answer in time".to_owned(),
        };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        None
    }

    /// The last reason why an outcome was unknown, for people.
    pub(crate) fn trouble(&self) -> String {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The random numbers of one task.
    pub(crate) fn random(&self, task: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_add(task.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// The delay of a job, always the same: half have none, the rest up to 2 s.
    pub(crate) fn delay(&self, job: u32) -> Nanos {
        let mut random = self.random(u64::from(job) << 16 | 0xde1a);
        if random.random_bool(0.5) { 0 } else { random.random_range(1..2000) * 1_000_000 }
    }
}

/// The id of a job.
pub(crate) fn job_id(job: u32) -> String {
    format!("job-{job}")
}

/// The job with this id.
pub(crate) fn job_number(id: &str, jobs: u32) -> Option<u32> {
    id.strip_prefix("job-")?.parse().ok().filter(|job| *job < jobs)
}

/// The body of a job: its id and what only that id hashes to, of varying length.
pub(crate) fn job_body(job: u32) -> Bytes {
    let hash = xxh3_128(&job.to_be_bytes()).to_be_bytes();
    let mut body = job_id(job).into_bytes();
    for _ in 0..=job % 16 {
        body.extend_from_slice(&hash);
    }
    body.into()
}

/// A short random wait before a repeat.
pub(crate) async fn pause(random: &mut StdRng) {
    tokio::time::sleep(Duration::from_millis(random.random_range(2..30))).await;
}
