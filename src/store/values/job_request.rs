//! A request for one job, and its result.

use tokio::time::Instant;

use crate::domain::engine::{
    Command, CommandReply, Deleted, EnqueueCommandReply, LeaseRefusal, NewJob, Record,
    SettleCommandReply,
};
use crate::domain::{Durability, Job, JobKey, ShardName, State, Time};

/// A command for one job, with the conditions of its execution.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRequest {
    /// The job.
    pub key: JobKey,
    /// The command.
    pub command: Command,
    /// For a settle: nonce of the replica whose stream has the lease, from the receipt or the lease. With the
    /// caller's own nonce no other replica is notified.
    pub owner: u32,
    /// For an enqueue: the durability to wait for after the write, also if nothing has to be written: the record
    /// found may be only a moment old. `None`: does not wait.
    pub durability: Option<Durability>,
    /// Deadline of the caller: after it the command is not executed any more. `None`: no deadline.
    pub deadline: Option<Instant>,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestResult {
    /// Reply of the engine. Its times are those of the shard's clock.
    pub reply: CommandReply,
    /// The job as stored now, if the engine has written it. The record that a fast path writes is not read.
    pub record: Option<Box<Record>>,
    /// The store's time of the request.
    pub now: Time,
    /// Durability that the write has reached.
    pub durability: Durability,
}

// === impl JobRequest ===

impl JobRequest {
    /// Creates a request without a deadline.
    #[must_use]
    pub fn new(key: JobKey, command: Command) -> JobRequest {
        JobRequest { key, command, owner: 0, durability: None, deadline: None }
    }

    /// Returns the bytes of the bodies in the command.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.command.bytes()
    }
}

impl From<NewJob> for JobRequest {
    fn from(NewJob { key, enqueue }: NewJob) -> JobRequest {
        JobRequest::new(key, Command::Enqueue(enqueue))
    }
}

// === impl RequestResult ===

impl RequestResult {
    /// Returns the reply to an enqueue, its due time as written.
    ///
    /// # Panics
    /// Panics if the reply is for another command. The same holds for the other conversions of this type.
    #[must_use]
    pub fn enqueue_result(&self) -> EnqueueCommandReply {
        match self.reply {
            CommandReply::Enqueued(enqueued) => enqueued,
            _ => unreachable!("an enqueue is answered as one"),
        }
    }

    /// Returns the result of a settle.
    pub fn settle_result(&self) -> Result<SettleCommandReply, LeaseRefusal> {
        match self.reply {
            CommandReply::Settled(settled) => settled,
            _ => unreachable!("a settle is answered as one"),
        }
    }

    /// Returns the new deadline of an extended lease.
    pub fn extend_result(&self) -> Result<Time, LeaseRefusal> {
        match self.reply {
            CommandReply::Extended(extended) => extended.map(|deadline| deadline.at),
            _ => unreachable!("an extend is answered as one"),
        }
    }

    /// Returns the result of a delete or of a purge.
    #[must_use]
    pub fn into_delete_result(self) -> Option<Deleted> {
        match self.reply {
            CommandReply::Deleted(deleted) => deleted,
            _ => unreachable!("a delete is answered as one"),
        }
    }

    /// Returns whether a job was rescheduled, or the state that does not allow it.
    pub fn reschedule_result(&self) -> Result<bool, State> {
        match self.reply {
            CommandReply::Rescheduled(rescheduled) => rescheduled,
            _ => unreachable!("a reschedule is answered as one"),
        }
    }

    /// Returns whether an unclaim, redrive, detach or adopt was applied.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.reply.is_applied()
    }

    /// Returns the job as stored now, without its bodies; `None`: the engine has not written it.
    #[must_use]
    pub fn job(self, key: JobKey, shard: ShardName) -> Option<Job> {
        let now = self.now;
        self.record.and_then(|record| record.job(key, shard, now, Default::default()))
    }
}
