//! What is asked of one job, and what became of it.

use tokio::time::Instant;

use crate::domain::engine::{Answer, Command, Deleted, Record, Refused, Settled};
use crate::domain::{Durability, Job, JobKey, ShardName, Time};

use super::{Enqueue, Rescheduled};

/// A command about one job, and how it is to be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
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
    pub until: Option<Instant>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The answer of the engine. Its times are those of the shard's clock.
    pub answer: Answer,
    /// The job as it lies there now, if the engine has written it; what a fast path writes is not read.
    pub record: Option<Box<Record>>,
    /// The store's time of it.
    pub now: Time,
    /// What the write has reached.
    pub durability: Durability,
}

// === impl Request ===

impl Request {
    /// Asks for `command` of the job of this key, for as long as it takes.
    #[must_use]
    pub fn new(key: JobKey, command: Command) -> Request {
        Request { key, command, owner: 0, durability: None, until: None }
    }

    /// Bytes of the bodies that it brings.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.command.bytes()
    }
}

// === impl Applied ===

impl Applied {
    /// Of an enqueue.
    ///
    /// # Panics
    /// When it answers another command, as do all of these.
    #[must_use]
    pub fn enqueued(&self) -> Enqueue {
        match self.answer {
            Answer::Enqueued(answer) => Enqueue::of(answer, answer.due.at, self.durability),
            _ => unreachable!("an enqueue is answered as one"),
        }
    }

    /// Of a settle.
    pub fn settled(&self) -> Result<Settled, Refused> {
        match self.answer {
            Answer::Settled(settled) => settled,
            _ => unreachable!("a settle is answered as one"),
        }
    }

    /// Of an extend: the new deadline.
    pub fn extended(&self) -> Result<Time, Refused> {
        match self.answer {
            Answer::Extended(extended) => extended.map(|deadline| deadline.at),
            _ => unreachable!("an extend is answered as one"),
        }
    }

    /// Of a delete.
    #[must_use]
    pub fn deleted(self) -> Option<Deleted> {
        match self.answer {
            Answer::Deleted(deleted) => deleted,
            _ => unreachable!("a delete is answered as one"),
        }
    }

    /// Of a reschedule of this job on this shard.
    pub fn rescheduled(self, key: JobKey, shard: ShardName) -> Rescheduled {
        match self.answer {
            Answer::Rescheduled(Err(state)) => Err(state),
            Answer::Rescheduled(Ok(_)) => Ok(self.job(key, shard)),
            _ => unreachable!("a reschedule is answered as one"),
        }
    }

    /// Of an unclaim or a redrive: whether it was done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.answer == Answer::Done(true)
    }

    /// The job as it is now, without its bodies.
    fn job(self, key: JobKey, shard: ShardName) -> Option<Job> {
        let now = self.now;
        self.record.and_then(|record| record.job(key, shard, now, Default::default()))
    }
}
