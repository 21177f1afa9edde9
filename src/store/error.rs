//! What can go wrong with a shard. The one question that every caller asks is answered by
//! [`Error::outcome_unknown`]: do we know that it did not happen?

/// A failed call. Nothing of it was applied, unless [`Error::outcome_unknown`] or [`Error::Corrupt`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The shard has no room; nothing was written.
    #[error("it is full: {0}")]
    Full(String),
    /// The shard does not answer or refuses; nothing was written.
    #[error("{0}")]
    Unavailable(String),
    /// Its caller had stopped waiting by the time its turn came; nothing was written.
    #[error("{0}")]
    DeadlineExceeded(String),
    /// The call went out and no answer came back: it may have been applied.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// Other servers changed the job each time before it could be written; nothing was written.
    #[error("{0}")]
    Contention(String),
    /// What is stored does not make sense. What a script had written when it met that stays, so a repeat does not
    /// help before somebody has looked.
    #[error("it is corrupt: {0}")]
    Corrupt(String),
}

// === impl Error ===

impl Error {
    /// Whether the call may have been applied.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Error::OutcomeUnknown(_) => true,
            Error::Full(_)
            | Error::Unavailable(_)
            | Error::DeadlineExceeded(_)
            | Error::Contention(_)
            | Error::Corrupt(_) => false,
        }
    }

    /// Whether a part of the call may have been applied, though the shard has answered.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        self.outcome_unknown() || matches!(self, Error::Corrupt(_))
    }

    /// Whether it says something about the shard as a whole, not about the one job that was asked for.
    #[must_use]
    pub fn is_shard_failure(&self) -> bool {
        match self {
            Error::Unavailable(_) | Error::OutcomeUnknown(_) => true,
            Error::Full(_)
            | Error::DeadlineExceeded(_)
            | Error::Contention(_)
            | Error::Corrupt(_) => false,
        }
    }

    /// What the shard itself answered, without the class of the error.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Error::Full(text)
            | Error::Unavailable(text)
            | Error::DeadlineExceeded(text)
            | Error::OutcomeUnknown(text)
            | Error::Contention(text)
            | Error::Corrupt(text) => text,
        }
    }

    /// Stable name, as in metrics and error details.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Full(_) => "STORE_FULL",
            Error::Unavailable(_) | Error::DeadlineExceeded(_) => "SHARD_UNAVAILABLE",
            Error::OutcomeUnknown(_) => "OUTCOME_UNKNOWN",
            Error::Contention(_) => "CONTENTION",
            Error::Corrupt(_) => "STORE_CORRUPT",
        }
    }
}
