//! Errors of calls of shards, with the name of the shard.

use crate::domain::ShardName;
use crate::store;

/// Result of a call of a shard.
pub type Result<T> = std::result::Result<T, ShardError>;

/// A failed call of a shard. Nothing of it was applied, unless [`ShardError::outcome_unknown`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard}: {error}")]
pub struct ShardError {
    /// Name of the shard.
    pub shard: ShardName,
    /// Error of its store, or made here for a call that did not reach the store.
    pub error: store::Error,
    /// True if only other replicas are configured with the shard, so that this server cannot call it.
    pub is_elsewhere: bool,
}

// === impl ShardError ===

impl ShardError {
    /// Creates the error that the store of `shard` returned.
    #[must_use]
    pub fn new(shard: &ShardName, error: store::Error) -> ShardError {
        ShardError { shard: shard.clone(), error, is_elsewhere: false }
    }

    /// Creates the error of a shard that only other replicas are configured with; nothing was applied.
    #[must_use]
    pub fn elsewhere(shard: &ShardName) -> ShardError {
        let why = "the shard is configured on another replica, and not here";
        ShardError { is_elsewhere: true, ..ShardError::unavailable(shard, why) }
    }

    /// Creates the error of a shard that was not called, or refused, for the reason `why`; nothing was applied.
    #[must_use]
    pub fn unavailable(shard: &ShardName, why: impl Into<String>) -> ShardError {
        ShardError::new(shard, store::Error::Unavailable(why.into()))
    }

    /// Creates the error of a call without an awaited answer; it may have been applied.
    #[must_use]
    pub fn unknown(shard: &ShardName, why: impl Into<String>) -> ShardError {
        ShardError::new(shard, store::Error::OutcomeUnknown(why.into()))
    }

    /// Returns whether the call may have been applied, see [`store::Error::outcome_unknown`].
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.error.outcome_unknown()
    }
}
