//! What a write of jobs asks for and answers.

use tokio::time::Instant;

use crate::domain::{
    Durability, EnqueueOutcome, JobKey, Keep, OnConflict, Spec, State, Time, When,
};

/// A job to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its identity.
    pub key: JobKey,
    /// The lasting part of what is asked for.
    pub spec: Spec,
    /// When it becomes ready.
    pub due: When,
    /// 0 to 9; absent is 0, or unchanged under [`OnConflict::Reschedule`].
    pub priority: Option<u8>,
    /// Not running by then: EXPIRED. Never [`When::Now`].
    pub expire: Option<When>,
    /// What stays of it once it is finished.
    pub keep: Keep,
    /// What to do when the id is taken.
    pub on_conflict: OnConflict,
    /// The request, see [`conflict::request`](crate::domain::conflict::request); the last one applied makes a call a
    /// repeat.
    pub request: Option<u64>,
    /// What may lie under the id.
    pub prior: Prior,
    /// What to wait for once it is written, also where nothing has to be: what is there may have been
    /// written a moment ago. `None`: nothing is waited for.
    pub durability: Option<Durability>,
    /// Until when its caller waits: from then on it is not written any more. `None`: there is no such time.
    pub until: Option<Instant>,
}

/// What may lie under the id of a job that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prior {
    /// Anything, which [`OnConflict`] decides about.
    Anything,
    /// The job itself: it may have been written before, under an id that a server made. One that has ended and left
    /// nothing is unchanged, and not written again, and so is one that was deleted; where the store cannot know, it
    /// answers [`Unwritten`].
    Itself,
}

/// Why nothing was written under an id that a server made ([`Prior::Itself`]), of which there is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// It was made [`REPEAT_MAX`](crate::domain::limit::REPEAT_MAX) ago or earlier, so what has ended under it is not
    /// recalled.
    TooOld,
    /// It was made more than [`ID_AHEAD_MAX`](crate::domain::limit::ID_AHEAD_MAX) after now.
    Ahead,
    /// The store does not recall any more what has ended under ids that were made then: it was opened since, or too many
    /// have.
    Forgotten,
    /// Nothing was ever written under it, and the shard is to become empty.
    Draining,
}

/// What an enqueue found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// What it did; `None`: the id is taken and the policy is [`OnConflict::Reject`].
    pub outcome: Option<EnqueueOutcome>,
    /// The state found (unchanged, deferred, refused) or made.
    pub state: State,
    /// When the job (or, deferred, its next generation) becomes ready.
    pub due: Time,
    /// What the write has reached.
    pub durability: Durability,
    /// Nothing was written, for this reason, and the rest says nothing.
    pub unwritten: Option<Unwritten>,
}
