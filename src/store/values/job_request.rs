//! What is asked of one job, and what became of it.

use tokio::time::Instant;

use crate::domain::engine::{
    Command, CommandReply, Deleted, LeaseRefusal, Record, SettleCommandReply,
};
use crate::domain::{Durability, Job, JobKey, ShardName, Time};

use super::{RescheduleResult, WriteResult};

/// A command about one job, and how it is to be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRequest {
    /// The job.
    pub key: JobKey,
    /// What is asked of it.
    pub command: Command,
    /// Of a settle: nonce of the replica whose stream has the lease, as the receipt or the lease says. That of the
    /// caller: nobody else has to hear of it.
    pub owner: u32,
    /// Of an enqueue: what to wait for once it is written, also where nothing has to be: what is there may have been
    /// written a moment ago. `None`: nothing is waited for.
    pub durability: Option<Durability>,
    /// Until when its caller waits: from then on it is not done any more. `None`: there is no such time.
    pub deadline: Option<Instant>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestResult {
    /// The answer of the engine. Its times are those of the shard's clock.
    pub reply: CommandReply,
    /// The job as it lies there now, if the engine has written it; what a fast path writes is not read.
    pub record: Option<Box<Record>>,
    /// The store's time of it.
    pub now: Time,
    /// What the write has reached.
    pub durability: Durability,
}

// === impl Request ===

impl JobRequest {
    /// Asks for `command` of the job of this key, for as long as it takes.
    #[must_use]
    pub fn new(key: JobKey, command: Command) -> JobRequest {
        JobRequest { key, command, owner: 0, durability: None, deadline: None }
    }

    /// Bytes of the bodies that it brings.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.command.bytes()
    }
}

// === impl Applied ===

impl RequestResult {
    /// Of an enqueue.
    ///
    /// # Panics
    /// When it answers another command, as do all of these.
    #[must_use]
    pub fn into_write_result(&self) -> WriteResult {
        match self.reply {
            CommandReply::Enqueued(answer) => {
                WriteResult::from_reply(answer, answer.due.at, self.durability)
            }
            _ => unreachable!("an enqueue is answered as one"),
        }
    }

    /// Of a settle.
    pub fn settle_result(&self) -> Result<SettleCommandReply, LeaseRefusal> {
        match self.reply {
            CommandReply::Settled(settled) => settled,
            _ => unreachable!("a settle is answered as one"),
        }
    }

    /// Of an extend: the new deadline.
    pub fn extend_result(&self) -> Result<Time, LeaseRefusal> {
        match self.reply {
            CommandReply::Extended(extended) => extended.map(|deadline| deadline.at),
            _ => unreachable!("an extend is answered as one"),
        }
    }

    /// Of a delete.
    #[must_use]
    pub fn into_delete_result(self) -> Option<Deleted> {
        match self.reply {
            CommandReply::Deleted(deleted) => deleted,
            _ => unreachable!("a delete is answered as one"),
        }
    }

    /// Of a reschedule of this job on this shard.
    pub fn into_reschedule_result(self, key: JobKey, shard: ShardName) -> RescheduleResult {
        match self.reply {
            CommandReply::Rescheduled(Err(state)) => Err(state),
            CommandReply::Rescheduled(Ok(_)) => Ok(self.job(key, shard)),
            _ => unreachable!("a reschedule is answered as one"),
        }
    }

    /// Of an unclaim or a redrive: whether it was done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.reply == CommandReply::Applied(true)
    }

    /// The job as it is now, without its bodies.
    fn job(self, key: JobKey, shard: ShardName) -> Option<Job> {
        let now = self.now;
        self.record.and_then(|record| record.job(key, shard, now, Default::default()))
    }
}
