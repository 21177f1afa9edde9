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
}

// === impl ShardError ===

impl ShardError {
    /// It was not asked, or it refused, for this reason; nothing was applied.
    #[must_use]
    pub fn unavailable(shard: &ShardName, why: impl Into<String>) -> ShardError {
        ShardError { shard: shard.clone(), error: store::Error::Unavailable(why.into()) }
    }

    /// It was asked and nobody waited for the answer.
    #[must_use]
    pub fn unknown(shard: &ShardName, why: impl Into<String>) -> ShardError {
        ShardError { shard: shard.clone(), error: store::Error::Unknown(why.into()) }
    }

    /// [`store::Error::outcome_unknown`].
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.error.outcome_unknown()
    }
}
