//! The history that the clients of a rig record: every call and every delivery, with times of CLOCK_MONOTONIC.
//!
//! A call without an answer has no event of its own: its outcome is unknown, never a failure.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Nanoseconds since the history began.
pub(crate) type Nanos = u64;

/// An action or an observation of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The first enqueue of this job is about to be sent.
    Enqueue { job: u32, at: Nanos, delay: Nanos },
    /// The job has a retry policy of its own.
    Retried { job: u32, policy: Policy },
    /// An enqueue of the job was answered OK, with this id.
    Enqueued { job: u32, at: Nanos, fsynced: bool, id: String },
    /// The job is about to be enqueued again although there was an answer: from now on it may be written anew.
    Again { job: u32, at: Nanos },
    /// An answer named this shard for the job.
    LiesOn { job: u32, shard: String },
    /// The ack of `after`, which also enqueues `job`, was answered OK. The answer does not contain the id of `job`.
    FollowsOn { job: u32, after: u32, at: Nanos },
    /// The job was delivered. None: a job that no client enqueued.
    Delivered(Delivered),
    /// The job's ack, first sent at `sent`, was answered OK. Delivery [`i32::MAX`]: the job was found ended, and the
    /// call that ended it is not known.
    Acked { job: u32, sent: Nanos, at: Nanos, delivery: i32, receipt: String },
    /// A nack that asks for a dead letter is about to be sent.
    Bury { job: u32, at: Nanos },
    /// The nack that asks for a dead letter was answered OK.
    Buried { job: u32, at: Nanos, delivery: i32, receipt: String },
    /// A nack of the job is about to be sent; `failed`: it counts as a failure.
    Nack { job: u32, at: Nanos, receipt: String, failed: bool },
    /// The job's nack was answered OK; it was sent at `sent` and asked for `delay`.
    Nacked { job: u32, sent: Nanos, delivery: i32, delay: Nanos },
    /// The job's nack as a failure, with the delay of its policy, was answered OK.
    Failed { job: u32, sent: Nanos, at: Nanos, delivery: i32, attempt: i32, receipt: String },
    /// The job's deletion is about to be sent.
    Delete { job: u32, at: Nanos },
    /// The job's deletion was answered OK.
    Deleted { job: u32, at: Nanos, was: Was },
    /// An extend was answered OK; it was sent at `sent` and asked for `lease` from then on.
    Extended { job: u32, sent: Nanos, receipt: String, lease: Nanos },
    /// This worker has opened a stream on that server.
    Opened { stream: u64, worker: usize, server: u32, at: Nanos },
    /// A stream ended, or the worker cancelled it.
    Ended { stream: u64, at: Nanos },
    /// All dead letters that the servers list when everything is done.
    DeadLetters { jobs: Vec<u32> },
    /// The power of all servers was cut: earlier leases may be lost, because a delivery does not wait for the disk.
    Cut { at: Nanos },
    /// This shard died, and may have held back what it answered meanwhile.
    HeldBack { shard: String, from: Nanos, to: Nanos },
    /// A server among several was killed.
    Killed { server: u32, at: Nanos },
    /// An action on a process or a connection, for human readers of the history.
    Nemesis { at: Nanos, what: String },
    /// The recorder itself stood still for `length` until `at`: its timestamps may be late by that much.
    Stalled { at: Nanos, length: Nanos },
}

/// Retry policy of a job: the wait after a failure grows from `initial` by this factor up to `longest`, and jitter
/// shortens it by at most this percentage; after this number of failures the job is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Policy {
    pub(crate) initial: Nanos,
    pub(crate) factor: u32,
    pub(crate) longest: Nanos,
    pub(crate) jitter_percent: u32,
    pub(crate) attempts_max: i32,
}

/// State of a job when it was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Was {
    /// Not due: neither leased nor on the way to a worker.
    Scheduled,
    /// Not ended.
    Open,
    /// Ended, or not there.
    Over,
}

/// A delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Delivered {
    /// Its number; `None`: its body names no job of the rig.
    pub(crate) job: Option<u32>,
    /// Its id.
    pub(crate) id: String,
    /// Time at which it was received.
    pub(crate) at: Nanos,
    /// Server that sent it.
    pub(crate) server: u32,
    /// Stream that brought it, a number of the rig.
    pub(crate) stream: u64,
    /// Time at which that stream was requested.
    pub(crate) stream_since: Nanos,
    /// Number of the delivery, by the server's count.
    pub(crate) delivery: i32,
    /// Number of the attempt: failures so far, by the server's count, plus one.
    pub(crate) attempt: i32,
    /// Its receipt.
    pub(crate) receipt: String,
    /// Remaining time of the lease when it was sent.
    pub(crate) lease: Nanos,
    /// Time by which the lease outlives its stream.
    pub(crate) grace: Nanos,
    /// True if the body was unchanged.
    pub(crate) intact: bool,
}

/// The recorder, shared by all clients of a rig.
#[derive(Debug)]
pub(crate) struct History {
    start: Instant,
    events: Mutex<Vec<Event>>,
}

impl History {
    /// Creates an empty history that begins now.
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Nanos {
        nanos(self.start.elapsed())
    }

    /// Adds events.
    pub(crate) fn record(&self, events: impl IntoIterator<Item = Event>) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
    }

    /// Returns a copy of all events.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes all events as JSON lines.
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for event in self.events() {
            serde_json::to_writer(&mut file, &event)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    }
}

/// Converts a duration to the unit of the history.
pub(crate) fn nanos(duration: std::time::Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).expect("less than 584 years")
}
