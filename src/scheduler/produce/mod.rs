//! Verbs of producers.
//!
//! - `enqueue`, `shard_batch`: [`Producer::enqueue`], and the jobs that are written together
//! - `write`, `write_results`: the write of a batch, with the fallback when its shard fails
//! - `repeats`: enqueues that repeat an earlier one, which must not change its job
//! - `evictions`: jobs that leave full topics
//! - `jobs`: get, delete and reschedule of one job

mod enqueue;
mod evictions;
mod jobs;
mod repeats;
mod shard_batch;
mod write;
mod write_results;

use std::ops::Deref;

use super::Core;

pub use enqueue::{AcceptedJob, Draft, EnqueueError, FullTopic, WriteTerms};
pub(super) use evictions::Evictions;

/// Verbs of producers. Cheap to clone.
#[derive(Clone)]
pub struct Producer(pub(super) Core);

impl Deref for Producer {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}
