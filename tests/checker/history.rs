//! What the clients of a rig saw: every call and every delivery, with times of CLOCK_MONOTONIC.
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

/// One thing that a client did or saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The first call that asks for this job is about to be sent.
    Enqueue { job: u32, at: Nanos, delay: Nanos },
    /// The job has a policy of its own, by which it is retried.
    Retried { job: u32, policy: Policy },
    /// A call that asks for it was answered OK, with this id.
    Enqueued { job: u32, at: Nanos, fsynced: bool, id: String },
    /// It is about to be asked for again although there was an answer: from now on it may be written anew.
    Again { job: u32, at: Nanos },
    /// It lies on this shard, said an answer.
    LiesOn { job: u32, shard: String },
    /// The ack of `after` was answered OK, which enqueues `job`, too. Its id is not told then.
    FollowsOn { job: u32, after: u32, at: Nanos },
    /// It arrived. None: a job that nobody asked for.
    Delivered(Delivered),
    /// Its ack, first sent at `sent`, was answered OK. As delivery [`i32::MAX`]: it was found to have ended, by which call is not known.
    Acked { job: u32, sent: Nanos, at: Nanos, delivery: i32, receipt: String },
    /// A nack that asks for a dead letter is about to be sent.
    Bury { job: u32, at: Nanos },
    /// The nack that asks for a dead letter was answered OK.
    Buried { job: u32, at: Nanos, delivery: i32, receipt: String },
    /// A nack is about to be sent; `failed`: it counts as a failure.
    Nack { job: u32, at: Nanos, receipt: String, failed: bool },
    /// Its nack was answered OK; it was sent at `sent` and asked for `delay`.
    Nacked { job: u32, sent: Nanos, delivery: i32, delay: Nanos },
    /// Its nack as a failure, which left the delay to the policy of the job, was answered OK.
    Failed { job: u32, sent: Nanos, at: Nanos, delivery: i32, attempt: i32, receipt: String },
    /// Its deletion is about to be asked for.
    Delete { job: u32, at: Nanos },
    /// Its deletion was answered OK.
    Deleted { job: u32, at: Nanos, was: Was },
    /// An extend was answered OK; it was sent at `sent` and asked for `lease` from then on.
    Extended { job: u32, sent: Nanos, receipt: String, lease: Nanos },
    /// This worker has got a stream on that server.
    Opened { stream: u64, worker: usize, server: u32, at: Nanos },
    /// A stream ended, or the worker let go of it.
    Ended { stream: u64, at: Nanos },
    /// All dead letters that the servers list when everything is done.
    DeadLetters { jobs: Vec<u32> },
    /// The power of all servers was cut: leases of before may be forgotten, as nobody waits for the disk on the way
    /// to a worker.
    Cut { at: Nanos },
    /// This shard died, and may have held back what it answered meanwhile.
    HeldBack { shard: String, from: Nanos, to: Nanos },
    /// One of several servers was killed.
    Killed { server: u32, at: Nanos },
    /// Something was done to a process or a connection, for people who read the history.
    Nemesis { at: Nanos, what: String },
    /// Until then the recorder itself stood still for so long: what it dates may be that much older.
    Stalled { at: Nanos, length: Nanos },
}

/// How a job is retried: the wait after a failure grows from `initial` on by this factor up to `longest`, and is
/// shortened by so much of a hundred at most; after so many failures the job is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Policy {
    pub(crate) initial: Nanos,
    pub(crate) factor: u32,
    pub(crate) longest: Nanos,
    pub(crate) jitter_percent: u32,
    pub(crate) attempts_max: i32,
}

/// What a job was when it was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Was {
    /// Not due: in nobody's hands, nor on the way there.
    Scheduled,
    /// Not ended.
    Open,
    /// Ended, or not there.
    Over,
}

/// One delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Delivered {
    /// The job. None: its body names none of ours.
    pub(crate) job: Option<u32>,
    /// Its id.
    pub(crate) id: String,
    /// When it was received.
    pub(crate) at: Nanos,
    /// Which server sent it.
    pub(crate) server: u32,
    /// The stream that brought it, a number of the rig.
    pub(crate) stream: u64,
    /// When the stream that brought it was asked for.
    pub(crate) stream_since: Nanos,
    /// Which hand-over it was, by the server's count.
    pub(crate) delivery: i32,
    /// Which attempt it was: failures so far, by the server's count, and one.
    pub(crate) attempt: i32,
    /// Its receipt.
    pub(crate) receipt: String,
    /// What was left of the lease when it was sent.
    pub(crate) lease: Nanos,
    /// How long the lease outlives its stream.
    pub(crate) grace: Nanos,
    /// Whether the body was the one that was sent.
    pub(crate) intact: bool,
}

/// The recorder, shared by all clients of a rig.
#[derive(Debug)]
pub(crate) struct History {
    start: Instant,
    events: Mutex<Vec<Event>>,
}

impl History {
    /// An empty history that begins now.
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Nanos {
        nanos(self.start.elapsed())
    }

    /// Adds events.
    pub(crate) fn record(&self, events: impl IntoIterator<Item = Event>) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
    }

    /// A copy of all events.
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

/// A duration as the history counts it.
pub(crate) fn nanos(duration: std::time::Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).expect("less than 584 years")
}
