//! What went wrong with a shard, and with which one.

use crate::domain::ShardName;
use crate::store;

/// What a call of a shard answers.
pub type Result<T> = std::result::Result<T, ShardError>;

/// A failed call of a shard. Nothing of it was applied, unless [`ShardError::outcome_unknown`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard}: {error}")]
pub struct ShardError {
    /// Which one.
    pub shard: ShardName,
    /// What its store said, or what is said for it.
    pub error: store::Error,
    /// Only other replicas are configured with it, so nobody here can ask it.
    pub is_elsewhere: bool,
}

// === impl ShardError ===

impl ShardError {
    /// Its store has answered so.
    #[must_use]
    pub fn new(shard: &ShardName, error: store::Error) -> ShardError {
        ShardError { shard: shard.clone(), error, is_elsewhere: false }
    }

    /// Only other replicas are configured with it; nothing was applied.
    #[must_use]
    pub fn elsewhere(shard: &ShardName) -> ShardError {
        let why = "another replica has it, and it is not configured here";
        ShardError { is_elsewhere: true, ..ShardError::unavailable(shard, why) }
    }

    /// It was not asked, or it refused, for this reason; nothing was applied.
    #[must_use]
    pub fn unavailable(shard: &ShardName, why: impl Into<String>) -> ShardError {
        ShardError::new(shard, store::Error::Unavailable(why.into()))
    }

    /// It was asked and nobody waited for the answer.
    #[must_use]
    pub fn unknown(shard: &ShardName, why: impl Into<String>) -> ShardError {
        ShardError::new(shard, store::Error::OutcomeUnknown(why.into()))
    }

    /// [`store::Error::outcome_unknown`].
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.error.outcome_unknown()
    }
}
